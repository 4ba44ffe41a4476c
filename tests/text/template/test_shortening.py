"""Where conversations may be cut: between turns, in steps that stay fixed as the conversation grows."""

from __future__ import annotations

import random

import pytest

from edgeagent.text.template.conversation import cut_before, cut_places, num_items, text_of
from edgeagent.types import Message, ToolCall

SYSTEM = Message("system", "be kind")


def said(text: str) -> Message:
    return Message("user", text)


def answered(text: str, *calls: str) -> Message:
    return Message("assistant", text, tool_calls=tuple(ToolCall(call, "f", "{}") for call in calls))


def result(call: str) -> Message:
    return Message("tool", "done", tool_call_id=call)


def size(message: Message) -> int:
    return len(text_of(message))


def contents(messages: tuple[Message, ...]) -> list[str]:
    return [message.content for message in messages]


def turns(num: int, length: int = 10) -> list[Message]:
    return [SYSTEM, *(make(f"{index}".ljust(length)) for index in range(num) for make in (said, answered))]


def test_steps_end_in_front_of_the_users_turns() -> None:
    messages = turns(6)
    places = cut_places(messages, 30, size)
    # 20 characters per turn.
    assert places == [5, 7, 11]
    assert all(messages[place].role == "user" for place in places)
    assert cut_before(messages, 5) == (SYSTEM, *messages[5:])


def test_places_stay_as_the_conversation_grows() -> None:
    chance = random.Random(5)
    messages = [SYSTEM]
    known: list[int] = []
    for index in range(60):
        call = f"call_{index}"
        messages.append(said("x" * chance.randrange(1, 60)))
        if chance.random() < 0.3:
            messages += [answered("", call), result(call)]
        messages.append(answered("y" * chance.randrange(1, 60)))
        places = cut_places(messages, 200, size)
        steps = places[:-1]  # the last possible place is not a step
        assert steps[: len(known)] == known
        known = steps
    assert len(known) > 5


def test_a_call_and_its_result_stay_together() -> None:
    messages = [said("a"), answered("", "1"), said("b"), result("1"), answered("c"), said("d"), answered("e")]
    assert cut_places(messages, 1, size) == [5]
    # A call without a result does not keep anything together.
    assert cut_places([said("a"), answered("", "1"), said("b"), said("c")], 1, size) == [2, 3]


def test_what_the_user_said_last_stays() -> None:
    messages = [SYSTEM, said("a"), answered("b"), said("c")]
    for place in cut_places(messages, 1, size):
        assert contents(cut_before(messages, place))[-1] == "c"
    assert cut_places([SYSTEM, said("a")], 1, size) == []
    assert cut_places([said("a"), answered("b")], 1, size) == []


def test_a_long_task_loses_its_oldest_answers() -> None:
    rounds = [message for index in range(4) for message in (answered("", str(index)), result(str(index)))]
    messages = [SYSTEM, said("old"), answered("yes"), said("do it"), *rounds]
    places = cut_places(messages, 1, size)
    assert places == [3, 6, 8, 10]
    kept = cut_before(messages, 10)
    assert kept == (SYSTEM, messages[3], *messages[10:])


def test_without_a_user_the_last_answer_stays() -> None:
    messages = [SYSTEM, answered("a"), answered("b"), answered("c")]
    assert contents(cut_before(messages, cut_places(messages, 1, size)[-1])) == ["be kind", "c"]


def test_system_messages_stay_wherever_they_are() -> None:
    later = Message("system", "now be brief")
    messages = [SYSTEM, said("a"), later, answered("b"), said("c")]
    assert cut_before(messages, 4) == (SYSTEM, later, messages[4])


@pytest.mark.parametrize(
    ("message", "num"),
    [
        (said(""), 1),
        (answered("a"), 1),
        (answered("", "1", "2"), 2),
        (answered("a", "1"), 2),
        (Message("assistant", "a", "why"), 2),
    ],
)
def test_items(message: Message, num: int) -> None:
    assert num_items([message]) == num
    assert num_items([message, said("b")]) == num + 1
