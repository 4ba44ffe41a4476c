"""Where log records go and what they look like: stderr, a line each, without control characters."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgeagent.config import LogConfig
    from edgeagent.daemon.console import Output

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
# uvicorn's own words are about what clients did wrong, or an exception's text, which may quote a prompt; api/app logs
# what matters of those. asyncio's warnings are about sockets that clients dropped.
_QUIET: Mapping[str, int] = {"uvicorn.error": logging.CRITICAL, "asyncio": logging.ERROR, "httpx": logging.WARNING}


def configure_logging(config: LogConfig, stream: Output | None = None) -> None:
    """Send this process's records to a stream (stderr), as lines for people or for machines."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if config.format == "json" else ConsoleLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(config.level.upper())
    for name, level in _QUIET.items():
        logging.getLogger(name).setLevel(max(level, root.level))


def _escape(match: re.Match[str]) -> str:
    return match.group().encode("unicode_escape").decode()


class ConsoleLines(logging.Formatter):
    """A time, a level, a logger and a message; what a client put into it cannot move a terminal's cursor."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's lines."""
        return _CONTROL.sub(_escape, super().format(record))


class JsonLines(logging.Formatter):
    """One JSON object on a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's object."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields = {
            "time": f"{stamp}.{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields)
