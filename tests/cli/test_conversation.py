"""The conversation in the terminal, against a scripted daemon."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO, cast

import pytest
from websockets.asyncio.server import ServerConnection

from edgeagent.cli import conversation as chat
from edgeagent.cli.conversation import DIM, HINT, Chat
from edgeagent.cli.line_reader import PlainReader
from edgeagent.client import connect
from tests.cli.conftest import StartStub
from tests.client.daemon_stub import Act, DaemonStub, call_events, sending, text_events
from tests.media import RED, data_url


@pytest.fixture
def start_chat() -> Iterator[Callable[..., Chat]]:
    with asyncio.Runner() as runner:
        clients = []

        def start(stub: DaemonStub, wait_reason: Callable[[], str] = lambda: "", **fields: Any) -> Chat:
            clients.append(connect(stub.url))
            return Chat(clients[-1], runner, fields, wait_reason)

        yield start
        for client in clients:
            runner.run(client.close())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _typing(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    typed = iter(lines)

    def read(prompt: str) -> str:
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)


def test_a_conversation_goes_on_from_the_last_answer(
    start_stub: StartStub,
    start_chat: Callable[..., Chat],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stub = start_stub(sending(text_events("resp_1", "Hel", "lo")), sending(text_events("resp_2", "Again")))
    _typing(monkeypatch, "Hi", "", "  More  ")
    start_chat(stub, model="m", instructions="Be brief").repl(PlainReader())
    first, second = stub.received
    assert (first["input"], first["model"], first["instructions"]) == ("Hi", "m", "Be brief")
    assert "previous_response_id" not in first
    assert (second["input"], second["previous_response_id"], second["instructions"]) == ("More", "resp_1", "Be brief")
    assert capsys.readouterr().out == "Hello\n\nAgain\n\n\n"


def test_an_image_goes_with_the_next_question(
    start_stub: StartStub,
    start_chat: Callable[..., Chat],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    stub = start_stub(sending(text_events("resp_1", "Red")), sending(text_events("resp_2", "Yes")))
    photo = tmp_path / "photo.png"
    photo.write_bytes(RED)
    _typing(monkeypatch, f"/image {photo}", str(photo), "What is this?", "/image nowhere.png", "Sure?")
    start_chat(stub).repl(PlainReader())
    first, second = stub.received
    image = {"type": "input_image", "image_url": data_url(RED), "detail": "auto"}
    (item,) = first["input"]
    assert item["content"] == [image, image, {"type": "input_text", "text": "What is this?"}]
    assert second["input"] == "Sure?"
    output = capsys.readouterr()
    assert "photo.png, photo.png: sent with the next question." in output.out
    assert "nowhere.png cannot be read" in output.err


def test_a_byte_that_is_not_utf_8_is_sent_as_a_question_mark(
    start_stub: StartStub, start_chat: Callable[..., Chat], monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = start_stub(sending(text_events("resp_1", "ok")))
    _typing(monkeypatch, b"caf\xe9!".decode("utf-8", "surrogateescape"))
    start_chat(stub).repl(PlainReader())
    assert [event["input"] for event in stub.received] == ["caf?!"]


def test_commands(
    start_stub: StartStub,
    start_chat: Callable[..., Chat],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stub = start_stub(sending(text_events("resp_1", "one")), sending(text_events("resp_2", "two")))
    _typing(monkeypatch, "/timings", "/nonsense", "1", "/timings", "/clear", "2", "/exit", "never sent")
    start_chat(stub).repl(PlainReader())
    output = capsys.readouterr().out
    assert "Nothing was answered yet." in output
    assert "There is no command /nonsense." in output
    assert "/clear " in output
    assert "computing the prompt" in output
    assert [event["input"] for event in stub.received] == ["1", "2"]
    assert "previous_response_id" not in stub.received[1]


def reloading(shown: Callable[[], str]) -> tuple[Act, Callable[[], str]]:
    """Return an act that pauses within the answer, and a status function that ends the pause after both its stages.

    `shown`: what the terminal shows. The function tells no stage before the answer has begun, and the next one only
    when that before is shown: one that comes beside an event is not.
    """
    stub_may_go_on = threading.Event()

    def wait_reason() -> str:
        text = shown()
        stages = [stage for stage in ("m: loading 10%", "m: checking the model") if stage not in text]
        if "Hel" not in text:
            return ""
        if not stages:
            stub_may_go_on.set()
            return ""
        return stages[0]

    async def act(connection: ServerConnection, _: dict[str, Any]) -> None:
        created, first, second, completed = text_events("resp_1", "Hel", "lo")
        await sending([created, first])(connection, {})
        await asyncio.to_thread(stub_may_go_on.wait)
        await sending([second, completed])(connection, {})

    return act, wait_reason


def test_a_worker_that_is_replaced_within_an_answer_is_told(
    start_stub: StartStub, start_chat: Callable[..., Chat], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat, "QUIET_S", 0.01)
    monkeypatch.setattr(sys, "stderr", Terminal())
    output = cast(Terminal, sys.stderr)  # both are shown on one terminal
    act, wait_reason = reloading(output.getvalue)
    answer = start_chat(start_stub(act), wait_reason).answer("Hi", cast(TextIO, output))
    assert answer.text == "Hello"
    shown = output.getvalue()
    assert shown.startswith("Hel\n\rm: loading 10%\rm: checking the model")
    assert shown.endswith("\rlo\n")


def test_what_is_waited_for_is_shown_to_nobody_elsewhere(
    start_stub: StartStub, start_chat: Callable[..., Chat], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat, "QUIET_S", 0.0)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    looks: list[str] = []

    def wait_reason() -> str:
        looks.append("loading")
        return looks[-1]

    async def act(connection: ServerConnection, _: dict[str, Any]) -> None:
        await asyncio.sleep(0.05)
        await sending(text_events("resp_1", "Hi"))(connection, {})

    output = io.StringIO()
    start_chat(start_stub(act), wait_reason).answer("Hi", output)
    assert not looks, "the daemon was asked"
    assert (output.getvalue(), cast(io.StringIO, sys.stderr).getvalue()) == ("Hi\n", "")


def test_an_error_is_told_and_the_conversation_goes_on(
    start_stub: StartStub,
    start_chat: Callable[..., Chat],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    error = {"type": "error", "status": 429, "error": {"code": "queue_full", "message": "64 requests wait already"}}
    stub = start_stub(sending([error]), sending(text_events("resp_1", "fine")))
    _typing(monkeypatch, "1", "2")
    start_chat(stub).repl(PlainReader())
    captured = capsys.readouterr()
    assert captured.err == "error: 64 requests wait already\n"
    assert "fine" in captured.out


@pytest.mark.skipif(sys.platform == "win32", reason="a signal to the own process ends it on Windows")
def test_ctrl_c_cancels_the_answer_and_the_conversation_goes_on(
    start_stub: StartStub,
    start_chat: Callable[..., Chat],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    created, first, _, completed = text_events("resp_1", "Hel", "lo")
    cancelled = {"type": "response.incomplete", "response": {**completed["response"], "status": "cancelled"}}

    async def interrupted(connection: ServerConnection, _: dict[str, Any]) -> None:
        await connection.send(json.dumps(created))
        await connection.send(json.dumps(first))
        os.kill(os.getpid(), signal.SIGINT)

    stub = start_stub(interrupted, sending([cancelled]), sending(text_events("resp_2", "next")))
    _typing(monkeypatch, "tell me all", "go on")
    start_chat(stub).repl(PlainReader())
    assert [event["type"] for event in stub.received] == ["response.create", "response.cancel", "response.create"]
    assert "previous_response_id" not in stub.received[2]
    output = capsys.readouterr().out
    assert "(cancelled; Ctrl-C again leaves)" in output
    assert output.endswith("next\n\n\n")


class Keys:
    """A reader that returns scripted lines, and raises those that are exceptions."""

    def __init__(self, *typed: str | BaseException) -> None:
        self._typed = iter(typed)

    def read(self) -> str:
        typed = next(self._typed)
        if isinstance(typed, BaseException):
            raise typed
        return typed


def test_ctrl_c_where_nothing_is_typed_hints_and_then_leaves(
    start_stub: StartStub, start_chat: Callable[..., Chat], capsys: pytest.CaptureFixture[str]
) -> None:
    stub = start_stub(sending(text_events("resp_1", "ok")))
    interrupt = KeyboardInterrupt()
    start_chat(stub).repl(Keys(interrupt, "Hi", interrupt, interrupt, "never sent"))
    assert capsys.readouterr().out == f"{HINT}\nok\n\n{HINT}\n\n"
    assert [event["input"] for event in stub.received] == ["Hi"]


def test_a_call_is_shown_and_its_result_typed(
    start_stub: StartStub, start_chat: Callable[..., Chat], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    call = sending(call_events("resp_1", "call_1", "look", '{"at": "\\u001b[2J"}'))
    stub = start_stub(call, sending(text_events("resp_2", "A cat")), call, sending(text_events("resp_3", "ok")))
    tools = tmp_path / "tools.json"
    tools.write_text('[{"type": "function", "name": "look", "parameters": {}}]', encoding="utf-8")
    keys = Keys(f"/tools {tools}", "What is there?", "a cat", "And there?", EOFError(), "Hi", "/exit")
    start_chat(stub).repl(keys)
    first, second, third, fourth = stub.received
    assert first["tools"] == json.loads(tools.read_text(encoding="utf-8"))
    assert second["input"] == [{"type": "function_call_output", "call_id": "call_1", "output": "a cat"}]
    assert (second["previous_response_id"], third["previous_response_id"]) == ("resp_1", "resp_2")
    assert (fourth["input"], fourth["previous_response_id"]) == ("Hi", "resp_2"), "a call without result is forgotten"
    output = capsys.readouterr().out
    assert 'look({"at": "\\u001b[2J"})\nType its result:' in output
    assert "the question and its calls are forgotten" in output


def test_a_conversation_changes_its_model_is_saved_and_goes_on(
    start_stub: StartStub, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    stub = start_stub(*[sending(text_events(f"resp_{number}", "ok")) for number in range(3)])
    served = {"a": "model-a", "b": "model-b"}
    path = tmp_path / "chat.json"
    with asyncio.Runner() as runner:
        client = connect(stub.url)
        chat = Chat(client, runner, {"model": "model-a"}, find_model=served.get, model_names=served.values)
        keys = [
            "/model",
            "/model c",
            "1",
            "/model b",
            f"/save {path}",
            "2",
            "/set top_p 2",
            f"/load {path}",
            "3",
            "/exit",
        ]
        chat.repl(Keys(*keys))
        runner.run(client.close())
    captured = capsys.readouterr()
    assert "model-a\nmodel-b" in captured.out
    assert "does not serve 'c'" in captured.err and "top_p is a number" in captured.err
    assert [event["model"] for event in stub.received] == ["model-a", "model-b", "model-b"]
    assert [event.get("previous_response_id") for event in stub.received] == [None, "resp_0", None]
    assert [item["content"] for item in stub.received[2]["input"]] == ["1", "ok", "3"]


def test_an_answer_cannot_command_the_terminal(start_stub: StartStub, start_chat: Callable[..., Chat]) -> None:
    text = "a\x1b]0;title\x07\tb\x9b2J\rc\n"
    stub = start_stub(*[sending(text_events("resp_1", text))] * 2)
    chat = start_chat(stub)
    terminal, file = Terminal(), io.StringIO()
    chat.answer("?", terminal)
    chat.answer("?", file)
    assert terminal.getvalue() == "a\ufffd]0;title\ufffd\tb\ufffd2Jc\n\n"
    assert file.getvalue() == f"{text}\n"


def test_a_file_cannot_command_the_terminal(
    start_stub: StartStub, start_chat: Callable[..., Chat], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    chat, tools = tmp_path / "chat.json", tmp_path / "tools.json"
    saved = {"kind": "edgeagent chat", "fields": {"instructions": "\x1b]0;title\x07"}, "items": []}
    chat.write_text(json.dumps(saved), encoding="utf-8")
    tools.write_text(json.dumps([{"type": "function", "name": "\x1b[2J"}]), encoding="utf-8")
    keys = Keys(f"/load {chat}", "/system", f"/tools {tools}", "/load \x1b[2J", "/\x1b[2J", "/exit")
    start_chat(start_stub()).repl(keys)
    captured = capsys.readouterr()
    assert "Instructions: \ufffd]0;title\ufffd" in captured.out
    assert "no tool can be named '\\x1b[2J'" in captured.err
    assert "\ufffd[2J cannot be read" in captured.err
    assert "\x1b" not in captured.out + captured.err


def test_reasoning_has_no_escapes_where_they_would_be_shown(
    start_stub: StartStub, start_chat: Callable[..., Chat], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    created, delta, completed = text_events("resp_1", "42")
    thought = {"type": "response.reasoning_text.delta", "delta": "hmm"}
    terminal = Terminal()
    start_chat(start_stub(sending([created, thought, delta, completed]))).answer("?", terminal)
    assert terminal.getvalue() == "hmm\n42\n"


def test_reasoning_is_dim_on_a_terminal_and_absent_from_a_file(
    start_stub: StartStub, start_chat: Callable[..., Chat], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    created, delta, completed = text_events("resp_1", "42")
    thought = {"type": "response.reasoning_text.delta", "delta": "hmm"}
    stub = start_stub(*[sending([created, thought, delta, completed])] * 2)
    chat = start_chat(stub)
    terminal, file = Terminal(), io.StringIO()
    assert chat.answer("?", terminal).reasoning == "hmm"
    chat.answer("?", file)
    assert terminal.getvalue() == f"{DIM}hmm\x1b[0m\n42\n"
    assert file.getvalue() == "42\n"
