"""What a chat sends with each question, and the file in which it is saved."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from edgeagent.api.wire.fields import TOOL_NAME
from edgeagent.cli.chat_state import _TOOL_NAME, ChatState, message
from edgeagent.client import Answer
from edgeagent.errors import InvalidRequest
from edgeagent.types import ToolCall

TOOLS = [{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}]


def chat_with_a_call() -> ChatState:
    state = ChatState({"model": "m", "store": False, "temperature": None})
    call = ToolCall(id="call_1", name="look", arguments="{}")
    state.record([message("user", "What is there?")], Answer("resp_1", tool_calls=[call]))
    result = {"type": "function_call_output", "call_id": "call_1", "output": "a cat"}
    state.record([result], Answer("resp_2", text="A cat."))
    return state


def test_a_question_follows_the_last_response_or_brings_the_conversation() -> None:
    state = ChatState({})
    assert state.input_of([message("user", "Hi")]) == "Hi"
    state.record([message("user", "Hi")], Answer("resp_1", text="Hello"))
    assert (state.input_of([message("user", "More")]), state.last_id) == ("More", "resp_1")
    state.last_id = None
    whole = [message("user", "Hi"), message("assistant", "Hello"), message("user", "More")]
    assert state.input_of([message("user", "More")]) == whole


def test_a_saved_chat_is_private_and_comes_back(tmp_path: Path) -> None:
    path, state = tmp_path / "chat.json", chat_with_a_call()
    state.set_value(["temperature", "0.5"])
    state.set_instructions("Be brief.")
    assert state.save(str(path)).startswith("Saved 1 question to ")
    assert os.name == "nt" or stat.S_IMODE(path.stat().st_mode) == 0o600
    other = ChatState({"model": "other", "temperature": 1.0, "max_output_tokens": 5, "store": True})
    assert other.load(str(path)) == f"Loaded 1 question from {path}."
    assert other.fields == {"model": "m", "temperature": 0.5, "instructions": "Be brief.", "store": True}
    assert (other.items, other.last_id) == (state.items, None)
    assert [item["type"] for item in other.items] == ["message", "function_call", "function_call_output", "message"]
    other.save(str(path))  # a saved chat may be replaced
    assert [each.name for each in tmp_path.iterdir()] == ["chat.json"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read"),
        (b"{", "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b"[]", "is not a saved chat"),
        (b'{"kind": "edgeagent chat", "items": [1], "fields": {}}', "missing"),
        (b'{"kind": "edgeagent chat", "items": [], "fields": {"temperature": NaN}}', "is not JSON"),
        (
            b'{"kind": "edgeagent chat", "items": [], "fields": {"temperature": "hot"}}',
            "whose temperature cannot be used",
        ),
        (b'{"kind": "edgeagent chat", "items": [], "fields": {"max_output_tokens": true}}', "whose max_output_tokens"),
        (b'{"kind": "edgeagent chat", "items": [], "fields": {"model": 5}}', "whose model"),
    ],
)
def test_what_is_no_saved_chat_is_neither_loaded_nor_overwritten(
    content: bytes | None, said: str, tmp_path: Path
) -> None:
    path, state = tmp_path / "notes.txt", chat_with_a_call()
    before = list(state.items)
    if content is not None:
        path.write_bytes(content)
        with pytest.raises(InvalidRequest, match=said):
            state.save(str(path))
        assert path.read_bytes() == content
    with pytest.raises(InvalidRequest, match=said):
        state.load(str(path))
    assert state.items == before
    for verb in (state.save, state.load):
        with pytest.raises(InvalidRequest, match="needs a file name"):
            verb("")
    with pytest.raises(InvalidRequest, match="cannot write"):
        state.save(str(tmp_path / "none" / "chat.json"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("temperature 3", "a number from 0.0 to 2.0, or `default`, but not '3'"),
        ("temperature nan", "a number from"),
        ("temperature warm", "a number from"),
        ("temperature", "takes a number from 0.0 to 2.0"),
        ("max_tokens 0", "a number of at least 1"),
        ("max_tokens 1.5", "a number of at least 1"),
        ("colour red", "there is no setting 'colour'; there are temperature, top_p, max_tokens"),
    ],
)
def test_a_setting_that_cannot_be_is_named(words: str, said: str) -> None:
    state = ChatState({})
    with pytest.raises(InvalidRequest) as caught:
        state.set_value(words.split())
    assert said in caught.value.message and state.fields == {}


def test_settings_are_changed_shown_and_removed() -> None:
    state = ChatState({})
    assert state.set_value(["max_tokens", "9"]) == "max_tokens is 9."
    assert state.fields == {"max_output_tokens": 9}
    assert state.set_value([]).split() == ["temperature", "default", "top_p", "default", "max_tokens", "9"]
    state.set_value(["max_tokens", "default"])
    assert state.set_instructions("") == "There are no instructions."
    assert state.set_instructions("Rhyme.") == "Instructions: Rhyme."
    state.set_instructions("default")
    assert state.fields == {}


def test_tools_come_from_a_file(tmp_path: Path) -> None:
    path, state = tmp_path / "tools.json", ChatState({})
    path.write_text(json.dumps(TOOLS), encoding="utf-8")
    assert state.set_tools(str(path)).startswith("Offered: look.")
    assert state.fields == {"tools": TOOLS}
    for wrong in ("{}", "[]", '[{"type": "function"}]', "[1]"):
        path.write_text(wrong, encoding="utf-8")
        with pytest.raises(InvalidRequest, match="no list of tools"):
            state.set_tools(str(path))
        assert state.fields == {"tools": TOOLS}, "a mistake must not take away the tools that were offered"
    for name in ("look at", "", "ö", "a" * 129):
        path.write_text(json.dumps([{**TOOLS[0], "name": name}]), encoding="utf-8")
        with pytest.raises(InvalidRequest, match="no tool can be named"):
            state.set_tools(str(path))
        assert state.fields == {"tools": TOOLS}
    assert _TOOL_NAME.pattern == TOOL_NAME
    assert state.set_tools("") == "No tools are offered." and state.fields == {}


def test_any_file_name_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = chat_with_a_call()
    for name in ("a" * 300, "nul\0nul", str(tmp_path), "~nobody-has-this-name/chat.json"):
        for verb in (state.save, state.load, state.set_tools):
            with pytest.raises(InvalidRequest):
                verb(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    (tmp_path / "chat.json.part").write_text("mine", encoding="utf-8")
    state.save("~/chat.json")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["chat.json", "chat.json.part"]
    assert ChatState({}).load("~/chat.json").startswith("Loaded 1 question")


def test_a_text_that_was_cut_within_an_emoji_is_loaded(tmp_path: Path) -> None:
    path, state = tmp_path / "chat.json", ChatState({})
    path.write_bytes(b'{"kind": "edgeagent chat", "fields": {}, "items": [{"role": "user", "content": "a\\ud83d"}]}')
    state.load(str(path))
    assert state.items == [{"role": "user", "content": "a\ufffd"}]
