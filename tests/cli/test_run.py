"""`edgeagent run`: which daemon it talks to, one-shot prompts, and what it prints for programs."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from edgeagent.cli import line_reader, main, run
from edgeagent.client import Address, user_message
from edgeagent.errors import ModelNotFound
from edgeagent.runtime_file import Runtime
from edgeagent.store.file_records import LastUse
from edgeagent.store.names.catalog import builtin_model
from tests.cli.conftest import StartStub
from tests.client.daemon_stub import DaemonStub, sending, text_events
from tests.media import RED, SILENCE
from tests.patience import patient


@pytest.fixture(autouse=True)
def _no_daemon_but_the_tests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EDGEAGENT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(run, "find_daemon", lambda state_dir: None)
    monkeypatch.setattr("sys.stdin", io.StringIO())


def _running(monkeypatch: pytest.MonkeyPatch, stub: DaemonStub, *names: str, **states: str) -> None:
    models = dict.fromkeys(names, "ready") | states
    daemon = Runtime(pid=1, started_at_s=0, port=1, url=stub.url, version="0", token="secret")
    monkeypatch.setattr(run, "find_daemon", lambda state_dir: daemon)
    monkeypatch.setattr(run, "wait_until_loaded", lambda address, progress: None)

    def ask(address: Address, path: str) -> Any:
        entries = [{"id": model, "edgeagent": {"state": state}} for model, state in models.items()]
        if path == "/v1/models":
            return {"data": entries}
        assert path.startswith("/v1/models/")
        spelled = path.removeprefix("/v1/models/").replace("%3A", "-")
        if spelled not in models:
            raise ModelNotFound("no model is called that")
        return {"id": spelled}

    monkeypatch.setattr(run, "ask", ask)


class _Terminal(io.StringIO):
    """A keyboard at which nobody types."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("forgets", [False, True])
def test_a_chat_keeps_no_lines_if_its_daemon_forgets(
    start_stub: StartStub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, forgets: bool
) -> None:
    stub = start_stub()
    _running(monkeypatch, stub, "builtin")
    daemon = Runtime(pid=1, started_at_s=0, port=1, url=stub.url, version="0", token="secret", forgets=forgets)
    monkeypatch.setattr(run, "find_daemon", lambda state_dir: daemon)
    monkeypatch.setattr("sys.stdin", _Terminal())
    kept: list[Path | None] = []

    def make_reader(history: Path | None) -> Any:
        kept.append(history)
        return line_reader.PlainReader()

    monkeypatch.setattr(run, "make_reader", make_reader)
    assert main(["run", "builtin"]) == 0
    assert kept == [None if forgets else tmp_path / "state" / "history"]


def _startable(monkeypatch: pytest.MonkeyPatch, stub: DaemonStub) -> list[list[str]]:
    started: list[list[str]] = []

    @contextmanager
    def start(flags: list[str], progress: Any, *, owner: Path) -> Iterator[Address]:
        started.append(flags)
        progress("starting the daemon")
        yield Address(stub.url)

    monkeypatch.setattr(run, "temporary_daemon", start)
    return started


