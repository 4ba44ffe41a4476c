"""F1: `kill -9` of a worker midway: streams continue from the delivered tokens, queued requests run, sockets stay."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.robust.faults import faulty
from tests.worker.support import QUICK, eventually

NUM_STREAMS = 3


@pytest.mark.parametrize("num_kills", [3, pytest.param(100, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
async def test_every_stream_goes_on_over_every_kill(tmp_path: Path, num_kills: int) -> None:
    limits = replace(QUICK, max_kills=num_kills + 1)
    async with faulty(tmp_path, limits=limits, parallel=2) as victim, AsyncExitStack() as stack:
        sockets = [await stack.enter_async_context(victim.socket()) for _ in range(NUM_STREAMS + 1)]
        for index in range(1, num_kills + 1):
            commands = " | ".join(["linger 2"] * index + ["answer 6"])
            streams = [await victim.say(socket, commands) for socket in sockets[:-1]]
            for stream in streams:
                await stream.until(2)
            # The worker has the request and has sent nothing for it.
            queued = await victim.say(sockets[-1], " | ".join(["wait"] * index + ["answer 2"]))
            killed = victim.worker
            killed.kill()
            for stream in streams:
                await stream.end()
                assert (stream.response["status"], stream.text) == ("completed", "0 1 2 3 4 5 ")
                assert stream.response["usage"]["output_tokens"] == 6
                assert stream.handovers == [
                    {"from": "local", "to": "local", "after_tokens": 2, "reason": "worker_killed"}
                ]
            assert (await queued.end()).text == "0 1 "
            assert victim.worker.pid != killed.pid
        assert victim.num_lives == num_kills + 1


async def test_what_dies_with_every_worker_ends_and_says_how_much_was_delivered(tmp_path: Path) -> None:
    async with faulty(tmp_path) as victim:
        stream = await victim.ask("die SIGSEGV 3")
        assert stream.response["status"] == "failed"
        assert stream.response["edgeagent"]["reason"] == "worker_crashed"
        assert stream.response["edgeagent"]["num_delivered_tokens"] == 3
        assert stream.text == "0 1 2 "
        await victim.is_serving()
        assert victim.num_lives == 3


async def test_kills_in_quick_succession_end_no_stream(tmp_path: Path) -> None:
    """Each worker is killed from outside before its first token; no request is blamed."""
    async with faulty(tmp_path, parallel=2) as victim, AsyncExitStack() as stack:
        sockets = [await stack.enter_async_context(victim.socket()) for _ in range(NUM_STREAMS)]
        streams = [
            await victim.say(socket, " | ".join(["linger 2"] + ["wait"] * 2 + ["answer 6"])) for socket in sockets
        ]
        for stream in streams:
            await stream.until(2)
        for num_kills in range(1, 4):
            killed = victim.worker
            killed.kill()
            await eventually(lambda num=num_kills: victim.num_lives == num + 1)  # type: ignore[misc]
            await eventually(lambda: victim.model.state == "ready")
        for stream in streams:
            await stream.end()
            assert (stream.response["status"], stream.text) == ("completed", "0 1 2 3 4 5 ")
            assert len(stream.handovers) == 3
