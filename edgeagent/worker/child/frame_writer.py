"""The thread that writes frames to the pipe, so that delivery never delays a step.

It also makes the frames that take time to make: the texts of a step's tokens. So while the main thread computes a step,
this thread delivers the previous one.
"""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from queue import SimpleQueue
from typing import BinaryIO, Protocol

from edgeagent.process_settings import request_short_time_slices
from edgeagent.worker.protocol import FromWorker, encode

MakeFrames = Callable[[], Iterable[FromWorker]]
"""A function that makes frames. The writer's thread calls it when it writes them."""


class Frames(Protocol):
    """An object that accepts frames for the daemon."""

    def put(self, frame: FromWorker, /) -> None: ...


class Outlet(Protocol):
    """An object that accepts frames for the daemon, and also frames that are still to be made."""

    def put(self, frame: FromWorker | MakeFrames, /) -> None: ...


class FrameWriter(threading.Thread):
    """The thread that writes the items of `frames` to the pipe, in order. None ends the thread.

    If the daemon is gone, or if a frame cannot be made, it ends the process.
    """

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(name="writer", daemon=True)
        self.frames: SimpleQueue[FromWorker | MakeFrames | None] = SimpleQueue()
        self._stream = stream  # keeps the descriptor open
        self._descriptor = stream.fileno()

    def run(self) -> None:
        request_short_time_slices()
        try:
            while (item := self.frames.get()) is not None:
                for frame in item() if callable(item) else (item,):
                    write(self._descriptor, encode(frame))
                del item  # it may hold a request that has ended, with its media
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def write_now(self, frame: FromWorker) -> None:
        """Write a frame after those that are queued, and wait until it is written."""
        is_written: SimpleQueue[None] = SimpleQueue()

        def make() -> Iterator[FromWorker]:
            yield frame
            is_written.put(None)

        self.frames.put(make)
        is_written.get()


def wait_until_written(frames: Outlet, most_s: float) -> None:
    """Wait until the writer has written all frames that were put so far, but at most `most_s` seconds.

    A thread that does not wait keeps the interpreter, and so delays the writer, until it computes.
    """
    is_written = threading.Event()

    def mark() -> Iterator[FromWorker]:
        is_written.set()
        yield from ()

    frames.put(mark)
    is_written.wait(most_s)


def write(descriptor: int, encoded: bytes) -> None:
    """Write a whole frame; end this process if the daemon is gone."""
    left = memoryview(encoded)
    try:
        while left:
            left = left[os.write(descriptor, left) :]
    except OSError:
        os._exit(0)
