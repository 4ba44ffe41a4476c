"""The body of POST /v1/chat/completions: every field read once, checked, and turned into our types.

Unknown fields are ignored. A part that is not text is refused by name, since passing it over would change the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from edgeagent.api.openai import legacy_functions
from edgeagent.api.wire.fields import (
    MAX_MESSAGES,
    MAX_TOOLS,
    ROLES,
    MaxTokens,
    Stops,
    TemplateKwargs,
    between,
    choose,
    drafts_of,
    read_function,
    read_schema,
    read_tools,
    route_of,
    template_kwargs,
    tier,
    validate,
    with_adapter,
)
from edgeagent.api.wire.known_fields import KnownFields
from edgeagent.api.wire.llama_fields import Delivery, ExtendedBody, choices_of
from edgeagent.api.wire.shape import Json
from edgeagent.errors import InvalidRequest, NotSupported
from edgeagent.types import (
    AnswerSoFar,
    ChatPrompt,
    GenerateRequest,
    JsonObjectFormat,
    JsonSchemaFormat,
    Message,
    OutputFormat,
    TextFormat,
    Tool,
    ToolCall,
    ToolChoice,
)

MAX_CHOICES = 8


class ChatBody(ExtendedBody):
    """The fields of a chat completion that have an effect; all but messages may be null."""

    messages: Annotated[list[Json], Field(min_length=1, max_length=MAX_MESSAGES)]
    n: Annotated[int, between(1, MAX_CHOICES)] | None = None
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    stop: Stops | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, between(0, 20)] | None = None
    tools: Annotated[list[Json], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[Json], Field(max_length=MAX_TOOLS)] | None = None
    function_call: str | Json | None = None
    response_format: Json | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    reasoning_format: str | None = None
    parse_tool_calls: bool | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    continue_final_message: bool | None = None
    """Continue the assistant's last message. The answer is only what follows it."""
    add_generation_prompt: bool | None = None


@dataclass(frozen=True, slots=True)
class ChatCreate:
    """A checked chat completion: the requests it takes (one for each choice), and how the answer is to be written.

    `has_functions` says that calls were asked for, and must be answered, in the older form, as functions.
    """

    requests: tuple[GenerateRequest, ...]
    delivery: Delivery
    has_functions: bool = False


KNOWN = KnownFields.of(
    ChatBody,
    *("audio", "metadata", "modalities", "moderation", "prediction", "prompt_cache_key", "prompt_cache_options"),
    *("prompt_cache_retention", "response_fields", "safety_identifier", "user", "verbosity", "web_search_options"),
)


def read_chat(fields: Json, *, completion_id: str, default_model: str, partition: str = "") -> ChatCreate:
    """Return a checked chat completion; raise InvalidRequest that names the field, its bounds and the value."""
    body = validate(ChatBody, fields)
    body.check_supported()
    _check_channels(body)
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
    tools, choice = _read_tools_and_choice(body)
    has_functions = body.functions is not None
    messages, so_far = _split_answer(body, _read_messages(legacy_functions.with_ids(body.messages)))
    prompt = ChatPrompt(
        messages=messages,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls is not False and not has_functions,
        template_kwargs=template_kwargs(body.reasoning_effort, body.chat_template_kwargs),
    )
    delivery = body.delivery()
    request = GenerateRequest(
        id=completion_id,
        model=with_adapter(body.model or default_model, body.edgeagent),
        prompt=prompt,
        sampling=body.sampling(),
        format=body.schema_format(_read_format(body.response_format)),
        max_tokens=body.limit(body.max_completion_tokens, body.max_tokens),
        stop=tuple(body.stop or ()),
        logprobs=(body.top_logprobs or 0) if body.logprobs else body.n_probs or None,
        tier=tier(body.service_tier),
        cache=body.cache(partition),
        reports_progress=delivery.is_streamed and bool(body.return_progress),
        route=route_of(body.edgeagent),
        draft_tokens=drafts_of(body.edgeagent),
        so_far=so_far,
    )
    return ChatCreate(choices_of(request, body.n or 1), delivery, has_functions)


def _split_answer(body: ChatBody, messages: tuple[Message, ...]) -> tuple[tuple[Message, ...], AnswerSoFar | None]:
    """Return the conversation without the answer to continue, and that answer (the fields are vLLM's)."""
    is_continued = bool(body.continue_final_message)
    if body.add_generation_prompt is not None and body.add_generation_prompt == is_continued:
        raise InvalidRequest(
            "add_generation_prompt is false with continue_final_message: true, and true without",
            param="add_generation_prompt",
        )
    if not is_continued:
        return messages, None
    *before, last = messages
    if last.role != "assistant" or last.tool_calls or not before:
        raise InvalidRequest(
            "continue_final_message needs a last message of the assistant's, without calls, behind others",
            param="continue_final_message",
        )
    return tuple(before), AnswerSoFar(last.content, last.reasoning)


def _check_channels(body: ChatBody) -> None:
    """Raise NotSupported if reasoning or calls are to stay in the text: they never arrive here as text."""
    if body.reasoning_format not in (None, "auto", "deepseek"):
        raise NotSupported(
            f"reasoning_format {body.reasoning_format!r:.80} is not supported; reasoning comes as reasoning_content",
            param="reasoning_format",
        )
    if body.parse_tool_calls is False and body.tools:
        raise NotSupported("parse_tool_calls: false is not supported; leave out tools", param="parse_tool_calls")


