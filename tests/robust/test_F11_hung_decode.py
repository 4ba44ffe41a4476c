"""F11: a worker that makes no progress is replaced, and its streams continue; no other worker is killed."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from edgeagent.worker.parent.supervision.channel import Channel
from tests.robust.faults import faulty
from tests.worker.support import QUICK

# Limits in seconds, short so that a test need not wait; the daemon has 10 and 30. A worker that gets no CPU time has
# three times as long.
SHORT_LIMITS = replace(QUICK, pong_timeout_s=0.4, hang_timeout_s=0.4, stop_grace_s=0.5)
# The row's limit and 3 s, doubled for a busy machine and the start of the next worker.
MAX_NOTICED_S = 3 * 2 * (SHORT_LIMITS.hang_timeout_s + 3.0)
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="SIGSTOP is POSIX's")


@pytest.mark.daily(2, seconds=1)
@pytest.mark.parametrize(
    ("text", "cause"),
    [
        pytest.param("freeze 1", "no sign of life", marks=POSIX),
        ("spin 1", "no sign of life"),
        ("deaf 1", "one step took longer"),
    ],
    ids=["stopped", "busy loop", "hung step"],
)
async def test_a_hang_is_noticed_and_the_streams_go_on(tmp_path: Path, text: str, cause: str) -> None:
    async with faulty(tmp_path, limits=SHORT_LIMITS) as victim, victim.socket() as socket, victim.socket() as other:
        hung = victim.worker
        bystander = await (await victim.say(socket, "linger 2 | answer 4")).until(2)
        async with asyncio.timeout(MAX_NOTICED_S):
            stream = await (await victim.say(other, f"{text} | answer 3")).end()
        assert (stream.response["status"], stream.text) == ("completed", "0 1 2 ")
        assert stream.handovers[0]["reason"] == "worker_hung"
        assert cause in (victim.model.cause or "")
        assert (await bystander.end()).text == "0 1 2 3 "
        assert not hung.is_running()


async def test_a_hung_preparation_is_noticed_beside_a_stream_that_flows(tmp_path: Path) -> None:
    async with faulty(tmp_path, limits=SHORT_LIMITS) as victim, victim.socket() as socket:
        bystander = await (await victim.say(socket, "stream")).until(2)
        stuck = await victim.ask("prepare | answer 3")
        assert (stuck.response["status"], stuck.text) == ("failed", "")  # the next worker would hang on it too
        assert "preparing one prompt took longer" in (victim.model.cause or "")
        await bystander.until(len(bystander.text.split()) + 5)


async def test_what_hangs_every_worker_is_tried_on_two(tmp_path: Path) -> None:
    async with faulty(tmp_path, limits=SHORT_LIMITS) as victim:
        stream = await victim.ask("deaf 1")
        assert stream.response["edgeagent"]["reason"] == "worker_crashed"
        assert "one step took longer" in stream.response["error"]["message"]
        await victim.is_serving()
        assert victim.num_lives == 3


@pytest.mark.slow(seconds=8)
async def test_what_hangs_every_worker_after_a_while_is_tried_on_five(tmp_path: Path) -> None:
    limits = replace(SHORT_LIMITS, max_crashes=9)
    async with faulty(tmp_path, limits=limits) as victim:
        stream = await victim.ask(" | ".join(f"deaf {num}" for num in range(1, 8)))
        assert stream.response["edgeagent"]["reason"] == "worker_crashed"
        assert stream.response["edgeagent"]["num_delivered_tokens"] == 5
        await victim.is_serving()
        assert victim.num_lives == 6


async def test_long_answers_and_idle_times_are_no_hangs(tmp_path: Path) -> None:
    async with faulty(tmp_path, limits=replace(SHORT_LIMITS, hang_timeout_s=0.5)) as victim, victim.socket() as socket:
        # A token for each ping: the answer takes many times the limit.
        stream = await (await victim.say(socket, "stream")).until(150)
        assert victim.num_lives == 1
        assert stream.text.split()[-1] == str(len(stream.text.split()) - 1)


async def test_a_process_that_cannot_be_killed_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    end = Channel.end

    async def end_in_vain(self: Channel, grace_s: float) -> bool:
        await end(self, grace_s)
        return False

    monkeypatch.setattr(Channel, "end", end_in_vain)
    async with faulty(tmp_path, limits=SHORT_LIMITS) as victim:
        assert (await victim.ask("deaf 1 | answer 2")).text == "0 1 "
        assert "cannot be killed" in (victim.model.cause or "")
