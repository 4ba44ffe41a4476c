"""Chains: what is inherited, where each part is found, what is evicted, and which continuations are refused."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

from edgeagent.conversation.history import (
    MAX_CONVERSATION_BYTES,
    MAX_ITEMS,
    MAX_RESPONSES,
    ConnectionHistory,
    Conversation,
    MissingIds,
    StoredResponse,
    StoreResult,
)
from edgeagent.conversation.items import (
    CallItem,
    CallOutputItem,
    Item,
    MessageItem,
    ReasoningItem,
    ReferenceItem,
    to_messages,
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
    monkeypatch.setattr("edgeagent.conversation.history.MAX_BYTES", 5000)
    history = ConnectionHistory()
    first = response("a", user("x" * 3000))
    history.add(first, None)
    # Inherited items are shared with the parent and count once.
    second = replace(response("b", *first.items, user("more"), inherited=2), previous_id="a")
    history.add(second, None)
    assert history.remembers("a")
    history.forget("a")
    # They still count, since the continuation keeps them.
    history.add(response("c", user("y" * 3000)), None)
    assert [history.remembers(name) for name in "abc"] == [False, False, True]
    history.add(response("d", user("z" * 19000)), None)
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


def test_an_item_is_referred_to_once() -> None:
    history = ConnectionHistory()
    history.add(response("a"), None)
    new = (ReferenceItem("msg_a"), ReferenceItem("msg_a"), ReferenceItem("msg_z"), ReferenceItem("msg_z"))
    assert history.missing(None, new) == MissingIds(None, ("msg_z",))
    assert len(history.continue_from(None, new[:2], StoreResult()).items) == 1


def test_an_item_is_found_as_long_as_a_response_inherits_it() -> None:
    history = ConnectionHistory()
    first = replace(response("a"), route=None, is_storable=False)
    history.add(first, None)
    conversation = history.continue_from("a", (user("two"),), StoreResult())
    history.add(finished(conversation, "b", "a"), None)
    history.forget("a")
    assert not history.continue_from(None, (ReferenceItem("msg_a"),), StoreResult()).is_storable
    history.forget("b")
    assert history.missing(None, (ReferenceItem("msg_a"),)) == MissingIds(None, ("msg_a",))


def test_the_messages_of_a_chain_are_those_of_its_items() -> None:
    history = ConnectionHistory()
    turns: list[tuple[Item, ...]] = [
        (MessageItem("", "system", "a"), MessageItem("", "system", "b")),
        (MessageItem("", "system", "c"), user("one")),
        (ReasoningItem("rs", "hm"), CallItem("fc_1", "call_1", "f", "{}")),
        (CallItem("fc_2", "call_2", "g", "{}"), CallOutputItem("", "call_1", "1"), CallOutputItem("", "call_2", "2")),
        (),
        (MessageItem("", "system", "d"), MessageItem("", "system", "e")),
    ]
    previous: str | None = None
    for number, new in enumerate(turns):
        conversation = history.continue_from(previous, new, StoreResult())
        assert conversation.transcript.messages == to_messages(None, conversation.items)
        history.add(finished(conversation, str(number), previous), None)
        previous = str(number)


@pytest.mark.parametrize(
    "make",
    [
        lambda: tuple(ReasoningItem(str(number), "") for number in range(MAX_ITEMS + 1)),
        lambda: (user("x" * (MAX_CONVERSATION_BYTES // 2)), user("é" * (MAX_CONVERSATION_BYTES // 2))),
    ],
    ids=["items", "bytes"],
)
def test_a_conversation_has_an_end_with_what_it_continues(make: Callable[[], tuple[Item, ...]]) -> None:
    history, new = ConnectionHistory(), make()
    with pytest.raises(InvalidRequest, match=r"^the conversation is too long \(at most 8192 items and 32 MiB"):
        history.continue_from(None, new, StoreResult())
    conversation = history.continue_from(None, new[:-1], StoreResult())
    history.add(finished(conversation, "a", None), None)
    with pytest.raises(InvalidRequest, match="the conversation is too long"):
        history.continue_from("a", new[-1:], StoreResult())


def finished(conversation: Conversation, name: str, previous_id: str | None) -> StoredResponse:
    """Return the response without output that answers a conversation."""
    return StoredResponse(
        *(name, conversation.items, (), conversation.num_inherited, previous_id),
        is_storable=conversation.is_storable,
        transcript=conversation.transcript,
    )


def work_of(act: Callable[[], object]) -> int:
    """Return how many bytecode instructions `act` executes. What C code does within one instruction is not counted."""
    num = 0

    def count(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal num
        frame.f_trace_opcodes = True
        num += event == "opcode"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        act()
    finally:
        sys.settrace(before)
    return num


def work_of_continuing(num_items: int, num_links: int, new: tuple[Item, ...]) -> int:
    """Return the work of continuing a chain of responses with `new`. Its first response has `num_items` items."""
    history = ConnectionHistory()
    say: list[Item] = [MessageItem(f"t{number}", "user", "a") for number in range(500)]
    previous: str | None = None
    for number in range(num_links):
        items = tuple(say * (num_items // 500)) if number == 0 else ()
        conversation = history.continue_from(previous, items, StoreResult())
        history.add(finished(conversation, str(number), previous), None)
        previous = str(number)

    def act() -> None:
        assert not history.missing(previous, new)
        history.add(finished(history.continue_from(previous, new, StoreResult()), "last", previous), None)

    return work_of(act)


def test_a_continuation_costs_what_it_adds() -> None:
    new = (user("go"), CallItem("fc_1", "call_1", "f", "{}"), CallOutputItem("", "call_1", "1"))
    assert work_of_continuing(8000, 100, new) == work_of_continuing(500, 1, new)


def test_references_are_found_without_a_search() -> None:
    """What remains is one pass over the ids of the conversation, however many references and responses there are."""
    new = tuple(ReferenceItem(f"t{number % 500}") for number in range(1000))
    few, many = work_of_continuing(500, 1, new), work_of_continuing(8000, 100, new)
    assert many - few < 7500 * 8
