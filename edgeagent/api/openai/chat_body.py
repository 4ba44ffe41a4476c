"""The body of POST /v1/chat/completions: every field is read once, checked, and converted into edgeagent's types."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from edgeagent.api.wire.body import Body, Settings, validate
from edgeagent.api.wire.fields import (
    MAX_MESSAGES,
    Arguments,
    By,
    Content,
    Effort,
    Function,
    HostedTool,
    MaxTokens,
    Name,
    NumTopLogprobs,
    OutputContent,
    Stops,
    TemplateKwargs,
    UserContent,
    earlier_as_notes,
    earlier_notices,
    hosted_tools,
    read_schema,
    template_kwargs,
    tool_choice_of,
    tools_of,
)
from edgeagent.api.wire.llama_fields import AnswerForm, ExtendedBody, NumChoices, choices_of
from edgeagent.api.wire.media import Gathered
from edgeagent.api.wire.shape import Json
from edgeagent.errors import InvalidRequest, NotSupported
from edgeagent.types import (
    MAX_TOOLS,
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
    replace,
)


class ChatTool(Settings):
    """A function that the model may call."""

    type: Literal["function"] = "function"
    function: Function


class CalledFunction(Body):
    """The function that was called."""

    name: Name
    arguments: Arguments


class ChatCall(Settings):
    """A call the model made. A call without an id gets one."""

    id: Name | None = None
    function: CalledFunction


class InstructionMessage(Settings):
    """A system or developer message."""

    role: Literal["system", "developer"]
    content: Content
    name: Name | None = None


class ChatUserMessage(Settings):
    """What the user says. Images and sounds may be in it, if the model reads them."""

    role: Literal["user"]
    content: UserContent
    name: Name | None = None


class AssistantMessage(Settings):
    """An earlier message of the model: its text and calls."""

    role: Literal["assistant"]
    content: Content | None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[list[ChatCall], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    function_call: Annotated[
        CalledFunction | None,
        Field(description="A call in the older form, for `functions`. Ignored if `tool_calls` is not empty."),
    ] = None
    name: Name | None = None


class ToolMessage(Settings):
    """The result of a call in an earlier message. `tool_call_id` is the id of the call.

    Without it, the result answers the first call that has no result yet.
    """

    role: Literal["tool"]
    content: OutputContent
    tool_call_id: Name | None = None
    name: Name | None = None


class FunctionMessage(Body):
    """The result of an earlier `function_call`, the older form of a tool call. `name` is the called function's name."""

    role: Literal["function"]
    content: Content
    name: Name


ChatMessage = Annotated[
    InstructionMessage | ChatUserMessage | AssistantMessage | ToolMessage | FunctionMessage, By("role")
]
ChatTools = Annotated[
    list[Annotated[ChatTool | HostedTool, By("type", "function")]], Field(fail_fast=True, max_length=MAX_TOOLS)
]


def to_messages(sent: Sequence[ChatMessage], gathered: Gathered) -> tuple[Message, ...]:
    """Return the prompt's messages; raise InvalidRequest for a result that answers no call of an earlier message.

    A call without an id gets one here, as does a call of the older form. The result of the latter is matched by the
    function's name. The messages' media are added to `gathered`.
    """
    calls: set[str | None] = set()
    unanswered: dict[str | None, None] = {}
    ids_by_name: dict[str, str] = {}
    messages: list[Message] = []
    for index, each in enumerate(sent):
        message = _message(each, index, ids_by_name, gathered)
        if message.role == "tool" and isinstance(each, ToolMessage) and message.tool_call_id is None:
            message = replace(message, tool_call_id=next(iter(unanswered), None))
        if message.role == "tool" and message.tool_call_id not in calls:
            field = "name" if isinstance(each, FunctionMessage) else "tool_call_id"
            path = f"messages[{index}].{field}"
            value = getattr(each, field)
            if value is None:
                raise InvalidRequest(f"{path} is required: no call before it waits for a result", param=path)
            raise InvalidRequest(f"{path} {value!r:.80} answers no call of an earlier message", param=path)
        unanswered.pop(message.tool_call_id, None)
        ids = [call.id for call in message.tool_calls]
        calls.update(ids)
        unanswered.update(dict.fromkeys(ids))
        messages.append(message)
    return tuple(messages)


