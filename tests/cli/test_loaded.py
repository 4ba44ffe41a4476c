"""`edgeagent ps`, `load` and `unload` against a scripted daemon."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgeagent.cli import main, status
from tests.cli.test_status import REPORT, _address, daemon

__all__ = ["daemon"]

READY = {
    **REPORT["models"][0],
    "pid": 12,
    "is_pinned": False,
    "unload_in_s": 480.0,
    "idle_s": 120.0,
    "info": {**REPORT["models"][0]["info"], "context_length": 2048},
}
OTHERS = [
    {**READY, "name": "kept", "is_pinned": True, "unload_in_s": None},
    {**READY, "name": "lasting", "unload_in_s": None},
    {**READY, "name": "big", "state": "starting", "progress": 0.42, "info": None, "worker": None},
    {**READY, "name": "gone", "state": "stopped", "pid": None},
]


@pytest.fixture(autouse=True)
def _found(daemon: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "daemon_of", lambda _: _address(daemon))
    daemon.answers["/edgeagent/status"] = (200, {**REPORT, "models": [READY, *OTHERS]})


def test_ps_lists_what_is_loaded_and_until_when(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ps"]) == 0
    rows = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line}
    assert set(rows) == {"model", "builtin", "kept", "lasting", "big"}
    assert rows["builtin"].split()[1] == "ready" and "2048" in rows["builtin"] and "in 8 min" in rows["builtin"]
    assert "never (pinned)" in rows["kept"] and "when there is no room" in rows["lasting"]
    assert "loading 42%" in rows["big"] and rows["big"].endswith(" -")


@pytest.mark.parametrize("command", ["load", "unload", "reload"])
def test_a_name_that_is_not_utf_8_is_unknown(command: str, daemon: Any, capsys: pytest.CaptureFixture[str]) -> None:
    error = {"code": "model_not_found", "message": "no model is called caf?!"}
    daemon.answers[f"/edgeagent/{command}?model=caf%3F%21"] = (404, {"error": error})
    assert main([command, b"caf\xe9!".decode("utf-8", "surrogateescape")]) == 2
    assert capsys.readouterr().err == "error: no model is called caf?!\n"


def test_ps_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ps", "--json"]) == 0
    models = json.loads(capsys.readouterr().out)["models"]
    assert [model["name"] for model in models] == ["builtin", "kept", "lasting", "big"]
    assert (models[0]["memory_bytes"], models[0]["unload_in_s"], models[3]["memory_bytes"]) == (50 << 20, 480.0, None)


def test_load_and_unload_name_the_model(daemon: Any, capsys: pytest.CaptureFixture[str]) -> None:
    load = "/edgeagent/load?model=a%2Fb&keep_alive=-1"
    daemon.answers[load] = (200, {"status": "loaded", "model": "a/b", "took_s": 1.25})
    assert main(["load", "a/b", "--keep-alive", "-1"]) == 0
    assert capsys.readouterr().out == "a/b is loaded (1.2 s).\n"
    unload = "/edgeagent/unload?model=a%2Fb"
    daemon.answers[unload] = (200, {"status": "unloaded", "model": "a/b", "num_live_requests": 0})
    assert main(["unload", "a/b"]) == 0
    assert capsys.readouterr().out == "a/b is not loaded any more.\n"
    daemon.answers[unload] = (202, {"status": "unloading", "model": "a/b", "num_live_requests": 2})
    assert main(["unload", "a/b"]) == 0
    assert capsys.readouterr().out == "a/b is unloaded once its requests have ended (2).\n"
    assert [asked[:2] for asked in daemon.asked] == [("POST", load), ("POST", unload), ("POST", unload)]


def test_ctrl_c_says_that_the_load_continues(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(status, "ask", interrupted)
    assert main(["load", "m"]) == 130
    assert "the daemon continues to load m; `edgeagent unload m` stops that" in capsys.readouterr().err
