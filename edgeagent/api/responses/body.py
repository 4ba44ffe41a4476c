"""The body of `response.create` and of POST /v1/responses: every field is read once, checked and converted.

Unknown fields are ignored. On a WebSocket, `stream` has no meaning and is ignored too. If a feature
is not supported, and ignoring its field would change the answer, the request is refused. The error names the field.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Annotated, Literal, cast

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from edgeagent.api.responses.event_json import Echo
from edgeagent.api.responses.events import new_id
from edgeagent.api.responses.items import InputBody, item_notices, to_items, with_id
from edgeagent.api.responses.tools import OfferedTools, ResponsesTools, offered_tools, tool_notices
from edgeagent.api.wire.body import FieldWarning, Settings, validate, warning_about
from edgeagent.api.wire.fields import (
    MAX_MESSAGES,
    Count,
    EdgeagentBody,
    Effort,
    ModelName,
    Name,
    NumTopLogprobs,
    SamplingBody,
    Schema,
    Stops,
    TemplateKwargs,
    earlier_notices,
    is_storable,
    template_kwargs,
    tool_choice_of,
)
from edgeagent.api.wire.latency import Latency, asked_latency, service_tier_of, with_own_fields
from edgeagent.api.wire.media import checked_media
from edgeagent.api.wire.shape import Json
from edgeagent.conversation.history import Conversation
from edgeagent.conversation.items import Item, ReferenceItem, with_instructions
from edgeagent.errors import InvalidRequest, NotSupported
from edgeagent.types import (
    ChatPrompt,
    GenerateRequest,
    JsonObjectFormat,
    JsonSchemaFormat,
    Need,
    OutputFormat,
    SamplingParams,
    TextFormat,
    Tool,
    ToolChoice,
)

# A response repeats a field of its request only up to this size, because clients limit a frame to 1 MiB.
MAX_ECHO_BYTES = 128 << 10
MAX_REFERENCES = 1000


def _metadata(pairs: dict[str, str]) -> dict[str, str]:
    # OpenAI's limits.
    if len(pairs) > 16 or any(len(key) > 64 or len(value) > 512 for key, value in pairs.items()):
        message = "must hold at most 16 pairs, with keys of at most 64 characters and values of at most 512"
        raise PydanticCustomError("metadata", message)
    return pairs


Metadata = Annotated[dict[str, str], AfterValidator(_metadata)]


class Format(Settings):
    """The field `text.format`. The schema is a field of it; in chat completions it is in an object `json_schema`."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: Name = "response"
    json_schema: Annotated[Schema | None, Field(alias="schema")] = None
    strict: bool | None = None


class Text(Settings):
    """The field `text`. Its `verbosity` is accepted without effect."""

    format: Format | None = None


class Reasoning(Settings):
    """The field `reasoning`. The chat template decides what `effort` does."""

    effort: Effort | None = None


class CacheOptions(Settings):
    """The field `prompt_cache_options`.

    With `prewarm`, the prompt is computed and nothing is generated, as with `generate: false`. With
    `comparison_response_id`, the response's `prompt_cache_diagnostics` say whether it reused the prompt of that stored
    response.
    """

    prewarm: bool | None = None
    comparison_response_id: Annotated[Name, Field(min_length=1)] | None = None


class ContextManagement(Settings):
    """An entry of `context_management`: above how many prompt tokens the earlier conversation is summarized.

    From three quarters of them on, it is summarized in idle time, so that no turn waits for the summary.
    """

    type: Name
    compact_threshold: Count | None = None


class ResponsesEdgeagent(EdgeagentBody):
    """The field `edgeagent` of a response's request."""

    ahead: Annotated[
        bool | None,
        Field(
            description="Only on a WebSocket, with `generate: false`: also begin the answer, and keep it for the next "
            "create of the lane. A create that asks for the same gets it at once, any other drops it."
        ),
    ] = None


