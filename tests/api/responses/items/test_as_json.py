"""Items in JSON: they are read as they are written, and clients with types read them."""

from __future__ import annotations

from typing import get_args

import pytest
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from edgeagent.api.responses.items import decode_items, encode_items, item_body, read_items, with_id
from edgeagent.conversation.items import (
    CallItem,
    CallOutputItem,
    Item,
    MessageItem,
    ReasoningItem,
    ReferenceItem,
    compaction_item,
    to_messages,
)
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
        CallItem("fc_1", "call_1", "f", '{"input": "a\\nb"}', is_custom=True),
        CallOutputItem("", "call_1", "42"),
        CallOutputItem("", "call_1", "42", is_custom=True),
    ],
)
def test_items_are_read_as_they_are_written_and_typed_clients_read_them(item: Item) -> None:
    named = with_id(item, lambda prefix: f"{prefix}_new")
    assert read_items([item_body(named)]) == (named,)
    assert decode_items(encode_items([named])) == (named,)
    assert with_id(named, lambda _: "other") == named
    TypeAdapter(ResponseItem).validate_python(item_body(named))


def test_compactions_stand_for_what_was_said() -> None:
    made = compaction_item("cmp_1", "They spoke of tea.")
    (read,) = read_items([item_body(made)])
    assert read == made
    assert decode_items(encode_items([made])) == (made,)
    assert to_messages("Be brief.", (made, MessageItem("", "user", "go"))) == (
        Message("system", "Be brief.\n\nThey spoke of tea."),
        Message("user", "go"),
    )
    assert read_items([{"type": "compaction", "encrypted_content": "gAAAAAB"}]) == ()
    for content in (made.content[:-5], made.content + "!", "edgeagent.1.gICA"):
        with pytest.raises(InvalidRequest, match="encrypted_content"):
            read_items([{"type": "compaction", "encrypted_content": content}])


def test_every_kind_of_item_is_read_back_from_the_file() -> None:
    """An item that the file's reader does not know would count as damage, and every stored response would be lost."""
    made: list[Item] = [
        MessageItem("a", "user", "x"),
        ReasoningItem("b", "x"),
        CallItem("c", "call", "f", "{}", "space"),
        CallItem("d", "call", "f", '{"input": "x"}', "space", is_custom=True),
        CallOutputItem("e", "call", "x"),
        CallOutputItem("f", "call", "x", is_custom=True),
        compaction_item("g", "x"),
    ]
    assert decode_items(encode_items(made)) == tuple(made)
    assert {type(item) for item in made} == set(get_args(Item)) - {ReferenceItem}


@pytest.mark.parametrize("arguments", ["{}", '{"patch": "x"}', '{"input": ["x"]}', '["x"]', '{"inp', "", "plain text"])
def test_arguments_that_are_no_input_are_the_input_of_a_custom_call(arguments: str) -> None:
    """Another server's model may write them, and nothing that it wrote is lost."""
    assert item_body(CallItem("d", "call", "f", arguments, is_custom=True))["input"] == arguments
