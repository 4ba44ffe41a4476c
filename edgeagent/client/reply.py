"""A response as it arrives: its events, its text by sentences, its calls of functions, and its cancel."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Self

from edgeagent.client.answer import Answer, FunctionOutput, function_output
from edgeagent.client.sentences import Sentences
from edgeagent.client.tools import Tool
from edgeagent.errors import BackendUnavailable, EdgeAgentError

if TYPE_CHECKING:
    from edgeagent.client.background import Background
    from edgeagent.client.connection import Client

CANCEL_TIMEOUT_S = 5.0
RETRY_DELAYS_S = (0.1, 0.5, 2.0)
MAX_ROUNDS = 8
Received = dict[str, Any]

_waiting: ContextVar[tuple[Reply, ...]] = ContextVar("_waiting", default=())
"""In a function that a reply runs: that reply, which waits for the function. Threads of functions inherit it."""


class OneReader:
    """Lets one task at a time read. Another one that wants to read waits until something was read."""

    def __init__(self) -> None:
        self._reading: asyncio.Event | None = None

    async def read(self, read: Callable[[], Awaitable[Received]]) -> Received | None:
        """Return what was read; None if another task has read."""
        if self._reading is not None:
            await self._reading.wait()
            return None
        self._reading = reading = asyncio.Event()
        try:
            return await read()
        finally:
            self._reading = None
            reading.set()


class Reply:
    """One response as it arrives, with those that answer its calls of functions: an async iterator over their events.

    `answer` holds the result so far, and `rounds` the answers whose calls are answered. If the connection is lost
    before the daemon begins to answer, the client reconnects and sends the request again. If the connection is lost
    later, the error is raised, since delivered events cannot be taken back; only a response in the background goes on.
    After the terminal event of a failed response, the iterator raises the response's error. Tasks that iterate at once
    share the events: each event goes to one of them. A function that the reply calls cannot read it: RuntimeError.
    """

    def __init__(
        self,
        client: Client,
        request: Mapping[str, Any],
        functions: Mapping[str, Tool] | None = None,
        max_rounds: int = MAX_ROUNDS,
    ) -> None:
        self.request = request
        self.answer = Answer()
        self.rounds: list[Answer] = []
        self._client = client
        self._functions = functions or {}
        self._max_rounds = max_rounds
        self._is_sent = False
        self._num_closes: int | None = None  # the client's, when the first event was awaited
        self._is_cancelled = False
        self._background: Background | None = None
        self._iterating = OneReader()
        self._background_reader = OneReader()
        self._stop_waiting: asyncio.Future[None] | None = None
        """While functions run: ends the wait for them."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Received:
        if self in _waiting.get():
            raise RuntimeError("a function cannot read the reply that calls it: it waits for the function's result")
        # Otherwise two tasks could both send the request, or both run the functions.
        while (event := await self._iterating.read(self._iterate)) is None:
            pass
        return event

    async def _iterate(self) -> Received:
        while True:
            if self.answer.is_finished:
                if self.answer.error is not None:
                    raise self.answer.error
                if not await self._begin_round():
                    raise StopAsyncIteration
            event = await self._next_event()
            # What comes after a cancel is only added to the answer.
            if event is not None and not self._is_cancelled:
                return event

    async def texts(self) -> AsyncIterator[str]:
        """Yield the text as it arrives. Raise the response's error if it fails."""
        async for event in self:
            if event["type"] == "response.output_text.delta":
                yield event["delta"]

    async def sentences(self) -> AsyncIterator[str]:
        """Yield the sentences of the text, each as soon as it is whole. Raise the response's error if it fails."""
        sentences = Sentences()
        async for event in self:
            if event["type"] == "response.output_text.delta":
                for sentence in sentences.add(event["delta"]):
                    yield sentence
            elif event["type"] == "response.output_text.done":
                for sentence in sentences.end():
                    yield sentence

    async def finish(self) -> Answer:
        """Read the remaining events and return the answer. Raise the response's error if it failed."""
        async for _ in self:
            pass
        return self.answer

    async def cancel(self) -> Answer:
        """Cancel the response at the daemon, and return `answer`. An answer that has finished is not changed.

        Another task may be reading: its iteration ends, and waits for no function, which goes on by itself. If the
        daemon does not confirm this within CANCEL_TIMEOUT_S, or if the connection is lost, the connection is closed and
        the status is "cancelled".
        """
        self._is_cancelled = True
        if self._stop_waiting is not None and not self._stop_waiting.done():
            self._stop_waiting.set_result(None)
        if self.answer.is_finished:
            return self.answer
        if not self._is_sent:
            self.answer.status = "cancelled"
            return self.answer
        try:
            async with asyncio.timeout(CANCEL_TIMEOUT_S):
                # Without an id, a cancel is for what runs on the connection: that may still be a prefill.
                while self.answer.response_id is None and (self._background or self._client.has_prefills):
                    await self._next_event()
                if self._background is not None:
                    await self._background.cancel()
                else:
                    named = {"response_id": self.answer.response_id} if self.answer.response_id else {}
                    await self._client.send({"type": "response.cancel", **named})
                while not self.answer.is_finished:
                    await self._next_event()
        except (TimeoutError, EdgeAgentError):
            # When the connection closes, the daemon cancels all that still runs on it.
            await self._client.disconnect()
            self.answer.status, self.answer.error = "cancelled", None
        return self.answer

    async def _begin_round(self) -> bool:
        """Run the functions that the finished answer calls, and prepare the request with their output.

        Return False if there is none to run.
        """
        calls = self.answer.tool_calls
        is_ours = bool(calls) and all(call.name in self._functions for call in calls)
        if self._is_cancelled or self.answer.status != "completed" or not is_ours:
            return False
        if len(self.rounds) + 1 >= self._max_rounds:
            return False
        token = _waiting.set((*_waiting.get(), self))
        try:
            running = asyncio.gather(*(self._functions[call.name].run(call.arguments) for call in calls))
        finally:
            _waiting.reset(token)
        outputs = await self._unless_cancelled(running)
        if outputs is None:
            return False
        self.rounds.append(self.answer)
        self.request = {
            # A call that was asked for is made only once.
            **{name: value for name, value in self.request.items() if name != "tool_choice"},
            "input": [function_output(call.id, output) for call, output in zip(calls, outputs, strict=True)],
            "previous_response_id": self.answer.response_id,
        }
        if len(self.rounds) + 1 == self._max_rounds:
            self.request["tool_choice"] = "none"
        self.answer, self._is_sent, self._background = Answer(), False, None
        return True

    async def _unless_cancelled(self, running: asyncio.Future[list[FunctionOutput]]) -> list[FunctionOutput] | None:
        """Return what the functions return; None if the reply is cancelled before."""
        self._stop_waiting = asyncio.get_running_loop().create_future()
        try:
            await asyncio.wait((running, self._stop_waiting), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            running.cancel()
            raise
        finally:
            self._stop_waiting = None
        return None if self._is_cancelled else running.result()

    async def _next_event(self) -> Received | None:
        """Add the next event to the answer, and return it; None if another task has done that."""
        is_background = bool(self.request.get("background"))
        event = await (self._next_in_background() if is_background else self._next_on_socket())
        if event is not None:
            self.answer.add(event)
        return event

    async def _next_in_background(self) -> Received | None:
        if self._background is None:
            from edgeagent.client.background import Background

            self._background = Background(self._client.locate, self.request)
            self._is_sent = True
        try:
            return await self._background_reader.read(self._background.next)
        except EdgeAgentError as lost:
            self.answer.status, self.answer.error = "failed", lost
            raise

    async def _next_on_socket(self) -> Received | None:
        if self._num_closes is None:
            self._num_closes = self._client.num_closes
        for delay in (*RETRY_DELAYS_S, None):
            try:
                if not self._is_sent:
                    self._client.check_still_open(self._num_closes)
                    await self._client.begin(self)
                    if self._is_cancelled:
                        return None
                    self._is_sent = True
                    await self._client.send(self.request)
                return await self._client.receive()
            except EdgeAgentError as lost:
                # Give up if no retries are left, if the error would repeat, or if part of the answer was delivered.
                is_transient = isinstance(lost, BackendUnavailable) and lost.retry_after_s is not None
                if delay is None or not is_transient or self._is_cancelled or self.answer.response_id is not None:
                    self.answer.status, self.answer.error = "failed", lost
                    raise
            self._is_sent = False
            assert delay is not None
            await asyncio.sleep(delay)
            if self._is_cancelled:
                return None
        raise AssertionError("the last attempt returns or raises")
