"""What the daemon prints. Its addresses and each model that is ready go to stdout, everything else to stderr.

Printing never blocks the daemon: a thread writes the lines, and if it falls behind, lines are dropped.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import queue
import shutil
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from edgeagent.runtime_file import Runtime
from edgeagent.state_files import NO_FOLLOW
from edgeagent.types import ModelInfo, ModelStatus
from edgeagent.units import load_stage

logger = logging.getLogger(__name__)

MAX_WAITING_LINES = 1000
# How long `finish` waits until the last lines are written. If a full pipe is never read, they cannot be written.
CLOSE_S = 0.5


def dropped_lines(num: int) -> str:
    """Return the line that is printed in place of `num` dropped lines."""
    return f"({num} lines were dropped: the output was not read)"


class Console:
    """A text stream whose writes never block. It queues the lines, and a thread writes them to `stream`.

    The thread bypasses the buffer of `stream`. If the thread blocked while it held the buffer, the interpreter's flush
    at exit would wait for the buffer and abort. `describe` of the constructor gets the number of dropped lines, and
    returns the line that reports it.
    """

    def __init__(self, stream: TextIO | LogFile, describe: Callable[[int], str] = dropped_lines) -> None:
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
def console(stream: TextIO | LogFile, describe: Callable[[int], str] = dropped_lines) -> Iterator[Console]:
    """Yield a Console that writes to `stream`, and finish it at the end."""
    lines = Console(stream, describe)
    try:
        yield lines
    finally:
        lines.finish()


MAX_LOG_BYTES = 8 << 20


class LogFile(io.TextIOBase):
    """A log file, readable by this user only. At MAX_LOG_BYTES it is renamed to NAME.1, and a new file begins.

    Only one thread may write to it. If the file cannot be opened, raise OSError; the next write tries again.
    """

    encoding = "utf-8"

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file = self._open()

    def write(self, text: str, /) -> int:
        if self._file.closed or self._file.tell() >= MAX_LOG_BYTES:
            self._file.close()  # Windows renames no open file
            # It fails there while another program reads the file. Then the file grows until the next try.
            with suppress(OSError):
                if self._path.stat().st_size >= MAX_LOG_BYTES:
                    self._path.replace(self._path.with_name(f"{self._path.name}.1"))
            self._file = self._open()
        self._file.write(text.encode(errors="backslashreplace"))
        return len(text)

    def close(self) -> None:
        self._file.close()
        super().close()

    def _open(self) -> io.FileIO:
        return io.FileIO(os.open(self._path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | NO_FOLLOW, 0o600), "ab")


def _raw(stream: TextIO | LogFile) -> io.RawIOBase | None:
    """Return an unbuffered writer for a stream's file; None if the stream is not a file, as in a test."""
    try:
        return open(stream.fileno(), "wb", buffering=0, closefd=False)
    except (OSError, ValueError):
        return None


