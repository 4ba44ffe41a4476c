"""Items in JSON: they are read as they are written, and clients with types read them."""

from __future__ import annotations

import pytest
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from edgeagent.api.responses.items.as_json import item_body, with_id
from edgeagent.api.responses.items.input_items import read_items
from edgeagent.conversation.items import CallItem, CallOutputItem, Item, MessageItem, ReasoningItem, compaction_item
from edgeagent.conversation.prompt import to_messages
from edgeagent.errors import InvalidRequest
from edgeagent.types import Message


@pytest.mark.parametrize(
    "item",
    [
        MessageItem("", "user", "hi"),
        MessageItem("", "system", "be"),
        MessageItem("msg_1", "assistant", "yes", "commentary"),
        ReasoningItem("rs_1", "hm"),
        ReasoningItem("rs_1", ""),
        CallItem("fc_1", "call_1", "f", "{}"),
        CallOutputItem("", "call_1", "42"),
    ],
)
def test_items_are_read_as_they_are_written_and_typed_clients_read_them(item: Item) -> None:
    named = with_id(item, lambda prefix: f"{prefix}_new")
    assert read_items([item_body(named)]) == (named,)
    assert with_id(named, lambda _: "other") == named
    TypeAdapter(ResponseItem).validate_python(item_body(named))


def test_compactions_stand_for_what_was_said() -> None:
    made = compaction_item("cmp_1", "They spoke of tea.")
    (read,) = read_items([item_body(made)])
    assert read == made
    assert to_messages("Be brief.", (made, MessageItem("", "user", "go"))) == (
        Message("system", "Be brief.\n\nThey spoke of tea."),
        Message("user", "go"),
    )
    assert read_items([{"type": "compaction", "encrypted_content": "gAAAAAB"}]) == ()
    for content in (made.content[:-5], made.content + "!", "edgeagent.1.gICA"):
        with pytest.raises(InvalidRequest, match="encrypted_content"):
            read_items([{"type": "compaction", "encrypted_content": content}])
