"""Request fields that several routes share: types with bounds, their check, and the choice of tools."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal, TypeVar, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from edgeagent.api.wire.shape import Json
from edgeagent.config import MAX_DRAFT_TOKENS
from edgeagent.durations import seconds_of
from edgeagent.errors import InvalidRequest, InvalidToolSchema, NotSupported
from edgeagent.router.policy import strictest
from edgeagent.strict_json import kind_of
from edgeagent.types import Role, RouteMode, SamplingParams, Tier, Tool, ToolChoice

MAX_INT32 = 2**31 - 1
MAX_SEED = 2**63 - 1
MAX_MESSAGES = 4096
MAX_TOOLS = 128
MAX_STOPS = 16
MAX_STOP_BYTES = 256
MAX_SCHEMA_BYTES = 64 << 10
MAX_SCHEMA_DEPTH = 32
MAX_LOGIT_BIASES = 1024
MAX_TOP_LOGPROBS = 20
"""The maximum number of alternatives that an answer lists for each token, with their log probabilities."""
MAX_NAME_CHARS = 512
"""The maximum number of characters in a name: a model's, a user's, an id."""
TOOL_NAME = "[A-Za-z0-9_.:/-]{1,128}"
"""The pattern of the names that tools may have."""

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}

NOT_SUPPORTED = "not_supported"
"""The type of a validation error that becomes a NotSupported."""
NO_VARIANT_PREFIX = "no_variant_"
"""How the type of a validation error begins; the name of a union's discriminator field follows.

The error means that no member of the union has the value of this field.
"""

_IN_A_TOOL = re.compile(r"(tools|functions)\[\d+\]\.")
# llama.cpp reads this seed as "choose one at random".
_RANDOM_SEED = 2**32 - 1

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


def _one_or_many(value: object) -> object:
    if not isinstance(value, str | list):
        raise PydanticCustomError("stop", "must be a string or a list of strings")
    return [value] if isinstance(value, str) else [stop for stop in value if stop not in ("", None)]


def _stop(value: str) -> str:
    if not 1 <= len(value.encode()) <= MAX_STOP_BYTES:
        raise PydanticCustomError("stop", "must be 1 to {most} bytes long", {"most": MAX_STOP_BYTES})
    return value


# JSON schema counts characters. `_stop` checks the bound in bytes; a character may have several.
_STOP_SCHEMA = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_BYTES}
Count = Annotated[int, between(1, MAX_INT32)]
MaxTokens = Annotated[int, between(-1, MAX_INT32)]
"""The most tokens to generate. As in llama-server, 0 means no tokens and -1 means no limit."""
NumTopLogprobs = Annotated[int, between(0, MAX_TOP_LOGPROBS)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
"""How long the model is to reason before it answers. The chat template decides what an effort does."""
Penalty = Annotated[float, between(-2, 2)]
Fraction = Annotated[float, between(0, 1)]
Name = Annotated[str, Field(max_length=MAX_NAME_CHARS)]
"""A string that names something, such as an id or a user. It is short, because it is stored, indexed and repeated."""
ModelName = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]
Stops = Annotated[
    list[Annotated[str, AfterValidator(_stop)]],
    Field(fail_fast=True, max_length=MAX_STOPS),
    BeforeValidator(_one_or_many),
    WithJsonSchema({"anyOf": [_STOP_SCHEMA, {"type": "array", "items": _STOP_SCHEMA, "maxItems": MAX_STOPS}]}),
]


def keep_alive_s(duration: object) -> object:
    """Return the seconds that a model stays loaded without use; infinity for a negative value.

    Raise InvalidRequest for NaN or a text that is not a duration. A value that is neither a number nor a string is
    returned unchanged, so that pydantic refuses it.
    """
    if isinstance(duration, bool) or not isinstance(duration, float | int | str):
        return duration
    try:
        return seconds_of(duration)
    except ValueError:
        raise InvalidRequest(
            f"keep_alive must be a number of seconds or a duration such as 5m, not {str(duration)[:64]!r}",
            param="keep_alive",
        ) from None


KeepAlive = Annotated[
    float,
    BeforeValidator(keep_alive_s),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string"}]}),
]
"""How long a model stays loaded without use, in seconds: a number, or a duration such as 5m. Infinity means forever."""
TemplateKwargs = dict[str, bool | int | float | str | None]


class Body(BaseModel):
    """The fields of a body. Unknown fields are ignored. No value is converted: true and "1" are not numbers."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


