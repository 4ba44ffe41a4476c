"""Fields that several protocols share: their types with bounds, messages, tools, and what they mean to the engine."""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal, final, get_args, get_origin, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    GetCoreSchemaHandler,
    PlainValidator,
    Tag,
    TypeAdapter,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, PydanticCustomError

# pydantic makes no schema of typing's TypedDict before Python 3.12.
from typing_extensions import TypedDict

from edgeagent.api.wire.body import NO_VARIANT_PREFIX, Body, Notice, Settings, between
from edgeagent.api.wire.media import ReadFile, ReadImage, ReadSound, Said, is_enclosed, medium_of, said_of
from edgeagent.api.wire.shape import Json
from edgeagent.config import MAX_DRAFT_TOKENS, TierName
from edgeagent.config import MAX_INT32 as MAX_INT32
from edgeagent.errors import InvalidRequest, InvalidToolSchema
from edgeagent.router.policy import strictest
from edgeagent.types import (
    MAX_SCHEMA_BYTES,
    MAX_SCHEMA_DEPTH,
    AnswerPolicy,
    Media,
    Role,
    RouteMode,
    SamplingParams,
    Tool,
    ToolChoice,
)
from edgeagent.units import seconds_of

MAX_SEED = 2**63 - 1
MAX_MESSAGES = 4096
MAX_STOPS = 16
MAX_STOP_BYTES = 256
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

# llama.cpp reads this seed as "choose one at random".
_RANDOM_SEED = 2**32 - 1


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


Milliseconds = Annotated[float, between(1, MAX_INT32)]


class EdgeagentBody(Settings):
    """The field `edgeagent`: settings that other servers do not have. An unknown name in it is refused.

    Otherwise a mistyped `route` would be ignored, and the request might leave this machine. Times can also be sent as
    headers: `x-edgeagent-ttft-ms`, `x-edgeagent-itl-ms`, `x-edgeagent-deadline-ms`; the smallest holds. The tier is in
    `x-edgeagent-tier`.
    """

    model_config = ConfigDict(extra="forbid")

    route: Literal["local_only", "prefer_local", "prefer_remote", "remote_only"] | None = None
    adapter: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    draft_tokens: Annotated[int, between(0, MAX_DRAFT_TOKENS)] | None = None
    tier: Annotated[
        TierName | None,
        Field(description="The order in which requests are served, as `service_tier`; the two must not disagree."),
    ] = None
    ttft_ms: Annotated[
        Milliseconds | None,
        Field(description="The latest first token. If it is predicted to come later, the request is refused at once."),
    ] = None
    itl_ms: Annotated[Milliseconds | None, Field(description="The longest time from one token to the next.")] = None
    deadline_ms: Annotated[
        Milliseconds | None, Field(description="The longest time of the whole answer. Then it ends with an error.")
    ] = None
    max_prompt_tokens: Annotated[
        Count | None,
        Field(
            description="The longest prompt. A longer one is shortened if it may be truncated, and otherwise refused."
        ),
    ] = None
    answers: Annotated[
        Literal["use", "read", "none"] | None,
        Field(
            description="What the owner's answer cache may do: `use`: give a kept answer, and keep this one; `read`: "
            "keep nothing; `none`: neither. A request that is not to be stored is `none`, or `read` if it says so."
        ),
    ] = None
    store: Annotated[
        bool | None,
        Field(
            description="False: no prompt or answer of it is written to disk, on each API. OpenAI's `store` does this "
            "too."
        ),
    ] = None


def route_of(*bodies: EdgeagentBody | None) -> RouteMode | None:
    """Return the strictest route mode that the `edgeagent` fields of a request name; None if they name none."""
    return strictest(*(RouteMode(body.route) for body in bodies if body is not None and body.route is not None))


def is_storable(*bodies: EdgeagentBody | None) -> bool:
    """Whether the `edgeagent` fields of a request let something of it be written to disk."""
    return not any(body is not None and body.store is False for body in bodies)


