"""What the daemon tells who started it: lines on stdout for what is reached, on stderr for all else."""

from __future__ import annotations

import logging
import sys
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from edgeagent.daemon.console import Output
from edgeagent.runtime_file import Runtime
from edgeagent.types import ModelInfo, ModelStatus

_PROGRESS_STEP = 0.1

logger = logging.getLogger(__name__)


class Reporter(Protocol):
    """Gets told what happens, each thing once; `loading` as often as the progress changes."""

    def listening(self, runtime: Runtime, token_file: Path | None) -> None:
        """The port is open. `token_file` is where the token is that every client needs, if they do."""
        ...

    def loading(self, model: ModelStatus) -> None:
        """A model is being loaded."""
        ...

    def ready(self, model: ModelStatus) -> None:
        """A model is ready."""
        ...

    def failed(self, model: ModelStatus) -> None:
        """A model cannot be loaded, or fell; the daemon goes on."""
        ...

    def stopping(self, num_live: int) -> None:
        """A stop was asked for, with so many requests running."""
        ...

    def error(self, message: str) -> None:
        """The daemon cannot start or go on."""
        ...


class ConsoleReporter:
    """Plain lines."""

    def __init__(self, out: Output | None = None, err: Output | None = None) -> None:
        self._out = out or sys.stdout
        self._err = err or sys.stderr
        self._shown: dict[str, float] = {}

    def listening(self, runtime: Runtime, token_file: Path | None) -> None:
        """Print the addresses, and where the token is if clients need it."""
        socket_url = f"ws{runtime.url.removeprefix('http')}/v1/responses"
        token = f"; clients need the token in {token_file}" if token_file else ""
        self._print(f"edgeagent {runtime.version} listening on {runtime.url} ({socket_url}){token}")

    def loading(self, model: ModelStatus) -> None:
        """Print the progress, a line for each tenth."""
        if model.progress >= self._shown.get(model.name, -1.0) + _PROGRESS_STEP:
            self._shown[model.name] = model.progress
            self._report(logging.INFO, f"loading {model.name}: {model.progress:.0%}")

    def ready(self, model: ModelStatus) -> None:
        """Print the model and how long it took."""
        self._shown.pop(model.name, None)
        info = model.info
        details = f" in {info.load_ms / 1000:.1f} s: {_described(info)}, context {info.context_length}" if info else ""
        self._print(f"{model.name} ready{details}")

    def failed(self, model: ModelStatus) -> None:
        """Print the cause."""
        self._shown.pop(model.name, None)
        self._report(logging.ERROR, f"{model.name} failed: {model.cause or 'no cause is known'}")

    def stopping(self, num_live: int) -> None:
        """Print how many requests are waited for."""
        waiting = f", waiting for {num_live} live requests (a second signal ends them)" if num_live else ""
        self._report(logging.INFO, f"stopping{waiting}")

    def error(self, message: str) -> None:
        """Print the message."""
        self._report(logging.ERROR, f"error: {message}")

    def _print(self, line: str) -> None:
        _write(self._out, line)

    def _report(self, level: int, line: str) -> None:
        del level
        _write(self._err, line)


class LogReporter(ConsoleReporter):
    """What is reached on stdout, all else as records of the log: for logs that machines read."""

    def _report(self, level: int, line: str) -> None:
        logger.log(level, "%s", line)


def _described(info: ModelInfo) -> str:
    """Return a model in llama.cpp's words, which has sizes for known models alone."""
    millions = info.num_params / 1e6
    return info.description.replace("?B", f"{millions:.1f}M" if millions < 1000 else f"{millions / 1000:.1f}B")


def _write(stream: Output, line: str) -> None:
    # Whoever read the lines may have gone; the daemon stays.
    with suppress(OSError, ValueError):
        stream.write(f"{line}\n")
        stream.flush()
