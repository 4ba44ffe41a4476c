"""Chains: what is inherited, where each part is found, what is evicted, and which continuations are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgeagent.conversation.history import MAX_RESPONSES, ConnectionHistory, MissingIds, StoredResponse, StoreResult
from edgeagent.conversation.items import (
    CallItem,
    CallOutputItem,
    Item,
    MessageItem,
    ReferenceItem,
)
from edgeagent.errors import InvalidRequest, ResponseNotFound


def user(text: str) -> MessageItem:
    return MessageItem("", "user", text)


def response(name: str, *context: Item, output: tuple[Item, ...] = (), inherited: int = 0) -> StoredResponse:
    return StoredResponse(name, context, output or (MessageItem(f"msg_{name}", "assistant", "yes"),), inherited)


def test_responses_are_remembered_on_their_connection_alone() -> None:
    first, second = ConnectionHistory(), ConnectionHistory()
    first.add(response("a"), None)
    assert first.missing("a", ()) == MissingIds()
    assert second.missing("a", ()) == MissingIds("a")
    assert first.continue_from("a", (), StoreResult()).items == response("a").items
    with pytest.raises(ResponseNotFound, match=r"^Previous response with id 'a' not found\.$") as caught:
        second.continue_from("a", (), StoreResult())
    assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")


def test_what_is_not_remembered_is_brought_along() -> None:
    conversation = ConnectionHistory().continue_from("a", (user("two"),), StoreResult(response("a", user("one"))))
    assert conversation.items == (*response("a", user("one")).items, user("two"))
    assert conversation.num_inherited == 2


def test_a_failed_continuation_evicts_its_parent_from_its_own_lane() -> None:
    history = ConnectionHistory()
    history.add(response("a"), None)
    history.evict_failed("a", "fork")
    assert history.remembers("a")
    history.evict_failed("a", None)
    assert not history.remembers("a")
    history.evict_failed("a", None)


def test_a_connection_keeps_its_recent_responses_only() -> None:
    history = ConnectionHistory()
    for index in range(MAX_RESPONSES + 1):
        history.add(response(str(index)), None)
    assert not history.remembers("0")
    assert history.remembers("1")
    # Continuing a response marks it as recently used.
    history.continue_from("1", (), StoreResult())
    history.add(response("last"), None)
    assert history.remembers("1")


def test_a_connection_is_bounded_by_what_its_responses_add(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeagent.conversation.history.MAX_BYTES", 3000)
    history = ConnectionHistory()
    long = user("x" * 2000)
    history.add(response("a", long), None)
    # Inherited items are shared with the parent and count once.
    history.add(response("b", long, user("more"), inherited=1), None)
    assert history.remembers("a")
    history.add(response("c", user("y" * 2000)), None)
    assert [history.remembers(name) for name in "abc"] == [False, True, True]
    history.add(response("d", user("z" * 9000)), None)
    assert [history.remembers(name) for name in "bcd"] == [False, False, True]
    history.forget("d")
    history.forget("never there")
    history.add(response("e", user("x" * 1000)), None)
    history.add(response("f", user("x" * 1000)), None)
    assert history.remembers("e")


def test_the_context_is_previous_input_output_and_new_input_in_order() -> None:
    history = ConnectionHistory()
    history.add(response("a", user("one")), None)
    assert history.continue_from("a", (user("two"),), StoreResult()).items == (
        user("one"),
        MessageItem("msg_a", "assistant", "yes"),
        user("two"),
    )


def test_a_function_output_must_answer_a_call_before_it() -> None:
    history = ConnectionHistory()
    call, output = CallItem("fc_1", "call_1", "f", "{}"), CallOutputItem("", "call_1", "42")
    history.add(response("a", user("go"), output=(call,)), None)
    assert history.continue_from("a", (output,), StoreResult()).items[-1] == output
    assert history.continue_from(None, (call, output), StoreResult()).items == (call, output)
    for previous, new in ((None, (output,)), (None, (output, call)), ("a", (CallOutputItem("", "x", "42"),))):
        with pytest.raises(InvalidRequest, match="No tool call found for function call output with call_id"):
            history.continue_from(previous, new, StoreResult())


def test_references_are_resolved_or_refused() -> None:
    history = ConnectionHistory()
    own, stored = response("b"), MessageItem("msg_a", "assistant", "stored")
    history.add(own, None)
    new = (ReferenceItem("msg_a"), ReferenceItem("msg_b"))
    assert history.missing(None, new) == MissingIds(None, ("msg_a",))
    assert history.continue_from(None, new, StoreResult(None, {"msg_a": stored})).items == (stored, *own.output)
    # An item that the chain already holds is not repeated.
    assert history.continue_from("b", (ReferenceItem("msg_b"), user("go")), StoreResult()).items == (
        *own.items,
        user("go"),
    )
    with pytest.raises(InvalidRequest, match="Item with id 'msg_z' not found"):
        history.continue_from(None, (ReferenceItem("msg_z"),), StoreResult())


def test_what_rests_on_something_unstorable_is_unstorable() -> None:
    history = ConnectionHistory()
    history.add(replace(response("a"), is_storable=False), None)
    assert not history.continue_from("a", (user("go"),), StoreResult()).is_storable
    assert not history.continue_from(None, (ReferenceItem("msg_a"),), StoreResult()).is_storable
    assert history.continue_from(None, (user("go"),), StoreResult()).is_storable
