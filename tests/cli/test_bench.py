"""`edgeagent bench`: what it measures, how it finds servers, what it prints, and how it exits."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from edgeagent.bench import scenarios
from edgeagent.bench.scenarios import SCENARIOS, Scenario
from edgeagent.cli import main
from edgeagent.cli.bench import ScenarioName, bench
from edgeagent.client import Address
from edgeagent.runtime_file import Runtime
from tests.backends.fake import FakeBackend
from tests.cli.threads import in_thread
from tests.daemon.running import running

QUICK = ["--rounds", "1", "--prompt-tokens", "64", "--max-tokens", "8", "--parallel", "2"]
Serve = Callable[[FakeBackend], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Return a function that serves a backend until the test ends, and returns its URL."""
    with ExitStack() as stack:
        yield lambda backend: stack.enter_context(in_thread(running(backend))).url


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenarios, "REALTIME_EVERY_S", 0.01)


def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_everything_is_measured(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", serve(FakeBackend()), *QUICK]) == 0
    captured = capsys.readouterr()
    assert "WebSocket, model fake (edgeagent)" in captured.out
    measured = [scenario for scenario in SCENARIOS.values() if scenario.is_usual]
    titles = [f"{scenario.name}: {scenario.summary}" for scenario in measured]
    assert [line for line in captured.out.splitlines() if line in titles] == titles
    assert "failed" not in captured.out
    assert captured.err.splitlines() == [
        "first answers (0 of 4 rounds)",
        *(f"{scenario.name} ({number} of 4 rounds)" for number, scenario in enumerate(measured)),
    ]


def test_json_and_the_options(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--scenario", "decode", "--scenario", "ttft", "--seed", "7", "--transport", "http", "--json"]
    assert main(["bench", serve(FakeBackend()), *QUICK, *flags, "--rounds", "3"]) == 0
    report = printed(capsys)
    assert [scenario["name"] for scenario in report["scenarios"]] == ["decode", "ttft"]
    assert (report["seed"], report["rounds"], report["is_complete"]) == (7, 3, True)
    assert report["servers"][0]["transport"] == "http"
    assert len(report["scenarios"][0]["metrics"][0]["servers"][0]["samples"]) == 3


def test_runs_are_saved_listed_and_compared(
    serve: Serve, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = ["--state-dir", str(tmp_path / "state")]
    measuring = ["bench", serve(FakeBackend()), *QUICK, "--scenario", "decode", "--rounds", "3", *state]
    assert main([*measuring, "--save", "before"]) == 0
    assert "Saved as run 1, 'before'." in capsys.readouterr().err
    assert main([*measuring, "--save", "after", "--max-tokens", "12"]) == 0
    capsys.readouterr()
    assert main(["bench", "history", *state, "--json"]) == 0
    runs = printed(capsys)
    assert [(run["id"], run["name"]) for run in runs] == [(1, "before"), (2, "after")]
    assert runs[0]["facts"]["model"] == "fake"
    assert "CPUs" in runs[0]["facts"]["machine"]
    assert len(runs[1]["scenarios"][0]["metrics"][0]["servers"][0]["samples"]) == 3
    assert main(["bench", "history", *state]) == 0
    assert "tokens/s" in capsys.readouterr().out
    assert main(["bench", "compare", "before", "2", *state]) == 0
    shown = capsys.readouterr().out
    assert "differs: workload: prompts of 64 tokens, answers of 8" in shown
    assert next(line.split()[:2] for line in shown.splitlines() if line.startswith("decode")) == ["decode", "tokens/s"]
    assert main(["bench", "compare", "1", "1", *state, "--json"]) == 0
    compared = printed(capsys)
    assert all(each["change"] is None or each["change"]["ratio"] == 1 for each in compared["figures"])
    assert compared["differing"] == []
    assert main(["bench", "compare", "before", "never", *state]) == 2
    assert "no saved run is called 'never'" in capsys.readouterr().err
    (tmp_path / "state" / "bench.sqlite3").write_bytes(b"no database" * 100)
    assert main(["bench", "history", *state]) == 2
    assert "if it is damaged, delete it" in capsys.readouterr().err


def test_ctrl_c_saves_what_has_been_measured(
    serve: Serve, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = SCENARIOS["decode"]

    async def interrupted(measured: Any, workload: Any, round_id: str) -> Any:
        if round_id == "1":
            raise KeyboardInterrupt
        return await decode.round(measured, workload, round_id)

    monkeypatch.setitem(SCENARIOS, "decode", Scenario("decode", "x", decode.metrics, interrupted))
    command = ["bench", serve(FakeBackend()), *QUICK, "--rounds", "9", "--scenario", "decode", "--save", "cut"]
    assert main([*command, "--state-dir", str(tmp_path)]) == 130
    capsys.readouterr()
    assert main(["bench", "history", "--state-dir", str(tmp_path), "--json"]) == 0
    (run,) = printed(capsys)
    assert not run["is_complete"]


def test_every_run_has_prompts_of_its_own(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    """A server that was measured before must not have the next run's cold prompts in its cache."""
    url, seeds = serve(FakeBackend()), set()
    for _ in range(2):
        main(["bench", url, *QUICK, "--scenario", "decode", "--json"])
        seeds.add(printed(capsys)["seed"])
    assert len(seeds) == 2


def test_two_servers_are_compared(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    ours, theirs = serve(FakeBackend()), serve(FakeBackend(models=("other",)))
    flags = ["--transport", "http", "--against-model", "other", "--scenario", "decode", "--json"]
    assert main(["bench", ours.replace("http", "ws"), "--against", theirs, *QUICK, *flags]) == 0
    report = printed(capsys)
    assert [(server["transport"], server["model"]) for server in report["servers"]] == [
        ("ws", "fake"),
        ("http", "other"),
    ]
    assert report["scenarios"][0]["metrics"][0]["ratio"]["num_pairs"] == 1


def test_the_running_daemon_is_measured_with_its_token(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    url = serve(FakeBackend())
    asked: list[Path] = []

    def find(state_dir: Path) -> Runtime:
        asked.append(state_dir)
        return Runtime(pid=1, started_at_s=0, port=1, url=url, version="0", token="x" * 43)

    monkeypatch.setattr("edgeagent.runtime_file.find_daemon", find)
    assert main(["bench", *QUICK, "--scenario", "decode", "--state-dir", str(tmp_path), "--json"]) == 0
    assert asked == [tmp_path]
    assert printed(capsys)["servers"][0]["url"] == url


def test_without_a_daemon_one_is_started(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = serve(FakeBackend())
    started: list[list[str]] = []

    @contextmanager
    def start(flags: list[str], progress: Callable[[str], None], *, owner: Path) -> Iterator[Address]:
        started.append(flags)
        progress("m: loading 10%")
        progress("m: loading 90%")
        yield Address(url)

    monkeypatch.setattr("edgeagent.runtime_file.find_daemon", lambda state_dir: None)
    monkeypatch.setattr("edgeagent.cli.temporary.temporary_daemon", start)
    assert main(["bench", *QUICK, "--scenario", "decode", "--model", "/models/m.gguf"]) == 0
    assert started == [["/models/m.gguf"]]
    captured = capsys.readouterr()
    assert "model fake" in captured.out
    assert captured.err.splitlines()[0] == "m: loading 10%"
    assert "90%" not in captured.err, "in a log a line for each stage is enough"


def test_ctrl_c_prints_what_has_been_measured(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    decode = SCENARIOS["decode"]

    async def interrupted(measured: Any, workload: Any, round_id: str) -> Any:
        if round_id == "2":
            raise KeyboardInterrupt
        return await decode.round(measured, workload, round_id)

    monkeypatch.setitem(SCENARIOS, "decode", Scenario("decode", "x", decode.metrics, interrupted))
    assert main(["bench", serve(FakeBackend()), *QUICK, "--rounds", "9", "--json"]) == 130
    report = printed(capsys)
    assert not report["is_complete"]
    (scenario,) = report["scenarios"]
    assert len(scenario["metrics"][0]["servers"][0]["samples"]) == 2


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["bench", "http://127.0.0.1:1"], 1, "cannot be reached"),
        (["bench", "nonsense://x"], 2, "is not a server's URL"),
        (["bench", "--scenario", "sleep"], 2, "sleep"),
        (["bench", "--rounds", "0"], 2, "--rounds"),
    ],
)
def test_what_is_wrong_is_one_line(
    arguments: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_a_scenario_that_fails_is_told_and_ends_with_status_1(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    from edgeagent.errors import Overloaded
    from tests.backends.fake import echo

    def script(request: Any) -> Any:
        if request.max_tokens == 8:
            raise Overloaded("the queue is full")
        return echo(request)

    flags = ["--scenario", "decode", "--scenario", "ttft"]
    assert main(["bench", serve(FakeBackend(script)), *QUICK, *flags]) == 1
    output = capsys.readouterr().out
    assert "failed: the queue is full" in output
    assert "cold TTFT" in output


def test_a_terminal_gets_a_bar(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = serve(FakeBackend())
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["bench", url, *QUICK, "--scenario", "decode"]) == 0
    assert "decode: one stream" in capsys.readouterr().out


def test_the_command_and_the_measures_know_the_same_scenarios() -> None:
    assert [name.value for name in ScenarioName] == list(SCENARIOS)


def test_its_help_imports_nothing_slow_and_teaches() -> None:
    run = "from edgeagent.cli import main; main(['bench', '--help'])"
    code = f"import sys, json; {run}; print(json.dumps(list(sys.modules)))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    *help_lines, modules = output.splitlines()
    assert not {"httpx2", "websockets", "rich", "matplotlib", "fastapi"} & set(json.loads(modules))
    examples = [line.strip() for line in help_lines if line.startswith("  edgeagent bench")]
    assert len(examples) >= 6
    assert bench.__doc__ is not None
    assert all(scenario in bench.__doc__ for scenario in SCENARIOS)
