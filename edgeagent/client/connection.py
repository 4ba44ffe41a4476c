"""A WebSocket connection to a daemon. It is opened when needed and reopened when lost, and runs one response at a time.

This module knows the protocol of /v1/responses and how to find a daemon, and nothing of the daemon's code.
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
from edgeagent.errors import (
    BackendUnavailable,
    EdgeAgentError,
    Forbidden,
    InvalidRequest,
    PayloadTooLarge,
    Unauthorized,
)

OPEN_TIMEOUT_S = 10.0
CANCEL_TIMEOUT_S = 5.0
RETRY_DELAYS_S = (0.1, 0.5, 2.0)
# Close codes of RFC 6455 (7.4.1) and the IANA registry for protocol and policy errors, which a retry would repeat.
FINAL_CLOSE_CODES = frozenset({1002, 1003, 1007, 1008, 1009, 1010})

Input = str | Sequence[Mapping[str, Any]]


class Client:
    """A connection to a daemon. Use it as an async context manager, or call `close`.

    One response runs at a time. A new response cancels the running one, as when a user interrupts a voice assistant.
    For parallel responses, connect more clients; they share the daemon's stored responses.
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
        """Connect, unless already connected. Raise BackendUnavailable, Unauthorized or Forbidden if that fails.

        If `connect` got no URL, also raise ConfigError if the daemon's token file or the configuration is wrong.
        """
        if self._socket is None:
            self._socket = await _open(await asyncio.to_thread(self._locate))

    async def close(self) -> None:
        """Disconnect. If a response is still running on this connection, the daemon cancels it."""
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
        """Return a response as an async iterator of events. Nothing is sent before the first event is awaited.

        `message` is text or a list of input items. `fields` are further fields of response.create (model, temperature,
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
        """Send a message, wait for the end, and return the whole answer. Raise the response's error if it failed."""
        return await self.respond(message, **fields).finish()

    async def begin(self, reply: Reply) -> None:
        """Cancel the running reply, connect if needed, and send the new reply's request. For use by Reply only.

        Raise the errors of `open` and `send`.
        """
        if self._reply is not None and self._reply is not reply:
            await self._reply.cancel()
        self._reply = reply
        await self.open()
        await self.send(reply.request)

    async def send(self, event: Event) -> None:
        """Send one event on the open connection. For use by Reply only.

        Raise BackendUnavailable or PayloadTooLarge if the connection is lost, or InvalidRequest if a text is not valid
        Unicode.
        """
        if self._socket is None:
            raise _closed_under_response()
        try:
            await self._socket.send(_encoded(event), text=True)
        except ConnectionClosed as closed:
            raise self._lost(closed) from None

    async def receive(self) -> dict[str, Any]:
        """Return the next event of the open connection. For use by Reply only.

        Raise BackendUnavailable or PayloadTooLarge if the connection is lost.
        """
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
    """One response as it arrives: an async iterator over its events. `answer` holds the result so far.

    If the connection is lost before the daemon begins to answer, the client reconnects and sends the request again. If
    the connection is lost later, the error is raised, since delivered events cannot be taken back. After the terminal
    event of a failed response, the iterator raises the response's error.
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
        """Read the remaining events and return the answer. Raise the response's error if it failed."""
        async for _ in self:
            pass
        return self.answer

    async def cancel(self) -> Answer:
        """Cancel the response at the daemon, and return `answer`. An answer that has finished is not changed.

        If the daemon does not confirm this within CANCEL_TIMEOUT_S, or if the connection is lost, the connection is
        closed and the status is "cancelled".
        """
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
            # When the connection closes, the daemon cancels all that still runs on it.
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
                # Give up if no retries are left, if the error would repeat, or if part of the answer was delivered.
                if delay is None or lost.retry_after_s is None or self.answer.response_id is not None:
                    self.answer.status, self.answer.error = "failed", lost
                    raise
            self._is_sent = False
            await asyncio.sleep(delay)
        raise AssertionError("the last attempt returns or raises")


def _encoded(event: Event) -> bytes:
    """Return an event as JSON; raise InvalidRequest if a text in it is not valid Unicode."""
    try:
        return json.dumps(event, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidRequest("a text holds half of a surrogate pair (\\ud800 to \\udfff alone)") from None


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
            # A proxy from the environment is for other machines, not for this one.
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
        raise BackendUnavailable(f"{address.websocket_url} is not a WebSocket address: {error}") from None


def _reason(error: Exception) -> str:
    """Return why a connection could not be opened. A refused one gets our own text, since asyncio's shows a tuple."""
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
    """Return the message in an error body; None if the body is not a daemon's JSON error."""
    with suppress(ValueError):
        match json.loads(body):
            case {"error": {"message": str(message)}}:
                return message
    return None


def connect(
    url: str | None = None, token: str | None = None, state_dir: Path | None = None, *, start: bool = False
) -> Client:
    """Return a client of the daemon at `url` (http:// or ws://), or of the daemon that runs on this machine.

    Without `url`, every connection looks the daemon up in its state folder (`state_dir`, or the configured one). The
    token is read there too, unless `token` is given. The token is sent only to the process that wrote the folder's
    runtime file. With `url`, no token is read, and `state_dir` and `start` have no effect.

    With `start`, a connection starts the daemon if none runs, and waits until it listens: the user's service if it is
    installed, else `edgeagent serve` as a process of its own, which outlives the application. With `state_dir` too,
    the daemon is the application's own and takes a free port.
    """
    if url is not None:
        fixed = Address(url, token)
        return Client(lambda: fixed)
    return Client(lambda: address_of_daemon(state_dir, token, start=start))