def _read_messages(raw: Sequence[Json]) -> tuple[Message, ...]:
    messages: list[Message] = []
    open_calls: set[str] = set()
    for index, fields in enumerate(raw):
        message = _read_message(fields, f"messages[{index}]")
        if message.role == "tool" and message.tool_call_id not in open_calls:
            raise InvalidRequest(
                f"messages[{index}].tool_call_id {message.tool_call_id!r:.80} answers no call of an earlier message",
                param=f"messages[{index}].tool_call_id",
            )
        open_calls.update(call.id for call in message.tool_calls)
        messages.append(message)
    return tuple(messages)


def _read_message(fields: Json, path: str) -> Message:
    role = ROLES.get(fields["role"]) if isinstance(fields.get("role"), str) else None
    if role is None:
        raise InvalidRequest(
            f"{path}.role must be one of {', '.join(ROLES)}, not {fields.get('role')!r:.80}", param=f"{path}.role"
        )
    is_assistant = role == "assistant"
    calls = _read_calls(fields.get("tool_calls"), f"{path}.tool_calls") if is_assistant else ()
    content = fields.get("content")
    if content is None and is_assistant:
        content = ""
    reasoning = fields.get("reasoning_content") if is_assistant else None
    name = fields.get("name")
    return Message(
        role=role,
        content=read_text(content, f"{path}.content"),
        reasoning=reasoning if isinstance(reasoning, str) else "",
        tool_calls=calls,
        tool_call_id=_string(fields.get("tool_call_id"), f"{path}.tool_call_id") if role == "tool" else None,
        name=None if name is None else _string(name, f"{path}.name"),
    )


def read_text(content: object, path: str) -> str:
    """Return the text of a message's content, a string or parts; raise NotSupported for images, audio and files."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequest(f"{path} must be a string or a list of parts", param=path)
    texts: list[str] = []
    for index, part in enumerate(content):
        match part:
            case {"type": "text", "text": str(text)} | {"type": "refusal", "refusal": str(text)}:
                texts.append(text)
            case {"type": "image_url" | "input_audio" | "file" as kind}:
                raise NotSupported(f"{path}[{index}]: a part of type {kind} is not supported; only text is", param=path)
            case _:
                raise InvalidRequest(f'{path}[{index}] must be {{"type": "text", "text": "…"}}', param=path)
    return "".join(texts)


def _read_calls(raw: object, path: str) -> tuple[ToolCall, ...]:
    if raw is None:
        return ()
    if not isinstance(raw, list) or len(raw) > MAX_TOOLS:
        raise InvalidRequest(f"{path} must be a list of at most {MAX_TOOLS} calls", param=path)
    calls: list[ToolCall] = []
    for index, call in enumerate(raw):
        match call:
            case {"id": str(call_id), "function": {"name": str(name), "arguments": str(arguments)}}:
                calls.append(ToolCall(call_id, name, arguments))
            case _:
                raise InvalidRequest(
                    f"{path}[{index}] must have an id, and a function with a name and arguments (a string)",
                    param=f"{path}[{index}]",
                )
    return tuple(calls)


def _string(value: object, path: str) -> str:
    if not isinstance(value, str) or not 1 <= len(value) <= 256:
        raise InvalidRequest(f"{path} must be a string of 1 to 256 characters", param=path)
    return value


def _read_tools_and_choice(body: ChatBody) -> tuple[tuple[Tool, ...], ToolChoice]:
    if body.functions is None and body.function_call is None:
        tools = read_tools(body.tools or [], _read_tool)
        return tools, _read_choice(body.tool_choice, tools)
    for name in ("tools", "tool_choice"):
        if getattr(body, name) is not None:
            raise InvalidRequest(f"send either functions and function_call, or tools; not {name} too", param=name)
    functions = legacy_functions.read_functions(body.functions or [])
    return functions, legacy_functions.read_function_choice(body.function_call, functions)


def _read_tool(fields: Json, path: str) -> Tool:
    match fields:
        case {"type": "function", "function": dict(function)}:
            return read_function(function, f"{path}.function")
        case {"type": str(kind)} if kind != "function":
            raise NotSupported(f"{path}: tools of type {kind[:64]!r} are not supported", param=path)
    raise InvalidRequest(f'{path} must be {{"type": "function", "function": {{…}}}}', param=path)


def _read_choice(raw: str | Json | None, tools: Sequence[Tool]) -> ToolChoice:
    match raw:
        case None:
            return ToolChoice()
        case str(mode):
            return choose(mode, (), tools)
        case {"type": "function", "function": {"name": str(name)}}:
            return choose("required", (name,), tools)
        case {"type": "allowed_tools", "allowed_tools": {"mode": str(mode), "tools": list(allowed)}}:
            return choose(mode, tuple(_allowed_name(entry) for entry in allowed), tools)
    raise InvalidRequest(
        "tool_choice must be auto, none, required, a function by name or allowed_tools", param="tool_choice"
    )


def _allowed_name(entry: object) -> str:
    match entry:
        case {"function": {"name": str(name)}}:
            return name
    raise InvalidRequest("tool_choice.allowed_tools.tools must name functions", param="tool_choice")


def _read_format(raw: Json | None) -> OutputFormat:
    match raw:
        case None | {"type": "text"}:
            return TextFormat()
        case {"type": "json_object", "schema": dict(schema)}:  # llama-server's older form
            return JsonSchemaFormat(read_schema(schema, "response_format.schema"))
        case {"type": "json_object"}:
            return JsonObjectFormat()
        case {"type": "json_schema", "json_schema": {"schema": dict(schema), **rest}}:
            text = read_schema(schema, "response_format.json_schema.schema")
            return JsonSchemaFormat(text, str(rest.get("name", "response"))[:128], rest.get("strict") is not False)
    raise InvalidRequest(
        "response_format must have the type text, json_object, or json_schema with json_schema.schema",
        param="response_format",
    )