def _message(sent: ChatMessage, index: int, ids_by_name: dict[str, str], gathered: Gathered) -> Message:
    match sent:
        case ChatUserMessage():
            return Message("user", sent.content.text, name=sent.name, media=gathered.add(sent.content.media))
        case InstructionMessage():
            return Message("system", sent.content, name=sent.name)
        case ToolMessage():
            said, media = sent.content.text, gathered.add(sent.content.media)
            return Message("tool", said, tool_call_id=sent.tool_call_id, name=sent.name, media=media)
        case FunctionMessage():
            return Message("tool", sent.content, tool_call_id=ids_by_name.get(sent.name), name=sent.name)
    calls = tuple(
        [
            ToolCall(call.id or f"call_{index}_{number}", call.function.name, call.function.arguments)
            for number, call in enumerate(sent.tool_calls or ())
        ]
    )
    if sent.function_call is not None and not calls:
        called = sent.function_call
        ids_by_name[called.name] = f"call_{index}"
        calls = (ToolCall(f"call_{index}", called.name, called.arguments),)
    return Message("assistant", sent.content or "", sent.reasoning_content or "", calls, name=sent.name)


class ChatBody(ExtendedBody):
    """The body of a chat completion. All fields but messages may be null. Unknown fields are ignored."""

    without_effect = (
        *("audio", "metadata", "modalities", "moderation", "prediction", "prompt_cache_key", "prompt_cache_options"),
        *("prompt_cache_retention", "response_fields", "safety_identifier", "user", "verbosity", "web_search_options"),
    )
    notices = (hosted_tools, earlier_notices("messages"))

    messages: Annotated[
        list[ChatMessage], Field(fail_fast=True, min_length=1, max_length=MAX_MESSAGES), earlier_as_notes()
    ]
    n: NumChoices | None = None
    max_tokens: MaxTokens | None = None
    max_completion_tokens: MaxTokens | None = None
    stop: Stops | None = None
    logprobs: bool | None = None
    top_logprobs: NumTopLogprobs | None = None
    tools: ChatTools | None = None
    tool_choice: str | Json | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[
        Annotated[list[Function], Field(fail_fast=True, max_length=MAX_TOOLS)] | None,
        Field(
            description="Older form of tools; answered by `function_call`. Not allowed with `tools` or `tool_choice`."
        ),
    ] = None
    function_call: str | Json | None = None
    response_format: Json | None = None
    reasoning_effort: Effort | None = None
    reasoning_format: Name | None = None
    parse_tool_calls: bool | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    continue_final_message: bool | None = None
    """Continue the assistant's last message. The answer is only what follows it."""
    add_generation_prompt: bool | None = None


@dataclass(frozen=True, slots=True)
class ChatCreate:
    """A checked chat completion: one request for each choice, and how the answer is written.

    `has_functions`: the client sent `functions`, the older form of tools. So calls are sent as `function_call`.
    """

    requests: tuple[GenerateRequest, ...]
    delivery: AnswerForm
    has_functions: bool = False


def read_chat(fields: Json, *, completion_id: str, default_model: str, partition: str = "") -> ChatCreate:
    """Check the body of a chat completion, and return it: a ReadCompletion."""
    body = validate(ChatBody, fields)
    body.check_supported()
    _check_channels(body)
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
    tools, choice = _read_tools_and_choice(body)
    has_functions = body.functions is not None
    gathered = Gathered()
    messages, so_far = _split_answer(body, to_messages(body.messages, gathered))
    prompt = ChatPrompt(
        messages=messages,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls is not False and not has_functions,
        template_kwargs=template_kwargs(body.reasoning_effort, body.chat_template_kwargs),
        media=gathered.checked("messages"),
    )
    request = replace(
        body.request(completion_id, default_model, partition, prompt),
        format=body.schema_format(_read_format(body.response_format)),
        max_tokens=body.limit(body.max_completion_tokens, body.max_tokens),
        stop=tuple(body.stop or ()),
        logprobs=(body.top_logprobs or 0) if body.logprobs else body.n_probs or None,
        so_far=so_far,
    )
    return ChatCreate(choices_of(request, body.n or 1), body.delivery(), has_functions)