def answers_of(*bodies: EdgeagentBody | None, is_kept: bool) -> AnswerPolicy:
    """Return what the answer cache may do with a request. `is_kept`: the request lets itself be stored."""
    asked = next((body.answers for body in bodies if body is not None and body.answers is not None), None)
    if asked is None:
        return AnswerPolicy.USE if is_kept else AnswerPolicy.NONE
    return AnswerPolicy(asked) if is_kept or asked == "none" else AnswerPolicy.READ


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


def template_kwargs(effort: str | None, extra: TemplateKwargs | None) -> str:
    """Return the chat template's variables as JSON text: those of a reasoning effort, overridden by `extra`."""
    kwargs: TemplateKwargs = {}
    if effort is not None:
        kwargs["enable_thinking"] = effort not in ("none", "minimal")
        if effort != "none":
            kwargs["reasoning_effort"] = effort
    return json.dumps(kwargs | (extra or {}), separators=(",", ":"))


def values_by_member(union: object, field: str) -> dict[object, tuple[str, ...]]:
    """Return for each type of a union the values of `field` that mean it; () for one in which it is any string."""
    union = get_args(union)[0] if get_origin(union) is Annotated else union
    return {
        member: _values(get_args(member)[0] if get_origin(member) is Annotated else member, field)
        for member in get_args(union)
    }


def _values(member: type, field: str) -> tuple[str, ...]:
    kind = member.model_fields[field].annotation if issubclass(member, BaseModel) else get_type_hints(member)[field]
    return get_args(kind) if get_origin(kind) is Literal else ()


def values_of(union: object, field: str) -> frozenset[str]:
    """Return the values of `field` that mean a type of a union."""
    return frozenset(value for values in values_by_member(union, field).values() for value in values)


@dataclass(frozen=True, slots=True)
class By:
    """Which type of a union is meant, by the value of a field: `Annotated[UserMessage | Answer, By("role")]`.

    A type with a Literal is meant by each of its values, and one in which the field is any string by all others.
    `default` is the value if the field is missing.
    """

    field: str
    default: str = ""

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        # A tag begins with #, which no field's name does, so that it is left out of the path in an error.
        members = {f"#{number}": each for number, each in enumerate(values_by_member(source, self.field).items())}
        tags = {value: tag for tag, (_, values) in members.items() for value in values}
        other = next((tag for tag, (_, values) in members.items() if not values), None)

        def tag_of(value: Any) -> str | None:
            kind = (value.get(self.field) or self.default) if isinstance(value, dict) else None
            return tags.get(kind, other) if isinstance(kind, str) else None

        kind = f"{NO_VARIANT_PREFIX}{self.field}"
        chosen = Discriminator(tag_of, custom_error_type=kind, custom_error_message=", ".join(tags))
        tagged: Any = reduce(or_, (Annotated[member, Tag(tag)] for tag, (member, _) in members.items()))
        return handler.generate_schema(Annotated[tagged, chosen])


# A conversation has many parts, and pydantic makes a dict in half the time of a model.
@final
class TextPart(TypedDict):
    """Text in a message or an item."""

    type: Literal["text", "input_text", "output_text", "summary_text"]
    text: str


@final
class RefusalPart(TypedDict):
    """A refusal, in an earlier message of the model."""

    type: Literal["refusal"]
    refusal: str


Part = Annotated[TextPart | RefusalPart, By("type")]
_PART_KINDS = values_of(Part, "type")
_LATER = ConfigDict(defer_build=True)  # as for a Body
_PARTS: TypeAdapter[list[Part]] = TypeAdapter(Annotated[list[Part], Field(fail_fast=True)], config=_LATER)
UserPart = Annotated[TextPart | RefusalPart | ReadImage | ReadSound | ReadFile, By("type")]
_USER_PARTS: TypeAdapter[list[Any]] = TypeAdapter(Annotated[list[UserPart], Field(fail_fast=True)], config=_LATER)


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise PydanticCustomError("content", "must be a string or a list of parts")
    parts = _PARTS.validate_python(content)
    return "".join(map(_part_text, parts))


def _said(content: object) -> Said:
    if not isinstance(content, list) or all(map(_is_text, content)):
        return Said(_text_of(content))
    parts = _USER_PARTS.validate_python(content)
    return said_of([part if isinstance(part, Media) else _part_text(part) for part in parts])


