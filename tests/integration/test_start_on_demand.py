"""`edgeagent.client.connect(start=True)` with a real daemon that is not there yet."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

from edgeagent.client import connect
from edgeagent.client.start import LOG_FILE, ensure_daemon
from edgeagent.errors import BackendUnavailable, ConfigError
from edgeagent.runtime_file import find_daemon
from tests.integration.conftest import run_command


async def test_clients_that_come_at_once_start_one_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("FLASH_ATTENTION", "off"), ("THREADS", "1")):  # else it measures, and threads spin
        monkeypatch.setenv(f"EDGEAGENT_ENGINE__{name}", value)
    state = tmp_path / "state"
    with pytest.raises(BackendUnavailable, match="edgeagent serve"):
        await connect(state_dir=state).open()
    clients = [connect(state_dir=state, start=True) for _ in range(3)]
    try:
        await asyncio.gather(*(client.open() for client in clients))
        answer = await clients[0].ask("Hello!", max_output_tokens=4)
        daemon = find_daemon(state)
        assert answer.text and daemon is not None
        assert psutil.Process(daemon.pid).cmdline()[-4:] == ["--state-dir", str(state), "--port", "0"]
        assert (state / LOG_FILE).read_text().count("listening on") == 1
    finally:
        for client in clients:
            await client.close()
        if find_daemon(state) is not None:
            run_command("stop", "--state-dir", str(state))


def test_a_daemon_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEAGENT_MODEL", "unfindable")
    with pytest.raises((ConfigError, BackendUnavailable), match="unfindable"):
        ensure_daemon(tmp_path / "state")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot use the state folder"):
        ensure_daemon(tmp_path / "file")
