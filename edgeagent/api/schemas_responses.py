"""The body of `response.create` and of POST /v1/responses: every field read once, checked, and turned into our types.

Unknown fields are ignored, as are those that a WebSocket makes meaningless (stream, background). A real feature that is
not here is refused by name, never passed over in silence where that would change the answer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from edgeagent.api.items import Item, read_items, to_messages
from edgeagent.errors import InvalidRequest, NotSupported
from edgeagent.types import (
    CachePolicy,
    ChatPrompt,
    GenerateRequest,
    JsonObjectFormat,
    JsonSchemaFormat,
    OutputFormat,
    SamplingParams,
    TextFormat,
    Tier,
    Tool,
    ToolChoice,
)

Body = dict[str, Any]

MAX_TOOLS = 128
MAX_STOPS = 16
# What a response repeats of its request is left out beyond this: clients bound a frame at 1 MiB.
MAX_ECHO_BYTES = 128 << 10
_MAX_INT32 = 2**31 - 1


def _range(low: float, high: float) -> AfterValidator:
    def check(value: float) -> float:
        if not low <= value <= high:
            raise PydanticCustomError("range", "must be from {low} to {high}", {"low": low, "high": high})
        return value

    return AfterValidator(check)


def _one_or_many(value: object) -> object:
    return [value] if isinstance(value, str) else value


_Count = Annotated[int, _range(1, _MAX_INT32)]
_Penalty = Annotated[float, _range(-2, 2)]
_Share = Annotated[float, _range(0, 1)]
_Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", populate_by_name=True)


class FunctionTool(_Part):
    """A function the model may call; flat, unlike chat's."""

    type: str
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:-]{1,128}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Format(_Part):
    """`text.format`."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str = "response"
    json_schema: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class Text(_Part):
    """`text`; verbosity is taken and has no effect."""

    format: Format | None = None


class Reasoning(_Part):
    """`reasoning`; what effort does is the chat template's business."""

    effort: _Effort | None = None


class CacheOptions(_Part):
    """`prompt_cache_options`: prewarm asks for no answer, as generate:false does."""

    prewarm: bool | None = None


class CreateBody(_Part):
    """The fields that have an effect or are repeated in the response; all may be null."""

    model: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    instructions: str | None = None
    previous_response_id: Annotated[str, Field(min_length=1)] | None = None
    store: bool | None = None
    generate: bool | None = None
    prompt_cache_options: CacheOptions | None = None
    max_output_tokens: _Count | None = None
    max_tool_calls: _Count | None = None
    temperature: Annotated[float, _range(0, 2)] | None = None
    top_p: _Share | None = None
    top_logprobs: Annotated[int, _range(0, 20)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    parallel_tool_calls: bool | None = None
    include: list[str] | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    text: Text | None = None
    reasoning: Reasoning | None = None
    service_tier: str | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    user: str | None = None
    # llama-server's names, for what the Responses API has no field for.
    top_k: Annotated[int, _range(0, _MAX_INT32)] | None = None
    min_p: _Share | None = None
    repeat_penalty: Annotated[float, _range(0.01, 10)] | None = None
    repeat_last_n: Annotated[int, _range(0, _MAX_INT32)] | None = None
    seed: Annotated[int, _range(0, 2**32 - 1)] | None = None
    stop: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=256)]] | None,
        BeforeValidator(_one_or_many),
        Field(max_length=MAX_STOPS),
    ] = None
    cache_prompt: bool | None = None
    chat_template_kwargs: dict[str, bool | int | float | str | None] | None = None