def _split_answer(body: ChatBody, messages: tuple[Message, ...]) -> tuple[tuple[Message, ...], AnswerSoFar | None]:
    """Return the messages of the prompt, and the answer to continue, or None.

    If `continue_final_message` is true, the last message is the answer, and the prompt has the messages before it.
    Raise InvalidRequest if that message cannot be continued, or if `add_generation_prompt` contradicts
    `continue_final_message`. Both fields come from vLLM.
    """
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
    """Raise NotSupported if the client wants reasoning or calls inside the text.

    The backend delivers reasoning and calls as deltas of their own, never as text.
    """
    if body.reasoning_format not in (None, "auto", "deepseek"):
        raise NotSupported(
            f"reasoning_format {body.reasoning_format!r:.80} is not supported; reasoning comes as reasoning_content",
            param="reasoning_format",
        )
    if body.parse_tool_calls is False and body.tools:
        raise NotSupported("parse_tool_calls: false is not supported; leave out tools", param="parse_tool_calls")


def _read_tools_and_choice(body: ChatBody) -> tuple[tuple[Tool, ...], ToolChoice]:
    if body.functions is None and body.function_call is None:
        tools = tools_of(tool.function for tool in body.tools or () if isinstance(tool, ChatTool))
        return tools, _read_choice(body.tool_choice, tools)
    for name in ("tools", "tool_choice"):
        if getattr(body, name) is not None:
            raise InvalidRequest(f"send either functions and function_call, or tools; not {name} too", param=name)
    functions = tools_of(body.functions or (), "functions")
    return functions, _read_function_choice(body.function_call, functions)


def _read_choice(raw: str | Json | None, tools: Sequence[Tool]) -> ToolChoice:
    match raw:
        case None:
            return ToolChoice()
        case str(mode):
            return tool_choice_of(mode, (), tools)
        case {"type": "function", "function": {"name": str(name)}}:
            return tool_choice_of("required", (name,), tools)
        case {"type": "allowed_tools", "allowed_tools": {"mode": str(mode), "tools": list(allowed)}}:
            return tool_choice_of(mode, tuple(_allowed_name(entry) for entry in allowed), tools)
    raise InvalidRequest(
        "tool_choice must be auto, none, required, a function by name or allowed_tools", param="tool_choice"
    )


def _read_function_choice(raw: str | Json | None, functions: Sequence[Tool]) -> ToolChoice:
    match raw:
        case None | "auto":
            return ToolChoice()
        case "none":
            return ToolChoice("none")
        case {"name": str(name)} if name in {function.name for function in functions}:
            return ToolChoice("required", (name,))
    raise InvalidRequest(
        f"function_call must be auto, none, or name one of the functions, not {raw!r:.80}", param="function_call"
    )


def _allowed_name(entry: object) -> str:
    match entry:
        case {"function": {"name": str(name)}}:
            return name
    raise InvalidRequest("tool_choice.allowed_tools.tools must name functions", param="tool_choice")


def _read_format(raw: Json | None) -> OutputFormat:
    match raw:
        case None | {"type": "text" | "" | None}:
            return TextFormat()
        case {"type": "json_object", "schema": dict(schema)}:  # llama-server's older form
            return JsonSchemaFormat(read_schema(schema, "response_format.schema"), strict=False)
        case {"type": "json_object"}:
            return JsonObjectFormat()
        case {"type": "json_schema", "json_schema": {"schema": dict(schema), **rest}}:
            text = read_schema(schema, "response_format.json_schema.schema")
            return JsonSchemaFormat(text, str(rest.get("name", "response"))[:128], rest.get("strict") is not False)
    raise InvalidRequest(
        "response_format must have the type text, json_object, or json_schema with json_schema.schema",
        param="response_format",
    )
