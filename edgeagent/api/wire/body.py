"""How a body is read: parsed as strict JSON, checked against its class, and searched for fields without effect.

A class of fields (a Body) is the one declaration of what a client may send: the check, the API's documents and the
warning about unknown fields are made from it. The classes are beside the routes, and fields that several share in
`fields`. The texts for wrong fields are here.
"""

from __future__ import annotations

import asyncio
import contextvars
import difflib
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError, model_validator
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema
from starlette.requests import HTTPConnection, Request

from edgeagent.api.wire.addresses import ADDRESSES, NOT_FETCHED, Addresses, keep_if_local
from edgeagent.api.wire.shape import Json
from edgeagent.credentials.grants import GRANT
from edgeagent.errors import InvalidRequest, InvalidToolSchema, NotSupported, Overloaded, PayloadTooLarge, printable
from edgeagent.strict_json import kind_of, parse_json
from edgeagent.types import MAX_MEDIA_BYTES, RouteMode

if TYPE_CHECKING:
    from edgeagent.api.context import Context
    from edgeagent.backends.remote.image_fetcher import ImageFetcher

# A body of this size takes the event loop some 8 ms at worst (measured: 1 µs a byte, of items of unknown types).
MAX_INLINE_BYTES = 8 << 10
# A larger body takes up to a second of a thread. Smaller ones do not wait for it.
MAX_SHORT_BYTES = 512 << 10

NOT_SUPPORTED = "not_supported"
"""The type of a validation error that becomes a NotSupported."""
NO_VARIANT_PREFIX = "no_variant_"
"""How the type of a validation error begins; the name of a union's discriminator field follows.

The error means that no member of the union has the value of this field.
"""
_IN_A_TOOL = re.compile(r"(tools|functions)\[\d+\]\.")

Notice = Callable[[Mapping[str, object]], Iterator[str]]
"""Yields what a warning says of a body's fields whose values have no effect here."""

logger = logging.getLogger(__name__)

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class between:  # noqa: N801 it reads as an annotation: Annotated[int, between(1, 8)]
    """A check that a number lies in a range, ends included; the message names the range."""

    low: float
    high: float

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> Json:
        return {**handler(schema), "minimum": self.low, "maximum": self.high}

    def _check(self, value: float) -> float:
        if not self.low <= value <= self.high:
            raise PydanticCustomError("range", "must be from {low} to {high}", {"low": self.low, "high": self.high})
        return value


class Body(BaseModel):
    """The fields of a body. Unknown fields are ignored. No value is converted: true and "1" are not numbers.

    `without_effect`: names of other servers' fields, which are accepted without effect. `known_options`: the names that
    may be in the object `options`, if that is a body's field. `notices`: what a warning says of known fields.
    """

    # Checks are built at the first use: it takes 7 ms for a chat, and 90 ms of the start for all.
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, defer_build=True)

    without_effect: ClassVar[tuple[str, ...]] = ()
    known_options: ClassVar[frozenset[str]] = frozenset()
    notices: ClassVar[tuple[Notice, ...]] = ()


# Numbers that mean the same as no number, where vLLM, llama-server or Ollama take them so.
NEUTRAL_NUMBERS: dict[str, tuple[int, ...]] = {
    "dimensions": (0, -1),
    "max_output_tokens": (-1,),
    "max_tool_calls": (-1,),
    "repeat_penalty": (0,),
    "seed": (-1,),
    "top_n": (0, -1),
}
# Optional fields in which an empty list or object has a meaning of its own. An empty input is one too.
MEANT_EMPTY = frozenset({"input", "json_schema", "format", "samplers"})


class Settings(Body):
    """A body, or an object in it, in which an optional field with a neutral value is as if it were absent.

    Neutral are null, the empty string, and for some fields an empty list or object or a number; see `is_neutral`. The
    forms of settings pages and typed clients send them. A whole number such as 40.0 is read as an integer. Each body
    and query with optional fields is of this class, except the bodies of edgeagent's own routes.
    """

    @model_validator(mode="before")
    @classmethod
    def _without_neutral(cls, fields: object) -> object:
        if not isinstance(fields, dict):
            return fields
        for value in fields.values():  # most messages of a conversation have nothing neutral
            if not value or value == -1 or isinstance(value, float):
                break
        else:
            return fields
        kinds = _field_kinds(cls)
        return {
            name: int(value) if isinstance(value, float) and name in kinds.whole and value.is_integer() else value
            for name, value in fields.items()
            if not is_neutral(cls, name, value)
        }