@dataclass(frozen=True, slots=True)
class ResponseCreate:
    """A checked create: what identifies its place in a chain, what to generate, and what the response repeats."""

    body: CreateBody
    items: tuple[Item, ...]
    tools: tuple[Tool, ...]
    tool_choice: ToolChoice
    format: OutputFormat

    @property
    def is_stored(self) -> bool:
        """Whether other connections may continue from it; the API's default is yes."""
        return self.body.store is not False

    @property
    def is_prefill_only(self) -> bool:
        """Whether the prompt is to be computed and cached, and nothing generated."""
        options = self.body.prompt_cache_options
        return self.body.generate is False or bool(options and options.prewarm)

    def request(self, request_id: str, model: str, items: tuple[Item, ...], partition: str = "") -> GenerateRequest:
        """Return the generation that continues `items`; raise InvalidRequest where there is nothing to answer."""
        body = self.body
        messages = to_messages(body.instructions, items)
        if not messages and not self.is_prefill_only:
            raise InvalidRequest("input is missing: send a string or a list of items", param="input")
        prompt = ChatPrompt(
            messages, self.tools, self.tool_choice, body.parallel_tool_calls is not False, _template_kwargs(body)
        )
        is_cached = body.cache_prompt is not False
        return GenerateRequest(
            id=request_id,
            model=model,
            prompt=prompt,
            sampling=_sampling(body),
            format=self.format,
            max_tokens=body.max_output_tokens,
            stop=tuple(body.stop or ()),
            logprobs=_num_logprobs(body),
            tier=_tier(body),
            prefill_only=self.is_prefill_only,
            cache=CachePolicy(is_cached, is_cached, partition),
        )

    def echo(self, defaults: SamplingParams) -> Body:
        """Return the fields of a response that repeat its request, each with a value; see the API's Response object."""
        body = self.body
        echo: Body = {
            "previous_response_id": body.previous_response_id,
            "instructions": body.instructions,
            "tools": [_echo_tool(tool) for tool in self.tools],
            "tool_choice": _echo_choice(body.tool_choice),
            "text": {"format": _echo_format(self.format)},
            "metadata": body.metadata or {},
            "truncation": "disabled",
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "temperature": _first(body.temperature, defaults.temperature, 1.0),
            "top_p": _first(body.top_p, defaults.top_p, 1.0),
            "presence_penalty": _first(body.presence_penalty, defaults.presence_penalty, 0.0),
            "frequency_penalty": _first(body.frequency_penalty, defaults.frequency_penalty, 0.0),
            "top_logprobs": body.top_logprobs or 0,
            "reasoning": {"effort": body.reasoning.effort, "summary": None} if body.reasoning else None,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": body.max_tool_calls,
            "store": self.is_stored,
            "background": False,
            "service_tier": "priority" if _tier(body) is Tier.REALTIME else "default",
            "safety_identifier": body.safety_identifier,
            "prompt_cache_key": body.prompt_cache_key,
            "user": body.user,
        }
        return _bounded(echo)


def read_create(fields: Body) -> ResponseCreate:
    """Return a checked create; raise InvalidRequest or NotSupported, which name the field, the value and the bounds."""
    try:
        body = CreateBody.model_validate(fields)
    except ValidationError as error:
        raise _invalid(error.errors(include_url=False)[0]) from error
    _refuse_unsupported(fields)
    tools = _read_tools(body.tools or [])
    return ResponseCreate(
        body, read_items(fields.get("input")), tools, _read_choice(body.tool_choice, tools), _read_format(body.text)
    )


def _refuse_unsupported(fields: Body) -> None:
    if fields.get("conversation") is not None:
        if fields.get("previous_response_id") is not None:
            raise InvalidRequest("send either conversation or previous_response_id, not both", param="conversation")
        raise NotSupported("conversation objects are not supported; use previous_response_id", param="conversation")
    if fields.get("prompt") is not None:
        raise NotSupported("stored prompt templates are not supported; send instructions and input", param="prompt")


def _invalid(details: ErrorDetails) -> InvalidRequest:
    path = ""
    for part in details["loc"]:
        # Of a union's branches pydantic names the type in the path; it is not a field.
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part not in ("str", "dict", "list", "bool", "int", "float"):
            path += f".{part}" if path else part
    value, message = details["input"], details["msg"]
    message = message[0].lower() + message[1:].replace("Input should", "it should")
    shown = f"; got {json.dumps(value)[:80]}" if isinstance(value, str | int | float | None) else ""
    return InvalidRequest(f"{path}: {message}{shown}", param=path)


def _read_tools(raw: list[Body]) -> tuple[Tool, ...]:
    tools: dict[str, Tool] = {}
    for index, fields in enumerate(raw):
        path, kind = f"tools[{index}]", fields.get("type")
        if kind != "function":
            raise NotSupported(
                f"{path}: tools of type {json.dumps(kind)[:64]} are not supported; only function tools are", param=path
            )
        try:
            tool = FunctionTool.model_validate(fields)
        except ValidationError as error:
            details = error.errors(include_url=False)[0]
            raise _invalid({**details, "loc": ("tools", index, *details["loc"])}) from error
        if tool.name in tools:
            raise InvalidRequest(f"{path}.name: '{tool.name}' is the name of two tools", param=f"{path}.name")
        parameters = json.dumps(tool.parameters or {"type": "object", "properties": {}}, separators=(",", ":"))
        tools[tool.name] = Tool(tool.name, tool.description or "", parameters, bool(tool.strict))
    return tuple(tools.values())


