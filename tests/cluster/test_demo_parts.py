"""The parts of the demo that need no cluster: which texts count as equal, and how programs end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.cluster import __main__ as demo
from tests.cluster import environment
from tests.cluster.client import Answer, Client
from tests.cluster.environment import CannotInstall, torch_source
from tests.cluster.findings import StepFailed, is_same_but_its_end, moves, whole
from tests.cluster.processes import DidNotStart, Program


def test_texts_that_part_only_at_their_end() -> None:
    assert is_same_but_its_end("one two three", "one two")
    assert not is_same_but_its_end("one two", "one too")
    assert not is_same_but_its_end("one two" + " three" * 9, "one two")


@pytest.mark.parametrize(
    "answer",
    [
        Answer(num_tokens=3, finish_reason="stop"),
        Answer(num_tokens=2, finish_reason="length"),
        Answer(num_tokens=3, finish_reason="length", error="cut"),
    ],
)
def test_an_answer_that_is_not_whole_fails_its_step(answer: Answer) -> None:
    with pytest.raises(StepFailed):
        whole(answer, 3)
    assert whole(Answer(num_tokens=3, finish_reason="length"), 3)


def test_ways_are_told_with_their_numbers() -> None:
    moved = Answer(handovers=[{"from": "local", "to": "remote:a"}, {"from": "remote:a", "to": "local"}])
    assert moves([moved, moved, Answer(route="local")]) == "2 x local -> remote:a -> local, 1 x stayed at local"


@pytest.mark.parametrize("num_pieces", [2, 4])
async def test_something_is_broken_only_under_streams_that_run(
    num_pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def ask(_: object, prompt: str, max_tokens: int, *, into: Answer) -> Answer:
        into.came_s += [0.0] * 3
        if num_pieces <= 3:
            await broken.wait()
        return into

    monkeypatch.setattr(Client, "ask", ask)

    def breaks() -> None:
        loop.call_soon_threadsafe(broken.set)

    async with Client("http://127.0.0.1:1") as client:
        answers, done_s = await client.ask_and(["a", "b"], 3, num_pieces, breaks)
    assert [len(answer.came_s) for answer in answers] == [3, 3]
    assert broken.is_set() == (done_s is not None) == (num_pieces <= 3)


def test_torch_comes_from_a_folder_of_wheels_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert torch_source() == ["--torch-backend", "cpu"]
    (tmp_path / "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl").touch()
    assert torch_source() == ["--find-links", str(tmp_path)]


def test_without_engines_an_optional_demo_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def prepare() -> Path:
        raise CannotInstall("no such wheel")

    monkeypatch.setattr(demo, "prepare", prepare)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert demo.main(["--optional"]) == 0
    assert "no such wheel" in capsys.readouterr().out
    assert demo.main([]) == 1


def test_an_installer_that_stalls_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "INSTALL_LIMIT_S", 0.05)
    with pytest.raises(CannotInstall, match="did not end"):
        environment.run(sys.executable, "-c", "import time; time.sleep(60)")


@pytest.mark.skipif(os.name != "posix", reason="sessions and signals of POSIX")
class TestPrograms:
    def test_a_kill_takes_the_children_along(self, tmp_path: Path) -> None:
        told = tmp_path / "pid"
        program = Program(
            "engine", ["sh", "-c", f"sleep 60 & echo $! > {told}.new; mv {told}.new {told}; wait"], {}, tmp_path / "log"
        )
        while not told.exists():
            assert psutil.pid_exists(program.pid)
        child = psutil.Process(int(told.read_text()))
        program.kill()
        with contextlib.suppress(psutil.NoSuchProcess):
            while child.status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.01)

    def test_the_end_of_its_log_says_why_it_did_not_start(self, tmp_path: Path) -> None:
        code = "import sys; sys.exit('no such model')"
        program = Program("engine", [sys.executable, "-c", code], dict(os.environ), tmp_path / "log")
        with pytest.raises(DidNotStart, match="no such model"):
            program.wait_for("http://127.0.0.1:1/health", 30)
