"""Chains: what is inherited, what is found where, what is evicted, and what a continuation must not be."""

from __future__ import annotations

import pytest

from edgeagent.api.history import ConnectionHistory, ResponseStore, StoredResponse
from edgeagent.api.items import CallItem, CallOutputItem, Item, MessageItem, ReasoningItem, ReferenceItem, to_messages
from edgeagent.errors import InvalidRequest, ResponseNotFound
from edgeagent.types import Message, ToolCall


def user(text: str) -> MessageItem:
    return MessageItem("", "user", text)


def response(name: str, *context: Item, output: tuple[Item, ...] = (), inherited: int = 0) -> StoredResponse:
    return StoredResponse(name, context, output or (MessageItem(f"msg_{name}", "assistant", "yes"),), inherited)


def test_store_forgets_the_least_recently_used() -> None:
    store = ResponseStore(2)
    store.add(response("a"))
    store.add(response("b"))
    assert store.get("a")
    store.add(response("c"))
    assert [bool(store.get(name)) for name in "abc"] == [True, False, True]


def test_store_is_bounded_in_bytes_by_what_responses_add() -> None:
    store = ResponseStore(100, max_bytes=3000)
    long = user("x" * 2000)
    store.add(response("a", long))
    # What it inherits is shared with its parent and counts once.
    store.add(response("b", long, user("more"), inherited=1))
    assert store.get("a") and store.get("b")
    store.add(response("c", user("y" * 2000)))
    assert [bool(store.get(name)) for name in "abc"] == [False, True, True]


def test_one_response_larger_than_the_bound_is_kept() -> None:
    store = ResponseStore(100, max_bytes=10)
    store.add(response("a", user("x" * 2000)))
    assert store.get("a")


def test_removed_responses_free_their_bytes() -> None:
    store = ResponseStore(100, max_bytes=3000)
    for name in "abcdef":
        store.add(response(name, user("x" * 2000)))
        store.remove(name)
    store.remove("never there")
    store.add(response("g", user("x" * 1000)))
    store.add(response("h", user("x" * 1000)))
    assert store.get("g") and store.get("h")


def test_other_partitions_see_nothing() -> None:
    store = ResponseStore(10)
    store.add(StoredResponse("a", (), (MessageItem("msg_a", "assistant", "x"),), partition="alice"))
    assert store.get("a", "alice")
    assert store.get("a") is None
    assert store.find_item("msg_a", "alice")
    assert store.find_item("msg_a", "bob") is None
    with pytest.raises(ResponseNotFound):
        ConnectionHistory(store, "bob").get("a")


def test_unstored_responses_are_reachable_on_their_connection_alone() -> None:
    store = ResponseStore(10)
    first, second = ConnectionHistory(store), ConnectionHistory(store)
    first.add(response("a"), None, is_stored=False)
    first.add(response("b"), None, is_stored=True)
    assert first.get("a").id == "a"
    assert second.get("b").id == "b"
    with pytest.raises(ResponseNotFound, match=r"^Previous response with id 'a' not found\.$") as caught:
        second.get("a")
    assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")


def test_a_failed_continuation_evicts_its_parent_from_its_own_lane() -> None:
    history = ConnectionHistory(ResponseStore(10))
    history.add(response("a"), None, is_stored=False)
    history.evict_failed("a", "fork")
    assert history.get("a")
    history.evict_failed("a", None)
    with pytest.raises(ResponseNotFound):
        history.get("a")
    history.evict_failed("a", None)


def test_a_stored_parent_can_be_loaded_again_after_eviction() -> None:
    history = ConnectionHistory(ResponseStore(10))
    history.add(response("a"), None, is_stored=True)
    history.evict_failed("a", None)
    assert history.get("a").id == "a"


def test_a_connection_keeps_its_recent_responses_only() -> None:
    history = ConnectionHistory(ResponseStore(1))
    for index in range(200):
        history.add(response(str(index)), None, is_stored=False)
    assert history.get("199")
    with pytest.raises(ResponseNotFound):
        history.get("0")


def test_the_context_is_previous_input_output_and_new_input_in_order() -> None:
    history = ConnectionHistory(ResponseStore(10))
    previous = response("a", user("one"))
    assert history.continue_from(previous, (user("two"),)) == (
        user("one"),
        MessageItem("msg_a", "assistant", "yes"),
        user("two"),
    )


def test_a_function_output_must_answer_a_call_before_it() -> None:
    history = ConnectionHistory(ResponseStore(10))
    call, output = CallItem("fc_1", "call_1", "f", "{}"), CallOutputItem("", "call_1", "42")
    previous = response("a", user("go"), output=(call,))
    assert history.continue_from(previous, (output,))[-1] == output
    assert history.continue_from(None, (call, output)) == (call, output)
    for previous_, new in ((None, (output,)), (None, (output, call)), (previous, (CallOutputItem("", "x", "42"),))):
        with pytest.raises(InvalidRequest, match="No tool call found for function call output with call_id"):
            history.continue_from(previous_, new)


def test_references_are_resolved_or_refused() -> None:
    store = ResponseStore(10)
    history = ConnectionHistory(store)
    stored, own = response("a"), response("b")
    ConnectionHistory(store).add(stored, None, is_stored=True)
    history.add(own, None, is_stored=False)
    new = (ReferenceItem("msg_a"), ReferenceItem("msg_b"))
    assert history.continue_from(None, new) == (*stored.output, *own.output)
    # What the chain holds already is not said twice.
    assert history.continue_from(own, (ReferenceItem("msg_b"), user("go"))) == (*own.items, user("go"))
    with pytest.raises(InvalidRequest, match="Item with id 'msg_z' not found"):
        history.continue_from(None, (ReferenceItem("msg_z"),))


def test_messages_of_a_chain() -> None:
    items: tuple[Item, ...] = (
        MessageItem("", "system", "Be brief."),
        user("go"),
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
