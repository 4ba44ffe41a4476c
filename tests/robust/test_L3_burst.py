"""L3: in a burst of four times the capacity, exactly the capacity is accepted, and the rest is told when to retry."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import httpx
from websockets.asyncio.client import connect

from tests.daemon.running import Running, running
from tests.patience import patient
from tests.robust.stub_service import stub_service

PARALLEL, WAITING = 2, 3
ROOM = PARALLEL + WAITING
BURST = 4 * ROOM
WAIT = "wait 1"


async def post(daemon: Running) -> httpx.Response:
    return await daemon.http.post(f"{daemon.url}/v1/responses", json={"input": WAIT}, timeout=patient(60))


async def test_a_burst_over_http(tmp_path: Path) -> None:
    async with (
        stub_service(tmp_path / "lives", parallel=PARALLEL, max_waiting=WAITING) as service,
        running(service) as daemon,
    ):
        tasks = [asyncio.create_task(post(daemon)) for _ in range(BURST)]
        refused, taken = [], set(tasks)
        while len(taken) > ROOM:
            done, taken = await asyncio.wait(taken, return_when=asyncio.FIRST_COMPLETED)
            refused += [task.result() for task in done]
        assert [reply.status_code for reply in refused] == [429] * (BURST - ROOM)
        assert {reply.json()["error"]["code"] for reply in refused} == {"queue_full"}
        assert all(float(reply.headers["retry-after"]) > 0 for reply in refused)
        # Accepted requests end when the client disconnects.
        for task in taken:
            task.cancel()
        await asyncio.gather(*taken, return_exceptions=True)
        assert (await ask(daemon, "answer 3")).status_code == 200


async def ask(daemon: Running, text: str) -> httpx.Response:
    """Retry until there is room, after the time that each answer states."""
    async with asyncio.timeout(patient(20)):
        while True:
            reply = await daemon.http.post(f"{daemon.url}/v1/responses", json={"input": text}, timeout=patient(20))
            if reply.status_code != 429:
                return reply
            await asyncio.sleep(0.02)


async def test_a_burst_on_one_socket(tmp_path: Path) -> None:
    async with (
        stub_service(tmp_path / "lives", parallel=PARALLEL, max_waiting=WAITING) as service,
        running(service) as daemon,
        connect(f"ws://127.0.0.1:{daemon.port}/v1/responses") as socket,
    ):
        for index in range(16):
            await socket.send(
                json.dumps({"type": "response.create", "input": WAIT, "stream_id": f"lane{index}", "store": False})
            )
        refused: list[str] = []
        while len(refused) < 16 - ROOM:
            event = json.loads(await socket.recv())
            if event["type"] == "error":
                assert (event["status"], event["error"]["code"]) == (429, "queue_full")
                assert float(event["headers"]["retry-after"]) > 0
                refused.append(event["stream_id"])
        assert len(set(refused)) == 16 - ROOM
        taken = {f"lane{index}" for index in range(16)} - set(refused)
        for lane in taken:
            await socket.send(json.dumps({"type": "response.cancel", "stream_id": lane}))
        ended: list[str] = []
        while len(ended) < ROOM:
            event = json.loads(await socket.recv())
            if event["type"] == "response.incomplete":
                ended.append(event["stream_id"])
        assert set(ended) == taken