# Numbers that mean the same as no number, where vLLM, llama-server or Ollama take them so.
NEUTRAL_NUMBERS: dict[str, tuple[int, ...]] = {
    "dimensions": (0, -1),
    "max_output_tokens": (-1,),
    "max_tool_calls": (-1,),
    "repeat_penalty": (0,),
    "seed": (-1,),
    "top_n": (0, -1),
}
# Optional fields in which an empty value has a meaning of its own.
MEANT_EMPTY = frozenset({"input", "json_schema", "format", "samplers"})


class Settings(Body):
    """A body, or an object in it, in which an optional field with a neutral value is as if it were absent.

    Neutral are null, the empty string, and for some fields an empty list or object or a number; see `is_neutral`. The
    forms of settings pages and typed clients send them. A whole number such as 40.0 is read as an integer.
    """

    @model_validator(mode="before")
    @classmethod
    def _without_neutral(cls, fields: object) -> object:
        if not isinstance(fields, dict):
            return fields
        kinds = _field_kinds(cls)
        return {
            name: int(value) if isinstance(value, float) and name in kinds.whole and value.is_integer() else value
            for name, value in fields.items()
            if not is_neutral(cls, name, value)
        }


def is_neutral(body: type[Settings], name: str, value: object) -> bool:
    """Whether the field `name` of a body is optional, and with this value as if it were absent."""
    kinds = _field_kinds(body)
    if name not in kinds.optional or value is None:
        return name in kinds.optional
    if isinstance(value, str | list | dict):
        return not value and name not in MEANT_EMPTY and (value == "" or name in kinds.many)
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
    return _FieldKinds(optional, whole, frozenset(name for name, found in types.items() if any(map(_is_many, found))))


def _types_in(annotation: object) -> Iterator[type]:
    origin = get_origin(annotation)
    for found in (annotation, origin):
        if isinstance(found, type):
            yield found
    if origin not in (list, dict):  # the types in a list are not the field's own
        for part in get_args(annotation):
            yield from _types_in(part)


def _is_many(kind: type) -> bool:
    return issubclass(kind, list | dict | BaseModel)


class Query(Body):
    """The query parameters of a route. Unknown parameters are ignored. Numbers and booleans are read from text."""

    model_config = ConfigDict(strict=False)


class EdgeagentBody(Settings):
    """The field `edgeagent`: settings that other servers do not have. An unknown name in it is refused.

    Otherwise a mistyped `route` would be ignored, and the request might leave this machine.
    """

    model_config = ConfigDict(extra="forbid")

    route: Literal["local_only", "prefer_local", "prefer_remote", "remote_only"] | None = None
    adapter: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    draft_tokens: Annotated[int, between(0, MAX_DRAFT_TOKENS)] | None = None


def route_of(*bodies: EdgeagentBody | None) -> RouteMode | None:
    """Return the strictest route mode that the `edgeagent` fields of a request name; None if they name none."""
    return strictest(*(RouteMode(body.route) for body in bodies if body is not None and body.route is not None))


def drafts_of(*bodies: EdgeagentBody | None) -> int | None:
    """Return the number of draft tokens per step that a request asks for; None if the engine chooses the number."""
    return next((body.draft_tokens for body in bodies if body is not None and body.draft_tokens is not None), None)


def with_adapter(model: str, *bodies: EdgeagentBody | None) -> str:
    """Return MODEL+ADAPTER if one of the bodies names an adapter, otherwise `model`."""
    adapter = next((body.adapter for body in bodies if body is not None and body.adapter is not None), None)
    return model if adapter is None else f"{model}+{adapter}"


