"""The thread that writes frames to the pipe, so that delivery never delays a step.

It also makes the frames that take time to make: the texts of a step's tokens. So while the main thread computes a step,
this thread delivers the previous one.
"""

from __future__ import annotations

import os
import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator
from queue import SimpleQueue
from typing import BinaryIO, Protocol

from edgeagent.process_settings import request_short_time_slices
from edgeagent.worker.protocol import FromWorker, encode


class UnmadeFrames(ABC):
    """Frames that the writer's thread makes when it writes them."""

    @abstractmethod
    def make(self) -> Iterator[FromWorker]:
        """Make the frames."""


class Frames(Protocol):
    """An object that accepts frames for the daemon."""

    def put(self, frame: FromWorker, /) -> None: ...


class Outlet(Protocol):
    """An object that accepts frames for the daemon, and also frames that are still to be made."""

    def put(self, frame: FromWorker | UnmadeFrames, /) -> None: ...


class FrameWriter(threading.Thread):
    """The thread that writes the items of `frames` to the pipe, in order. None ends the thread.

    If the daemon is gone, or if a frame cannot be made, it ends the process.
    """

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(name="writer", daemon=True)
        self.frames: SimpleQueue[FromWorker | UnmadeFrames | None] = SimpleQueue()
        self._stream = stream  # keeps the descriptor open
        self._descriptor = stream.fileno()

    def run(self) -> None:
        request_short_time_slices()
        try:
            while (item := self.frames.get()) is not None:
                for frame in item.make() if isinstance(item, UnmadeFrames) else (item,):
                    write(self._descriptor, encode(frame))
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def write_now(self, frame: FromWorker) -> None:
        """Write a frame after those that are queued, and wait until it is written."""
        written = _Written(frame)
        self.frames.put(written)
        written.is_written.get()


class _Written(UnmadeFrames):
    """A frame whose writing is awaited."""

    def __init__(self, frame: FromWorker) -> None:
        self._frame = frame
        self.is_written: SimpleQueue[None] = SimpleQueue()

    def make(self) -> Iterator[FromWorker]:
        yield self._frame
        self.is_written.put(None)


def write(descriptor: int, encoded: bytes) -> None:
    """Write a whole frame; end this process if the daemon is gone."""
    left = memoryview(encoded)
    try:
        while left:
            left = left[os.write(descriptor, left) :]
    except OSError:
        os._exit(0)
