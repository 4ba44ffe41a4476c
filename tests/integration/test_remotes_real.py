"""The owner's commands and a running daemon: it follows the file of remotes and reports its route."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from edgeagent.cli import main
from edgeagent.errors import ConfigError
from edgeagent.remotes import REMOTES_FILE
from edgeagent.remotes.file import remove_remote
from tests.integration.conftest import Daemon
from tests.patience import patient

Output = pytest.CaptureFixture[str]
LIMIT_S = patient(10.0)


@pytest.fixture
def folder(daemon: Daemon) -> Iterator[Path]:
    yield daemon.state_dir
    with suppress(ConfigError):
        remove_remote(daemon.state_dir, "gpu")


def route(folder: Path, capsys: Output) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["remote", "status", "--json", "--state-dir", str(folder)]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def soon(ask: Callable[[], dict[str, Any]], mode: str) -> dict[str, Any]:
    """Return the report once it shows this mode."""
    deadline = time.monotonic() + LIMIT_S
    while (report := ask())["mode"] != mode:
        assert time.monotonic() < deadline, report
    return report


def test_a_running_daemon_follows_its_owner(daemon: Daemon, folder: Path, capsys: Output) -> None:
    def told() -> dict[str, Any]:
        return route(folder, capsys)

    assert told() == {"mode": "local_only", "trouble": None, "ledger_trouble": None, "remotes": []}
    # Nothing listens there, so no request can leave.
    add = ["remote", "add", "gpu", "http://127.0.0.1:1", "--region", "lab", "--budget", "tokens=10", "--yes"]
    assert main([*add, "--state-dir", str(folder)]) == 0
    (remote,) = soon(told, "prefer_local")["remotes"]
    assert (remote["name"], remote["endpoints"][0]["region"], remote["budget"]["tokens"]) == ("gpu", "lab", 10)
    assert main(["remote", "status", "--state-dir", str(folder)]) == 0
    assert "127.0.0.1:1 (lab)" in capsys.readouterr().out
    assert main(["status", "--state-dir", str(folder)]) == 0
    assert "route: prefer_local, remotes: gpu (" in capsys.readouterr().out
    body = {"messages": [{"role": "user", "content": "Hello!"}], "edgeagent": {"route": "local_only"}, "max_tokens": 4}
    answer = httpx.post(f"{daemon.url}/v1/chat/completions", json=body, timeout=patient(30.0))
    assert answer.status_code == 200, answer.text
    assert main(["egress", "--state-dir", str(folder)]) == 0
    assert "Nothing has left this machine" in capsys.readouterr().out
    (folder / REMOTES_FILE).chmod(0o644)
    report = soon(told, "local_only")
    assert "chmod 600" in report["trouble"] and report["remotes"] == []
    (folder / REMOTES_FILE).chmod(0o600)
    soon(told, "prefer_local")
    assert main(["remote", "rm", "gpu", "--state-dir", str(folder)]) == 0
    assert soon(told, "local_only")["remotes"] == []
