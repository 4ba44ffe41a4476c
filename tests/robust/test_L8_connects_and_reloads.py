"""L8: hundreds of connections open and close while the model is reloaded: no worker dies, each answer ends once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.daemon.running import TOKEN
from tests.robust.faults import Faulty, faulty

NUM_BESIDE = 20


async def come_and_go(victim: Faulty, number: int) -> None:
    """Connect and create a response; one client in three leaves before the end."""
    async with victim.socket() as socket:
        stream = await victim.say(socket, "answer 20")
        if number % 3 == 0:
            await stream.until(number % 7)
            return
        await stream.end()
    assert (stream.response["status"], len(stream.text.split())) == ("completed", 20)


@pytest.mark.parametrize("num_reloads", [2, pytest.param(100, marks=pytest.mark.slow)])
async def test_no_worker_dies_but_those_that_are_replaced(tmp_path: Path, num_reloads: int) -> None:
    owner = {"authorization": f"Bearer {TOKEN}"}
    async with faulty(tmp_path, parallel=8, max_waiting=2 * NUM_BESIDE) as victim:
        for _ in range(num_reloads):
            coming = [asyncio.create_task(come_and_go(victim, number)) for number in range(NUM_BESIDE)]
            reply = await victim.daemon.http.post(f"{victim.daemon.url}/edgeagent/reload", headers=owner)
            assert reply.status_code == 202
            await asyncio.gather(*coming)
            assert victim.model.cause is None, "a worker died"
        assert victim.num_lives == 1 + num_reloads