class Query(Settings):
    """The query parameters of a route. Unknown parameters are ignored. Numbers and booleans are read from text."""

    model_config = ConfigDict(strict=False)


class OwnerBody(Body):
    """The fields of an owner's route, in the query or in the body. Every other field is refused.

    If it were ignored, a mistyped `model` or `client` would select the default model, or all clients.
    """

    model_config = ConfigDict(extra="forbid")


def is_neutral(body: type[Settings], name: str, value: object) -> bool:
    """Whether the field `name` of a body is optional, and with this value as if it were absent."""
    kinds = _field_kinds(body)
    if name not in kinds.optional or value is None:
        return name in kinds.optional
    if value == "":
        return name != "input"
    if isinstance(value, str | list | dict):
        return not value and name not in MEANT_EMPTY and name in kinds.many
    return not isinstance(value, bool) and value in NEUTRAL_NUMBERS.get(name, ())


@dataclass(frozen=True, slots=True)
class _FieldKinds:
    """The names of a body's fields, as clients send them: the optional ones, those for whole numbers, those for many.

    `many`: the field holds a list or an object.
    """

    optional: frozenset[str]
    whole: frozenset[str]
    many: frozenset[str]


@cache
def _field_kinds(body: type[BaseModel]) -> _FieldKinds:
    types = {field.alias or name: set(_types_in(field.annotation)) for name, field in body.model_fields.items()}
    optional = frozenset(field.alias or name for name, field in body.model_fields.items() if not field.is_required())
    whole = frozenset(name for name, found in types.items() if int in found)
    many = (name for name, found in types.items() if any(issubclass(kind, list | dict | BaseModel) for kind in found))
    return _FieldKinds(optional, whole, frozenset(many))


def _types_in(annotation: object) -> Iterator[type]:
    origin = get_origin(annotation)
    for found in (annotation, origin):
        if isinstance(found, type):
            yield found
    if origin not in (list, dict):  # the types in a list are not the field's own
        for part in get_args(annotation):
            yield from _types_in(part)


async def read_valid(request: Request, model: type[M]) -> M:
    """Return the checked fields of a request's body; raise InvalidRequest if the body is wrong."""
    return await read_body(request, partial(validate, model))


async def read_body(
    request: Request,
    read: Callable[[Json], T],
    warns_as: type[Body] | None = None,
    why_kept: Callable[[T], Awaitable[str]] | None = None,
) -> T:
    """Parse the JSON object in a request's body, pass it to `read`, and return the result.

    Raise InvalidRequest if the body is not a JSON object. Errors of `read` are passed on. A large body is parsed and
    read in a thread. If `warns_as` is given, fields without effect in a body of this class are named in a header of the
    answer, and counted in the log. `why_kept`: see `read_with_images`.
    """
    # `request.body()` would keep the bytes as long as the request, which may wait and generate for minutes.
    body = b"".join([piece async for piece in request.stream()])

    def read_parsed() -> T:
        fields = parse_object(body)
        keep_if_local(fields)
        if warns_as is not None and (warning := warning_about(warns_as, fields)):
            warnings_for(request).add(warning)
        return read(fields)

    return await read_with_images(request, len(body), read_parsed, why_kept=why_kept)


async def read_fields(request: Request, model: type[M]) -> M:
    """Return the fields in a request's query and body, checked by the pydantic class `model`; raise InvalidRequest."""
    return await read_merged(request, partial(validate, model))


async def read_merged(request: Request, read: Callable[[Json], T]) -> T:
    """Call `read` with the fields of a request's query and body together, and return its result.

    The body may be empty. The values in the query are strings. Raise the errors of `read`, or InvalidRequest if the
    body is not a JSON object, or if a field has two different values.
    """
    query: Json = {}
    for name, value in request.query_params.multi_items():
        _add(query, name, value)
    if not await request.body():
        return read(query)
    return await read_body(request, lambda body: read(_merged(body, query)))


def _merged(body: Json, query: Json) -> Json:
    fields = dict(body)
    for name, value in query.items():
        _add(fields, name, value)
    return fields


def _add(fields: Json, name: str, value: str) -> None:
    if fields.setdefault(name, value) != value:
        raise InvalidRequest(f"{name[:64]} has two values; give it once, in the query or in the body", param=name)


