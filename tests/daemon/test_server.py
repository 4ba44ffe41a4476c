"""How the daemon ends: live requests finish, or are cut with their one terminal event, and every connection closes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from edgeagent.api.responses.socket import session
from edgeagent.config import Config, ServerConfig
from edgeagent.conversation.store import ResponseStore
from edgeagent.types import Started, TextDelta
from tests.backends.fake import FakeBackend, Gate, finished
from tests.daemon.running import Running, running

CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def gated(gate: Gate) -> FakeBackend:
    return FakeBackend(lambda _: (Started(1, 0), TextDelta("one"), gate, TextDelta(" two"), finished()))


async def draining(daemon: Running) -> None:
    """Return once the daemon accepts no more requests."""
    while not daemon.reporter.events:  # noqa: ASYNC110 the server looks ten times a second
        await asyncio.sleep(0.01)


async def test_live_requests_may_finish() -> None:
    gate = Gate()
    async with running(gated(gate)) as daemon:
        url = f"{daemon.url}/v1/chat/completions"
        plain = asyncio.create_task(daemon.http.post(url, json=CHAT))
        streamed = asyncio.create_task(daemon.http.post(url, json={**CHAT, "stream": True}))
        async with connect(f"ws://127.0.0.1:{daemon.port}/v1/responses") as socket:
            await socket.send(json.dumps({"type": "response.create", "input": "hi"}))
            await socket.recv()
            await gate.reached.wait()
            daemon.stop.request()
            await draining(daemon)
            assert not daemon.serving.done()
            gate.opened.set()
            events = [json.loads(event) async for event in _until_closed(socket)]
            assert events[-1]["type"] == "response.completed"
            assert socket.close_code == 1001
        assert (await plain).json()["choices"][0]["message"]["content"] == "one two"
        assert (await streamed).text.endswith("data: [DONE]\n\n")
        await daemon.serving
    assert daemon.reporter.events == ["stopping 3"]


async def _until_closed(socket: ClientConnection) -> AsyncIterator[str | bytes]:
    try:
        while True:
            yield await socket.recv()
    except ConnectionClosed:
        return


async def test_what_does_not_finish_in_time_is_cancelled() -> None:
    gate = Gate()
    backend = gated(gate)
    async with running(backend, Config(server=ServerConfig(drain_s=0.05))) as daemon:
        url = f"{daemon.url}/v1/chat/completions"
        plain = asyncio.create_task(daemon.http.post(url, json=CHAT))
        streamed = asyncio.create_task(daemon.http.post(url, json={**CHAT, "stream": True}))
        async with connect(f"ws://127.0.0.1:{daemon.port}/v1/responses") as socket:
            await socket.send(json.dumps({"type": "response.create", "input": "hi"}))
            await backend.until(lambda backend: backend.num_live == 3)
            await gate.reached.wait()
            daemon.stop.request()
            events = [json.loads(event) async for event in _until_closed(socket)]
            terminal = [
                event for event in events if event["type"].split(".")[-1] in ("completed", "failed", "incomplete")
            ]
            assert len(terminal) == 1 and terminal[0] is events[-1]
            assert terminal[0]["response"]["status"] == "cancelled"
            assert socket.close_code == 1001
        assert (await plain).status_code == 503
        assert '"code":"backend_unavailable"' in (await streamed).text
        await daemon.serving
    assert len(backend.cancelled) == 3
    assert backend.closed == []


async def test_a_terminal_event_that_waits_for_the_store_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, is_asked = Gate(), asyncio.Event()
    stored = asyncio.get_running_loop().create_future()

    def add(*_: object) -> asyncio.Future[None]:
        is_asked.set()
        return stored

    monkeypatch.setattr(ResponseStore, "add", add)
    async with running(gated(gate)) as daemon:
        async with connect(f"ws://127.0.0.1:{daemon.port}/v1/responses") as socket:
            await socket.send(json.dumps({"type": "response.create", "input": "hi"}))
            await gate.reached.wait()
            daemon.stop.request()
            await draining(daemon)
            gate.opened.set()
            await is_asked.wait()
            await asyncio.sleep(0.3)  # a server with nothing left to send would have closed its connections by now
            stored.set_result(None)
            events = [json.loads(event) async for event in _until_closed(socket)]
            assert events[-1]["type"] == "response.completed"
        await daemon.serving


async def test_responses_that_wait_for_their_turn_have_their_end_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MAX_ACTIVE", 1)
    gate, num_lanes, num_queued = Gate(), 12, 0
    async with running(gated(gate)) as daemon:
        async with connect(f"ws://127.0.0.1:{daemon.port}/v1/responses") as socket:
            for lane in range(num_lanes):
                create = {"type": "response.create", "input": "hi", "store": False, "stream_id": f"lane-{lane}"}
                await socket.send(json.dumps(create))
            while num_queued < num_lanes - 1:
                num_queued += json.loads(await socket.recv())["type"] == "response.queued"
            await gate.reached.wait()
            daemon.stop.request()
            await draining(daemon)
            gate.opened.set()
            types = [json.loads(event)["type"] async for event in _until_closed(socket)]
            assert types.count("response.completed") == 1
            assert types.count("response.failed") == num_lanes - 1
        await daemon.serving


async def test_nothing_new_is_taken_while_draining() -> None:
    gate = Gate()
    async with running(gated(gate)) as daemon:
        url = f"{daemon.url}/v1/chat/completions"
        # This idle connection is still open when the daemon drains.
        assert (await daemon.http.get(f"{daemon.url}/health")).status_code == 200
        reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
        live = asyncio.create_task(daemon.http.post(url, json=CHAT))
        await gate.reached.wait()
        daemon.stop.request()
        await draining(daemon)
        body = json.dumps(CHAT)
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{daemon.port}\r\nContent-Type: application/json\r\n"
        )
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        status = await reader.readline()
        assert b"503" in status
        writer.close()
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", daemon.port)
        gate.opened.set()
        assert (await live).status_code == 200


async def test_a_second_request_to_stop_does_not_wait() -> None:
    gate = Gate()
    backend = gated(gate)
    async with running(backend, Config(server=ServerConfig(drain_s=3600))) as daemon:
        live = asyncio.create_task(daemon.http.post(f"{daemon.url}/v1/chat/completions", json=CHAT))
        await gate.reached.wait()
        daemon.stop.request()
        await draining(daemon)
        daemon.stop.request()
        await daemon.serving
        live.cancel()
        await asyncio.gather(live, return_exceptions=True)
        await backend.until(lambda backend: backend.num_live == 0)


async def test_a_second_request_to_stop_still_ends_each_response() -> None:
    gate = Gate()
    async with running(gated(gate), Config(server=ServerConfig(drain_s=3600))) as daemon:
        async with connect(f"ws://127.0.0.1:{daemon.port}/v1/responses") as socket:
            await socket.send(json.dumps({"type": "response.create", "input": "hi"}))
            await gate.reached.wait()
            daemon.stop.request()
            await draining(daemon)
            daemon.stop.request()
            events = [json.loads(event) async for event in _until_closed(socket)]
        assert events[-1]["type"] == "response.incomplete"
        assert events[-1]["response"]["status"] == "cancelled"
        await daemon.serving
