"""The pump of any WebSocket, on real sockets, with a protocol of a few lines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from edgeagent.api.socket import pump
from tests.api.serving import slow_socket
from tests.api.socket.echo import Echo, echoing


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with echoing() as url:
        yield url


async def receive(socket: ClientConnection) -> dict[str, Any]:
    event: dict[str, Any] = json.loads(await socket.recv())
    return event


async def until_closed(socket: ClientConnection) -> int | None:
    with pytest.raises(ConnectionClosed):
        while True:
            await socket.recv()
    return socket.close_code


async def logged(entry: str) -> None:
    while entry not in Echo.log:  # noqa: ASYNC110 the server writes it in its own time
        await asyncio.sleep(0.001)


async def test_actions_are_performed_in_order(url: str) -> None:
    async with connect(url) as socket:
        await socket.send(json.dumps({"text": "one two"}))
        assert await receive(socket) == {"type": "begin"}
        text = ""
        while (event := await receive(socket))["type"] == "word":
            text += event["text"]
        assert (text, event) == ("onetwo", {"type": "end", "is_ready": True})
    await logged("close")
    assert Echo.log == ["sent", "disconnect", "close"]


@pytest.mark.parametrize("text", ["[]", "{", "\ufeff{}"])
async def test_a_frame_that_is_no_object_is_the_protocols_to_answer(url: str, text: str) -> None:
    async with connect(url) as socket:
        await socket.send(text)
        assert (await receive(socket))["type"] == "error"


async def test_a_binary_frame_closes(url: str) -> None:
    async with connect(url) as socket:
        await socket.send(b"{}")
        assert await until_closed(socket) == 1003


async def test_a_bug_closes_with_1011(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with connect(url) as socket:
        monkeypatch.delattr(Echo, "receive")
        await socket.send("{}")
        assert await until_closed(socket) == 1011
    assert Echo.log == ["disconnect", "close"]


async def test_tasks_end_with_their_connection(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    has_begun, is_cancelled = asyncio.Event(), asyncio.Event()

    async def hang(*_: object) -> None:
        has_begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            Echo.log.append("cancelled")
            is_cancelled.set()

    monkeypatch.setattr(Echo, "_say", hang)
    async with connect(url) as socket:
        await socket.send('{"text":""}')
        await has_begun.wait()
    await is_cancelled.wait()
    await logged("close")
    assert Echo.log == ["disconnect", "cancelled", "close"]


async def test_a_client_that_does_not_read_is_cut(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pump, "STALL_S", 0.05)
    monkeypatch.setattr(pump, "CLOSE_S", 0.05)
    slow = await slow_socket(url.removeprefix("ws://").removesuffix("/"))
    async with connect(url, sock=slow, max_queue=1, max_size=None) as socket:
        await socket.send(json.dumps({"text": " ".join(["x" * 8000] * 5000)}))
        await logged("close")
        assert Echo.log == ["disconnect", "close"]
        socket.transport.abort()
