"""The response headers that tell a client where its answer is computed, and what of its request is not observed.

In OpenAI's APIs, a stream says the same in an early event, and where it was computed again at its end, because a
generation may move.
"""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote

from starlette.responses import Response

from edgeagent.api.wire.errors import printable
from edgeagent.api.wire.known_fields import HEADER
from edgeagent.api.wire.shape import Json
from edgeagent.api.wire.usage import placement_body
from edgeagent.types import Started

# The characters that are not quoted: printable ASCII without the percent sign. A remote's names may have others.
_PLAIN = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


MAX_WARNINGS = 8
_MAX_WARNING_CHARS = 600


def warnings_of(started: Started) -> list[str]:
    """Return the first MAX_WARNINGS of an answer's warnings, each cut and safe to show."""
    return [printable(text[:_MAX_WARNING_CHARS]) for text in started.warnings[:MAX_WARNINGS]]


def started_body(started: Started) -> Json:
    """Return where a generation runs and its warnings, for the first part of a stream; empty if neither is known."""
    place = {} if started.placement is None else {**placement_body(started.placement)}
    return {**place, "warnings": warnings_of(started)} if started.warnings else place


def started_in(deltas: Iterable[object]) -> Started | None:
    """Return the delta that says where a generation runs and what its warnings are; None if there is none."""
    return next((delta for delta in deltas if isinstance(delta, Started)), None)


def put_headers(response: Response, started: Started | None) -> None:
    """Add the headers to `response`. Add none if the generation has not started yet."""
    if started is None:
        return
    for text in warnings_of(started):
        response.headers.append(HEADER.decode(), text.encode("ascii", "backslashreplace").decode())
    if (place := started.placement) is None:
        return
    fields = {
        "x-edgeagent-served-by": place.served_by,
        "x-edgeagent-reason": place.reason,
        "x-edgeagent-model": place.model,
        "x-edgeagent-model-sha256": place.sha256,
        "x-edgeagent-host": place.host,
    }
    response.headers.update({name: quote(value, safe=_PLAIN) for name, value in fields.items() if value})
