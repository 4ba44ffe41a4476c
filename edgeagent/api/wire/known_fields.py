"""Unknown fields in a body: a client's typo, or a field of another server.

The request is answered without them. A warning names them in an HTTP header. In the Responses API the response object
has the warning too, in `edgeagent.warnings`.
"""

from __future__ import annotations

import difflib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from pydantic import BaseModel

from edgeagent.api.wire.errors import printable

HEADER = b"x-edgeagent-warning"
SCOPE_KEY = "edgeagent.warnings"
"""The key under which a request's ASGI scope has the list of its warnings. The answer's headers carry the warnings."""
LOG_EVERY_S = 60.0
MAX_NAMED = 5
MAX_NAME_CHARS = 64
# A known name is suggested if it is at least this similar: `max_tokens` for `max_token`, nothing for `max_length`.
_LIKENESS = 0.75

Notice = Callable[[Mapping[str, object]], Iterator[str]]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FieldWarning:
    """A warning about fields without effect. `text`, for the client, names them; `logged`, for the log, does not."""

    text: str
    logged: str


@dataclass(frozen=True, slots=True)
class KnownFields:
    """The names that a body may have, and the names inside its `options` if it has that object.

    `notices`: functions that yield what a warning says of known fields whose values have no effect here.
    """

    names: frozenset[str]
    options: frozenset[str] = frozenset()
    notices: tuple[Notice, ...] = ()

    @classmethod
    def of(
        cls, body: type[BaseModel], *more: str, options: frozenset[str] = frozenset(), notices: tuple[Notice, ...] = ()
    ) -> KnownFields:
        """Return the known fields: those of `body`, and `more`, which are accepted without effect."""
        return cls(frozenset({*body.model_fields, *more}), options, notices)

    def warning(self, fields: Mapping[str, object]) -> FieldWarning | None:
        """Return a warning about the body's fields without effect, at most MAX_NAMED of a kind; None if all count."""
        unknown = self._about_unknown(fields)
        noticed = [text for notice in self.notices for text in notice(fields)][:MAX_NAMED]
        if not noticed:
            return unknown
        ignored = FieldWarning(printable("; ".join(noticed)), f"{len(noticed)} fields without effect")
        if unknown is None:
            return ignored
        return FieldWarning(f"{unknown.text}; {ignored.text}", f"{unknown.logged}, {ignored.logged}")

    def _about_unknown(self, fields: Mapping[str, object]) -> FieldWarning | None:
        unknown = list(self._unknown(fields))
        if not unknown:
            return None
        named = [
            (prefix + name[:MAX_NAME_CHARS], _meant(prefix, name, known)) for prefix, name, known in unknown[:MAX_NAMED]
        ]
        shown = ", ".join(f"{name} (did you mean {meant}?)" if meant else name for name, meant in named)
        more = f" and {len(unknown) - MAX_NAMED} more" if len(unknown) > MAX_NAMED else ""
        meant = ", ".join(meant for _, meant in named if meant)
        perhaps = f", perhaps meant as {meant}" if meant else ""
        counted = "1 unknown field" if len(unknown) == 1 else f"{len(unknown)} unknown fields"
        return FieldWarning(printable(f"unknown fields: {shown}{more}"), f"{counted}{perhaps}")

    def _unknown(self, fields: Mapping[str, object]) -> Iterator[tuple[str, str, frozenset[str]]]:
        yield from (("", name, self.names) for name in fields if name not in self.names)
        options = fields.get("options")
        if self.options and isinstance(options, Mapping):
            yield from (("options.", name, self.options) for name in options if name not in self.options)


def _meant(prefix: str, name: str, known: frozenset[str]) -> str:
    close = difflib.get_close_matches(name[:MAX_NAME_CHARS], sorted(known), 1, _LIKENESS)
    return prefix + close[0] if close else ""


def header(warning: FieldWarning) -> tuple[bytes, bytes]:
    """Return the header that carries a warning."""
    return HEADER, warning.text.encode("ascii", "backslashreplace")


class WarningLog:
    """Writes warnings into the log, at most one in LOG_EVERY_S seconds: a client repeats its unknown fields."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_at_s = clock()

    def write(self, warning: FieldWarning) -> None:
        """Write a warning, or drop it if another was written in the last LOG_EVERY_S seconds."""
        if self._clock() >= self._next_at_s:
            self._next_at_s = self._clock() + LOG_EVERY_S
            logger.warning("a request has %s; its answer names them (%s)", warning.logged, HEADER.decode())