class ConsoleReporter:
    """Receives the daemon's events, and prints plain lines.

    `loading` is called whenever the progress of a load changes, the other methods once for each event. On a terminal,
    the progress is one line that is overwritten. `is_terminal` says whether `out` and `err` are both terminals.
    """

    def __init__(
        self, out: Console | TextIO | None = None, err: Console | TextIO | None = None, *, is_terminal: bool = False
    ) -> None:
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._is_terminal = is_terminal
        self._passing = ""
        self._shown: dict[str, float] = {}

    def listening(self, runtime: Runtime, token_file: Path | None) -> None:
        """Print the addresses. If clients need a token, `token_file` holds it; otherwise None."""
        socket_url = f"ws{runtime.url.removeprefix('http')}/v1/responses"
        where = f"edgeagent {runtime.version} listening on {runtime.url}"
        token = f"clients need the token in {token_file}" if token_file else ""
        if self._is_terminal:  # each URL has its own line, so that a narrow terminal does not break it
            lines = [where, f"  WebSocket: {socket_url}", *([f"  {token}"] if token else [])]
        else:
            lines = [f"{where} ({socket_url})" + (f"; {token}" if token else "")]
        if runtime.network_urls:
            lines.append(f"reached from other machines at {', '.join(runtime.network_urls)}")
        self._print("\n".join(lines))

    def listening_for_voice(self, url: str) -> None:
        """Print where Home Assistant and voice satellites reach the daemon."""
        self._print(f"Wyoming, for Home Assistant and voice satellites: {url}")

    def loading(self, model: ModelStatus) -> None:
        """Print the progress: on a terminal one line that later output overwrites, otherwise a line for each 25 %.

        Without a terminal, there is no line for 0 %. So a load that fails before any progress prints only the error.
        """
        line = f"{model.name}: {load_stage(model.progress)}"
        if self._is_terminal:
            self._pass(line)
        elif model.progress >= self._shown.get(model.name, 0.0) + 0.25:
            self._shown[model.name] = model.progress
            self._report(logging.INFO, line)

    def ready(self, model: ModelStatus) -> None:
        self._shown.pop(model.name, None)
        info = model.info
        details = f" in {info.load_ms / 1000:.1f} s: {_described(info)}, context {info.context_length}" if info else ""
        self._print(f"{model.name} ready{details}")

    def failed(self, model: ModelStatus) -> None:
        """Print that a model could not be loaded, or that it failed later. The daemon continues."""
        self._shown.pop(model.name, None)
        self._report(logging.ERROR, f"{model.name} failed: {model.cause or 'no cause is known'}")

    def stopping(self, num_live: int) -> None:
        """Print how many requests the stop waits for."""
        requests = (
            "1 live request (a second signal ends it)"
            if num_live == 1
            else f"{num_live} live requests (a second signal ends them)"
        )
        waiting = f", waiting for {requests}" if num_live else ""
        self._report(logging.INFO, f"stopping{waiting}")

    def error(self, message: str) -> None:
        self._report(logging.ERROR, f"error: {message}")

    def _print(self, line: str) -> None:
        self._pass("")
        _write(self._out, f"{line}\n")

    def _report(self, level: int, line: str) -> None:
        del level
        self._pass("")
        _write(self._err, f"{_folded(line) if self._is_terminal else line}\n")

    def _pass(self, text: str) -> None:
        """Show a text on stderr, in place of the text that was shown before.

        The cursor stays at the line's start, so that later output overwrites the text.
        """
        # A line that wraps could not be overwritten.
        text = text[: shutil.get_terminal_size().columns - 1]
        if text != self._passing:
            blank = " " * len(self._passing)
            _write(self._err, f"\r{blank}\r{text}\r" if self._passing else f"{text}\r")
            self._passing = text


class LogReporter(ConsoleReporter):
    """A ConsoleReporter that writes log records instead of lines on stderr, and without `out` instead of all lines."""

    def __init__(self, out: Console | TextIO | None = None) -> None:
        super().__init__(out)
        self._is_log_only = out is None

    def error(self, message: str) -> None:
        """Report the error. If the log is a file, also print it: the person who starts the daemon must see why not."""
        super().error(message)
        if self._is_log_only:
            _write(sys.stderr, f"error: {message}\n")

    def _print(self, line: str) -> None:
        if self._is_log_only:
            logger.info("%s", line)
        else:
            super()._print(line)

    def _report(self, level: int, line: str) -> None:
        logger.log(level, "%s", line)


def _described(info: ModelInfo) -> str:
    """Return llama.cpp's description of a model, with the number of its parameters.

    llama.cpp knows the names of only some sizes. For others it writes "?B", which is replaced by the number.
    """
    millions = info.num_params / 1e6
    return info.description.replace("?B", f"{millions:.1f}M" if millions < 1000 else f"{millions / 1000:.1f}B")


def _folded(line: str) -> str:
    """Return a line wrapped to the terminal's width. It breaks only at blanks, so that paths and URLs stay whole."""
    width = shutil.get_terminal_size().columns
    return textwrap.fill(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _write(stream: Console | TextIO, text: str) -> None:
    # The reader of the lines may be gone. The daemon must not stop for that.
    with suppress(OSError, ValueError):
        stream.write(text)
        stream.flush()
