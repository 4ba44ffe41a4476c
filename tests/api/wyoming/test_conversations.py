"""The kept conversations: how many, how long, and for how much time."""

from __future__ import annotations

from edgeagent.api.wyoming.conversations import KEPT_S, MAX_CONVERSATIONS, MAX_MESSAGES, Conversations
from edgeagent.types import Message


def talk(count: int) -> tuple[Message, ...]:
    return tuple(Message("assistant" if index % 2 else "user", str(index)) for index in range(count))


def test_a_conversation_is_found_by_address_and_id() -> None:
    kept = Conversations(lambda: 0.0)
    kept.keep(("10.0.0.2", "a"), talk(2))
    assert kept.messages(("10.0.0.2", "a")) == talk(2)
    assert kept.messages(("10.0.0.3", "a")) == kept.messages(("10.0.0.2", "b")) == ()


def test_a_conversation_is_forgotten_after_its_last_turn() -> None:
    now = 0.0
    kept = Conversations(lambda: now)
    kept.keep(("", "a"), talk(2))
    kept.keep(("", "b"), talk(2))
    now = KEPT_S - 1
    kept.keep(("", "a"), talk(4))
    now = KEPT_S + 1
    kept.forget_old()
    assert kept.messages(("", "a")) == talk(4)
    assert kept.messages(("", "b")) == ()
    now = 3 * KEPT_S
    assert kept.messages(("", "a")) == ()


def test_the_oldest_turn_makes_room() -> None:
    kept = Conversations(lambda: 0.0)
    for index in range(MAX_CONVERSATIONS):
        kept.keep(("", str(index)), talk(2))
    kept.keep(("", "0"), talk(4))
    kept.keep(("", "new"), talk(2))
    assert kept.messages(("", "0")) == talk(4)
    assert kept.messages(("", "1")) == ()
    assert kept.messages(("", "2")) == kept.messages(("", "new")) == talk(2)


def test_a_long_conversation_loses_its_older_half() -> None:
    kept = Conversations(lambda: 0.0)
    kept.keep(("", "a"), talk(MAX_MESSAGES))
    assert kept.messages(("", "a")) == talk(MAX_MESSAGES)
    kept.keep(("", "a"), talk(MAX_MESSAGES + 2))
    found = kept.messages(("", "a"))
    assert found == talk(MAX_MESSAGES + 2)[-MAX_MESSAGES // 2 :]
    assert found[0].role == "user"
