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
from edgeagent.client.answer import TERMINAL, Answer, Event
from edgeagent.client.choice import Choice, choose
from edgeagent.client.conversation import Conversation
from edgeagent.client.reply import MAX_ROUNDS, RETRY_DELAYS_S, OneReader, Received, Reply
from edgeagent.client.tools import ToolLike, split_tools
from edgeagent.errors import (
    BackendUnavailable,
    EdgeAgentError,
    Forbidden,
    InvalidRequest,
    PayloadTooLarge,
    Unauthorized,
)

# Close codes of RFC 6455 (7.4.1) and the IANA registry for protocol and policy errors, which a retry would repeat.
FINAL_CLOSE_CODES = frozenset({1002, 1003, 1007, 1008, 1009, 1010})

Input = str | Sequence[Mapping[str, Any]]


class Client:
    """A connection to a daemon. Use it as an async context manager, or call `close`.

    One response runs at a time. A new response cancels the running one, as when a user interrupts a voice assistant.
    For parallel responses, connect more clients; they share the daemon's stored responses.
    """

    def __init__(self, locate: Callable[[], Address]) -> None:
        self.locate = locate
        self._socket: ClientConnection | None = None
        self._opening: asyncio.Event | None = None
        self._reply: Reply | None = None
        self._reader = OneReader()
        # So many prefills were sent whose end was not read. Their events come before those of the next reply.
        self._num_prefills = 0
        self.num_closes = 0
        """How often it was closed. What began before a close ends with it, and does not connect again."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect, unless already connected. Raise BackendUnavailable, Unauthorized or Forbidden if that fails.

        It fails if the client is closed meanwhile. If `connect` got no URL, also raise ConfigError if the daemon's
        token file or the configuration is wrong.
        """
        # Of two tasks that connect at once, one waits: a second connection would replace the first one under its reply.
        num_closes = self.num_closes
        while self._socket is None:
            if self._opening is not None:
                await self._opening.wait()
                self.check_still_open(num_closes)
                continue
            self._opening = opening = asyncio.Event()
            try:
                socket = await _open(await asyncio.to_thread(self.locate))
                if num_closes == self.num_closes:
                    self._socket = socket
            finally:
                self._opening = None
                opening.set()
            if self._socket is not socket:
                await socket.close()
            self.check_still_open(num_closes)

    async def close(self) -> None:
        """Disconnect. If a response is still running on this connection, the daemon cancels it.

        Calls that still wait end with an error. The next call connects again.
        """
        self.num_closes += 1
        await self.disconnect()

    async def disconnect(self) -> None:
        """Disconnect; what waits to be sent connects again. For use by Reply only."""
        if self._socket is not None:
            socket, self._socket, self._num_prefills = self._socket, None, 0
            await socket.close()

    def respond(
        self,
        message: Input,
        *,
        previous_response_id: str | None = None,
        instructions: str | None = None,
        tools: Sequence[ToolLike] | None = None,
        max_rounds: int = MAX_ROUNDS,
        background: bool = False,
        **fields: object,
    ) -> Reply:
        """Return a response as an async iterator of events. Nothing is sent before the first event is awaited.

        `message` is text or a list of input items. `fields` are further fields of response.create (model, temperature,
        max_output_tokens, tool_choice, text, store ...).

        Functions among `tools` are called when the model asks for it, and a further response answers their output: the
        iterator yields its events too. There are at most `max_rounds` responses, and the last of several may call
        nothing. If a response calls a tool that is not a function, it is the last one, and the caller answers its
        calls.

        With `background`, the daemon goes on without a connection. The iterator gets the events that it missed as soon
        as the daemon can be reached again, for example after sleep.
        """
        definitions, functions = split_tools(tools) if tools is not None else (None, {})
        request = {
            "type": "response.create",
            "input": message,
            "previous_response_id": previous_response_id,
            "instructions": instructions,
            "tools": definitions,
            "background": background or None,
            **fields,
        }
        return Reply(self, {name: value for name, value in request.items() if value is not None}, functions, max_rounds)

    async def ask(self, message: Input, **fields: Any) -> Answer:
        """Send a message, wait for the end, and return the whole answer. Raise the response's error if it failed."""
        return await self.respond(message, **fields).finish()

    async def prefill(self, message: Input = (), *, ahead: bool = False, **fields: Any) -> None:
        """Let the daemon compute a prompt, and return before it has. `message` and `fields` are those of `respond`.

        With `ahead`, it also begins the answer. The next reply gets this one if it asks for the same. While a reply
        runs, nothing is sent. Raise the errors of `open`; the daemon's errors come with the next reply.
        """
        request = dict(self.respond(message, **fields).request)
        if not message:
            del request["input"]
        if ahead:
            request["edgeagent"] = {**request.get("edgeagent", {}), "ahead": True}
        num_closes = self.num_closes
        for attempt in range(2):
            try:
                await self.open()
                # Each prefill ends the one before it at once, so this does not wait for a computation.
                while self._num_prefills > 1:
                    await self._reader.read(self._receive)
                if self._reply is None or self._reply.answer.is_finished:
                    await self._send_prefill({**request, "generate": False})
                return
            except BackendUnavailable:
                # The connection may have been lost long ago.
                if attempt or num_closes != self.num_closes:
                    raise

    async def _send_prefill(self, request: Event) -> None:
        self._num_prefills += 1
        try:
            await self.send(request)
        except InvalidRequest:
            self._num_prefills -= 1
            raise

    def conversation(
        self, previous_response_id: str | None = None, *, tools: Sequence[ToolLike] | None = None, **fields: Any
    ) -> Conversation:
        """Return a conversation: a new one, or the one that a response belongs to. `fields` are those of `respond`."""
        return Conversation(self, previous_response_id, tools or (), fields)

    async def classify(
        self,
        message: Input,
        choices: Sequence[str | Mapping[str, str]],
        *,
        instructions: str | None = None,
        calibrate: bool = False,
        **fields: object,
    ) -> Choice:
        """Return which of the `choices` is the likeliest answer, and how likely each is. Nothing is generated.

        A choice is a text that the model could write as its whole answer, or an object with its `id` and `text`.
        `fields` are further fields of the daemon's `/edgeagent/choose`, such as model and previous_response_id. The
        running reply goes on. Raise the daemon's error or those of `open`.
        """
        request = {"input": message, "choices": choices, "instructions": instructions, "calibrate": calibrate, **fields}
        return await choose(self.locate, {name: value for name, value in request.items() if value is not None})

    async def begin(self, reply: Reply) -> None:
        """Cancel the running reply, and connect if needed. For use by Reply only. Raise the errors of `open`."""
        while (running := self._reply) is not None and running is not reply:
            await running.cancel()
            # Meanwhile another task may have begun a reply of its own.
            if self._reply is running:
                break
        self._reply = reply
        await self.open()

    def check_still_open(self, num_closes: int) -> None:
        """Raise BackendUnavailable if the client was closed since `num_closes` was read."""
        if num_closes != self.num_closes:
            raise _closed_under_response()

    async def send(self, event: Event) -> None:
        """Send one event on the open connection. For use by Reply only.

        Raise BackendUnavailable or PayloadTooLarge if the connection is lost, or InvalidRequest if the event cannot be
        JSON.
        """
        if (socket := self._socket) is None:
            raise _closed_under_response()
        try:
            await socket.send(_encoded(event), text=True)
        except ConnectionClosed as closed:
            raise self._lost(socket, closed) from None

    async def receive(self) -> Received | None:
        """Return the next event of the running reply. For use by Reply only.

        Return None if another task was reading, and has read something. Raise BackendUnavailable or PayloadTooLarge if
        the connection is lost.
        """
        return await self._reader.read(self._receive_own)

    @property
    def has_prefills(self) -> bool:
        return self._num_prefills > 0

    async def _receive_own(self) -> Received:
        while self._num_prefills:
            await self._receive()
        return await self._receive()

    async def _receive(self) -> Received:
        if (socket := self._socket) is None:
            raise _closed_under_response()
        try:
            event: Received = json.loads(await socket.recv())
        except ConnectionClosed as closed:
            raise self._lost(socket, closed) from None
        if self._num_prefills and event.get("type") in TERMINAL:
            self._num_prefills -= 1
        return event

    def _lost(self, socket: ClientConnection, closed: ConnectionClosed) -> EdgeAgentError:
        if self._socket is socket:
            self._socket, self._num_prefills = None, 0
        code, reason = (closed.rcvd.code, closed.rcvd.reason) if closed.rcvd else (1006, "")
        if code == 1000 and closed.rcvd_then_sent is False:  # this client closed it
            return _closed_under_response()
        if code == 1009:
            return PayloadTooLarge(f"the message is larger than the daemon accepts ({reason or 'close code 1009'})")
        because = f": {reason}" if reason else ""
        return BackendUnavailable(
            f"the daemon closed the connection (code {code}{because})",
            retry_after_s=None if code in FINAL_CLOSE_CODES else RETRY_DELAYS_S[0],
        )


def _encoded(event: Event) -> bytes:
    """Return an event as JSON; raise InvalidRequest if that is not possible."""
    try:
        return json.dumps(event, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise InvalidRequest("a text holds half of a surrogate pair (\\ud800 to \\udfff alone)") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"a field of the request cannot be JSON: {error}") from None


def _closed_under_response() -> BackendUnavailable:
    return BackendUnavailable("the connection was closed while a response was running on it")


async def _open(address: Address) -> ClientConnection:
    headers = {"Authorization": f"Bearer {address.token}"} if address.token else {}
    try:
        return await open_websocket(
            address.websocket_url,
            additional_headers=headers,
            open_timeout=10.0,
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