def _is_text(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") in _PART_KINDS


def _part_text(part: TextPart | RefusalPart) -> str:
    return part["text"] if "text" in part else part["refusal"]


def _output_of(content: object) -> Said:
    if not isinstance(content, list):
        return Said(_text_of(content or ""))
    return said_of([medium_of(part) or _note(part) or _text_of([part]) for part in content])


def note_for(kind: str) -> str:
    """Return what the model sees instead of a part of this type, such as image_url."""
    return f"[{kind.removeprefix('input_').removesuffix('_url')[:64]} left out: only text can be read here]"


def _note(part: object, kinds: Container[str] = _PART_KINDS) -> str:
    """Return what stands for a part whose type is none of `kinds`; "" for one of them."""
    match part:
        case {"type": str(kind)} if kind not in kinds:
            return note_for(kind)
    return ""


def num_earlier(messages: Sequence[object]) -> int:
    """Return how many messages come before the one that is to be answered.

    That is the last one, or the one before if the last one is the beginning of its answer.
    """
    last = messages[-1] if messages else None
    is_answer = isinstance(last, dict) and last.get("role") == "assistant"
    return max(0, len(messages) - (2 if is_answer else 1))


def _earlier_parts(messages: object, kinds: Container[str]) -> Iterator[tuple[int, list[int]]]:
    """Yield each message that has parts which were said before and are of another type than `kinds`, and their places.

    What is new is in the message that is to be answered. A client may join a message that was refused and the next one,
    so a part between two texts is not new.
    """
    if not isinstance(messages, list):
        return
    num_before = num_earlier(messages)
    for index, message in enumerate(messages):
        match message:
            case {"role": "user" | "assistant" as role, "content": [*_] as content}:
                others = [
                    number
                    for number, part in enumerate(content)
                    if _note(part, kinds) and not (role == "user" and is_enclosed(part))
                ]
                if others and index == num_before:
                    texts = [number for number, part in enumerate(content) if _has_text(part)]
                    others = [number for number in others if texts and texts[0] < number < texts[-1]]
                if others:
                    yield index, others


def _has_text(part: object) -> bool:
    return isinstance(part, dict) and isinstance(text := part.get("text"), str) and bool(text.strip())


def earlier_as_notes(kinds: Container[str] = _PART_KINDS) -> BeforeValidator:
    """Return a validator of a conversation that puts notes in the place of what cannot be read, such as documents.

    Only what was said before is replaced, so that a conversation is not lost by a document in it. What is new is left
    for the other validators, which refuse it. `kinds` are the types that can be read. An image or a sound in a user's
    message can be read if the message holds it itself; whether the model reads it is decided where the request runs.
    """

    def replaced(messages: Any) -> Any:
        found = dict(_earlier_parts(messages, kinds))
        if not found:
            return messages
        messages = list(messages)
        for index, places in found.items():
            content = list(messages[index]["content"])
            for number in places:
                content[number] = {"type": "text", "text": _note(content[number], kinds)}
            messages[index] = {**messages[index], "content": content}
        return messages

    return BeforeValidator(replaced)


def earlier_notices(field: str, kinds: Container[str] = _PART_KINDS) -> Notice:
    """Return what yields a warning if `earlier_as_notes` replaces parts of the conversation in this field."""

    def notices(fields: Mapping[str, object]) -> Iterator[str]:
        found = list(_earlier_parts(fields.get(field), kinds))
        if found:
            (index, (number, *_)), num_parts = found[0], sum(len(places) for _, places in found)
            more = f" and {num_parts - 1} more" if num_parts > 1 else ""
            yield f"{field}[{index}].content[{number}]{more}: left out, because only text can be read here"

    return notices


OutputContent = Annotated[Said, PlainValidator(_output_of, json_schema_input_type=str | list[Part | Json])]
"""A tool's result: a string, or a list of texts, images and sounds. A note stands for what cannot be read."""

Content = Annotated[str, PlainValidator(_text_of, json_schema_input_type=str | list[Part])]
"""A message's text. It is sent as a string, or as a list of texts and refusals, which are joined."""

UserContent = Annotated[Said, PlainValidator(_said, json_schema_input_type=str | list[UserPart])]
"""What a user says: a string, or a list of texts, images and sounds."""


def _object_text(schema: object) -> str:
    if not isinstance(schema, dict):
        raise PydanticCustomError("schema", "must be a JSON schema, an object")
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":"))


