"""The format of log records: one line, with the id of the current request if there is one. A bug adds a traceback.

Log records never have the content of a request. An exception is logged with its type and traceback. Its text is left
out, since it may quote a prompt. Debug and info messages of libraries may also quote a prompt, so libraries log only
warnings and errors. Some libraries log nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from edgeagent.api.wire.request_id import REQUEST_ID
from edgeagent.daemon.console import dropped_lines
from edgeagent.errors import printable

if TYPE_CHECKING:
    from edgeagent.config import LogConfig
    from edgeagent.daemon.console import Console

# uvicorn's messages are about clients' mistakes or quote exceptions. api.gate.envelope logs the important exceptions.
# asyncio's messages show tasks and callbacks with their arguments; `log_unhandled` logs the failures instead.
_SILENT = ("uvicorn", "asyncio", "websockets")
# Keys of `extra` for data beside the message: `logger.error("...", extra={"fields": {...}, "places": traceback})`.
FIELDS = "fields"
PLACES = "places"

logger = logging.getLogger(__name__)

ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


def configure_logging(config: LogConfig, stream: Console | TextIO | None = None) -> None:
    """Send this process's log records to a stream (stderr by default), as text or as JSON lines.

    Also log exceptions in threads and finalizers that no code has caught.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if config.format == "json" else ConsoleLines(has_date=config.file is not None))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(logging.WARNING, getattr(logging, config.level.upper())))
    logging.getLogger("edgeagent").setLevel(config.level.upper())
    for name in _SILENT:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    threading.excepthook = lambda failed: _log_unhandled("a thread", failed.exc_value)
    sys.unraisablehook = lambda failed: _log_unhandled("a finalizer", failed.exc_value)


def log_unhandled(loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
    """Log an exception that the event loop reports as unhandled. Pass this function to loop.set_exception_handler."""
    del loop
    _log_unhandled("the event loop", context.get("exception"))


def _log_unhandled(place: str, error: BaseException | None) -> None:
    if error is not None:
        logger.error("unhandled in %s: %s", place, type(error).__name__, exc_info=error)


class _Lines(logging.Formatter):
    """The common base of ConsoleLines and JsonLines."""

    def formatException(self, ei: ExcInfo) -> str:  # noqa: N802 the library's name
        """Return the types and tracebacks of an exception and of its causes (at most 8 in all), without their texts."""
        parts: list[str] = []
        error: BaseException | None = ei[1]
        while error is not None and len(parts) < 8:
            places = "".join(traceback.format_tb(error.__traceback__))
            parts.append(f"{places}{type(error).__module__}.{type(error).__qualname__}")
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        return "\n".join(parts)


class ConsoleLines(_Lines):
    """Text lines with time (and date), level, logger, message and fields. Control characters are escaped."""

    def __init__(self, *, has_date: bool = False) -> None:
        time_format = "%Y-%m-%d %H:%M:%S" if has_date else "%H:%M:%S"
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s", time_format)

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line, and the lines of its traceback if it has one."""
        return "\n".join([super().format(record), *getattr(record, PLACES, "").splitlines()])

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 the library's name
        """Return the record's first line, with its fields as `name=value`."""
        fields = "".join(f" {name}={value}" for name, value in _fields(record).items() if value is not None)
        return printable(super().formatMessage(record) + fields)


class JsonLines(_Lines):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a JSON object."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{stamp}.{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        elif hasattr(record, PLACES):
            line["traceback"] = getattr(record, PLACES)
        return json.dumps(line)


def dropped_record(num: int) -> str:
    """Return the JSON line that is printed in place of `num` dropped lines."""
    record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, dropped_lines(num), (), None)
    return JsonLines().format(record)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields: dict[str, object] = dict(getattr(record, FIELDS, {}))
    if request_id := REQUEST_ID.get():
        fields["request_id"] = request_id
    return fields
