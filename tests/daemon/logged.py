"""The daemon's log in a test: configured as in the daemon, captured, and restored afterwards."""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from edgeagent.config import LogConfig
from edgeagent.daemon.logs import configure_logging

_LOGGERS = ("", "edgeagent", "uvicorn", "asyncio", "websockets")


@contextmanager
def logged(
    level: Literal["debug", "info", "warning", "error"] = "info", form: Literal["console", "json"] = "json"
) -> Iterator[io.StringIO]:
    """Yield the stream that the log lines are written to."""
    stream = io.StringIO()
    levels = {name: logging.getLogger(name).level for name in _LOGGERS}
    handlers = list(logging.getLogger().handlers)
    hooks = threading.excepthook, sys.unraisablehook
    configure_logging(LogConfig(level=level, format=form), stream)
    try:
        yield stream
    finally:
        threading.excepthook, sys.unraisablehook = hooks
        logging.getLogger().handlers[:] = handlers
        for name, before in levels.items():
            logging.getLogger(name).setLevel(before)
