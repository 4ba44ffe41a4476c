"""Serves Wyoming on a socket: `describe`, `ping` and `transcript`. All who connect are one client, named CLIENT.

The protocol has no credentials. A web page that sends HTTP here reaches nothing, because its first line is no event,
and the first fault in the bytes ends a connection.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from contextlib import suppress
from http import HTTPStatus

from wyoming.error import Error
from wyoming.event import Event, async_write_event
from wyoming.handle import Handled, HandledChunk, HandledStart, HandledStop, NotHandled
from wyoming.ping import Pong

from edgeagent import metrics
from edgeagent.api.context import Context
from edgeagent.api.wire.errors import http_status, to_client_error
from edgeagent.api.wire.fields import template_kwargs
from edgeagent.api.wire.request_id import begin_request
from edgeagent.api.wire.shape import Json
from edgeagent.api.wyoming.conversations import Conversations
from edgeagent.api.wyoming.events import (
    MAX_EVENT_BYTES,
    NO_ANSWER,
    NOTHING_HEARD,
    STOPPING,
    Heard,
    describe,
    read_event,
    read_transcript,
    sentence_for,
)
from edgeagent.credentials.keys import VOICE_CLIENT
from edgeagent.errors import EdgeAgentError, InvalidRequest, Overloaded
from edgeagent.service.live_requests import LiveRequest
from edgeagent.types import (
    AnswerPolicy,
    CachePolicy,
    ChatPrompt,
    Finished,
    FinishReason,
    GenerateRequest,
    Message,
    Sink,
    Step,
    TextDelta,
    Tier,
)

logger = logging.getLogger(__name__)

CLIENT = VOICE_CLIENT
"""The name of all who connect here: in the ledger, the policy, and as the partition of cached prompts."""
MAX_CONNECTIONS = 64
_FULL = Overloaded(f"{MAX_CONNECTIONS} clients are connected; try again later")
# Between two events; within an event, and for a client to read an answer; for the last bytes of a connection.
IDLE_S, EVENT_S, CLOSE_S = 300.0, 10.0, 1.0
# Each event waits for this long before the next one is read, so that a flood of them holds up no other client.
PAUSE_S = 0.002
# Five minutes of speech. An answer without an end would otherwise fill the context.
MAX_ANSWER_TOKENS = 1024
TIMEOUT_S = 120.0


class Wyoming:
    """The connections to one listening socket, and the conversations that go on over them."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._conversations = Conversations()
        self._connections: set[asyncio.Task[object]] = set()

    async def serve(self, listener: socket.socket) -> None:
        """Serve until cancelled; then close all connections."""
        server = await asyncio.start_server(self._connect, sock=listener, limit=MAX_EVENT_BYTES)
        try:
            while True:
                await asyncio.sleep(60.0)
                self._conversations.forget_old()
        finally:
            server.close()
            for task in self._connections:
                task.cancel()
            if self._connections:
                await asyncio.wait(self._connections, timeout=CLOSE_S)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task, num_others = asyncio.current_task(), len(self._connections)
        assert task is not None, "each connection is served by a task of its own"
        connection = _Connection(reader, writer, self._context, self._conversations)
        self._connections.add(task)
        try:
            with suppress(OSError, TimeoutError, asyncio.CancelledError):
                if num_others < MAX_CONNECTIONS:
                    await connection.run()
                elif num_others < 2 * MAX_CONNECTIONS:  # more are not even told
                    await connection.refuse(_FULL)
                writer.close()
                async with asyncio.timeout(CLOSE_S):
                    await writer.wait_closed()
        finally:
            writer.transport.abort()
            self._connections.discard(task)


class _Answer(Sink):
    """The text of an answer while it is generated, and the part of it that is not sent yet.

    `is_begun`: the client has got the beginning of the stream, and must get its end.
    """

    def __init__(self) -> None:
        self.text = ""
        self.end: FinishReason | None = None
        self.is_begun = False
        self.has_news = asyncio.Event()
        self._unsent = ""

    def put(self, step: Step) -> None:
        for delta in step.deltas:
            match delta:
                case TextDelta(text):
                    piece = text if self.text else text.lstrip()
                    self.text += piece
                    self._unsent += piece
                case Finished(reason):
                    self.end = reason
        self.has_news.set()

    async def next_piece(self) -> str:
        """Wait until `has_news` is set, and return the text that is not sent yet."""
        await self.has_news.wait()
        self.has_news.clear()
        piece, self._unsent = self._unsent, ""
        return piece


