"""A real server around a fake backend, and checks of what it sends against the openai package's own models."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, get_args

import uvicorn
from openai.types.responses import ResponseStreamEvent
from openai.types.responses.responses_server_event import ResponsesServerEvent
from starlette.types import ASGIApp, Receive, Scope, Send

from edgeagent.api.app import create_app
from edgeagent.api.context import ITEM_FORMAT, Responses
from edgeagent.api.gate.access import PEER_KEY
from edgeagent.config import Config
from edgeagent.conversation.store import ResponseStore, stored_limits
from edgeagent.credentials.decision import OWN_USER, User
from edgeagent.credentials.keys import Keys
from tests.api.checked_app import CheckedApp
from tests.api.event_grammar import check_stream
from tests.backends.fake import FakeBackend
from tests.owner_key import OwnerKey

# Loopback buffers grow to megabytes; small ones make a slow reader noticeable soon.
SMALL_BUFFER_BYTES = 32 << 10
GOLDEN = Path(__file__).parent / "golden"


class OwnUser:
    """The peer of every connection, as the daemon's transport would identify it."""

    client: str | None = None

    async def user(self) -> User:
        return OWN_USER


def as_own_user(app: ASGIApp) -> ASGIApp:
    """Return an application that sees every client as a program of the daemon's own user."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, PEER_KEY: OwnUser()}, receive, send)

    return call


class Server(uvicorn.Server):
    """A server that leaves signals alone.

    uvicorn's own server restores, when it ends, a signal handler whose event loop may already be closed. It looks ten
    times a second whether to stop; this one stops at once.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Ask the server to stop."""
        self.should_exit = True
        self._stopping.set()

    async def main_loop(self) -> None:
        counter = 0
        while not await self.on_tick(counter):
            counter += 1
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), 0.1)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def models_by_type(union: Any) -> dict[str, Any]:
    models: dict[str, Any] = {}
    for model in get_args(get_args(union)[0]):
        models[get_args(model.model_fields["type"].annotation)[0]] = model
    return models


_WS_MODELS = models_by_type(ResponsesServerEvent)
_SSE_MODELS = models_by_type(ResponseStreamEvent)


def validate_event(event: dict[str, Any]) -> None:
    """Raise if the openai package would reject an event in strict validation, over either transport."""
    models = [_WS_MODELS[event["type"]]]
    if event["type"] in _SSE_MODELS and event["type"] != "error":
        models.append(_SSE_MODELS[event["type"]])
    for model in models:
        model.model_validate(event)


def normalised(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return events with the ids, times and measurements that vary between runs replaced by fixed words."""
    text = json.dumps(events)
    seen: dict[str, str] = {}

    def name(match: re.Match[str]) -> str:
        prefix = re.split("[-_]", match[0])[0]
        return seen.setdefault(match[0], f"{prefix}_{sum(key.startswith(prefix) for key in seen) + 1}")

    ids = r"\b(?:resp|msg|fc|rs|cmp|item|conv|sess)_[0-9a-f]{32}|\breq_[0-9a-f]{24}|\bevent_[0-9a-f]{12}"
    text = re.sub(rf"{ids}|\b(?:chat)?cmpl-[0-9a-f]{{24}}", name, text)
    text = re.sub(r'("(?:created|created_at|completed_at)": )(?:\d+|"[\dT:.-]+Z")', r'\1"<time>"', text)
    text = re.sub(r'("(?:delivery|total_duration)": )[\d.e-]+', r'\1"<measured>"', text)
    result: list[dict[str, Any]] = json.loads(text)
    return result


def check_golden(name: str, events: list[dict[str, Any]]) -> None:
    """Compare events with the golden file of this name, and check both against the grammar. `make golden` writes it."""
    check_stream(events)
    compare_golden(GOLDEN / f"{name}.json", events)


def compare_golden(path: Path, events: list[dict[str, Any]]) -> None:
    """Compare events with a golden file. With `WRITE_GOLDEN` in the environment, write it first."""
    actual = normalised(events)
    if "WRITE_GOLDEN" in os.environ:
        path.write_text(json.dumps(actual, indent=1) + "\n", encoding="utf-8")
    assert actual == json.loads(path.read_text(encoding="utf-8"))


@asynccontextmanager
async def serve(
    backend: FakeBackend, config: Config | None = None, *, keys: Keys | None = None, store: Path | None = None
) -> AsyncIterator[str]:
    """Serve a backend on a free loopback port; yield host:port. Accepted sockets have a small send buffer.

    `store` is the file of the stored responses; if None, they are kept in memory.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER_BYTES)
    config = config or Config()
    responses = Responses(ResponseStore(ITEM_FORMAT, store, stored_limits(config.server)))
    app = CheckedApp(create_app(config, backend, keys=keys or OwnerKey("secret"), responses=responses))
    server = Server(
        uvicorn.Config(
            as_own_user(app), log_level="error", lifespan="off", ws="websockets-sansio", ws_per_message_deflate=False
        )
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:  # noqa: ASYNC110 uvicorn has no event for it
            await asyncio.sleep(0.001)
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.stop()
        server.force_exit = True
        await serving
        listener.close()
        await responses.close()
    app.check()


async def slow_socket(address: str) -> socket.socket:
    """Return a connected socket with a small receive buffer, for a client that reads slowly."""
    host, port = address.split(":")
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
    slow.setblocking(False)
    await asyncio.get_running_loop().sock_connect(slow, (host, int(port)))
    return slow