class CreateResponseBody(SamplingBody, InputBody):
    """The body of a request that creates a response. All fields may be null. Unknown fields are ignored."""

    without_effect = (
        *("access_programs", "background_options", "client_metadata", "conversation", "image", "moderation", "prompt"),
        *("prompt_cache_retention", "stream_options"),
        # Fields of a WebSocket frame.
        *("stream_id", "type"),
    )
    notices = (tool_notices, item_notices, earlier_notices("input"))

    model: ModelName | None = None
    instructions: str | None = None
    previous_response_id: Annotated[Name, Field(min_length=1)] | None = None
    store: bool | None = None
    no_store: bool | None = None
    background: Annotated[
        bool | None,
        Field(description="Run to the end without a connection, and be asked for by id. Refused on a WebSocket."),
    ] = None
    stream: Annotated[
        bool | None, Field(description="Server-sent events instead of one body; without effect on a WebSocket.")
    ] = None
    generate: Annotated[
        bool | None,
        Field(
            description="False: only compute the prompt, whose last message may grow if it is a user's. On a "
            "WebSocket, the next create of the lane ends such a response at once, as completed."
        ),
    ] = None
    prompt_cache_options: CacheOptions | None = None
    context_management: Annotated[list[ContextManagement], Field(fail_fast=True, max_length=16)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    max_output_tokens: Count | None = None
    max_tool_calls: Count | None = None
    top_logprobs: NumTopLogprobs | None = None
    parallel_tool_calls: bool | None = None
    include: Annotated[list[Name], Field(fail_fast=True, max_length=64)] | None = None
    tools: ResponsesTools | None = None
    tool_choice: str | Json | None = None
    text: Text | None = None
    reasoning: Reasoning | None = None
    service_tier: Name | None = None
    metadata: Metadata | None = None
    safety_identifier: Name | None = None
    prompt_cache_key: Name | None = None
    user: Name | None = None
    # llama-server's names, for parameters that the Responses API lacks.
    stop: Stops | None = None
    cache_prompt: bool | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    edgeagent: ResponsesEdgeagent | None = None


@dataclass(frozen=True, slots=True)
class ResponseCreate:
    """A create: a checked `response.create` frame, or a checked body of POST /v1/responses.

    `body.input` and `body.tools` are always None. Their content is in `items` and `offered`.
    """

    body: CreateResponseBody
    items: tuple[Item, ...]
    offered: OfferedTools
    tool_choice: ToolChoice
    format: OutputFormat
    latency: Latency
    warning: FieldWarning | None = None
    """The warning about unknown fields of this create; None if there are no unknown fields."""

    @property
    def previous_id(self) -> str | None:
        """The id of the response to continue; None if this create begins a conversation."""
        return self.body.previous_response_id

    @property
    def is_stored(self) -> bool:
        """Whether this create lets the response be stored, so that other connections can continue it. Default: yes."""
        return self.body.store is not False and not self.body.no_store and is_storable(self.body.edgeagent)

    @property
    def is_prefill_only(self) -> bool:
        """Whether the prompt is to be computed and cached, and nothing generated."""
        options = self.body.prompt_cache_options
        return self.body.generate is False or bool(options and options.prewarm)

    @property
    def is_answered_ahead(self) -> bool:
        """Whether the answer is to begin before the client asks for it."""
        return bool(self.body.edgeagent and self.body.edgeagent.ahead)

    @property
    def comparison_id(self) -> str | None:
        """The id of the response whose prompt this one's is compared with; None for no comparison."""
        options = self.body.prompt_cache_options
        return options.comparison_response_id if options else None

    @property
    def compact_threshold(self) -> int | None:
        """The earlier conversation is first summarized if the prompt has more tokens than this; None means never."""
        entries = self.body.context_management or []
        return next((entry.compact_threshold for entry in entries if entry.compact_threshold is not None), None)

    def succeeded_by(self, previous_id: str, items: tuple[Item, ...]) -> ResponseCreate:
        """Return a copy of this create that continues the response `previous_id` with `items`."""
        return replace(self, body=self.body.model_copy(update={"previous_response_id": previous_id}), items=items)

    def request(self, request_id: str, model: str, conversation: Conversation, partition: str = "") -> GenerateRequest:
        """Return the GenerateRequest for the conversation, with the inherited items.

        Raise InvalidRequest if there is nothing to answer, or if there are too many messages. The prompt is kept on
        disk only if both the conversation and the response may be stored.
        """
        body = self.body
        messages = with_instructions(body.instructions, conversation.transcript.messages)
        if not messages and not self.is_prefill_only:
            raise InvalidRequest("input is missing: send a string or a list of items", param="input")
        if len(messages) > MAX_MESSAGES:
            raise InvalidRequest(
                f"the conversation has {len(messages)} messages, at most {MAX_MESSAGES} are possible; begin another",
                param="input",
            )
        effort = body.reasoning.effort if body.reasoning else None
        prompt = ChatPrompt(
            messages,
            self.offered.tools,
            self.tool_choice,
            body.parallel_tool_calls is not False,
            template_kwargs(effort, body.chat_template_kwargs),
            truncate=body.truncation == "auto",
            media=checked_media(conversation.transcript.media, "input"),
        )
        latency = self.latency
        if self.is_prefill_only:
            need = Need(max_prompt_tokens=latency.need.max_prompt_tokens, names_tier=latency.need.names_tier)
            latency = replace(latency, need=need)
        request = GenerateRequest(
            id=request_id,
            model=model,
            prompt=prompt,
            sampling=body.sampling(),
            format=self.format,
            max_tokens=body.max_output_tokens,
            stop=tuple(body.stop or ()),
            logprobs=_num_logprobs(body),
            prefill_only=self.is_prefill_only,
            is_ahead=self.is_prefill_only,
        )
        return with_own_fields(
            request,
            latency,
            body.edgeagent,
            partition=partition,
            is_cached=body.cache_prompt is not False,
            is_kept=self.is_stored and conversation.is_storable,
        )

    @property
    def num_echo_bytes(self) -> int:
        """About the memory that `echo` takes. A schema takes ten times as much once it is read."""
        schemas = [tool.parameters for tool in self.offered.tools]
        if isinstance(self.format, JsonSchemaFormat):
            schemas.append(self.format.schema)
        return 10 * min(sum(map(len, schemas)), MAX_ECHO_BYTES) + min(len(self.body.instructions or ""), MAX_ECHO_BYTES)

    def echo(self, defaults: SamplingParams) -> Echo:
        """Return the fields of the API's Response object that repeat the request. Fields that are too large are empty.

        `defaults`: the model's sampling parameters, for those that the request does not set.
        """
        body = self.body
        # The sizes are compared before any schema is parsed, so that large schemas are not parsed.
        are_short = sum(len(tool.parameters) for tool in self.offered.tools) <= MAX_ECHO_BYTES
        echo: Echo = {
            "previous_response_id": body.previous_response_id,
            "instructions": body.instructions,
            "tools": self.offered.echo() if are_short else [],
            "tool_choice": body.tool_choice if are_short and body.tool_choice is not None else "auto",
            "text": {"format": _echo_format(self.format)},
            "metadata": body.metadata or {},
            "truncation": body.truncation or "disabled",
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
            "service_tier": service_tier_of(self.latency.tier),
            "safety_identifier": body.safety_identifier,
            "prompt_cache_key": body.prompt_cache_key,
            "user": body.user,
        }
        return _bounded(echo)


def read_create(fields: Json) -> ResponseCreate:
    """Return a checked create; raise InvalidRequest or NotSupported, whose `param` names the field at fault."""
    body = validate(CreateResponseBody, fields)
    _refuse_unsupported(body, fields)
    items = tuple([with_id(item, new_id) for item in to_items(body.input)])
    if sum(isinstance(item, ReferenceItem) for item in items) > MAX_REFERENCES:
        raise InvalidRequest(f"input holds more than {MAX_REFERENCES} references; send the items", param="input")
    offered = offered_tools(body.tools or ())
    choice, output = read_choice(body.tool_choice, offered.tools), _read_format(body.text)
    # The headers are known only now. The request may be made later, in another client's context.
    latency = asked_latency(body.service_tier, body.edgeagent)
    # Items and tools are kept in types of our own. Pydantic models of them would be large, and slow to free.
    body = body.model_copy(update={"input": None, "tools": None})
    return ResponseCreate(body, items, offered, choice, output, latency, warning_about(CreateResponseBody, fields))


def _refuse_unsupported(body: CreateResponseBody, fields: Json) -> None:
    if body.edgeagent and body.edgeagent.ahead and body.generate is not False:
        raise InvalidRequest("an answer begins ahead only with generate: false", param="edgeagent.ahead")
    if fields.get("conversation"):
        if fields.get("previous_response_id"):
            raise InvalidRequest("send either conversation or previous_response_id, not both", param="conversation")
        raise NotSupported("conversation objects are not supported; use previous_response_id", param="conversation")
    for entry in body.context_management or ():
        if entry.type != "compaction":
            raise NotSupported(
                f"context_management of type '{entry.type[:64]}' is not supported; only compaction is",
                param="context_management",
            )
        if entry.compact_threshold is None:
            raise InvalidRequest(
                "compact_threshold is missing: say from how many tokens on to compact", param="context_management"
            )
    if fields.get("prompt"):
        raise NotSupported("stored prompt templates are not supported; send instructions and input", param="prompt")


def read_choice(raw: str | Json | None, tools: tuple[Tool, ...]) -> ToolChoice:
    """Return the checked field `tool_choice`; raise InvalidRequest."""
    match raw:
        case None:
            return ToolChoice()
        case str():
            return tool_choice_of(raw, (), tools)
        case {"type": "function" | "custom", "name": str(name)}:
            return tool_choice_of("required", (_full_name(name, raw),), tools)
        case {"type": "allowed_tools", "mode": "auto" | "required" as mode, "tools": list(allowed)}:
            entries = (entry for entry in allowed if isinstance(entry, dict) and isinstance(entry.get("name"), str))
            return tool_choice_of(mode, tuple(_full_name(entry["name"], entry) for entry in entries), tools)
    raise InvalidRequest(
        f"tool_choice must be auto, none, required, a function by name or allowed_tools, not {json.dumps(raw)[:80]}",
        param="tool_choice",
    )


def _full_name(name: str, chosen: Json) -> str:
    namespace = chosen.get("namespace")
    return f"{namespace}.{name}" if isinstance(namespace, str) and namespace else name


def _read_format(text: Text | None) -> OutputFormat:
    raw = text.format if text else None
    if raw is None or raw.type == "text":
        return TextFormat()
    if raw.type == "json_object":
        return JsonObjectFormat()
    if raw.json_schema is None:
        raise InvalidRequest("text.format.schema must be a JSON schema, an object", param="text.format.schema")
    return JsonSchemaFormat(raw.json_schema, raw.name, raw.strict is not False)


def _num_logprobs(body: CreateResponseBody) -> int | None:
    if body.top_logprobs or "message.output_text.logprobs" in (body.include or ()):
        return body.top_logprobs or 0
    return None


def _echo_format(output: OutputFormat) -> Json:
    match output:
        case JsonSchemaFormat(schema=schema, name=name, strict=strict):
            own = {"name": name, "description": None, "schema": json.loads(schema), "strict": strict}
            return {"type": "json_schema", **own}
        case JsonObjectFormat():
            return {"type": "json_object"}
        case TextFormat():
            return {"type": "text"}


def _bounded(echo: Echo) -> Echo:
    fields = cast("Json", echo)
    empty: Json = {"instructions": None, "tools": [], "metadata": {}, "text": {"format": {"type": "text"}}}
    for name, instead in empty.items():
        value = fields[name]
        if len(value if isinstance(value, str) else json.dumps(value)) > MAX_ECHO_BYTES:
            fields[name] = instead
            if name == "tools":
                echo["tool_choice"] = "auto"
    return echo


def _first(*values: float | None) -> float:
    return next(value for value in values if value is not None)
