"""The messages of a chat completion, as clients send them and as the prompt has them.

Calls may have OpenAI's older form: one `function_call` in a message. The result of such a call names the function,
not an id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, Tag

from edgeagent.api.wire.fields import MAX_TOOLS, Body, Name
from edgeagent.api.wire.messages import (
    Arguments,
    Content,
    Function,
    HostedTool,
    OutputContent,
    discriminated_by,
    tools_by_type,
)
from edgeagent.errors import InvalidRequest
from edgeagent.types import Message, ToolCall, replace

OptionalName = Annotated[Name | None, BeforeValidator(lambda name: None if name == "" else name)]


class ChatTool(Body):
    """A function that the model may call."""

    type: Literal["function"] = "function"
    function: Function


class CalledFunction(Body):
    """The function that was called."""

    name: Name
    arguments: Arguments


class ChatCall(Body):
    """A call the model made. A call without an id gets one."""

    id: Name | None = None
    function: CalledFunction


class InstructionMessage(Body):
    """A system, developer or user message."""

    role: Literal["system", "developer", "user"]
    content: Content
    name: OptionalName = None


class AssistantMessage(Body):
    """An earlier message of the model: its text and calls."""

    role: Literal["assistant"]
    content: Content | None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[list[ChatCall], Field(fail_fast=True, max_length=MAX_TOOLS)] | None = None
    function_call: Annotated[
        CalledFunction | None,
        Field(description="A call in the older form, for `functions`. Ignored if `tool_calls` is not empty."),
    ] = None
    name: OptionalName = None


class ToolMessage(Body):
    """The result of a call in an earlier message. `tool_call_id` is the id of the call.

    Without it, the result answers the first call that has no result yet.
    """

    role: Literal["tool"]
    content: OutputContent
    tool_call_id: OptionalName = None
    name: OptionalName = None


class FunctionMessage(Body):
    """The result of an earlier `function_call`, the older form of a tool call. `name` is the called function's name."""

    role: Literal["function"]
    content: Content
    name: Name


_TAGS = {
    "system": "#instruction",
    "developer": "#instruction",
    "user": "#instruction",
    "assistant": "#assistant",
    "tool": "#tool",
    "function": "#function",
}
ChatMessage = Annotated[
    Annotated[InstructionMessage, Tag("#instruction")]
    | Annotated[AssistantMessage, Tag("#assistant")]
    | Annotated[ToolMessage, Tag("#tool")]
    | Annotated[FunctionMessage, Tag("#function")],
    discriminated_by("role", _TAGS),
]
ChatTools = Annotated[
    list[
        Annotated[
            Annotated[ChatTool, Tag("#function")] | Annotated[HostedTool, Tag("#hosted")], tools_by_type("function")
        ]
    ],
    Field(fail_fast=True, max_length=MAX_TOOLS),
]


def to_messages(sent: Sequence[ChatMessage]) -> tuple[Message, ...]:
    """Return the prompt's messages; raise InvalidRequest for a result that answers no call of an earlier message.

    A call without an id gets one here, as does a call of the older form. The result of the latter is matched by the
    function's name.
    """
    calls: set[str | None] = set()
    unanswered: dict[str | None, None] = {}
    ids_by_name: dict[str, str] = {}
    messages: list[Message] = []
    for index, each in enumerate(sent):
        message = _message(each, index, ids_by_name)
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


def _message(sent: ChatMessage, index: int, ids_by_name: dict[str, str]) -> Message:
    match sent:
        case InstructionMessage():
            return Message("user" if sent.role == "user" else "system", sent.content, name=sent.name)
        case ToolMessage():
            return Message("tool", sent.content, tool_call_id=sent.tool_call_id, name=sent.name)
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
