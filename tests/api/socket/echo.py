"""A WebSocket protocol of a few lines, on the generic pump: it says each word of a frame, and then the end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import uvicorn
from fastapi import FastAPI, WebSocket

from edgeagent.api.socket.outbox import POLICY_VIOLATION, Close, Outbox, Send
from edgeagent.api.socket.pump import Pump
from edgeagent.api.wire.json_body import parse_object
from edgeagent.api.wire.shape import Json
from edgeagent.errors import EdgeAgentError
from tests.api.serving import Server

MAX_MERGED_CHARS = 1 << 16


@dataclass(frozen=True, slots=True)
class Say:
    """Say words, in a task."""

    words: tuple[str, ...]


class WordMerging:
    """Joins words that wait, and remembers what it could not join."""

    def __init__(self) -> None:
        self.appended: list[Send] = []

    def cost(self, event: Json) -> int:
        return len(event.get("text", ""))

    def merge(self, waiting: Send, entry: Send) -> bool:
        is_word = waiting.event["type"] == entry.event["type"] == "word"
        if not is_word or len(waiting.event["text"]) > MAX_MERGED_CHARS:
            return False
        waiting.event["text"] += entry.event["text"]
        return True

    def append(self, entry: Send) -> None:
        self.appended.append(entry)


class Echo(Pump[Json | EdgeAgentError, Say]):
    """One client's connection; `log` has what the pump told it, in order."""

    log: list[str] = []

    def __init__(self, websocket: WebSocket) -> None:
        super().__init__(websocket, WordMerging())

    def read(self, text: str) -> Json | EdgeAgentError:
        try:
            return parse_object(text)
        except EdgeAgentError as error:
            return error

    def receive(self, frame: Json | EdgeAgentError) -> Iterable[Say | Send | Close]:
        if isinstance(frame, EdgeAgentError):
            return [Send({"type": "error", "code": frame.code})]
        return [Send({"type": "begin"}), Say(tuple(frame["text"].split()))]

    def act(self, action: Say) -> None:
        self.start(self._say(action.words))

    async def _say(self, words: Iterable[str]) -> None:
        for word in words:
            self.perform([Send({"type": "word", "text": word})])
            if self.is_full:
                await self.wait_for_room()
        self.perform([Send({"type": "end"}, is_terminal=True)])

    async def before_end(self, entry: Send) -> None:
        entry.event["is_ready"] = True

    def sent(self, entry: Send) -> None:
        if entry.is_terminal:
            self.log.append("sent")

    def lose_token(self) -> Iterable[Say | Send | Close]:
        return [Close(POLICY_VIOLATION, "the token has ended")]

    def disconnect(self) -> None:
        self.log.append("disconnect")

    def close(self) -> None:
        self.log.append("close")


@asynccontextmanager
async def echoing() -> AsyncIterator[str]:
    """Serve the protocol on a free port; yield its URL."""
    app = FastAPI()
    Echo.log.clear()

    @app.websocket("/")
    async def serve_echo(websocket: WebSocket) -> None:
        await Echo(websocket).run()

    settings = uvicorn.Config(app, log_level="error", lifespan="off", ws="websockets-sansio")
    server = Server(settings)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:  # noqa: ASYNC110 uvicorn has no event for it
            await asyncio.sleep(0.001)
        try:
            yield f"ws://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            server.force_exit = True
            server.stop()
            await serving


async def drain(outbox: Outbox) -> list[Json]:
    """Close an outbox; return the events that waited in it."""
    outbox.push(Close(1000, ""))
    events: list[Json] = []
    while isinstance(entry := await outbox.take(), Send):
        events.append(entry.event)
    return events
