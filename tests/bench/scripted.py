"""A chat-completions server that plays a script, one answer for each request, and can behave like other servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

Body = dict[str, Any]
USAGE: Body = {"prompt_tokens": 20, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 5}}


@dataclass
class ScriptedServer:
    """The received requests to chat completions, and the scripted answers."""

    url: str = ""
    owner: str = "llamacpp"
    models: list[str] | None = field(default_factory=lambda: ["m"])
    answer: Callable[[Body], bytes] = field(default=lambda _: stream("a", "b", "c"))
    requests: list[Body] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    num_connections: int = 0
    num_to_drop: int = 0
    live: dict[asyncio.Task[None], asyncio.StreamWriter] = field(default_factory=dict)

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve the requests of one connection."""
        self.num_connections += 1
        task = asyncio.current_task()
        assert task is not None
        self.live[task] = writer
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                request_line, *lines = head.decode().strip().split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                if self.num_to_drop and request_line.startswith("POST"):
                    self.num_to_drop -= 1
                    break
                writer.write(self._reply(request_line.split()[1], headers, body))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()
            del self.live[task]

    def _reply(self, path: str, headers: dict[str, str], body: bytes) -> bytes:
        if path == "/v1/models":
            if self.models is None:
                return plain(404, b"{}")
            entries = [{"id": model, "owned_by": self.owner} for model in self.models]
            return plain(200, json.dumps({"data": entries}).encode())
        assert path == "/v1/chat/completions", path
        self.requests.append(json.loads(body))
        self.headers.append(headers)
        return self.answer(self.requests[-1])


@asynccontextmanager
async def scripted() -> AsyncIterator[ScriptedServer]:
    """Serve on a free port."""
    script = ScriptedServer()
    listener = await asyncio.start_server(script.converse, "127.0.0.1", 0)
    async with listener:
        script.url = "http://{}:{}".format(*listener.sockets[0].getsockname())
        try:
            yield script
        finally:
            for writer in script.live.values():
                writer.transport.abort()
            await asyncio.gather(*script.live)


def plain(status: int, body: bytes) -> bytes:
    """Return a JSON answer."""
    return b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
        status,
        len(body),
        body,
    )


def stream(*texts: str | Body, usage: Body | None = USAGE, done: bool = True) -> bytes:
    """Return a stream of these texts (or whole events), followed by the usage and the end."""
    events: list[Body] = [{"choices": [{"index": 0, "delta": {"role": "assistant", "content": None}}]}]
    for text in texts:
        events.append(text if isinstance(text, dict) else {"choices": [{"index": 0, "delta": {"content": text}}]})
    events.append({"choices": [], "usage": usage})
    lines = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + ("data: [DONE]\n\n" if done else "")
    body = lines.encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(body)
    return head + body
