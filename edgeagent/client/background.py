"""A response in the background, over HTTP: it goes on without a connection, and is followed again after a lost one."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

import httpx

from edgeagent.client.address import Address, is_loopback
from edgeagent.client.answer import TERMINAL
from edgeagent.errors import BackendUnavailable

# After sleep, a network needs some seconds.
REACH_S = 60.0
RETRY_S = 0.5
CONNECT_TIMEOUT_S = 10.0
# The daemon sends a comment every 5 s.
SILENCE_S = 20.0
_BUSY = (429, 503)


class Background:
    """One response in the background. `events` creates it and yields its events, each once, across lost connections."""

    def __init__(self, locate: Callable[[], Address], request: Mapping[str, Any]) -> None:
        self._locate = locate
        self._request = {name: value for name, value in request.items() if name != "type"} | {"stream": True}
        self._id: str | None = None
        self._after = -1

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the events. A refusal is an event `error`, as on the WebSocket.

        Raise BackendUnavailable if the daemon cannot be reached for REACH_S, or ConfigError as `Client.open` does.
        """
        reached_at_s = time.monotonic()
        while True:
            try:
                async with await self._http() as http, self._stream(http) as reply:
                    if reply.status_code in _BUSY and self._id is not None:
                        raise httpx.NetworkError(f"HTTP {reply.status_code}")
                    if reply.is_error:
                        yield {"type": "error", "error": _error(await reply.aread(), reply.status_code)}
                        return
                    async for line in reply.aiter_lines():
                        if not line.startswith("data: {"):
                            continue
                        reached_at_s = time.monotonic()
                        event: dict[str, Any] = json.loads(line.removeprefix("data: "))
                        self._after = event.get("sequence_number", self._after)
                        if self._id is None and "response" in event:
                            self._id = event["response"]["id"]
                        yield event
                        if event["type"] in TERMINAL:
                            return
            except (httpx.TransportError, BackendUnavailable) as lost:
                if time.monotonic() - reached_at_s > REACH_S:
                    raise BackendUnavailable(f"the daemon cannot be reached again: {lost}") from None
            await asyncio.sleep(RETRY_S)

    async def cancel(self) -> None:
        """Cancel the response, which then ends with an event. Raise BackendUnavailable if the daemon is not there."""
        if self._id is not None:
            try:
                async with await self._http() as http:
                    await http.post(f"responses/{self._id}/cancel")
            except httpx.TransportError as lost:
                raise BackendUnavailable(f"the daemon cannot be reached: {lost}", retry_after_s=RETRY_S) from None

    async def _http(self) -> httpx.AsyncClient:
        address = await asyncio.to_thread(self._locate)
        return httpx.AsyncClient(
            base_url=address.http_url,
            headers={"Authorization": f"Bearer {address.token}"} if address.token else {},
            verify=address.tls() or True,
            timeout=httpx.Timeout(SILENCE_S, connect=CONNECT_TIMEOUT_S),
            trust_env=not is_loopback(address.http_url),
        )

    def _stream(self, http: httpx.AsyncClient) -> Any:
        if self._id is None:
            return http.stream("POST", "responses", json=self._request)
        return http.stream("GET", f"responses/{self._id}", params={"stream": "true", "starting_after": self._after})


def _error(body: bytes, status: int) -> dict[str, Any]:
    """Return the error object of a refusal; a made one if the body is none of the daemon's."""
    try:
        error = json.loads(body)["error"]
    except (ValueError, TypeError, KeyError):
        error = None
    return error if isinstance(error, dict) else {"message": f"HTTP {status}: is that an edgeagent?"}
