"""A WebSocket server that plays a script: for each connection, what to do with each received message."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

Act = Callable[[ServerConnection, dict[str, Any]], Awaitable[None]]


class DaemonStub:
    """Messages received on all connections, in order, and the Authorization headers of their handshakes.

    `refusals` holds the statuses and bodies for the next handshakes.
    """

    def __init__(self) -> None:
        self.url = ""
        self.received: list[dict[str, Any]] = []
        self.authorizations: list[str | None] = []
        self.script: list[Act] = []
        self.refusals: list[tuple[int, str]] = []

    def check(self, connection: ServerConnection, request: Request) -> Response | None:
        self.authorizations.append(request.headers.get("Authorization"))
        return connection.respond(*self.refusals.pop(0)) if self.refusals else None

    async def converse(self, connection: ServerConnection) -> None:
        try:
            async for message in connection:
                event = json.loads(message)
                self.received.append(event)
                await self.script.pop(0)(connection, event)
        except ConnectionClosed:
            pass


@asynccontextmanager
async def running_stub(*script: Act) -> AsyncIterator[DaemonStub]:
    stub = DaemonStub()
    stub.script = list(script)
    async with serve(stub.converse, "127.0.0.1", 0, process_request=stub.check) as server:
        host, port = server.sockets[0].getsockname()[:2]
        stub.url = f"http://{host}:{port}"
        yield stub


def text_events(response_id: str, *deltas: str) -> list[dict[str, Any]]:
    message = {"type": "message", "id": "msg_1", "content": [{"type": "output_text", "text": "".join(deltas)}]}
    done = {
        "id": response_id,
        "status": "completed",
        "model": "m",
        "output": [message],
        "usage": {"input_tokens": 7, "input_tokens_details": {"cached_tokens": 3}, "output_tokens": len(deltas)},
        "timings": {"predicted_per_second": 50.0},
        "edgeagent": {"route": "local", "stages_ms": {"prefill": 1.25}},
    }
    return [
        {"type": "response.created", "response": {"id": response_id, "status": "in_progress", "model": "m"}},
        *({"type": "response.output_text.delta", "delta": delta} for delta in deltas),
        {"type": "response.completed", "response": done},
    ]


def call_events(response_id: str, call_id: str, name: str, arguments: str) -> list[dict[str, Any]]:
    item = {"type": "function_call", "id": "fc_1", "call_id": call_id, "name": name, "arguments": arguments}
    created, *_, completed = text_events(response_id)
    return [
        created,
        {"type": "response.output_item.added", "item": {**item, "arguments": ""}},
        {"type": "response.function_call_arguments.delta", "delta": arguments},
        {"type": "response.output_item.done", "item": item},
        completed,
    ]


def sending(events: list[dict[str, Any]]) -> Act:
    async def act(connection: ServerConnection, _: dict[str, Any]) -> None:
        for event in events:
            await connection.send(json.dumps(event))

    return act


def closing(code: int, after: list[dict[str, Any]] | None = None) -> Act:
    async def act(connection: ServerConnection, event: dict[str, Any]) -> None:
        await sending(after or [])(connection, event)
        await connection.close(code, "because")

    return act
