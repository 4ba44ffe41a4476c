"""`edgeagent status` and `edgeagent stop`, and requests to a daemon over HTTP."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from edgeagent.cli import main, status
from edgeagent.cli.link import ask
from edgeagent.client import Address
from edgeagent.errors import BackendUnavailable, ModelLoading
from edgeagent.runtime_file import Runtime
from tests.cli.test_egress import fill

REPORT: dict[str, Any] = {
    "version": "0.1.0",
    "uptime_s": 7500.0,
    "num_live_requests": 3,
    "num_requests_total": 40,
    "num_connections": 2,
    "is_draining": False,
    "models": [
        {
            "name": "builtin",
            "state": "ready",
            "progress": 1.0,
            "cause": "died of signal 11",
            "num_restarts": 2,
            "info": {
                "num_gpu_layers": 0,
                "num_layers": 6,
                "draft": "mini-draft",
                "llama_cpp_commit": "abc1234",
                "sandbox": ["no network", "no new privileges"],
                "devices": [
                    {
                        "name": "CPU",
                        "description": "Some CPU",
                        "memory_free_bytes": 3 << 30,
                        "memory_total_bytes": 8 << 30,
                    }
                ],
            },
            "worker": {
                "num_running": 3,
                "num_waiting": 1,
                "tokens_per_second": 98.76,
                "num_cells_used": 40,
                "num_cells": 8192,
                "num_cached_tokens_total": 30,
                "num_prompt_tokens_total": 120,
                "rss_bytes": 50 << 20,
                "disk_cache": {"trouble": "nothing more is written: the disk has 0.5 MiB free"},
            },
        },
        {
            "name": "big",
            "state": "starting",
            "progress": 0.42,
            "cause": None,
            "num_restarts": 0,
            "info": None,
            "worker": None,
        },
        {
            "name": "killer",
            "state": "quarantined",
            "progress": 0.0,
            "cause": "the process crashed too often (SIGSEGV)",
            "retry_after_s": 150.0,
            "num_restarts": 0,
            "info": None,
            "worker": None,
        },
    ],
}


class Daemon(BaseHTTPRequestHandler):
    """Answers a path with what its server holds for it, and records each request with its token."""

    def _answer(self) -> None:
        self.server.asked.append((self.command, self.path, self.headers.get("Authorization")))  # type: ignore[attr-defined]
        code, body = self.server.answers[self.path]  # type: ignore[attr-defined]
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = _answer  # noqa: N815 the base class's own naming

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def daemon() -> Iterator[Any]:
    with HTTPServer(("127.0.0.1", 0), Daemon) as server:
        server.asked, server.answers = [], {"/edgeagent/status": (200, REPORT)}  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def _address(server: HTTPServer) -> Address:
    return Address(f"http://127.0.0.1:{server.server_address[1]}", "secret")


def _found(monkeypatch: pytest.MonkeyPatch, server: HTTPServer, pid: int = 4321) -> None:
    runtime = Runtime(pid, 0.0, server.server_address[1], _address(server).url, "0.1.0", "secret")
    monkeypatch.setattr(status, "find_daemon", lambda state_dir: runtime)
    monkeypatch.setattr(status, "daemon_of", lambda state_dir: _address(server))


def test_status_tells_models_speed_devices_and_restarts(
    daemon: HTTPServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _found(monkeypatch, daemon)
    assert main(["status"]) == 0
    output = capsys.readouterr().out
    assert f"edgeagent 0.1.0 at {_address(daemon).url}, process 4321, up 2 h 5 min" in output
    assert "live requests: 3 (of 40 so far), connections: 2" in output
    rows = {line.split()[0]: line.split() for line in output.splitlines() if line}
    assert rows["builtin"][1:5] == ["ready", "3", "1", "98.8"]
    assert rows["big"][1:3] == ["loading", "42%"]
    assert "40 of 8192" in output
    assert "25% of prompts" in output
    assert "Some CPU (CPU, 3.2 GB free)" in output
    assert "restarted 2 times; last: died of signal 11" in output
    assert "builtin: prefix cache, disk: nothing more is written: the disk has 0.5 MiB free" in output


@pytest.mark.parametrize(
    ("num_gpu_layers", "words"),
    [
        (-1, "all 6 layers on the GPU"),
        (7, "all 6 layers on the GPU"),
        (2, "2 of 6 layers on the GPU"),
        (0, "6 layers on the CPU"),
    ],
)
def test_where_the_layers_are(
    num_gpu_layers: int, words: str, daemon: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _found(monkeypatch, daemon)
    ours = REPORT["models"][0]
    report = {**REPORT, "models": [{**ours, "info": {**ours["info"], "num_gpu_layers": num_gpu_layers}}]}
    monkeypatch.setitem(daemon.answers, "/edgeagent/status", (200, report))
    assert main(["status"]) == 0
    assert f"builtin: {words}, draft mini-draft, llama.cpp abc1234\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("draft", "why", "words"),
    [
        ("/d.gguf", "the catalog's partner", "draft /d.gguf,"),
        (None, "no model is small enough", "draft none (no model is small enough),"),
        ("ngram", "d.gguf is damaged", "draft ngram (d.gguf is damaged),"),
        (None, "--draft none", "draft none,"),
        ("ngram", "--draft ngram", "draft ngram,"),
    ],
)
def test_why_there_is_no_draft(
    draft: str | None,
    why: str,
    words: str,
    daemon: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _found(monkeypatch, daemon)
    ours = REPORT["models"][0]
    choice = {"name": "draft", "value": draft or "none", "by": "trial", "why": why}
    facts = {**ours["info"], "draft": draft, "draft_why": why, "choices": [choice]}
    monkeypatch.setitem(daemon.answers, "/edgeagent/status", (200, {**REPORT, "models": [{**ours, "info": facts}]}))
    assert main(["status"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert words in text and "why: edgeagent status" not in text
    assert main(["status", "--explain-choices"]) == 0
    assert f"builtin: draft {draft or 'none'} (tried): {why}" in " ".join(capsys.readouterr().out.split())


def test_a_model_that_is_tried_out_is_not_loading(
    daemon: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _found(monkeypatch, daemon)
    loaded = {**REPORT["models"][1], "progress": 1.0}
    monkeypatch.setitem(daemon.answers, "/edgeagent/status", (200, {**REPORT, "models": [loaded]}))
    assert main(["status"]) == 0
    out = capsys.readouterr().out
    assert "big    checking the model" in out and "100%" not in out


def test_one_restart_is_told_as_such(
    daemon: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _found(monkeypatch, daemon)
    (ours, *others) = REPORT["models"]
    report = {**REPORT, "models": [{**ours, "num_restarts": 1}, *others]}
    monkeypatch.setitem(daemon.answers, "/edgeagent/status", (200, report))
    assert main(["status"]) == 0
    assert "builtin: its worker was restarted once; last: died of signal 11" in capsys.readouterr().out


def test_busy_cores_are_told(daemon: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _found(monkeypatch, daemon)
    (ours, *others) = REPORT["models"]
    worker = {**ours["worker"], "num_threads": 1, "max_threads": 2}
    report = {**REPORT, "models": [{**ours, "worker": worker}, *others]}
    monkeypatch.setitem(daemon.answers, "/edgeagent/status", (200, report))
    assert main(["status"]) == 0
    assert "builtin: computes with 1 of 2 threads, since other programs use the cores" in capsys.readouterr().out


def test_status_tells_of_a_quarantine_and_of_the_sandbox(
    daemon: HTTPServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _found(monkeypatch, daemon)
    assert main(["status"]) == 0
    out = capsys.readouterr().out
    assert "killer" in out and "quarantined" in out
    assert "killer: the process crashed too often (SIGSEGV)" in out
    assert "killer: loaded again by a request in 2 min or later, or at once by `edgeagent reload`" in out
    assert "builtin: sandbox: no network, no new privileges" in out


def test_reload_names_the_model(
    daemon: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _found(monkeypatch, daemon)
    daemon.answers["/edgeagent/reload?model=a%2Fb"] = (202, {"status": "reloading", "model": "a/b"})
    assert main(["reload", "a/b"]) == 0
    assert capsys.readouterr().out == "Loading a/b again; `edgeagent status` shows the progress.\n"
    assert daemon.asked[-1] == ("POST", "/edgeagent/reload?model=a%2Fb", "Bearer secret")
    assert main(["reload", "a/b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"status": "reloading", "model": "a/b"}


def test_status_json_is_the_daemons_own_report(
    daemon: HTTPServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _found(monkeypatch, daemon)
    assert main(["status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"running": True, "url": _address(daemon).url, **REPORT}


def test_status_shows_latency_targets_if_asked(
    daemon: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _found(monkeypatch, daemon)
    targets = {tier: {"ttft_ms": 500.0, "itl_ms": 100.0} for tier in ("realtime", "interactive")}
    targets["batch"] = {"ttft_ms": 120_000.0, "itl_ms": 5000.0}
    slo: dict[str, Any] = {"objective": 0.99, "targets": targets, "tiers": []}
    daemon.answers["/edgeagent/slo"] = (200, slo)
    assert main(["status", "--slo"]) == 0
    output = capsys.readouterr().out
    assert "realtime 500 ms and 100 ms" in output and "batch 120 s and 5 s" in output
    assert "No answer in the last 24 hours." in output
    times = {"num": 200, "p50_ms": 12.34, "p95_ms": 1250.0, "p99_ms": 2000.0}
    here = {"served_by": "local", "num_answers": 200, "num_met": 195, "late": {"queue": 1, "prefill": 4}, "stages": {}}
    there = {"served_by": "remote:gpu", "num_answers": 0, "num_met": 0, "late": {}, "stages": {}, "times": {}}
    figures = {"window": "1h", "tier": "realtime", "attainment": 0.975, "goodput_per_s": 0.05417, "budget_burn": 2.5}
    slo["tiers"] = [{**figures, "routes": [{**here, "times": {"first_token": times}}, there]}]
    assert main(["status", "--slo"]) == 0
    _, _, first, second = capsys.readouterr().out.splitlines()
    cells = ["1h", "realtime", "local", "200", "97.5%", "0.0542", "2.5", "12.3 ms, 1.25 s", "-", "-", "-"]
    assert re.split("  +", first) == [*cells, "prefill 4, queue 1"]
    assert re.split("  +", second)[2:5] == ["remote:gpu", "0", "-"]
    assert main(["status", "--slo", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["slo"] == slo


def test_status_shows_what_left_the_machine_if_asked(
    daemon: HTTPServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _found(monkeypatch, daemon)
    fill(tmp_path, 60)
    assert main(["status", "--egress", "--state-dir", str(tmp_path)]) == 0
    assert "1 request in the last 24 hours" in capsys.readouterr().out
    assert main(["status", "--egress", "--json", "--state-dir", str(tmp_path)]) == 0
    (row,) = json.loads(capsys.readouterr().out)["egress"]
    assert row["host"] == "gpu.example"
    assert main(["status", "--state-dir", str(tmp_path)]) == 0
    assert "in the last 24 hours" not in capsys.readouterr().out


def test_without_a_daemon_status_says_so_and_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(status, "find_daemon", lambda state_dir: None)
    assert main(["status", "--state-dir", "/some/where"]) == 1
    assert "edgeagent serve" in capsys.readouterr().err
    assert main(["status", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"running": False}


def test_health_is_the_exit_status(
    daemon: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _found(monkeypatch, daemon)
    daemon.answers["/health"] = (200, {"status": "ok"})
    assert main(["health"]) == 0
    assert capsys.readouterr().out == "ok\n"
    assert main(["health", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"status": "ok"}
    daemon.answers["/health"] = (503, {"error": {"code": 503, "message": "Loading model", "type": "unavailable"}})
    assert main(["health"]) == 1
    assert "Loading model" in capsys.readouterr().err


def test_stop_waits_until_the_process_is_gone(
    daemon: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert process.stdin is not None
    _found(monkeypatch, daemon, process.pid)
    daemon.answers["/edgeagent/stop"] = (202, {"status": "stopping"})
    process.stdin.close()
    assert main(["stop"]) == 0
    process.wait()
    assert daemon.asked == [("POST", "/edgeagent/stop", "Bearer secret")]
    assert capsys.readouterr().out == f"Stopped (process {process.pid}).\n"
    monkeypatch.setattr(status, "find_daemon", lambda state_dir: None)
    assert main(["stop", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"pid": None}


def test_stop_does_not_claim_what_it_did_not_see(
    daemon: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    _found(monkeypatch, daemon, process.pid)
    daemon.answers["/edgeagent/stop"] = (202, {})
    monkeypatch.setenv("EDGEAGENT_SERVER__DRAIN_S", "0")
    monkeypatch.setattr(status, "STOP_MARGIN_S", 0.01)
    try:
        assert main(["stop"]) == 1
        assert f"process {process.pid}) was told to stop and still runs" in capsys.readouterr().err
    finally:
        process.communicate()


def test_stop_without_a_daemon_is_done_already(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(status, "find_daemon", lambda state_dir: None)
    assert main(["stop"]) == 0
    assert capsys.readouterr().out.startswith("No daemon runs with the state folder ")


def test_an_error_body_becomes_the_error_it_names(daemon: Any) -> None:
    daemon.answers["/x"] = (503, {"error": {"code": "model_loading", "message": "still loading"}})
    with pytest.raises(ModelLoading, match="still loading"):
        ask(_address(daemon), "/x")


@pytest.mark.parametrize(("code", "body"), [(200, b"<html>"), (500, {"detail": "?"}), (404, None)])
def test_an_answer_that_is_not_edgeagents_is_refused(daemon: Any, code: int, body: object) -> None:
    daemon.answers["/x"] = (code, body)
    with pytest.raises(BackendUnavailable):
        ask(_address(daemon), "/x")


def test_a_closed_port_is_an_error_with_advice(unused_tcp_port: int) -> None:
    with pytest.raises(BackendUnavailable, match="may be stopping"):
        ask(Address(f"http://127.0.0.1:{unused_tcp_port}"), "/x")
    with pytest.raises(BackendUnavailable, match=r"certificate gone.pem of the daemon .* cannot be read"):
        ask(Address(f"https://127.0.0.1:{unused_tcp_port}", certificate="gone.pem"), "/x")


def test_the_route_is_told_where_there_are_remotes(
    daemon: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _found(monkeypatch, daemon)

    def shown(**route: Any) -> str:
        report = {**REPORT, "route": {"mode": "local_only", "trouble": None, "ledger_trouble": None, **route}}
        monkeypatch.setitem(daemon.answers, "/edgeagent/status", (200, report))
        assert main(["status"]) == 0
        return capsys.readouterr().out

    assert "route" not in shown(remotes=[])
    gpu = {"name": "gpu", "trouble": None, "is_used": True, "num_live": 2}
    other = {"name": "other", "trouble": "its key was refused", "is_used": True, "num_live": 0}
    third = {"name": "third", "trouble": None, "is_used": False, "num_live": 0}
    output = shown(mode="prefer_local", remotes=[gpu, other, third], ledger_trouble="the ledger cannot be kept")
    assert "route: prefer_local, remotes: gpu (2 running), other (its key was refused), third (not used)\n" in output
    assert "the ledger cannot be kept\n" in output
    output = shown(remotes=[], trouble="remotes.json is open to other users")
    assert "route: local_only, remotes: none is used\nremotes.json is open to other users\n" in output
