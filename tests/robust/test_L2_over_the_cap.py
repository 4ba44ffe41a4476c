"""L2: connections over the cap are refused at once, and existing ones continue undisturbed.

But a client that is not the owner, and connections that ask nothing, cannot take all places.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from edgeagent.credentials.keys import KeyRing, Scope, add_client
from edgeagent.types import TextDelta
from tests.backends.fake import FakeBackend, Gate, finished
from tests.daemon.running import limited, read_reply, running
from tests.patience import patient
from tests.robust.raw import get
from tests.worker.support import eventually

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


async def test_a_client_that_holds_all_connections_makes_room_for_others(tmp_path: Path) -> None:
    token = add_client(tmp_path, "kiosk", [Scope.INFER])
    config = limited(max_connections=CAP)
    async with running(FakeBackend(), config, KeyRing(tmp_path)) as daemon, AsyncExitStack() as open_sockets:
        address = f"ws://127.0.0.1:{daemon.port}/v1/responses"
        shown = {"Authorization": f"Bearer {token}"}
        held = [await open_sockets.enter_async_context(connect(address, additional_headers=shown)) for _ in range(CAP)]
        for socket in held[:2]:
            await socket.ping()
        for evicted in held[2:4]:
            own = await open_sockets.enter_async_context(connect(address))
            await own.send(json.dumps({"type": "response.create", "input": "hi", "store": False}))
            while json.loads(await own.recv())["type"] != "response.completed":
                pass
            with pytest.raises(ConnectionClosedError) as closed:
                await evicted.recv()
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1013
        assert all([await socket.ping() for socket in (*held[:2], *held[4:])])


async def test_connections_that_say_nothing_make_room_for_those_that_ask() -> None:
    config = limited(max_connections=CAP)
    async with running(FakeBackend(), config) as daemon:
        silent = [await asyncio.open_connection("127.0.0.1", daemon.port) for _ in range(2 * CAP)]
        await eventually(lambda: len(daemon.server.server_state.connections) == len(silent))
        for _ in range(2):
            assert (await daemon.http.get(f"{daemon.url}/v1/models")).status_code == 200
        assert (await read_reply(silent[0][0])).status == 503
        assert len(daemon.server.server_state.connections) == len(silent), "one was closed, once, for one that stays"
        for _, writer in silent:
            writer.transport.abort()
