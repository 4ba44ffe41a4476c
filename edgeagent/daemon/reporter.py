"""What the daemon prints. Its addresses and each model that is ready go to stdout, everything else to stderr."""

from __future__ import annotations

import logging
import shutil
import sys
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from edgeagent.daemon.console import Output
from edgeagent.load_stage import load_stage
from edgeagent.runtime_file import Runtime
from edgeagent.types import ModelInfo, ModelStatus

_PROGRESS_STEP = 0.25

logger = logging.getLogger(__name__)


class Reporter(Protocol):
    """Receives the daemon's events.

    `loading` is called whenever the progress of a load changes, the other methods once for each event.
    """

    def listening(self, runtime: Runtime, token_file: Path | None, urls: Sequence[str] = ()) -> None:
        """Report that the port is open.

        If clients need a token, `token_file` is the file that holds it; otherwise None. `urls` are the URLs at which
        other machines reach the daemon.
        """
        ...

    def loading(self, model: ModelStatus) -> None:
        """Report that a model is being loaded."""
        ...

    def ready(self, model: ModelStatus) -> None:
        """Report that a model is ready."""
        ...

    def failed(self, model: ModelStatus) -> None:
        """Report that a model could not be loaded, or that it failed later. The daemon continues."""
        ...

    def stopping(self, num_live: int) -> None:
        """Report that the daemon is stopping, and how many requests are live."""
        ...

    def error(self, message: str) -> None:
        """Report that the daemon cannot start or continue."""
        ...


class ConsoleReporter:
    """Prints plain lines. On a terminal, the progress of a load is one line that is overwritten.

    `is_terminal` of the constructor says whether `out` and `err` are both terminals.
    """

    def __init__(self, out: Output | None = None, err: Output | None = None, *, is_terminal: bool = False) -> None:
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._is_terminal = is_terminal
        self._passing = ""
        self._shown: dict[str, float] = {}

    def listening(self, runtime: Runtime, token_file: Path | None, urls: Sequence[str] = ()) -> None:
        """Print the addresses, and where the token is if clients need it."""
        socket_url = f"ws{runtime.url.removeprefix('http')}/v1/responses"
        where = f"edgeagent {runtime.version} listening on {runtime.url}"
        token = f"clients need the token in {token_file}" if token_file else ""
        if self._is_terminal:  # each URL has its own line, so that a narrow terminal does not break it
            lines = [where, f"  WebSocket: {socket_url}", *([f"  {token}"] if token else [])]
        else:
            lines = [f"{where} ({socket_url})" + (f"; {token}" if token else "")]
        if urls:
            lines.append(f"reached from other machines at {', '.join(urls)}")
        self._print("\n".join(lines))

    def loading(self, model: ModelStatus) -> None:
        """Print the progress: on a terminal one line that later output overwrites, otherwise a line for each 25 %.

        Without a terminal, there is no line for 0 %. So a load that fails before any progress prints only the error.
        """
        line = f"{model.name}: {load_stage(model.progress)}"
        if self._is_terminal:
            self._pass(line)
        elif model.progress >= self._shown.get(model.name, 0.0) + _PROGRESS_STEP:
            self._shown[model.name] = model.progress
            self._report(logging.INFO, line)

    def ready(self, model: ModelStatus) -> None:
        """Print the model and how long it took to load."""
        self._shown.pop(model.name, None)
        info = model.info
        details = f" in {info.load_ms / 1000:.1f} s: {_described(info)}, context {info.context_length}" if info else ""
        self._print(f"{model.name} ready{details}")

    def failed(self, model: ModelStatus) -> None:
        """Print the cause."""
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
        """Print the message."""
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
    """A ConsoleReporter that writes log records instead of lines on stderr. It is used with the JSON log format."""

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


def _write(stream: Output, text: str) -> None:
    # The reader of the lines may be gone. The daemon must not stop for that.
    with suppress(OSError, ValueError):
        stream.write(text)
        stream.flush()