async def read_with_images(
    connection: HTTPConnection,
    num_bytes: int,
    read: Callable[[], T],
    files: Mapping[str, bytes] | None = None,
    why_kept: Callable[[T], Awaitable[str | T]] | None = None,
) -> T:
    """Return what `read` returns for a body of this size, see `run_inline_or_in_thread`.

    If the owner lets images be fetched, those whose addresses are in the body are, and `read` is called again. `files`:
    what a WebSocket's binary frames had, by name; None if there is no WebSocket. Before a fetch, `why_kept` gets what
    was read. It returns "" if the addresses may be fetched. If not, it returns why, as the end of a sentence about an
    address, or what to return instead, without a second call of `read`.
    """
    app = connection.scope.get("app")
    fetcher: ImageFetcher | None = None if app is None else app.state.images
    if fetcher is None and files is None:
        return await run_inline_or_in_thread(num_bytes, read)
    addresses = Addresses((lambda _: NOT_FETCHED) if fetcher is None else fetcher.why_not, files or {})
    grant = GRANT.get()
    if grant is not None and grant.client.route is RouteMode.LOCAL_ONLY:
        addresses.keep_here()
    before = ADDRESSES.set(addresses)
    try:
        result = await run_inline_or_in_thread(num_bytes, read)
        if addresses.wanted and fetcher is not None:
            if why_kept is not None and (why := await why_kept(result)):
                if not isinstance(why, str):
                    return why
                addresses.keep_here(why)
                return await run_inline_or_in_thread(num_bytes, read)
            client = connection.scope.get(CLIENT_KEY, "")
            async with _fetched(fetcher, addresses, client, connection.app.state.context):
                result = await run_inline_or_in_thread(num_bytes, read)
        return result
    finally:
        ADDRESSES.reset(before)


@asynccontextmanager
async def _fetched(fetcher: ImageFetcher, addresses: Addresses, client: str, context: Context) -> AsyncIterator[None]:
    """Fetch the files of a body's addresses. What comes is in flight until the `async with` block ends.

    Raise PayloadTooLarge if the files are too large together, and Overloaded if clients send too much at once.
    """
    sizes: dict[str, int] = {}
    limit = asyncio.timeout(None)

    def cut() -> None:
        if not limit.expired():
            limit.reschedule(0)

    def count(url: str, num_bytes: int) -> None:
        sizes[url] = num_bytes
        arrival.hold(sum(sizes.values()), is_whole=False)
        if sum(sizes.values()) > MAX_MEDIA_BYTES:
            cut()

    arrival = context.in_flight.begin(cut)
    arrival.client = client
    try:
        try:
            async with limit:
                addresses.files |= await fetcher.fetch(addresses.wanted, client, count)
                arrival.hold(sum(sizes.values()), is_whole=True)
        except TimeoutError:
            if sum(sizes.values()) > MAX_MEDIA_BYTES:
                raise PayloadTooLarge(
                    f"the images at this request's addresses have more than {MAX_MEDIA_BYTES} bytes together; "
                    "send smaller ones, or begin another conversation"
                ) from None
            raise Overloaded(
                "images are fetched for this request, and clients are sending too much at once; send it again",
                retry_after_s=2.0,
            ) from None
        yield
    finally:
        arrival.end()


_SHORT, _LONG = ThreadPoolExecutor(1, "json"), ThreadPoolExecutor(1, "long-json")


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


def validate(model: type[M], fields: object, path: str = "") -> M:
    """Check `fields` against a pydantic model, and return an instance of it.

    Raise InvalidRequest, or its subclass NotSupported or InvalidToolSchema, for the first wrong field. The message says
    what the field must be. `path` is put before the field's name.
    """
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        details = error.errors(include_url=False)[0]
        raise _refusal(details, path, _hint(model, details, path), _tool_name(fields, details)) from error


def _hint(model: type[BaseModel], details: ErrorDetails, path: str) -> str:
    """Return what an error adds about a missing or an unknown field of a body: the name that was meant. "" for others.

    An unknown field without a near name lists the names that are known in its object.
    """
    *place, name = details["loc"] or ("",)
    for part in place:
        field = model.model_fields.get(str(part))
        inner = [kind for kind in _types_in(field and field.annotation) if issubclass(kind, BaseModel)]
        if len(inner) != 1:
            return ""
        model = inner[0]
        path += f".{part}" if path else str(part)
    known = frozenset(field.alias or each for each, field in model.model_fields.items())
    prefix = f"{path}." if path else ""
    match details["type"]:
        case "extra_forbidden":
            meant = _meant(prefix, str(name), known)
            return f"; did you mean {meant}?" if meant else f"; the fields here are {', '.join(sorted(known))}"
        case "missing":
            for other in islice(details["input"], MAX_COMPARED):
                if other not in known and _meant("", other, {str(name)}):
                    return f", and {prefix}{other[:MAX_SHOWN_NAME_CHARS]} is unknown: did you mean {prefix}{name}?"
    return ""


