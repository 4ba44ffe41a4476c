"""Conversations as a chat template's messages."""

from __future__ import annotations

from edgeagent.conversation.items import CallItem, CallOutputItem, Item, MessageItem, ReasoningItem, to_messages
from edgeagent.types import Message, ToolCall


def test_messages_of_a_chain() -> None:
    items: tuple[Item, ...] = (
        MessageItem("", "system", "Be brief."),
        MessageItem("", "user", "go"),
        ReasoningItem("rs_1", "hm"),
        MessageItem("msg_1", "assistant", "Right."),
        CallItem("fc_1", "call_1", "f", "{}"),
        CallItem("fc_2", "call_2", "g", "{}"),
        CallOutputItem("", "call_1", "1"),
        CallOutputItem("", "call_2", "2"),
        ReasoningItem("rs_2", ""),
        MessageItem("msg_2", "assistant", "Done."),
        MessageItem("msg_3", "assistant", "Really."),
        MessageItem("", "system", "Be long."),
    )
    assert to_messages("You are a kettle.", items) == (
        Message("system", "You are a kettle.\n\nBe brief."),
        Message("user", "go"),
        Message("assistant", "Right.", "hm", (ToolCall("call_1", "f", "{}"), ToolCall("call_2", "g", "{}"))),
        Message("tool", "1", tool_call_id="call_1"),
        Message("tool", "2", tool_call_id="call_2"),
        Message("assistant", "Done."),
        Message("assistant", "Really."),
        Message("system", "Be long."),
    )
