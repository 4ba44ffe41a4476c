"""Text output that never blocks the daemon. A thread writes the lines; if it falls behind, lines are dropped."""

from __future__ import annotations

import contextlib
import io
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO

MAX_WAITING_LINES = 1000
# How long `finish` waits until the last lines are written. If a full pipe is never read, they cannot be written.
CLOSE_S = 0.5


class Output(Protocol):
    """Where lines are written: a Console, or any text stream."""

    def write(self, text: str, /) -> object: ...

    def flush(self) -> object: ...


def dropped_lines(num: int) -> str:
    """Return the line that is printed in place of `num` dropped lines."""
    return f"({num} lines were dropped: the output was not read)"


class Console:
    """A text stream whose writes never block. It queues the lines, and a thread writes them to `stream`.

    The thread bypasses the buffer of `stream`. If the thread blocked while it held the buffer, the interpreter's flush
    at exit would wait for the buffer and abort. `describe` of the constructor gets the number of dropped lines, and
    returns the line that reports it.
    """

    def __init__(self, stream: TextIO, describe: Callable[[int], str] = dropped_lines) -> None:
        self._stream = stream
        self._describe = describe
        self._raw = _raw(stream)
        self._waiting: queue.Queue[str | None] = queue.Queue(MAX_WAITING_LINES)
        self._num_dropped = 0
        self._thread = threading.Thread(target=self._run, name="console", daemon=True)
        self._thread.start()

    def write(self, text: str, /) -> None:
        """Queue a text, preferably a whole line, to be written soon. Drop it if the queue is full."""
        try:
            self._waiting.put_nowait(text)
        except queue.Full:
            self._num_dropped += 1
            # Imported here for a fast start. Other modules have imported it long before lines are dropped.
            from edgeagent.metrics import log_lines_dropped_total

            log_lines_dropped_total.inc()

    def flush(self) -> None:
        """Do nothing, since the thread writes queued lines."""

    def finish(self) -> None:
        """Wait at most CLOSE_S until the thread has written the queued lines and has ended.

        If the queue is full, return at once. The thread then runs until the process ends.
        """
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while (text := self._waiting.get()) is not None:
            # The reader of the lines may be gone. The daemon must not stop for that.
            with contextlib.suppress(OSError, ValueError):
                if self._num_dropped:
                    num_dropped, self._num_dropped = self._num_dropped, 0
                    self._put(f"{self._describe(num_dropped)}\n")
                self._put(text)

    def _put(self, text: str) -> None:
        if self._raw is None:
            self._stream.write(text)
            self._stream.flush()
            return
        left = text.encode(self._stream.encoding, "backslashreplace")
        while left:
            left = left[self._raw.write(left) or 0 :]


@contextmanager
def console(stream: TextIO, describe: Callable[[int], str] = dropped_lines) -> Iterator[Console]:
    """Yield a Console that writes to `stream`, and finish it at the end."""
    lines = Console(stream, describe)
    try:
        yield lines
    finally:
        lines.finish()


def _raw(stream: TextIO) -> io.RawIOBase | None:
    """Return an unbuffered writer for a stream's file; None if the stream is not a file, as in a test."""
    try:
        return open(stream.fileno(), "wb", buffering=0, closefd=False)
    except (OSError, ValueError):
        return None
