"""A streamed body as it is handed to the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from starlette.types import Message

from edgeagent.api.wire.sse import EventStream


async def test_the_head_goes_out_with_a_first_event_that_is_there() -> None:
    """The loop does not turn between them, so that the transport writes them at once."""
    num_turns = 0
    sent: list[tuple[str, int]] = []
    left = asyncio.Event()

    def turn() -> None:
        nonlocal num_turns
        num_turns += 1
        if not left.is_set():
            asyncio.get_running_loop().call_soon(turn)

    async def events() -> AsyncGenerator[bytes, None]:
        yield b"data: 1\n\n"
        await asyncio.sleep(0)
        yield b"data: 2\n\n"

    async def receive() -> Message:
        await left.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append((message["type"], num_turns))

    turn()
    await EventStream(events())({"type": "http"}, receive, send)
    left.set()
    (head, first), (event, second), (_, third), _ = sent
    assert (head, event) == ("http.response.start", "http.response.body")
    assert first == second < third
