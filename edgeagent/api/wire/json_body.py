"""The JSON of a body or a frame: parsed strictly, in a thread of its own if it is large."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from starlette.requests import Request

from edgeagent.api.context import context_of
from edgeagent.api.wire.fields import M, validate
from edgeagent.api.wire.known_fields import SCOPE_KEY, KnownFields
from edgeagent.api.wire.shape import Json
from edgeagent.errors import InvalidRequest
from edgeagent.strict_json import kind_of, parse_json

# A body of this size takes the event loop some 3 ms at worst (measured: 0.16 µs a byte, of items with short values).
MAX_INLINE_BYTES = 16 << 10
# A larger body takes up to a second of a thread. Smaller ones do not wait for it.
MAX_SHORT_BYTES = 512 << 10

T = TypeVar("T")

_SHORT, _LONG = ThreadPoolExecutor(1, "json"), ThreadPoolExecutor(1, "long-json")


async def read_valid(request: Request, model: type[M]) -> M:
    """Return the checked fields of a request's body; raise InvalidRequest if the body is wrong."""
    return await read_body(request, partial(validate, model))


async def read_body(request: Request, read: Callable[[Json], T], known: KnownFields | None = None) -> T:
    """Parse the JSON object in a request's body, pass it to `read`, and return the result.

    Raise InvalidRequest if the body is not a JSON object. Errors of `read` are passed on. A large body is parsed and
    read in a thread. Fields that are not in `known` are named in a header of the answer and counted in the log. If
    `known` is None, unknown fields are not reported.
    """
    # `request.body()` would keep the bytes as long as the request, which may wait and generate for minutes.
    body = b"".join([piece async for piece in request.stream()])

    def read_parsed() -> T:
        fields = parse_object(body)
        if known is not None and (warning := known.warning(fields)):
            request.scope[SCOPE_KEY].append(warning)
        return read(fields)

    try:
        return await run_inline_or_in_thread(len(body), read_parsed)
    finally:
        for warning in request.scope[SCOPE_KEY]:
            context_of(request).warnings.write(warning)


async def run_inline_or_in_thread(num_bytes: int, read: Callable[[], T]) -> T:
    """Run `read` inline if the body is small, otherwise in a thread so that streams are not blocked.

    Large bodies are read one after another. Many threads at once would take the interpreter from the event loop for
    many times as long.
    """
    if num_bytes <= MAX_INLINE_BYTES:
        return read()
    thread = _SHORT if num_bytes <= MAX_SHORT_BYTES else _LONG
    return await asyncio.get_running_loop().run_in_executor(thread, contextvars.copy_context().run, read)


def parse_object(data: bytes | str, demand: str = "the body must be a JSON object, not {kind}") -> Json:
    """Return the JSON object in a body or a frame. Raise InvalidRequest if it is not strict JSON, or not an object.

    `demand`: the error's text for a value that is not an object. `{kind}` in it is replaced by the kind of the value.
    """
    value = parse_json(data)
    if not isinstance(value, dict):
        raise InvalidRequest(demand.format(kind=kind_of(value)))
    return value
