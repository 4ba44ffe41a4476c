"""The WebSocket to a daemon: opened when it is needed, opened again when it is lost, one response at a time on it.

Knows the wire of /v1/responses and where a daemon says it can be found; knows nothing of what is behind it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_websocket
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.http11 import Response

from edgeagent.client.address import Address, address_of_daemon, is_loopback
from edgeagent.client.answer import Answer, Event
from edgeagent.errors import BackendUnavailable, EdgeAgentError, Forbidden, PayloadTooLarge, Unauthorized

OPEN_TIMEOUT_S = 10.0
CANCEL_TIMEOUT_S = 5.0
RETRY_DELAYS_S = (0.1, 0.5, 2.0)
# RFC 6455, 7.4.1, and the IANA registry: protocol and policy errors would only happen again.
FINAL_CLOSE_CODES = frozenset({1002, 1003, 1007, 1008, 1009, 1010})

Input = str | Sequence[Mapping[str, Any]]


class Client:
    """A connection to a daemon. Use it as an async context manager, or call `close`.

    One response runs at a time: starting another cancels the one before, as a listener who interrupts would. For
    responses side by side, connect more clients; they share the daemon's stored responses.
    """

    def __init__(self, locate: Callable[[], Address]) -> None:
        self._locate = locate
        self._socket: ClientConnection | None = None
        self._reply: Reply | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect, unless connected. Raises BackendUnavailable, Unauthorized or Forbidden."""
        if self._socket is None:
            self._socket = await _open(self._locate())

    async def close(self) -> None:
        """Disconnect; the daemon cancels what still runs on this connection."""
        if self._socket is not None:
            socket, self._socket = self._socket, None
            await socket.close()

    def respond(
        self,
        message: Input,
        *,
        previous_response_id: str | None = None,
        instructions: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **fields: object,
    ) -> Reply:
        """Ask for a response and return it as an async iterator of events; nothing is sent before the first is awaited.

        `message` is text or a list of input items; `fields` are further fields of response.create (model, temperature,
        max_output_tokens, tool_choice, text, store ...).
        """
        request = {
            "type": "response.create",
            "input": message,
            "previous_response_id": previous_response_id,
            "instructions": instructions,
            "tools": tools,
            **fields,
        }
        return Reply(self, {name: value for name, value in request.items() if value is not None})

    async def ask(self, message: Input, **fields: Any) -> Answer:
        """Ask, wait for the end, and return the whole answer. Raises what the response failed with."""
        return await self.respond(message, **fields).finish()

    async def begin(self, reply: Reply) -> None:
        """Send a reply's request; for Reply alone."""
        if self._reply is not None and self._reply is not reply:
            await self._reply.cancel()
        self._reply = reply
        await self.open()
        await self.send(reply.request)

    async def send(self, event: Event) -> None:
        """Send one event on the open connection; for Reply alone."""
        if self._socket is None:
            raise _closed_under_response()
        try:
            await self._socket.send(json.dumps(event, ensure_ascii=False))
        except ConnectionClosed as closed:
            raise self._lost(closed) from None

    async def receive(self) -> dict[str, Any]:
        """Return the next event of the open connection; for Reply alone."""
        if self._socket is None:
            raise _closed_under_response()
        try:
            event: dict[str, Any] = json.loads(await self._socket.recv())
        except ConnectionClosed as closed:
            raise self._lost(closed) from None
        return event

    def _lost(self, closed: ConnectionClosed) -> EdgeAgentError:
        self._socket = None
        code, reason = (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else (1006, "")
        if code == 1009:
            return PayloadTooLarge(f"the message is larger than the daemon accepts ({reason or 'close code 1009'})")
        because = f": {reason}" if reason else ""
        return BackendUnavailable(
            f"the daemon closed the connection (code {code}{because})",
            retry_after_s=None if code in FINAL_CLOSE_CODES else RETRY_DELAYS_S[0],
        )


class Reply:
    """One response as it arrives: an async iterator over its events, with their sum in `answer`.

    A connection that is lost before the daemon began to answer is opened again and the request repeated; afterwards
    the loss is raised, since what was delivered cannot be taken back. After a failed response's terminal event the
    iterator raises its error.
    """

    def __init__(self, client: Client, request: Mapping[str, Any]) -> None:
        self.request = request
        self.answer = Answer()
        self._client = client
        self._is_sent = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> dict[str, Any]:
        if self.answer.is_finished:
            if self.answer.error is not None:
                raise self.answer.error
            raise StopAsyncIteration
        event = await self._next_event()
        self.answer.add(event)
        return event

    async def finish(self) -> Answer:
        """Take in the remaining events and return the answer."""
        async for _ in self:
            pass
        return self.answer

    async def cancel(self) -> Answer:
        """Cancel the response at the daemon and return its answer; a finished one is left as it is."""
        if self.answer.is_finished:
            return self.answer
        if not self._is_sent:
            self.answer.status = "cancelled"
            return self.answer
        try:
            async with asyncio.timeout(CANCEL_TIMEOUT_S):
                await self._client.send({"type": "response.cancel", **self._named()})
                while not self.answer.is_finished:
                    self.answer.add(await self._client.receive())
        except (TimeoutError, EdgeAgentError):
            # Closing the connection cancels whatever the daemon still runs for it.
            await self._client.close()
            self.answer.status = "cancelled"
        return self.answer

    def _named(self) -> dict[str, str]:
        return {"response_id": self.answer.response_id} if self.answer.response_id else {}

    async def _next_event(self) -> dict[str, Any]:
        for delay in (*RETRY_DELAYS_S, None):
            try:
                if not self._is_sent:
                    await self._client.begin(self)
                    self._is_sent = True
                return await self._client.receive()
            except BackendUnavailable as lost:
                # 1. retries used up; 2. it would only happen again; 3. part of the answer is out.
                if delay is None or lost.retry_after_s is None or self.answer.response_id is not None:
                    self.answer.status, self.answer.error = "failed", lost
                    raise
            self._is_sent = False
            await asyncio.sleep(delay)
        raise AssertionError("the last attempt returns or raises")


def _closed_under_response() -> BackendUnavailable:
    return BackendUnavailable("the connection was closed while a response was running on it")


async def _open(address: Address) -> ClientConnection:
    headers = {"Authorization": f"Bearer {address.token}"} if address.token else {}
    try:
        return await open_websocket(
            address.websocket_url,
            additional_headers=headers,
            open_timeout=OPEN_TIMEOUT_S,
            compression=None,
            max_size=None,
            ssl=address.tls(),
            # A proxy from the environment is for the network, not for this machine.
            proxy=None if is_loopback(address.websocket_url) else True,
        )
    except InvalidStatus as refused:
        raise _refusal(address, refused.response) from None
    except (OSError, TimeoutError, InvalidHandshake) as error:
        raise BackendUnavailable(
            f"no daemon answers at {address.websocket_url} ({_reason(error)}); start one with `edgeagent serve`",
            retry_after_s=RETRY_DELAYS_S[0],
        ) from None
    except InvalidURI as error:
        raise BackendUnavailable(f"{address.websocket_url} is no WebSocket address: {error}") from None


def _reason(error: Exception) -> str:
    """Return why a connection could not be opened; asyncio would show a refusal's address as Python writes it."""
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return str(error) or "no answer in time"


def _refusal(address: Address, response: Response) -> EdgeAgentError:
    match response.status_code:
        case 401:
            return Unauthorized(f"{address.websocket_url} asks for a token; it is in the daemon's state folder")
        case 403:
            return Forbidden(f"{address.websocket_url} refuses this host name or origin; see server.allowed_hosts")
        case 429 | 503:
            reason = _message(response.body) or f"HTTP {response.status_code}"
            return BackendUnavailable(f"{address.websocket_url}: {reason}", retry_after_s=RETRY_DELAYS_S[0])
        case status:
            return BackendUnavailable(f"{address.websocket_url} answers with HTTP {status}: is that an edgeagent?")


def _message(body: bytes | bytearray) -> str | None:
    """Return the message in an error body; None if the daemon did not write the body."""
    with suppress(ValueError):
        match json.loads(body):
            case {"error": {"message": str(message)}}:
                return message
    return None


def connect(url: str | None = None, token: str | None = None, state_dir: Path | None = None) -> Client:
    """Return a client of the daemon at `url` (http:// or ws://), or of the one that runs on this machine.

    Without `url` the daemon is found through its state folder (`state_dir`, or the configured one), again for each
    connection, and its token is read there; it is only sent to the process that wrote the folder.
    """
    if url is not None:
        fixed = Address(url, token)
        return Client(lambda: fixed)
    return Client(lambda: address_of_daemon(state_dir, token))
