"""Writes frames to the pipe on a separate thread. The main thread writes directly if that cannot block.

If all frames went through the writer thread, each step's tokens would wait until the next step has begun, because the
main thread releases the interpreter lock (GIL) only then. The two threads never write at the same time. Before a
write, a thread takes the only item of the queue `FrameWriter.permit`; after the write, it puts the item back.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from queue import Empty, SimpleQueue
from typing import BinaryIO, Protocol

from edgeagent.worker.protocol import FromWorker, encode

# A pipe that is ready on Linux accepts at least this many bytes. POSIX and macOS guarantee only 512.
MAX_DIRECT_BYTES = 4096


class Frames(Protocol):
    """An object that accepts frames for the daemon: a queue, or an Outlet."""

    def put(self, frame: FromWorker, /) -> None: ...


class FrameWriter(threading.Thread):
    """The thread that writes the items of `frames` to the pipe: messages and encoded messages. None ends the thread."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(name="writer", daemon=True)
        self.frames: SimpleQueue[FromWorker | bytes | None] = SimpleQueue()
        self.num_written = 0
        self.permit: SimpleQueue[None] = SimpleQueue()
        self.permit.put(None)
        self.descriptor = stream.fileno()
        self._stream = stream  # keeps the descriptor open

    def run(self) -> None:
        while (frame := self.frames.get()) is not None:
            self.permit.get()
            write(self.descriptor, frame if isinstance(frame, bytes) else encode(frame))
            self.permit.put(None)
            if isinstance(frame, bytes):
                self.num_written += 1


class Outlet:
    """Sends the main thread's frames in order.

    A frame is written at once if that cannot block. Otherwise it is queued for the FrameWriter.
    """

    def __init__(self, writer: FrameWriter) -> None:
        self._writer = writer
        self._num_left = 0
        self._poll = None
        if sys.platform != "win32":
            self._poll = select.poll()
            self._poll.register(writer.descriptor, select.POLLOUT)

    def put(self, frame: FromWorker) -> None:
        """Send a frame without waiting for the pipe's reader."""
        encoded = encode(frame)
        if not self._is_written(encoded):
            self._num_left += 1
            self._writer.frames.put(encoded)

    def _is_written(self, encoded: bytes) -> bool:
        writer = self._writer
        if len(encoded) > MAX_DIRECT_BYTES or writer.num_written != self._num_left:
            return False
        try:
            writer.permit.get_nowait()
        except Empty:
            return False
        try:
            if self._poll is None or not self._poll.poll(0):
                return False
            write(writer.descriptor, encoded)
        finally:
            writer.permit.put(None)
        return True


def write(descriptor: int, encoded: bytes) -> None:
    """Write a whole frame; end this process if the daemon is gone."""
    left = memoryview(encoded)
    try:
        while left:
            left = left[os.write(descriptor, left) :]
    except OSError:
        os._exit(0)