def test_a_prompt_is_answered_by_the_running_daemon(
    start_stub: StartStub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stub = start_stub(sending(text_events("resp_1", "Hel", "lo")))
    _running(monkeypatch, stub, "builtin")
    assert main(["run", "builtin", "Hi", "--system", "Be brief", "--temperature", "0", "--max-tokens", "9"]) == 0
    assert capsys.readouterr().out == "Hello\n"
    (request,) = stub.received
    assert request["model"] == "builtin"
    assert (request["instructions"], request["temperature"], request["max_output_tokens"]) == ("Be brief", 0.0, 9)
    assert stub.authorizations == ["Bearer secret"]


def test_files_go_with_the_question(
    start_stub: StartStub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photo := tmp_path / "photo.png").write_bytes(RED)
    (sound := tmp_path / "sound.wav").write_bytes(SILENCE)
    stub = start_stub(*[sending(text_events("resp_1", "ok"))] * 3)
    _running(monkeypatch, stub, "builtin")
    assert main(["run", "builtin", "What is this?", str(photo)]) == 0
    assert main(["run", "builtin", "And these?", "--audio", str(sound), "--image", str(photo)]) == 0
    assert capsys.readouterr().err == ""
    assert main(["run", "builtin", "And", "nowhere.png"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert told == (
        "error: nowhere.png cannot be read: No such file or directory. "
        "To ask about the name, put the question into quotes"
    )
    assert main(["run", "builtin", "And nowhere.png"]) == 0
    last, both = ([user_message("What is this?", RED)], [user_message("And these?", RED, SILENCE)])
    assert [request["input"] for request in stub.received] == [last, both, "And nowhere.png"]
    for arguments, why in (
        (["What?", "--image", "nowhere.png"], "cannot be read"),
        (["--image", str(photo)], "PROMPT"),
    ):
        assert main(["run", "builtin", *arguments]) == 2
        assert why in capsys.readouterr().err


def test_a_bound_that_no_daemon_accepts_is_refused_by_its_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "-p", "Hi", "--max-tokens", "99999999999"]) == 2
    assert capsys.readouterr().err.startswith("error: --max-tokens: ")


def test_an_answer_from_elsewhere_says_so(
    start_stub: StartStub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    events = text_events("resp_1", "Hello")
    events[-1]["response"]["edgeagent"] |= {"route": "remote:gpu", "reason": "queue_full"}
    stub = start_stub(sending(events), sending(text_events("resp_2", "Hello")))
    _running(monkeypatch, stub, "builtin")
    assert main(["run", "builtin", "Hi", "--route", "prefer_local"]) == 0
    assert capsys.readouterr() == ("Hello\n", "(answered by gpu: queue_full)\n")
    assert main(["run", "builtin", "Hi"]) == 0
    assert capsys.readouterr() == ("Hello\n", "")
    assert [request.get("edgeagent") for request in stub.received] == [{"route": "prefer_local"}, None]
    assert main(["run", "builtin", "Hi", "--route", "anywhere"]) == 2


def test_json_is_one_object_with_text_usage_and_timings(
    start_stub: StartStub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stub = start_stub(sending(text_events("resp_1", "Grüß", " dich")))
    _running(monkeypatch, stub, "builtin")
    assert main(["run", "builtin", "Hi", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["text"], body["status"], body["response_id"]) == ("Grüß dich", "completed", "resp_1")
    assert body["usage"]["output_tokens"] == 2
    assert body["timings"] == {"predicted_per_second": 50.0}
    assert body["edgeagent"]["stages_ms"] == {"prefill": 1.25}


@pytest.mark.parametrize(
    ("prompt", "piped", "question"),
    [(["Sum up"], "some text\n", "Sum up\n\nsome text"), ([], " piped \n", "piped"), (["asked"], "", "asked")],
)
def test_piped_text_is_part_of_the_prompt(
    prompt: list[str], piped: str, question: str, start_stub: StartStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = start_stub(sending(text_events("resp_1", "ok")))
    _running(monkeypatch, stub, "builtin")
    monkeypatch.setattr("sys.stdin", io.StringIO(piped))
    assert main(["run", "builtin", *prompt]) == 0
    assert stub.received[0]["input"] == question


@pytest.mark.skipif(sys.platform == "win32", reason="`yes` of POSIX")
def test_a_pipe_that_never_ends_is_refused(tmp_path: Path) -> None:
    environment = os.environ | {"EDGEAGENT_STATE_DIR": str(tmp_path)}
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as endless:
        try:
            done = subprocess.run(
                [sys.executable, "-m", "edgeagent", "run", "-p", "Sum up"],
                stdin=endless.stdout,
                capture_output=True,
                text=True,
                env=environment,
                timeout=patient(60),
            )
        finally:
            endless.kill()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: the piped text is larger than the daemon accepts (16777216 bytes)")


def test_bytes_that_are_no_text_are_question_marks(start_stub: StartStub, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = start_stub(sending(text_events("resp_1", "ok")))
    _running(monkeypatch, stub, "builtin")
    piped = io.TextIOWrapper(io.BytesIO(b"a \xff b"), encoding="utf-8", errors="strict")
    monkeypatch.setattr("sys.stdin", piped)
    assert main(["run", "builtin", "typed \udcff", "--system", "brief \udcfe"]) == 0
    assert stub.received[0]["input"] == "typed ?\n\na \ufffd b"
    assert stub.received[0]["instructions"] == "brief ?"


@pytest.mark.parametrize("model", ["tiny", "/models/tiny.gguf"])
def test_the_running_daemon_is_used_for_a_model_it_serves(
    model: str, start_stub: StartStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = start_stub(sending(text_events("resp_1", "ok")))
    _running(monkeypatch, stub, "other", "tiny")
    assert main(["run", model, "Hi"]) == 0
    assert stub.received[0]["model"] == "tiny"


def test_the_running_daemon_is_used_for_a_model_that_it_would_load(
    start_stub: StartStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon resolves every name of the model; but a file given by its path may be another model."""
    stub = start_stub(*(sending(text_events(response_id, "ok")) for response_id in ("resp_1", "resp_2", "resp_3")))
    started = _startable(monkeypatch, stub)
    _running(monkeypatch, stub, "other", **{"qwen3-4b": "stopped"})
    for name in ("qwen3-4b", "qwen3:4b"):
        assert main(["run", name, "Hi"]) == 0
    assert [request["model"] for request in stub.received] == ["qwen3-4b", "qwen3-4b"] and not started
    assert main(["run", "/models/qwen3-4b.gguf", "Hi"]) == 0
    assert started == [["/models/qwen3-4b.gguf"]]


def test_default_is_what_the_daemon_serves_or_would(start_stub: StartStub, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = (sending(text_events(response_id, "ok")) for response_id in ("resp_1", "resp_2"))
    stub = start_stub(*answers)
    started = _startable(monkeypatch, stub)
    assert main(["run", "default", "Hi"]) == 0
    assert started == [["builtin"]]
    _running(monkeypatch, stub, "tiny")
    assert main(["run", "default", "Hi"]) == 0
    assert len(started) == 1
    assert [("model" in request) for request in stub.received] == [False, False]


def test_another_model_gets_a_daemon_of_its_own(
    start_stub: StartStub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stub = start_stub(sending(text_events("resp_1", "ok")))
    _running(monkeypatch, stub, "builtin")
    started = _startable(monkeypatch, stub)
    assert main(["run", "other.gguf", "Hi"]) == 0
    assert started == [["other.gguf"]]
    assert "model" not in stub.received[0]
    assert capsys.readouterr().err == ""


def test_without_a_daemon_one_is_started_with_the_configured_model(
    start_stub: StartStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = start_stub(sending(text_events("resp_1", "ok")))
    started = _startable(monkeypatch, stub)
    monkeypatch.setenv("EDGEAGENT_MODEL", "mine.gguf")
    monkeypatch.setattr("sys.stdin", io.StringIO("Hi"))
    assert main(["run"]) == 0
    assert started == [["mine.gguf"]]


def test_a_model_that_was_run_counts_as_loaded(
    start_stub: StartStub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _startable(monkeypatch, start_stub(sending(text_events("resp_1", "ok"))))
    assert main(["run", "-p", "Hi"]) == 0
    assert LastUse(tmp_path / "state").age_s(builtin_model().path) is not None


@pytest.mark.parametrize(
    ("flags", "printed"), [([], b"Caf? ?\n"), (["--json"], b'"text": "Caf\\u00e9 \\ud83e\\udd8a"')]
)
def test_what_the_output_cannot_show_is_marked(
    flags: list[str], printed: bytes, start_stub: StartStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = start_stub(sending(text_events("resp_1", "Café 🦊")))
    _running(monkeypatch, stub, "builtin")
    output = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(output, encoding="ascii", write_through=True))
    assert main(["run", "-p", "Hi", *flags]) == 0
    assert printed in output.getvalue()


def test_an_empty_pipe_is_no_chat(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: no PROMPT was given, and the piped text is empty")


def test_json_needs_a_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--json"]) == 2
    assert "--json needs a PROMPT" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["What is it?"], ["-p", "What is it?"], ["--prompt", "What is it?"]])
def test_a_question_goes_to_the_default_model(
    arguments: list[str], start_stub: StartStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = start_stub(sending(text_events("resp_1", "ok")))
    _running(monkeypatch, stub, "builtin")
    assert main(["run", *arguments]) == 0
    assert stub.received[0]["input"] == "What is it?"
    assert "model" not in stub.received[0]


@pytest.mark.parametrize(
    ("arguments", "question"),
    [(["hi", "there"], "hi there"), (["-p", "hi"], "hi"), (["-p", "hi", "there"], "hi\n\nthere")],
)
def test_behind_a_model_all_is_the_question(
    arguments: list[str], question: str, start_stub: StartStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = start_stub(sending(text_events("resp_1", "ok")))
    _running(monkeypatch, stub, "builtin")
    assert main(["run", "builtin", *arguments]) == 0
    assert (stub.received[0]["model"], stub.received[0]["input"]) == ("builtin", question)


@pytest.mark.parametrize("name", ["org/repo", "org/repo:Q4_K_M", "qwen3-0.6b:Q4_0", "missing.gguf", "./x", "tiny"])
def test_one_argument_that_names_a_model_is_the_model(
    name: str, start_stub: StartStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = start_stub(sending(text_events("resp_1", "ok")))
    _running(monkeypatch, stub, "builtin", "tiny")
    started = _startable(monkeypatch, stub)
    monkeypatch.setattr("sys.stdin", io.StringIO("Hi"))
    assert main(["run", name]) == 0
    assert stub.received[0]["input"] == "Hi"
    assert started == ([] if name == "tiny" else [[name]])


@pytest.mark.parametrize("arguments", [["falcon3.2"], ["falcon:7b", "hi"], ["buildin"], ["hello"]])
def test_a_word_that_names_no_model_is_no_prompt(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: there is no model '{arguments[0]}'; ")
    assert f'edgeagent run -p "{" ".join(arguments)}"' in error


def test_no_store_reaches_the_daemon(start_stub: StartStub, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = start_stub(*[sending(text_events("resp_1", "ok"))] * 2)
    _running(monkeypatch, stub, "builtin")
    assert main(["run", "-p", "Hi", "--no-store"]) == 0
    assert main(["run", "-p", "Hi"]) == 0
    assert [request.get("store") for request in stub.received] == [False, None]


def test_how_far_a_running_daemon_is_with_its_model_is_shown(
    start_stub: StartStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = start_stub(sending(text_events("resp_1", "ok")))
    _running(monkeypatch, stub, "builtin")
    waited: list[Address] = []
    monkeypatch.setattr(run, "wait_until_loaded", lambda address, progress: waited.append(address))
    assert main(["run", "-p", "Hi"]) == 0
    assert [address.url for address in waited] == [stub.url]


def test_a_word_is_looked_up_at_a_daemon_with_its_own_certificate(
    start_stub: StartStub, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = start_stub(sending(text_events("resp_1", "ok")))
    asked: list[Address] = []

    def ask(address: Address, path: str) -> dict[str, Any]:
        asked.append(address)
        return {"data": [{"id": "builtin"}]}

    daemon = Runtime(pid=1, started_at_s=0, port=1, url=stub.url, version="0", token="secret", certificate="own.pem")
    monkeypatch.setattr(run, "find_daemon", lambda state_dir: daemon)
    monkeypatch.setattr(run, "ask", ask)
    monkeypatch.setattr(run, "wait_until_loaded", lambda address, progress: None)
    assert main(["run", "builtin", "Hi there"]) == 0
    assert {address.certificate for address in asked} == {"own.pem"}