def _schema_text(schema: object) -> str:
    text = _object_text(schema)
    if len(text.encode()) > MAX_SCHEMA_BYTES:
        raise PydanticCustomError("schema", "is larger than {most} bytes", {"most": MAX_SCHEMA_BYTES})
    level: list[object] = [schema]
    for _ in range(MAX_SCHEMA_DEPTH):
        level = [child for node in level for child in _children(node)]
        if not level:
            return text
    raise PydanticCustomError("schema", "is nested deeper than {most} levels", {"most": MAX_SCHEMA_DEPTH})


def _children(node: object) -> Sequence[object]:
    if isinstance(node, dict):
        return list(node.values())
    return node if isinstance(node, list) else ()


Schema = Annotated[str, PlainValidator(_schema_text, json_schema_input_type=Json)]
"""A JSON schema as text, checked for size and depth. The worker checks later whether it can become a grammar."""


Parameters = Annotated[str, PlainValidator(_object_text, json_schema_input_type=Json)]
"""A JSON schema of a function's arguments, as text. The worker checks it: if it cannot be used, a function that is not
strict is called with any object."""


def _arguments_text(arguments: object) -> str:
    if arguments is None:  # some clients send back a call without arguments so
        return "{}"
    if isinstance(arguments, dict):
        return json.dumps(arguments, ensure_ascii=False)
    if not isinstance(arguments, str):
        raise PydanticCustomError("arguments", "must be a JSON object, or its text")
    return arguments


Arguments = Annotated[str, PlainValidator(_arguments_text, json_schema_input_type=str | Json)]
"""The arguments of an earlier call: a JSON object, or its text, as the clients of all APIs send one or the other."""


def read_schema(schema: object, path: str) -> str:
    """Return a JSON schema as text, for a field that no pydantic model reads; raise InvalidRequest, naming `path`."""
    try:
        return _schema_text(schema)
    except PydanticCustomError as error:
        raise InvalidRequest(f"{path} {error.message()}", param=path) from None


ToolName = Annotated[str, Field(pattern=f"^{TOOL_NAME}$")]


class PlainFunction(Settings):
    """A function the model may call."""

    name: ToolName
    description: str | None = None
    parameters: Annotated[
        Parameters | None,
        Field(description="A JSON schema of the arguments, an object. With over 64 KiB or 32 levels, any object fits."),
    ] = None


class Function(PlainFunction):
    """A function the model may call. With `strict`, a keyword that cannot be followed is refused, not ignored."""

    strict: bool | None = None


def tools_of(functions: Iterable[PlainFunction], field: str = "tools") -> tuple[Tool, ...]:
    """Return a field's functions as tools; raise InvalidToolSchema if two have the same name."""
    tools: dict[str, Tool] = {}
    for index, function in enumerate(functions):
        name, strict = function.name, isinstance(function, Function) and bool(function.strict)
        if name in tools:
            raise InvalidToolSchema(f"{field}[{index}]: a second tool named {name!r}", param=f"{field}[{index}]")
        schema = function.parameters
        if schema is None:
            schema = '{"type":"object","properties":{}}'
        tools[name] = Tool(name, function.description or "", schema, strict)
    return tuple(tools.values())


class HostedTool(Body):
    """A tool of a type that another server runs itself, such as web_search. It is left out, and a warning names it."""

    type: Name


def left_out(tool: object, path: str) -> str:
    """Return what a warning says of a tool whose type is not served."""
    kind = tool.get("type") if isinstance(tool, dict) else ""
    return f"{path} is left out: tools of type {str(kind)[:64]} are not run here"


def hosted_tools(fields: Mapping[str, object]) -> Iterator[str]:
    """Yield a warning for each tool that is no function, of a request that may offer only functions."""
    tools = fields.get("tools")
    for index, tool in enumerate(tools if isinstance(tools, list) else ()):
        if isinstance(tool, dict) and tool.get("type", "function") != "function":
            yield left_out(tool, f"tools[{index}]")
