"""Keeps a connection open for a moment after an answer that came before the request's body was read.

If a server closes a socket with unread bytes, the system resets the connection, and a client that is still sending
may lose the answer. So the rest of the body is read and thrown away first, within limits.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from starlette.types import Message, Receive, Scope, Send

from edgeagent.api.gate.access import header_values
from edgeagent.api.gate.security import has_body

LINGER_S = 2.0
MAX_LINGER_BYTES = 64 << 20


class Lingering:
    """The `receive` and `send` of one HTTP request. The end of an answer waits for the rest of an unread body."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        # A client that waits for `100 Continue` has sent nothing yet.
        is_waiting = bool(header_values(scope, b"expect"))
        self._is_read = scope["type"] != "http" or not has_body(scope) or is_waiting

    async def receive(self) -> Message:
        """Return the request's next message."""
        message = await self._receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self._is_read = True
        return message

    async def send(self, message: Message) -> None:
        """Send a message of the answer."""
        is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
        if not is_last or self._is_read:
            await self._send(message)
            return
        await self._send({**message, "more_body": True})
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                await self._read_rest()
        await self._send({"type": "http.response.body", "body": b""})

    async def _read_rest(self) -> None:
        num_bytes = 0
        while not self._is_read and num_bytes < MAX_LINGER_BYTES:
            num_bytes += len((await self.receive()).get("body", b""))
