"""F3: a model that kills each of its workers is quarantined after three crashes; it is retried later, or by command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.daemon.running import TOKEN
from tests.robust.faults import MODEL_FILE, Faulty, faulty
from tests.worker.support import QUICK, eventually

BODY = {"messages": [{"role": "user", "content": "answer 1"}], "max_tokens": 1}


async def is_refused(victim: Faulty) -> float:
    """Assert that a request is refused for now; return the seconds after which it may be retried."""
    reply = await victim.daemon.http.post(f"{victim.daemon.url}/v1/chat/completions", json=BODY)
    assert reply.status_code == 503
    assert "crashed too often (SIGSEGV" in reply.json()["error"]["message"]
    return float(reply.headers["retry-after"])


@pytest.mark.parametrize("start", ["die SIGSEGV", "ok"])
async def test_three_crashes_then_quarantine(tmp_path: Path, start: str) -> None:
    async with faulty(tmp_path, start, serves_after=False) as victim:
        for _ in range(2 if start == "ok" else 0):
            assert (await victim.ask("die SIGSEGV 1")).response["status"] == "failed"
        await eventually(lambda: victim.model.state == "quarantined")
        assert 0 < await is_refused(victim) <= 120
        num_lives = victim.num_lives
        assert num_lives == 3
        [model] = (await victim.daemon.http.get(f"{victim.daemon.url}/edgeagent/status")).json()["models"]
        assert (model["state"], model["pid"]) == ("quarantined", None)
        assert "SIGSEGV" in model["cause"] and 0 < model["retry_after_s"] <= QUICK.quarantine_s
        for _ in range(20):
            await is_refused(victim)
        assert victim.num_lives == num_lives, "nothing is spawned meanwhile"


async def test_after_its_time_a_request_is_a_try_and_one_crash_is_enough(tmp_path: Path) -> None:
    limits = replace(QUICK, quarantine_s=0.3)
    starts = ["die SIGSEGV"] * 5 + ["ok"]
    async with faulty(tmp_path, *starts, limits=limits, serves_after=False) as victim:
        await eventually(lambda: victim.model.state == "quarantined")
        for num_lives in (4, 5):
            await eventually(lambda: victim.model.retry_after_s == 0.0)
            await is_refused(victim)
            assert victim.num_lives == num_lives
        await eventually(lambda: victim.model.retry_after_s == 0.0)
        await victim.is_serving()


async def test_a_model_that_hangs_every_worker_is_left_alone_too(tmp_path: Path) -> None:
    # Each worker lived longer than the window in which crashes are counted, as when hangs take 30 s to be noticed.
    limits = replace(QUICK, hang_timeout_s=0.3, stop_grace_s=0.1, crash_window_s=0.2)
    async with faulty(tmp_path, limits=limits, serves_after=False) as victim:
        for reason in ("ended during the request", "crashed too often"):
            response = (await victim.ask("deaf")).response
            assert response["status"] == "failed"
            assert f"{reason} (hung: one step took longer" in response["error"]["message"]
        assert (victim.model.state, victim.num_lives) == ("quarantined", 3)


async def test_a_reload_lifts_it(tmp_path: Path) -> None:
    async with faulty(tmp_path, *["die SIGSEGV"] * 3, "ok", serves_after=False) as victim:
        await eventually(lambda: victim.model.state == "quarantined")
        owner = {"authorization": f"Bearer {TOKEN}"}
        reply = await victim.daemon.http.post(f"{victim.daemon.url}/edgeagent/reload", headers=owner)
        assert reply.status_code == 202
        await victim.is_serving()


async def test_another_file_is_no_killer(tmp_path: Path) -> None:
    async with faulty(tmp_path, *["die SIGSEGV"] * 3, "ok", serves_after=False) as victim:
        await eventually(lambda: victim.model.state == "quarantined")
        (tmp_path / MODEL_FILE).write_bytes(b"GGUF")
        await eventually(lambda: victim.model.state == "ready")
        await victim.is_serving()
        assert victim.num_lives == 4