def _tool_name(fields: Any, details: ErrorDetails) -> str:
    """Return the name of the tool in which a field is wrong; "" if it is in none, or if the name itself is wrong."""
    name = ""
    if details["loc"][:1] in (("tools",), ("functions",)) and details["loc"][-1] != "name":
        for part in details["loc"]:
            is_here = isinstance(part, int) if isinstance(fields, list) else isinstance(fields, dict) and part in fields
            fields = fields[part] if is_here else fields  # otherwise it names a union's branch
            name = fields["name"] if isinstance(fields, dict) and isinstance(fields.get("name"), str) else name
    return name


def _refusal(details: ErrorDetails, path: str, hint: str, tool: str) -> InvalidRequest:
    """Return the error for a wrong field in the object at `path`, with the hint at its end. `tool`: its name."""
    if details["type"].startswith(NO_VARIANT_PREFIX):
        details = _no_variant_details(details)
    for part in details["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part not in ("str", "bool", "int", "float") and not part.startswith("#"):  # a union's branch, not a field
            path += f".{part}" if path else part
    value = details["input"]
    if details["type"] == NOT_SUPPORTED:
        return NotSupported(f"{path}: {details['msg']}", param=path)
    demand = _demand(details)
    if demand.startswith("must be") or (demand.startswith("must") and isinstance(value, str)):
        demand = f"{demand}, not {_shown(value)}"
    error = InvalidToolSchema if _IN_A_TOOL.match(path) else InvalidRequest
    of_tool = f" of tool {tool[:MAX_SHOWN_NAME_CHARS]!r}" if tool else ""
    return error(f"{path}{of_tool} {demand}{hint}", param=path)


def _shown(value: object) -> str:
    if isinstance(value, dict | list):
        return kind_of(value)
    return json.dumps(value) if value is None or isinstance(value, bool) else repr(value)[:80]


def _no_variant_details(details: ErrorDetails) -> ErrorDetails:
    """Return the details of the error for a value that matches no member of a union.

    Either the value is not an object, or its discriminator field is missing, wrong or not supported.
    """
    value, field = details["input"], details["type"].removeprefix(NO_VARIANT_PREFIX)
    if not isinstance(value, dict):
        return {**details, "type": "dict_type"}
    place = (*details["loc"], field)
    if field not in value:
        return {**details, "type": "missing", "loc": place}
    if field == "type" and isinstance(value[field], str):
        # Another type is a feature of other servers; another role is a mistake.
        message = f"the type {value[field][:64]!r} is not supported; send {details['msg']}"
        return {**details, "type": NOT_SUPPORTED, "msg": message}
    return {**details, "loc": place, "input": value[field], "msg": f"must be one of {details['msg']}"}


def _demand(details: ErrorDetails) -> str:
    """Return what a field must be, in the words of JSON instead of Python's."""
    limits = details.get("ctx", {})
    match details["type"]:
        case "missing":
            return "is required"
        case "model_type" | "dict_type":
            return "must be an object"
        case "extra_forbidden":
            return "is unknown"
        case "list_type":
            return "must be a list"
        case "bool_type" | "bool_parsing":
            return "must be true or false"
        case "int_parsing" | "int_parsing_size" | "float_parsing":
            return "must be a number"
        case "too_long":
            return f"must hold at most {_counted(limits['max_length'], 'item')}"
        case "too_short":
            return f"must hold at least {_counted(limits['min_length'], 'item')}"
        case "string_too_long":
            return f"must have at most {_counted(limits['max_length'], 'character')}"
        case "string_too_short":
            return f"must have at least {_counted(limits['min_length'], 'character')}"
        case "string_pattern_mismatch":
            return f"must match {limits['pattern'].strip('^$')}"
    return details["msg"].replace("Input should be", "must be")


def _counted(number: int, noun: str) -> str:
    return f"1 {noun}" if number == 1 else f"{number} {noun}s"


WARNING_HEADER = b"x-edgeagent-warning"
CLIENT_KEY = "edgeagent.client"
"""The key under which a request's ASGI scope has the partition of its sender; see access.client_of."""
WARNINGS_KEY = "edgeagent.warnings"
"""The key under which a request's ASGI scope has its Warnings."""
LOG_EVERY_S = 60.0
MAX_NAMED = 5
MAX_SHOWN_NAME_CHARS = 64
MAX_COMPARED = 64
LIKENESS = 0.75
"""A known name or path is suggested if it is at least this similar: `max_tokens` for `max_token`, not `max_length`."""


@dataclass(frozen=True, slots=True)
class FieldWarning:
    """A warning about fields without effect. `text`, for the client, names them; `logged`, for the log, does not."""

    text: str
    logged: str


class WarningLog:
    """Writes warnings into the log, at most one in LOG_EVERY_S seconds, since a client repeats its unknown fields."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next_at_s = clock()

    def write(self, warning: FieldWarning) -> None:
        """Write a warning, or drop it if another was written in the last LOG_EVERY_S seconds."""
        if self._clock() >= self._next_at_s:
            self._next_at_s = self._clock() + LOG_EVERY_S
            logger.warning("a request has %s; its answer names them (%s)", warning.logged, WARNING_HEADER.decode())


class Warnings:
    """The warnings about the body of one HTTP request. The headers of its answer have them."""

    def __init__(self, log: WarningLog) -> None:
        self.log = log
        self._warnings: list[FieldWarning] = []

    def add(self, warning: FieldWarning) -> None:
        """Add a warning unless it is there: a body with addresses of images is read twice, and would warn twice."""
        if warning not in self._warnings:
            self._warnings.append(warning)
            self.log.write(warning)

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [(WARNING_HEADER, each.text.encode("ascii", "backslashreplace")) for each in self._warnings]


def warnings_for(connection: HTTPConnection) -> Warnings:
    """Return the warnings of a request, or of a WebSocket, which has no headers for them and only logs them."""
    warnings: Warnings = connection.scope[WARNINGS_KEY]
    return warnings


def known_names(body: type[Body]) -> frozenset[str]:
    """Return the names that a body may have: its fields, and those that are accepted without effect."""
    return frozenset({*body.model_fields, *body.without_effect})


def warning_about(body: type[Body], fields: Mapping[str, object]) -> FieldWarning | None:
    """Return a warning about a body's fields without effect, at most MAX_NAMED of a kind; None if all have an effect.

    They are unknown fields, a client's typos or another server's, and known fields that the body's `notices` name.
    """
    unknown = _about_unknown(list(_unknown(body, fields)))
    noticed = [text for notice in body.notices for text in notice(fields)][:MAX_NAMED]
    if not noticed:
        return unknown
    ignored = FieldWarning(printable("; ".join(noticed)), f"{len(noticed)} fields without effect")
    if unknown is None:
        return ignored
    return FieldWarning(f"{unknown.text}; {ignored.text}", f"{unknown.logged}, {ignored.logged}")


def _unknown(body: type[Body], fields: Mapping[str, object]) -> Iterator[tuple[str, str, frozenset[str]]]:
    """Yield for each unknown field where it is ("" or "options."), its name, and the names that are known there."""
    known = known_names(body)
    yield from (("", name, known) for name in fields if name not in known)
    options = fields.get("options")
    if body.known_options and isinstance(options, Mapping):
        yield from (("options.", name, body.known_options) for name in options if name not in body.known_options)


def _about_unknown(unknown: list[tuple[str, str, frozenset[str]]]) -> FieldWarning | None:
    if not unknown:
        return None
    named = [
        (prefix + name[:MAX_SHOWN_NAME_CHARS], _meant(prefix, name, known))
        for prefix, name, known in unknown[:MAX_NAMED]
    ]
    shown = ", ".join(f"{name} (did you mean {meant}?)" if meant else name for name, meant in named)
    more = f" and {len(unknown) - MAX_NAMED} more" if len(unknown) > MAX_NAMED else ""
    meant = ", ".join(meant for _, meant in named if meant)
    perhaps = f", perhaps meant as {meant}" if meant else ""
    counted = "1 unknown field" if len(unknown) == 1 else f"{len(unknown)} unknown fields"
    return FieldWarning(printable(f"unknown fields: {shown}{more}"), f"{counted}{perhaps}")


def _meant(prefix: str, name: str, known: Set[str]) -> str:
    close = difflib.get_close_matches(name[:MAX_SHOWN_NAME_CHARS], sorted(known), 1, LIKENESS)
    close = close or [each for each in sorted(known) if each.startswith(f"{name}_")]  # without its unit
    return prefix + close[0] if close else ""
