"""Output that never blocks the daemon: a thread writes the lines; if the output is not read, they are dropped."""

from __future__ import annotations

import contextlib
import io
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TextIO

MAX_WAITING_LINES = 1000
# How long the last lines may take at the end; a pipe that is full may never take them.
CLOSE_S = 0.5


class Output(Protocol):
    """What lines can be written to: a Console, or any text stream."""

    def write(self, text: str, /) -> object: ...

    def flush(self) -> object: ...


def dropped_lines(num: int) -> str:
    """Return the line that replaces dropped lines."""
    return f"({num} lines were dropped: the output was not read)"


class Console:
    """A text stream in front of another. Its thread alone writes to that one, past its buffer.

    `describe` makes the line that says how many were dropped. Past the buffer, since the interpreter's last flush would
    wait for a buffer that a blocked thread holds, and abort.
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
        """Queue a text, best a whole line, to be written soon."""
        try:
            self._waiting.put_nowait(text)
        except queue.Full:
            self._num_dropped += 1
            # Imported here for a quick start; other modules have imported it by the time that lines are dropped.
            from edgeagent.metrics import log_lines_dropped_total

            log_lines_dropped_total.inc()

    def flush(self) -> None:
        """Do nothing: queued lines are written by the thread."""

    def finish(self) -> None:
        """Wait a moment for queued lines to be written, and end the thread."""
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait(None)
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while (text := self._waiting.get()) is not None:
            # The reader of the lines may have gone; the daemon stays.
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
    """Provide a Console in front of a stream, and finish it at the end."""
    lines = Console(stream, describe)
    try:
        yield lines
    finally:
        lines.finish()


def _raw(stream: TextIO) -> io.RawIOBase | None:
    """Return an unbuffered twin of a stream, None where it is no file (a test's)."""
    try:
        return open(stream.fileno(), "wb", buffering=0, closefd=False)
    except (OSError, ValueError):
        return None