class _Connection:
    """One client. It gets one answer at a time: its next transcript, or its end, cancels the one before."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        context: Context,
        conversations: Conversations,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._context = context
        self._conversations = conversations
        self._address = str((writer.get_extra_info("peername") or ("",))[0])
        self._answering: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Serve until the client leaves or sends what is no event. Raise TimeoutError if it is idle or stalls."""
        try:
            while (event := await self._next()) is not None:
                await self._take(event)
                await asyncio.sleep(PAUSE_S)
        except InvalidRequest as fault:
            await self._stop_answer()
            await self.refuse(fault)
        finally:
            await self._stop_answer()

    async def refuse(self, fault: EdgeAgentError) -> None:
        """Send an error, and nothing after it. Wait for a moment until the client has left.

        What it still sends is dropped. If it were not read, the system would reset the connection, and the error might
        be lost.
        """
        await self._send(Error(fault.message, fault.code).event())
        self._writer.write_eof()
        async with asyncio.timeout(CLOSE_S):
            while not self._reader.at_eof():
                await self._reader.read(MAX_EVENT_BYTES)

    async def _next(self) -> Event | None:
        while True:
            try:
                async with asyncio.timeout(IDLE_S):
                    first = await self._reader.readexactly(1)
            except asyncio.IncompleteReadError:
                return None
            except TimeoutError:
                if self._answering is None or self._answering.done():
                    raise
            else:
                async with asyncio.timeout(EVENT_S):
                    return await read_event(self._reader, first)

    async def _take(self, event: Event) -> None:
        """Act on an event. Events of other kinds are ignored, as the protocol demands."""
        match event.type:
            case "describe":
                await self._send(describe(self._context.service.models.default()))
            case "ping":
                text = event.data.get("text")
                await self._send(Pong(text if isinstance(text, str) else None).event())
            case "transcript":
                await self._stop_answer()
                try:
                    heard = read_transcript(event.data)
                except InvalidRequest as fault:
                    await self._send(Error(fault.message, fault.code).event())
                else:
                    self._answering = asyncio.create_task(self._answer(heard))

    async def _stop_answer(self) -> None:
        if self._answering is not None:
            self._answering.cancel()
            await asyncio.wait({self._answering})
            self._answering = None

    async def _send(self, *events: Event) -> None:
        async with asyncio.timeout(EVENT_S):
            for event in events:
                await async_write_event(event, self._writer)

    async def _answer(self, heard: Heard) -> None:
        """Answer a transcript, and keep the conversation. If the client does not read, end the connection."""
        begin_request(())
        conversation_id = heard.conversation_id or secrets.token_hex(16)
        key, context = (self._address, conversation_id), {"conversation_id": conversation_id}
        messages = (*self._conversations.messages(key), Message("user", heard.text))
        request = self._request(heard, messages, lane=" ".join((CLIENT, *key)))
        live, answer, outcome = LiveRequest(request.id, CLIENT), _Answer(), "cancelled"
        self._context.service.live.expect_delivery(live)
        try:
            refusal = await self._speak(request, answer, context) if heard.text else NOTHING_HEARD
            last = NotHandled(refusal, context) if refusal else Handled(answer.text.rstrip(), context)
            await self._send(last.event(), *_stop(answer))
            outcome = "not-handled" if refusal else "handled"
        except (OSError, TimeoutError):
            self._writer.transport.abort()
        except asyncio.CancelledError:
            with suppress(OSError, TimeoutError):
                await self._send(*_stop(answer))
            raise
        finally:
            if answer.text:
                self._conversations.keep(key, (*messages, Message("assistant", answer.text)))
            self._context.service.live.mark_delivered(live)
            metrics.requests_total.labels(CLIENT, "transcript", outcome).inc()

    def _request(self, heard: Heard, messages: tuple[Message, ...], lane: str) -> GenerateRequest:
        instructions = self._context.config.server.wyoming_instructions
        if heard.language and not heard.language.lower().startswith("en"):
            instructions += f" Answer in the language {heard.language}."
        return GenerateRequest(
            f"{CLIENT}-{secrets.token_hex(12)}",
            self._context.service.models.default(),
            ChatPrompt(
                (Message("system", instructions), *messages),
                template_kwargs=template_kwargs("none", None),
                truncate=True,
            ),
            max_tokens=MAX_ANSWER_TOKENS,
            tier=Tier.REALTIME,
            timeout_s=TIMEOUT_S,
            cache=CachePolicy(partition=CLIENT, persist=False, lane=lane, answers=AnswerPolicy.USE),
        )

    async def _speak(self, request: GenerateRequest, answer: _Answer, context: Json) -> str:
        """Send the answer's text as it is generated. Return "", or why there is none, as a sentence to say."""
        generating = asyncio.create_task(self._context.service.generate(request, answer))
        generating.add_done_callback(lambda _: answer.has_news.set())
        try:
            is_over = False
            while not is_over:
                piece = await answer.next_piece()
                is_over = generating.done()
                if piece:
                    start = () if answer.is_begun else (HandledStart(context).event(),)
                    answer.is_begun = True
                    await self._send(*start, HandledChunk(piece).event())
        finally:
            generating.cancel()
            await asyncio.gather(generating, return_exceptions=True)
        try:
            generating.result()
        except Exception as error:
            failure = to_client_error(request.id, error)
            if http_status(failure) >= HTTPStatus.INTERNAL_SERVER_ERROR:
                logger.warning("wyoming: %s: %s", failure.code, failure.message)
            return sentence_for(failure)
        if answer.end is FinishReason.CANCELLED:
            return STOPPING
        return "" if answer.text else NO_ANSWER


def _stop(answer: _Answer) -> list[Event]:
    """Return the event that ends the stream of an answer; [] if none has begun."""
    return [HandledStop().event()] if answer.is_begun else []
