"""Bounds on what a client sends, checked before it costs anything: size and pace, then the JSON of a body."""

from __future__ import annotations

import asyncio
import json
import math
import re
import time
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgeagent.api.context import context_of
from edgeagent.api.wire.known_fields import SCOPE_KEY, KnownFields
from edgeagent.errors import InvalidRequest, PayloadTooLarge

MAX_JSON_DEPTH = 64
MAX_JSON_VALUES = 250_000
MAX_INTEGER = 2**63 - 1
# A body may take this long, and a second more for each 64 KiB that has come.
BODY_GRACE_S = 10.0
MIN_BODY_BYTES_PER_S = 64 << 10
# A body of this size takes the event loop some 3 ms at worst (measured: 40 ns a byte, of tools with many small values).
MAX_INLINE_BYTES = 64 << 10

T = TypeVar("T")

_SUSPECT_ESCAPE = re.compile(rb"\\u(?:d[89a-f]|0000)", re.IGNORECASE)


class Pace:
    """Lets a burst of things through, and then so many a second."""

    def __init__(self, per_s: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._interval_s = 1 / per_s
        self._most_ahead_s = burst / per_s
        self._clock = clock
        self._due_s = clock()  # when what was taken would be done at an even pace

    def take(self) -> float:
        """Count one thing; return how many seconds to wait before it is dealt with."""
        now_s = self._clock()
        self._due_s = max(self._due_s, now_s) + self._interval_s
        return max(0.0, self._due_s - now_s - self._most_ahead_s)


def parse_json(data: bytes | str, *, max_depth: int = MAX_JSON_DEPTH) -> object:
    """Return the value of a JSON text; raise InvalidRequest where it is not strict JSON within the bounds.

    Refused beside bad syntax: invalid UTF-8, a byte-order mark, lone surrogates, NUL, duplicate keys, NaN, Infinity and
    floats that overflow, integers beyond 64 bits, nesting beyond `max_depth`, more than MAX_JSON_VALUES values.
    """
    try:
        raw = data.encode() if isinstance(data, str) else data
        text = raw.decode()
    except UnicodeError as error:
        raise InvalidRequest("the text is not valid UTF-8") from error
    if raw.startswith(b"\xef\xbb\xbf"):
        raise InvalidRequest("the text starts with a byte-order mark; send plain UTF-8")
    _check_size(raw)
    try:
        value: object = _decoder.decode(text)
    except json.JSONDecodeError as error:
        raise InvalidRequest(
            f"the text is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from error
    except RecursionError as error:
        raise InvalidRequest(f"the JSON is nested deeper than {max_depth} levels") from error
    _check_tree(value, max_depth, is_suspect=_SUSPECT_ESCAPE.search(raw) is not None)
    return value


def _check_size(raw: bytes) -> None:
    # Values are counted by the commas between them. Those inside strings do not count, but only where there are many
    # commas is it worth leaving the strings out: every second piece between unescaped quotes.
    if raw.count(b",") <= MAX_JSON_VALUES:
        return
    plain = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    # A value and its key have four quotes; more would only make the list of pieces long.
    if plain.count(b'"') <= 4 * (MAX_JSON_VALUES + 1):
        num_commas = sum(piece.count(b",") for piece in plain.split(b'"')[::2])
        if num_commas <= MAX_JSON_VALUES:
            return
    raise InvalidRequest(f"the JSON holds more than {MAX_JSON_VALUES} values")


def _check_tree(value: object, max_depth: int, *, is_suspect: bool) -> None:
    level = [value]
    for depth in range(max_depth + 1):
        below: list[object] = []
        for node in level:
            if isinstance(node, dict | list):
                if depth == max_depth:
                    raise InvalidRequest(f"the JSON is nested deeper than {max_depth} levels")
                below.extend(node.values() if isinstance(node, dict) else node)
                if is_suspect and isinstance(node, dict):
                    below.extend(node)
            elif is_suspect and isinstance(node, str):
                _check_text(node)
        level = below


def _check_text(text: str) -> None:
    if "\0" in text:
        raise InvalidRequest("a string holds a NUL character (\\u0000)")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest("a string holds half of a surrogate pair (\\ud800 to \\udfff alone)") from error


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        seen: set[str] = set()
        duplicate = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise InvalidRequest(f"the key {duplicate[:64]!r} appears twice in one object")
    return fields


def _integer(digits: str) -> int:
    # The length first: int() of 4,300 digits and more is refused by Python, and quadratic below.
    if len(digits) > 20 or abs(number := int(digits)) > MAX_INTEGER:
        raise InvalidRequest(f"the integer {digits[:24]} is out of range (at most {MAX_INTEGER})")
    return number


def _float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise InvalidRequest(f"the number {digits[:24]} is out of range")
    return number


def _constant(name: str) -> NoReturn:
    raise InvalidRequest(f"{name} is not valid JSON")


_decoder = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_constant)


async def read_json_object(request: Request) -> dict[str, object]:
    """Return the JSON object in a request's body; raise InvalidRequest where there is none."""
    return await read_body(request, lambda fields: fields)


async def read_body(request: Request, read: Callable[[dict[str, Any]], T], known: KnownFields | None = None) -> T:
    """Return what `read` makes of the JSON object in a request's body; raise what it raises, or InvalidRequest.

    The answer's headers and the log name fields that are not `known` (None: no field is named).
    """
    body = await request.body()

    def read_parsed() -> T:
        fields = _parse_object(body)
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


def _parse_object(body: bytes) -> dict[str, Any]:
    value = parse_json(body)
    if not isinstance(value, dict):
        raise InvalidRequest(f"the body must be a JSON object, not {type(value).__name__}")
    return value


class BodyLimit:
    """The ASGI middleware that bounds a body's size and the time it takes; a connection that exceeds them is closed."""

    def __init__(self, app: ASGIApp, max_bytes: int, grace_s: float = BODY_GRACE_S) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._grace_s = grace_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _Body(receive, send, self._max_bytes, self._grace_s, _announced_bytes(scope))
        await self._app(scope, body.receive, body.send)


class _Body:
    """One request's body on its way in."""

    def __init__(self, receive: Receive, send: Send, max_bytes: int, grace_s: float, announced: int | None) -> None:
        self._receive = receive
        self._send = send
        self._max_bytes = max_bytes
        self._announced = announced
        self._num_bytes = 0
        self._is_complete = announced == 0
        self._grace_s = grace_s
        self._started_at = asyncio.get_running_loop().time()

    async def receive(self) -> Message:
        if self._is_complete:
            return await self._receive()
        self._check_size(self._announced or 0)
        deadline = self._started_at + self._grace_s + self._num_bytes / MIN_BODY_BYTES_PER_S
        try:
            async with asyncio.timeout_at(deadline):
                message = await self._receive()
        except TimeoutError as error:
            raise InvalidRequest(f"the body came too slowly: {self._num_bytes} bytes in {self._grace_s:g} s") from error
        if message["type"] == "http.request":
            self._num_bytes += len(message.get("body", b""))
            self._check_size(self._num_bytes)
            self._is_complete = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        # The unread rest must not be taken for the next request, nor be read only to be thrown away.
        if message["type"] == "http.response.start" and not self._is_complete:
            message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
        await self._send(message)

    def _check_size(self, num_bytes: int) -> None:
        if num_bytes > self._max_bytes:
            raise PayloadTooLarge(f"the body is larger than {self._max_bytes} bytes (server.max_body_bytes)")


def _announced_bytes(scope: Scope) -> int | None:
    """Return the body length the headers announce; None for a body of unknown length."""
    headers = {name.lower(): value for name, value in scope["headers"]}
    if b"transfer-encoding" in headers:
        return None
    length = headers.get(b"content-length", b"0")
    if not length.isdigit():
        return None
    return int(length) if len(length) < 20 else MAX_INTEGER