def _read_choice(raw: str | Body | None, tools: tuple[Tool, ...]) -> ToolChoice:
    match raw:
        case None | "auto":
            return ToolChoice()
        case "none":
            return ToolChoice("none")
        case "required":
            return _required_of((), tools)
        case {"type": "function", "name": str(name)}:
            return _required_of((name,), tools)
        case {"type": "allowed_tools", "mode": "auto" | "required" as mode, "tools": list(allowed)}:
            names = tuple(entry.get("name") for entry in allowed if isinstance(entry, dict))
            choice = _required_of(tuple(str(name) for name in names), tools)
            return ToolChoice("auto", choice.names) if mode == "auto" else choice
    raise InvalidRequest(
        f"tool_choice must be auto, none, required, a function by name or allowed_tools; got {json.dumps(raw)[:80]}",
        param="tool_choice",
    )


def _required_of(names: tuple[str, ...], tools: tuple[Tool, ...]) -> ToolChoice:
    known = {tool.name for tool in tools}
    if not known:
        raise InvalidRequest("tool_choice asks for a call, but tools is empty", param="tool_choice")
    for name in names:
        if name not in known:
            raise InvalidRequest(f"tool_choice: no tool is named '{name[:128]}'", param="tool_choice")
    return ToolChoice("required", names)


def _read_format(text: Text | None) -> OutputFormat:
    raw = text.format if text else None
    if raw is None or raw.type == "text":
        return TextFormat()
    if raw.type == "json_object":
        return JsonObjectFormat()
    if raw.json_schema is None:
        raise InvalidRequest("text.format.schema is missing", param="text.format.schema")
    return JsonSchemaFormat(json.dumps(raw.json_schema, separators=(",", ":")), raw.name, raw.strict is not False)


def _sampling(body: CreateBody) -> SamplingParams:
    return SamplingParams(
        temperature=body.temperature,
        top_k=body.top_k,
        top_p=body.top_p,
        min_p=body.min_p,
        repeat_penalty=body.repeat_penalty,
        repeat_last_n=body.repeat_last_n,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        seed=body.seed,
    )


def _num_logprobs(body: CreateBody) -> int | None:
    if body.top_logprobs or "message.output_text.logprobs" in (body.include or ()):
        return body.top_logprobs or 0
    return None


def _tier(body: CreateBody) -> Tier:
    match body.service_tier:
        case "priority":
            return Tier.REALTIME
        case "flex" | "batch":
            return Tier.BATCH
    return Tier.INTERACTIVE


def _template_kwargs(body: CreateBody) -> str:
    kwargs: Body = {}
    effort = body.reasoning.effort if body.reasoning else None
    if effort is not None:
        kwargs["enable_thinking"] = effort not in ("none", "minimal")
        if effort != "none":
            kwargs["reasoning_effort"] = effort
    kwargs |= body.chat_template_kwargs or {}
    return json.dumps(kwargs, separators=(",", ":"))


def _echo_tool(tool: Tool) -> Body:
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": json.loads(tool.parameters),
        "strict": tool.strict,
    }


def _echo_choice(raw: str | Body | None) -> object:
    return "auto" if raw is None else raw


def _echo_format(output: OutputFormat) -> Body:
    match output:
        case JsonSchemaFormat(schema=schema, name=name, strict=strict):
            return {
                "type": "json_schema",
                "name": name,
                "description": None,
                "schema": json.loads(schema),
                "strict": strict,
            }
        case JsonObjectFormat():
            return {"type": "json_object"}
        case TextFormat():
            return {"type": "text"}


def _bounded(echo: Body) -> Body:
    empty: Body = {"instructions": None, "tools": [], "metadata": {}, "text": {"format": {"type": "text"}}}
    for name, instead in empty.items():
        if len(json.dumps(echo[name])) > MAX_ECHO_BYTES:
            echo[name] = instead
            if name == "tools":
                echo["tool_choice"] = "auto"
    return echo


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
