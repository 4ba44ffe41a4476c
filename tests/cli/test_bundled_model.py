"""The commands a new user runs first, with the real daemon, worker and bundled model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from edgeagent.cli import main
from tests.integration.conftest import run_command
from tests.patience import patient

ROOT = Path(__file__).resolve().parents[2]
# For daemons that a command starts; the one that `serve` starts here calibrates as for a new user.
UNCALIBRATED = {"EDGEAGENT_ENGINE__FLASH_ATTENTION": "off", "EDGEAGENT_ENGINE__THREADS": "1"}


def _run(*command: str, stdin: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EDGEAGENT_")}
    environment |= {"PYTHONPATH": str(ROOT), **variables}
    return subprocess.run(
        [sys.executable, *command], input=stdin, capture_output=True, text=True, env=environment, timeout=patient(110)
    )


def test_the_demo_shows_what_it_promises() -> None:
    demo = _run(str(ROOT / "packaging/demo.py"), **UNCALIBRATED)
    assert demo.returncode == 0, demo.stderr
    assert 'calls set_timer({"minutes": 10})' in demo.stdout
    table = demo.stdout.partition("milliseconds")[2].splitlines()
    assert table[0].split() == ["answer", "follow-up", "tool", "call", "continued"]
    assert all("-" not in row.split()[-4:] for row in table[1:9]), "a stage was not measured"
    follow_up_reused = demo.stdout.partition("tokens: prompt (cached) + output")[2].split("(")[2].partition(")")[0]
    assert int(follow_up_reused) > 0


def test_a_prompt_from_a_pipe_is_answered_as_json(tmp_path: Path) -> None:
    command = ("-m", "edgeagent", "run", "--json", "--temperature", "0", "--state-dir", str(tmp_path))
    answer = _run(*command, stdin="Hello", **UNCALIBRATED)
    assert answer.returncode == 0, answer.stderr
    body = json.loads(answer.stdout)
    assert body["text"]
    assert body["status"] == "completed"
    assert body["usage"]["output_tokens"] > 0
    assert body["edgeagent"]["stages_ms"]["prefill"] > 0
    assert answer.stderr == ""


def test_status_and_stop_find_the_daemon_that_serves(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "edgeagent", "serve", "--port", "0", "--state-dir", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "EDGEAGENT_ENGINE__THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as daemon:
        try:
            assert daemon.stdout is not None
            next(line for line in daemon.stdout if line.startswith("builtin ready"))
            answer = _run("-m", "edgeagent", "run", "builtin", "Hello", "--state-dir", str(tmp_path))
            assert answer.stdout.strip()
            report = json.loads(run_command("status", "--json", "--state-dir", str(tmp_path)))
            assert report["pid"] == daemon.pid
            assert [model["state"] for model in report["models"]] == ["ready"]
            assert report["num_requests_total"] == 1
            assert "builtin  ready" in run_command("status", "--state-dir", str(tmp_path))
            stopped = _run("-m", "edgeagent", "stop", "--state-dir", str(tmp_path))
            assert stopped.returncode == 0, stopped.stderr
            assert daemon.wait() == 0
        finally:
            daemon.kill()
    assert main(["status", "--state-dir", str(tmp_path)]) == 1


def test_version_names_llama_cpps_commit() -> None:
    told = json.loads(_run("-m", "edgeagent", "version", "--json").stdout)
    assert len(told["llama_cpp_commit"]) >= 7
    assert int(told["llama_cpp_commit"], 16)
