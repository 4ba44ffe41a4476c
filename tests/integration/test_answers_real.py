"""Kept and shared answers with a real daemon: the kiosk guide's own commands, and eight equal questions at once."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from edgeagent.credentials.keys import Scope, add_client
from edgeagent.runtime_file import TOKEN_FILE
from tests.integration.conftest import PATIENT, Daemon, start_daemon, stop_daemon
from tests.patience import patient

GUIDE = (Path(__file__).parents[2] / "docs/guides/kiosk.md").read_text()
SECTION = GUIDE.partition("## Warm it")[2].partition("\n## ")[0]
QUESTIONS = ["When do you close?", "Where is the lift?"]


def blocks(text: str, kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL)


@pytest.fixture(scope="module")
def kiosk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with the config.toml of the guide, and what its section about usual questions adds."""
    folder = tmp_path_factory.mktemp("answers")
    [added] = blocks(SECTION, "toml")
    config = re.sub('^model = ".*"$', 'model = "builtin"', blocks(GUIDE, "toml")[0], flags=re.MULTILINE)
    (folder / "config.toml").write_text(f"{config}\n{added}".replace('clients = ["kiosk"]', 'clients = ["kiosk", ""]'))
    running = start_daemon(folder / "state", "--config", str(folder / "config.toml"), program=PATIENT)
    yield running
    stop_daemon(running)


def run(command: str, daemon: Daemon, folder: Path) -> str:
    """Run a command of the guide as it stands there. Return what it prints."""
    program, *words = shlex.split(command)
    assert program == "edgeagent"
    with chdir(folder):
        return daemon.run(*words)


def visit(daemon: Daemon, token: str, question: str) -> dict[str, Any]:
    """Ask as the kiosk's page does, and return the finished response."""
    url = daemon.url.replace("http://", "ws://") + "/edgeagent/kiosk"
    frame = {"type": "response.create", "input": [{"role": "user", "content": question}]}
    with connect(url, additional_headers={"Authorization": f"Bearer {token}"}) as socket:
        socket.send(json.dumps(frame))
        while True:
            event: dict[str, Any] = json.loads(socket.recv(timeout=patient(60)))
            if event["type"] == "response.completed":
                response: dict[str, Any] = event["response"]
                return response


def test_the_guides_commands_answer_visitors_without_the_model(kiosk: Daemon, tmp_path: Path) -> None:
    token = add_client(kiosk.state_dir, "kiosk", [Scope.KIOSK])
    (tmp_path / "questions.txt").write_text("\n".join(QUESTIONS) + "\n")
    [warm] = blocks(SECTION, "sh")
    assert run(warm, kiosk, tmp_path).startswith("2 answers are new, 0 were kept before.")
    assert run(warm, kiosk, tmp_path).startswith("0 answers are new, 2 were kept before.")
    for question in QUESTIONS:
        response = visit(kiosk, token, question)
        origin = response["edgeagent"]["cache"]["answer"]
        assert (origin["kind"], response["edgeagent"]["served_by"]) == ("exact", "answers")
        assert response["output"][0]["content"][0]["text"]
    assert "cache" not in visit(kiosk, token, "What do I pay?")["edgeagent"]
    kept = json.loads(run("edgeagent cache answers list --json", kiosk, tmp_path))
    assert {each["question"] for each in kept} == set(QUESTIONS), "what a visitor asks is not kept"
    assert all(each["client"] == "kiosk:kiosk" for each in kept)
    assert "answers: 2 kept" in run("edgeagent status", kiosk, tmp_path)
    assert run("edgeagent cache answers forget --client kiosk:kiosk", kiosk, tmp_path) == "2 answers forgotten.\n"


