"""A conversation is recognised by the part that all its turns share; the most recently used ones are remembered."""

from __future__ import annotations

import hashlib

import pytest

from edgeagent.backends.prompts import conversation_of
from edgeagent.router.route_chooser import Conversations
from edgeagent.types import CachePolicy, ChatPrompt, GenerateRequest, Message, TextPrompt

SYSTEM, QUESTION, ANSWER = Message("system", "be brief"), Message("user", "hello"), Message("assistant", "hi")


def turn(*messages: Message, request_id: str = "r1", client: str = "", lane: str = "") -> GenerateRequest:
    cache = CachePolicy(partition=client, lane=lane)
    return GenerateRequest(request_id, "m", ChatPrompt(messages), cache=cache)


def test_later_turns_are_the_same_conversation() -> None:
    conversations = Conversations()
    conversations.note(turn(SYSTEM, QUESTION), "remote:gpu")
    conversations.note(turn(QUESTION), "local")
    more = (ANSWER, Message("user", "and now?"))
    assert conversations.find(turn(SYSTEM, QUESTION, *more, request_id="r2")) == "remote:gpu"
    assert conversations.find(turn(QUESTION, *more, request_id="r3")) == "local"
    assert conversations.find(turn(SYSTEM, Message("user", "something else"))) is None
    assert conversations.find(turn(SYSTEM, QUESTION, client="another")) is None


def test_a_lane_is_one_conversation_whatever_it_begins_with() -> None:
    conversations = Conversations()
    conversations.note(turn(QUESTION, lane="a"), "remote:gpu")
    assert conversations.find(turn(SYSTEM, ANSWER, lane="a")) == "remote:gpu"
    assert conversations.find(turn(QUESTION, lane="b")) is None


def test_a_long_first_message_is_compared_by_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed = list[int]()

    def sha256(content: bytes) -> object:
        hashed.append(len(content))
        return hashlib.new("sha256", content)

    monkeypatch.setattr(hashlib, "sha256", sha256)
    first, second, other = (
        conversation_of(GenerateRequest(name, "", ChatPrompt((Message("user", text),))))
        for name, text in (("a", "x" * (4 << 20)), ("b", "x" * (4 << 20)), ("c", "y" * (4 << 20)))
    )
    assert first == second != other
    assert max(hashed) <= 1 << 20


def test_raw_text_is_a_conversation_of_its_own() -> None:
    conversations = Conversations()
    conversations.note(GenerateRequest("r1", "m", TextPrompt("once")), "local")
    assert conversations.find(GenerateRequest("r1", "m", TextPrompt("once"))) == "local"
    assert conversations.find(GenerateRequest("r2", "m", TextPrompt("once"))) is None


def test_the_conversations_used_last_are_kept() -> None:
    conversations = Conversations(max_conversations=2)
    for lane in ("a", "b", "a", "c"):
        conversations.note(turn(QUESTION, lane=lane), lane)
    found = [conversations.find(turn(QUESTION, lane=lane)) for lane in ("a", "b", "c")]
    assert found == ["a", None, "c"]
