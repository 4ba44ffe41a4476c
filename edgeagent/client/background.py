"""A response in the background, over HTTP: it goes on without a connection, and is followed again after a lost one."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import httpx2

from edgeagent.client.address import Address, is_loopback
from edgeagent.client.answer import TERMINAL
from edgeagent.errors import BackendUnavailable

# How long to try to reach the daemon: at first, and again. After sleep, a network needs some seconds.
FIRST_REACH_S = 3.0
REACH_S = 60.0
RETRY_S = 0.5
CONNECT_TIMEOUT_S = 10.0
# The daemon sends a comment every 5 s.
SILENCE_S = 20.0
_BUSY = (429, 503)


class Background:
    """One response in the background. `next` creates it, and returns its events, each once, across lost connections."""

    def __init__(self, locate: Callable[[], Address], request: Mapping[str, Any]) -> None:
        self._locate = locate
        self._request = {name: value for name, value in request.items() if name != "type"} | {"stream": True}
        self._id: str | None = None
        self._after = -1
        # Since when the daemon cannot be reached. A sleep counts only if it begins after that.
        self._lost_at_s: float | None = time.monotonic()
        self._http: httpx2.AsyncClient | None = None
        self._lines: AsyncIterator[str] | None = None

    async def next(self) -> dict[str, Any]:
        """Return the next event. A refusal is an event `error`, as on the WebSocket.

        Raise BackendUnavailable if the daemon cannot be reached for FIRST_REACH_S, later for REACH_S, or ConfigError as
        `Client.open` does.
        """
        while True:
            try:
                event = await self._read()
            except (httpx2.TransportError, BackendUnavailable) as lost:
                self._lost_at_s = self._lost_at_s or time.monotonic()
                if time.monotonic() - self._lost_at_s > (FIRST_REACH_S if self._id is None else REACH_S):
                    raise BackendUnavailable(f"the daemon cannot be reached: {lost}") from None
                event = None
            if event is None or event["type"] in TERMINAL:
                await self.close()
            if event is not None:
                return event
            await asyncio.sleep(RETRY_S)

    async def close(self) -> None:
        """Disconnect. The response goes on."""
        http, self._http, self._lines = self._http, None, None
        if http is not None:
            await http.aclose()

    async def _read(self) -> dict[str, Any] | None:
        """Return the next event of this connection, or of a new one; None if it ends."""
        if self._lines is None:
            self._http = await connected(self._locate)
            if self._id is None:
                request = self._http.build_request("POST", "responses", json=self._request)
            else:
                query: dict[str, str | int] = {"stream": "true", "starting_after": self._after}
                request = self._http.build_request("GET", f"responses/{self._id}", params=query)
            reply = await self._http.send(request, stream=True)
            if reply.status_code in _BUSY and self._id is not None:
                return None
            if reply.is_error:
                return {"type": "error", "error": refusal_of(await reply.aread(), reply.status_code)}
            self._lines = reply.aiter_lines()
        async for line in self._lines:
            self._lost_at_s = None
            if line.startswith("data: {"):
                event: dict[str, Any] = json.loads(line.removeprefix("data: "))
                self._after = event.get("sequence_number", self._after)
                if self._id is None and "response" in event:
                    self._id = event["response"]["id"]
                return event
        return None

    async def cancel(self) -> None:
        """Cancel the response, which then ends with an event. Raise BackendUnavailable if the daemon is not there."""
        if self._id is not None:
            try:
                async with await connected(self._locate) as http:
                    await http.post(f"responses/{self._id}/cancel")
            except httpx2.TransportError as lost:
                raise BackendUnavailable(f"the daemon cannot be reached: {lost}", retry_after_s=RETRY_S) from None


async def connected(locate: Callable[[], Address], silence_s: float = SILENCE_S) -> httpx2.AsyncClient:
    """Return an HTTP client of the daemon's /v1, which waits up to `silence_s` for the next bytes."""
    address = await asyncio.to_thread(locate)
    return httpx2.AsyncClient(
        base_url=address.http_url,
        headers={"Authorization": f"Bearer {address.token}"} if address.token else {},
        verify=address.tls() or True,
        timeout=httpx2.Timeout(silence_s, connect=CONNECT_TIMEOUT_S),
        trust_env=not is_loopback(address.http_url),
    )


def refusal_of(body: bytes, status: int) -> dict[str, Any]:
    """Return the error object of a refusal; a made one if the body is none of the daemon's."""
    try:
        error = json.loads(body)["error"]
    except (ValueError, TypeError, KeyError):
        error = None
    return error if isinstance(error, dict) else {"message": f"HTTP {status}: is that an edgeagent?"}