class SamplingBody(Settings):
    """The sampling parameters of a request: OpenAI's fields, and llama-server's for the rest. All may be null."""

    temperature: Annotated[float, between(0, 2)] | None = None
    top_p: Fraction | None = None
    top_k: Annotated[int, between(-1, MAX_INT32)] | None = None
    min_p: Fraction | None = None
    repeat_penalty: Annotated[float, between(0.01, 10)] | None = None
    repeat_last_n: Annotated[int, between(-1, MAX_INT32)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int, between(-MAX_SEED, MAX_SEED)] | None = None
    logit_bias: (
        Annotated[dict[str, Annotated[float, between(-100, 100)]], Field(max_length=MAX_LOGIT_BIASES)] | None
    ) = None

    def sampling(self) -> SamplingParams:
        """Return the checked sampling parameters.

        Raise InvalidRequest if a key of `logit_bias` is no token id.
        """
        return SamplingParams(
            temperature=self.temperature,
            top_k=0 if self.top_k == -1 else self.top_k,  # as in vLLM and llama-server, -1 means all tokens
            top_p=self.top_p,
            min_p=self.min_p,
            repeat_penalty=self.repeat_penalty,
            repeat_last_n=self.repeat_last_n,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            seed=None if self.seed is None else self.seed % _RANDOM_SEED,
            logit_bias=tuple((_token(key), bias) for key, bias in (self.logit_bias or {}).items()),
        )


def sampling_defaults(sampling: SamplingParams) -> dict[str, float | None]:
    """Return a model's default sampling parameters by name, without the seed and the logit biases."""
    names = (name for name in sampling.__struct_fields__ if name not in ("seed", "logit_bias"))
    return {name: getattr(sampling, name) for name in names}


def _token(key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) <= MAX_INT32):
        raise InvalidRequest(
            f"logit_bias: {key[:64]!r} is no token id; keys are integers from 0 to {MAX_INT32}", param="logit_bias"
        )
    return int(key)


def validate(model: type[M], fields: object, path: str = "") -> M:
    """Check `fields` against a pydantic model, and return an instance of it.

    Raise InvalidRequest, or its subclass NotSupported or InvalidToolSchema, for the first wrong field. The message says
    what the field must be. `path` is put before the field's name.
    """
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False)[0], path) from error


def _refusal(details: ErrorDetails, path: str) -> InvalidRequest:
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
    return error(f"{path} {demand}", param=path)


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


def tool_choice_of(mode: str, names: tuple[str, ...], tools: Sequence[Tool]) -> ToolChoice:
    """Return a checked tool choice. `names` are the only tools that may be called; empty: all tools may be called.

    Raise InvalidRequest for an unknown mode or name, or if the mode is `required` and there are no tools.
    """
    known = {tool.name for tool in tools}
    for name in names:
        if name not in known:
            raise InvalidRequest(f"tool_choice: no tool is named {name[:128]!r}", param="tool_choice")
    match mode:
        case "auto":
            return ToolChoice("auto", names)
        case "none":
            return ToolChoice("none")
        case "required" if known:
            return ToolChoice("required", names)
        case "required":
            raise InvalidRequest("tool_choice asks for a call, but there are no tools", param="tool_choice")
    raise InvalidRequest(f"tool_choice must be auto, none or required, not {mode[:64]!r}", param="tool_choice")


def tier_of(service_tier: str | None) -> Tier:
    """Return the scheduling tier for OpenAI's `service_tier`: INTERACTIVE, except for priority, flex and batch."""
    match service_tier:
        case "priority":
            return Tier.REALTIME
        case "flex" | "batch":
            return Tier.BATCH
    return Tier.INTERACTIVE


def template_kwargs(effort: str | None, extra: TemplateKwargs | None) -> str:
    """Return the chat template's variables as JSON text: those of a reasoning effort, overridden by `extra`."""
    kwargs: TemplateKwargs = {}
    if effort is not None:
        kwargs["enable_thinking"] = effort not in ("none", "minimal")
        if effort != "none":
            kwargs["reasoning_effort"] = effort
    return json.dumps(kwargs | (extra or {}), separators=(",", ":"))
