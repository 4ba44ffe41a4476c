"""`edgeagent doctor`, as a user runs it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil
import pytest

from edgeagent.doctor import gather, native
from edgeagent.doctor.facts import Native
from edgeagent.runtime_file import Runtime, write_runtime
from tests.cli.conftest import Run
from tests.patience import patient

KNOWN = Native("0.3.36", "0c1e570", backends=("CPU",), sandbox=(), landlock=1)


@pytest.fixture(autouse=True)
def free_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEAGENT_SERVER__PORT", "0")


@pytest.fixture
def known_native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "ask_native", lambda: KNOWN)


def test_a_real_machine_in_json(tmp_path: Path) -> None:
    folders = ("--models-dir", str(tmp_path / "models"), "--state-dir", str(tmp_path / "state"))
    command = [sys.executable, "-m", "edgeagent", "doctor", "--json", *folders]
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=patient(90))
    report = json.loads(done.stdout)
    findings = {finding["name"]: finding for finding in report["findings"]}
    assert done.returncode == 0 and report["ok"] is True, done.stdout + done.stderr
    assert {"llama.cpp", "CPU", "GPU", "memory", "sandbox", "state folder", "port", "daemon"} <= findings.keys()
    assert "hub" not in findings
    assert all(set(finding) == {"name", "severity", "text", "remedy"} for finding in findings.values())
    assert not (tmp_path / "state").exists() and not (tmp_path / "models").exists()


def test_a_fault_is_told_with_its_remedy(
    run: Run, known_native: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        monkeypatch.setenv("EDGEAGENT_SERVER__PORT", str(listener.getsockname()[1]))
        status, out, _ = run("doctor")
    assert status == 1
    assert "fail  port           127.0.0.1 port" in out and "choose another with --port" in out
    assert "ok    llama.cpp      0c1e570" in out


def test_a_kiosk_s_facts_that_cannot_be_used_fail(
    run: Run, known_native: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = tmp_path / "today.txt"
    monkeypatch.setenv("EDGEAGENT_KIOSK__FACTS_FILE", str(facts))
    status, out, _ = run("doctor")
    assert status == 1 and f"kiosk.facts_file: {facts} cannot be used: No such file or directory" in out
    facts.write_text("The lift is broken.")
    assert run("doctor")[0] == 0


def test_a_broken_llama_cpp_fails(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "ask_native", lambda: native.ask_native((sys.executable, "-c", "1/0")))
    status, out, _ = run("doctor", "--json")
    report = json.loads(out)
    assert status == 1 and not report["ok"]
    (broken,) = [finding for finding in report["findings"] if finding["severity"] == "fail"]
    assert broken["name"] == "llama.cpp" and "ZeroDivisionError" in broken["text"] and broken["remedy"]


@contextmanager
def daemon_that_answers(state_dir: Path, status: int, body: object) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        state_dir.mkdir(mode=0o700)
        started_s = psutil.Process().create_time()
        url = f"http://127.0.0.1:{server.server_port}"
        write_runtime(state_dir, Runtime(os.getpid(), started_s, server.server_port, url, "0.0.1"))
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def test_a_running_daemon_is_asked(run: Run, known_native: None, tmp_path: Path) -> None:
    with daemon_that_answers(tmp_path / "state", 200, {"status": "ready"}):
        status, out, _ = run("doctor")
    assert status == 0 and "warn  daemon         edgeagent 0.0.1 at http://127.0.0.1:" in out


def test_a_daemon_that_is_not_ready_fails(run: Run, known_native: None, tmp_path: Path) -> None:
    error = {"error": {"message": "the model does not fit", "code": "model_load_failed"}}
    with daemon_that_answers(tmp_path / "state", 503, error):
        status, out, _ = run("doctor")
    assert status == 1 and "is not ready: the model does not fit" in out
