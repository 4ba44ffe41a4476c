"""The JSON of a body or a frame: parsed strictly, in a thread if it is large."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from starlette.requests import Request

from edgeagent.api.context import context_of
from edgeagent.api.wire.fields import M, validate
from edgeagent.api.wire.known_fields import SCOPE_KEY, KnownFields
from edgeagent.api.wire.shape import Json
from edgeagent.errors import InvalidRequest
from edgeagent.strict_json import kind_of, parse_json

# A body of this size takes the event loop some 3 ms at worst (measured: 40 ns a byte, of tools with many small values).
MAX_INLINE_BYTES = 64 << 10

T = TypeVar("T")


async def read_valid(request: Request, model: type[M]) -> M:
    """Return the checked fields of a request's body; raise InvalidRequest."""
    return await read_body(request, partial(validate, model))


async def read_body(request: Request, read: Callable[[Json], T], known: KnownFields | None = None) -> T:
    """Parse the JSON object in a request's body and return `read` of it; raise the errors of `read`, or InvalidRequest.

    `read` runs in a thread if the body is large. The answer's headers name the fields that are not `known`, and the log
    counts them. If `known` is None, no field is checked.
    """
    body = await request.body()

    def read_parsed() -> T:
        fields = parse_object(body)
        if known is not None and (warning := known.warning(fields)):
            request.scope[SCOPE_KEY].append(warning)
        return read(fields)

    try:
        return await aside(len(body), read_parsed)
    finally:
        for warning in request.scope[SCOPE_KEY]:
            context_of(request).warnings.write(warning)


async def aside(num_bytes: int, read: Callable[[], T]) -> T:
    """Run `read` inline if the body is small, otherwise in a thread so that streams are not blocked."""
    return read() if num_bytes <= MAX_INLINE_BYTES else await asyncio.to_thread(read)


def parse_object(data: bytes | str, demand: str = "the body must be a JSON object, not {kind}") -> Json:
    """Return the JSON object in a body or a frame; raise InvalidRequest with the text `demand` for another value."""
    value = parse_json(data)
    if not isinstance(value, dict):
        raise InvalidRequest(demand.format(kind=kind_of(value)))
    return value
