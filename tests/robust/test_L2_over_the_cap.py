"""L2: connections over the cap are refused at once; the existing ones continue undisturbed."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from edgeagent.types import TextDelta
from tests.backends.fake import FakeBackend, Gate, finished
from tests.daemon.running import limited, running
from tests.patience import patient
from tests.robust.raw import get

CAP = 8


async def test_more_connections_than_the_cap() -> None:
    gate = Gate()
    backend = FakeBackend(lambda _: (TextDelta("ye"), gate, TextDelta("s"), finished()))
    config = limited(max_connections=CAP)
    async with running(backend, config) as daemon, AsyncExitStack() as open_sockets:
        address = f"ws://127.0.0.1:{daemon.port}/v1/responses"
        sockets = [await open_sockets.enter_async_context(connect(address)) for _ in range(CAP)]
        await sockets[0].send(json.dumps({"type": "response.create", "input": "hi"}))
        await gate.reached.wait()
        for _ in range(20):
            with pytest.raises(InvalidStatus) as refused:
                await connect(address)
            assert refused.value.response.status_code == 503
            assert refused.value.response.headers["retry-after"]
            reply = await get(daemon, "Host: 127.0.0.1:{port}", target="/health")
            assert (reply.status, reply.error()["type"]) == (503, "unavailable_error")
            assert reply.headers["retry-after"]
        gate.opened.set()
        events = [json.loads(await sockets[0].recv())]
        while events[-1]["type"] != "response.completed":
            events.append(json.loads(await sockets[0].recv()))
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert all([await socket.ping() for socket in sockets])
        await sockets[1].close()
        async with asyncio.timeout(patient(10)):
            while True:
                try:
                    await open_sockets.enter_async_context(connect(address))
                except InvalidStatus:
                    await asyncio.sleep(0.01)
                else:
                    break