def test_a_question_that_fails_is_named_by_its_line_and_the_others_go_on(kiosk: Daemon, tmp_path: Path) -> None:
    lines: list[dict[str, Any] | None] = [
        {"content": "one\u2028two"},
        None,
        {"content": "long " * 3000},
        {"role": "nobody"},
        {"content": "three"},
    ]
    asked = [line and {"messages": [{"role": "user", **line}], "temperature": 0, "max_tokens": 4} for line in lines]
    text = "\n".join(json.dumps(each, ensure_ascii=False) if each else "" for each in asked)
    (tmp_path / "questions.jsonl").write_text(text, "utf-8")
    command = [sys.executable, "-m", "edgeagent", "cache", "answers", "warm", "questions.jsonl"]
    done = subprocess.run(
        [*command, "--state-dir", str(kiosk.state_dir)], check=False, capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 1 and done.stdout.startswith("2 answers are new, 0 were kept before.")
    assert re.findall(r"^line (\d+):", done.stderr, re.MULTILINE) == ["3", "4"]
    run('edgeagent cache answers forget --client ""', kiosk, tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process")
def test_ctrl_c_keeps_what_is_done_and_says_how_far_it_got(kiosk: Daemon, tmp_path: Path) -> None:
    (tmp_path / "questions.txt").write_text("\n".join(f"What is in room {number}?" for number in range(12)))
    (tmp_path / "like.json").write_text('{"temperature": 0, "max_tokens": 60}')
    words = "cache answers warm questions.txt --like like.json --state-dir"
    command = [sys.executable, "-m", "edgeagent", *words.split(), str(kiosk.state_dir)]
    warming = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert warming.stderr is not None
    while "16%" not in (line := warming.stderr.readline()):
        assert line, "it has asked two questions at some time"
    warming.send_signal(signal.SIGINT)
    said, complaint = warming.communicate(timeout=patient(60))
    found = re.search(r"interrupted after (\d+) of 12 questions", complaint)
    assert warming.returncode == 130 and found is not None, complaint
    num_done = int(found[1])
    assert said.startswith(f"{num_done} answers are new") and 2 <= num_done < 12
    again = run("edgeagent cache answers warm questions.txt --like like.json", kiosk, tmp_path)
    num_new, num_known = map(int, re.findall(r"\d+", again))
    # The daemon may have ended an answer that the command did not wait for any more.
    assert num_new + num_known == 12 and num_known - num_done in (0, 1), again
    kept = json.loads(run('edgeagent cache answers list --json --client ""', kiosk, tmp_path))
    assert len([each for each in kept if each["question"].startswith("What is in room")]) == 12
    run('edgeagent cache answers forget --client ""', kiosk, tmp_path)


async def test_eight_equal_questions_share_one_answer_while_some_leave(kiosk: Daemon) -> None:
    headers = {"Authorization": f"Bearer {(kiosk.state_dir / TOKEN_FILE).read_text().strip()}"}
    body = {
        "messages": [{"role": "user", "content": "Tell me a story about a river."}],
        "temperature": 0,
        "max_tokens": 60,
        "stream": True,
    }

    have_text = set[asyncio.Task[Any] | None]()

    async def ask(client: httpx.AsyncClient, *, leaves: bool) -> tuple[str, str]:
        text, kind = "", ""
        async with client.stream("POST", f"{kiosk.url}/v1/chat/completions", json=body, headers=headers) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    chunk = json.loads(line.removeprefix("data: "))
                    choice = chunk["choices"][0] if chunk.get("choices") else {}
                    text += choice.get("delta", {}).get("content") or ""
                    origin = chunk.get("edgeagent", {}).get("cache", {}).get("answer", {})
                    kind = origin.get("kind", kind)
                    if text:
                        have_text.add(asyncio.current_task())
                    if leaves and len(have_text) == 8:  # before that, it might be the only one
                        return text, "left"
        return text, "left" if leaves else kind

    async with httpx.AsyncClient(timeout=patient(60)) as client:
        # The first one leaves too.
        answers = await asyncio.gather(*(ask(client, leaves=index in (0, 5)) for index in range(8)))
        again = await ask(client, leaves=False)
        report = (await client.get(f"{kiosk.url}/edgeagent/answers", headers=headers)).json()
    whole = {text for text, kind in answers if kind in ("joined", "exact")}
    outcomes = report["outcomes"]
    assert len(whole) == 1 and again == (*whole, "exact")
    assert all(next(iter(whole)).startswith(text) for text, _ in answers)
    assert outcomes.get("joined", 0) + outcomes["exact"] >= 8
