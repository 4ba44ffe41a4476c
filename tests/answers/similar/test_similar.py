"""Which requests are compared, how answers are judged, and what is kept of them."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace as replaced
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec import structs

from edgeagent.answers.key import Question
from edgeagent.answers.seal import Seal
from edgeagent.answers.similar.judge import is_same_by_model, is_same_text
from edgeagent.answers.similar.place import GROUP_BYTES, asked_text, place_of
from edgeagent.answers.similar.records import Kept, Learned, Records
from edgeagent.types import (
    ChatPrompt,
    ChoiceScores,
    GenerateRequest,
    JsonObjectFormat,
    Message,
    SamplingParams,
    Step,
    TextPrompt,
    Tool,
    ToolCall,
    replace,
)
from tests.answers.similar import records_writer
from tests.answers.similar.records_writer import NUM_KEPT, SEAL, kept_of, key_of, learned_of

SYSTEM = Message("system", "You are a guide.")


def question(*messages: Message, **given: Any) -> Question:
    prompt = ChatPrompt(messages or (SYSTEM, Message("user", "Where?")))
    request = GenerateRequest("id", "model", prompt, **given)
    return Question(request, "model", "file", "client")


def test_only_plain_questions_are_compared() -> None:
    assert asked_text(question(), "remote") == "Where?"
    tools = ChatPrompt((Message("user", "Where?"),), tools=(Tool("clock"),))
    call = ToolCall("1", "clock", "{}")
    never = [
        replaced(question(), request=replace(question().request, prompt=tools)),
        replaced(question(), request=replace(question().request, prompt=TextPrompt("Where?"))),
        replaced(question(), identity="remote"),
        question(format=JsonObjectFormat()),
        question(choices=("a", "b")),
        question(logprobs=1),
        question(echo=True),
        question(Message("user", " ")),
        question(Message("user", "Where?"), Message("assistant", "Here.")),
        question(Message("user", "Where?"), Message("assistant", "", tool_calls=(call,)), Message("tool", "1 h")),
    ]
    assert [asked_text(each, "remote") for each in never] == [None] * len(never)


def test_a_place_has_all_but_the_last_text() -> None:
    place = place_of(question(), SEAL.key_secret)
    assert place_of(question(SYSTEM, Message("user", "When?")), SEAL.key_secret) == place
    others = [
        question(Message("system", "You are a guide. It is 10:15."), Message("user", "Where?")),
        question(SYSTEM, Message("user", "Hi"), Message("assistant", "Hello"), Message("user", "Where?")),
        question(sampling=SamplingParams(temperature=0)),
        question(max_tokens=5),
        replaced(question(), partition="other"),
        replaced(question(), identity="another file"),
        replaced(question(), day="2026-07-01"),
    ]
    places = {place_of(each, SEAL.key_secret) for each in others}
    assert len(places) == len(others) and place not in places


def test_a_group_has_all_that_decides_how_a_model_answers() -> None:
    def group(each: Question) -> bytes:
        return place_of(each, SEAL.key_secret)[:GROUP_BYTES]

    hello = (Message("user", "Hi"), Message("assistant", "Hello"))
    same = [
        question(SYSTEM, *hello, Message("user", "When?")),
        replaced(question(), partition="other"),
        replaced(question(), day="2026-07-01"),
    ]
    assert {group(each) for each in same} == {group(question())}
    others = [
        question(Message("user", "Where?")),
        question(Message("system", "Repeat what I say."), Message("user", "Where?")),
        question(SYSTEM, *hello, Message("system", "Repeat what I say."), Message("user", "Where?")),
        question(sampling=SamplingParams(temperature=0)),
        question(max_tokens=5),
        replaced(question(), model="other"),
        replaced(question(), identity="another file"),
        replaced(question(), content="the hash of another file"),
    ]
    groups = {group(each) for each in others}
    assert len(groups) == len(others) and group(question()) not in groups


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        ("At 9.", " at 9 ", True),
        ("**Yes**, it is!", "Yes, it is.", True),
        ("It costs 3.50", "It costs 3.5", False),
        ("It is -5", "It is 5", False),
        ("Yes", "No", False),
        ("", "", False),
        ("!", "?", False),
    ],
)
def test_texts_are_the_same_but_for_case_and_punctuation(first: str, second: str, *, is_same: bool) -> None:
    assert is_same_text(first, second) is is_same


async def test_a_model_is_asked_for_its_verdict() -> None:
    seen: list[GenerateRequest] = []

    async def run(request: GenerateRequest) -> list[Step] | None:
        seen.append(request)
        return [Step((ChoiceScores((-0.1, -2.0), 2),))]

    async def fail(request: GenerateRequest) -> list[Step] | None:
        return None

    request = question().request
    assert await is_same_by_model(run, request, "Where?", ("There.", "Over there."))
    assert seen[0].choices == ("yes", "no") and "Over there." in repr(seen[0].prompt)
    assert await is_same_by_model(fail, request, "Where?", ("There.", "Over there.")) is None
    assert await is_same_by_model(run, request, "Where?", ("There.", "x" * 5000)) is None


def learned(max_error: float = 0.01) -> Learned:
    return Learned("file", "text", max_error, {b"group": {"counts": b"1"}}, {"logs": [1.0]})


def test_records_are_sealed_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "similar.sqlite3"
    kept = {bytes([number]) * 32: Kept(b"place", f"question {number}", b"1234", ((0.5, True),)) for number in range(5)}
    records = Records(path, SEAL)
    assert records.load() == (None, {})
    records.put(learned(), kept)
    records.remove([bytes(32)])
    records.close()
    assert b"question" not in path.read_bytes()
    assert Records(path, SEAL).load() == (learned(), {key: each for key, each in kept.items() if key != bytes(32)})
    assert Records(path, Seal(bytes([1]) * 32)).load() == (None, {})
    records.remove(None)
    assert records.load() == (None, {})
    records.close()


def test_records_of_another_version_are_removed(tmp_path: Path) -> None:
    """The places of its questions are others, so none would be found again."""
    records = Records(tmp_path / "similar.sqlite3", SEAL)
    records.put(structs.replace(learned(), form=(1, "0.0.1")), {b"a" * 32: Kept(b"place", "one", b"")})
    assert records.load() == (None, {})
    records.put(learned(), {})
    assert records.load() == (learned(), {})
    records.close()


def test_a_damaged_record_costs_only_itself_and_a_damaged_file_all(tmp_path: Path) -> None:
    path = tmp_path / "similar.sqlite3"
    records = Records(path, SEAL)
    records.put(learned(), {b"a" * 32: Kept(b"p", "one", b""), b"b" * 32: Kept(b"p", "two", b"")})
    records.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE records SET sealed = x'00' WHERE key = ?", (b"a" * 32,))
    connection.close()
    assert list(records.load()[1]) == [b"b" * 32]
    records.close()
    path.write_bytes(b"no database" * 1000)
    assert records.load() == (None, {}) and records.trouble is None
    assert (tmp_path / "similar.sqlite3.damaged").exists()
    records.close()


def check_after_kills(path: Path, num_kills: int) -> None:
    """Kill a process that writes records, again and again. Then all that were written are there, each whole."""
    chance = Random(7)
    number = NUM_KEPT - 1
    for _ in range(num_kills):
        writer = subprocess.Popen(
            [sys.executable, "-m", records_writer.__name__, str(path), str(number + 1)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert writer.stdout is not None
        for _ in range(chance.randrange(1, 40)):
            number = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        number = max([number, *map(int, writer.stdout.read().split())])
        writer.wait()
        writer.stdout.close()
        records = Records(path, SEAL)
        learned, kept = records.load()
        records.close()
        # The next question may have been written, and the oldest removed for it, before the writer could tell.
        is_next = learned == learned_of(number + 1)
        assert is_next or learned == learned_of(number)
        oldest = number + 1 - NUM_KEPT
        expected = {key_of(each): kept_of(each) for each in range(max(NUM_KEPT, oldest), number + 1 + is_next)}
        if is_next and key_of(oldest) not in kept:
            expected.pop(key_of(oldest), None)
        assert kept == expected
        assert records.trouble is None
    assert not list(path.parent.glob("*.damaged"))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_kills_while_records_are_written(tmp_path: Path) -> None:
    check_after_kills(tmp_path / "similar.sqlite3", 3)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGKILL")
def test_two_hundred_kills_while_records_are_written(tmp_path: Path) -> None:
    check_after_kills(tmp_path / "similar.sqlite3", 200)
