"""A streamed answer: the steps of its generations become the bytes of a wire protocol, and go to the client's socket.

The whole way of a step from the worker's frame into the socket is one chain of calls. Only a slow client's steps wait.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any

from starlette.types import Receive

from edgeagent.api.wire.errors import to_client_error
from edgeagent.api.wire.generation import is_wait, put_headers, started_in, wait_body
from edgeagent.api.wire.sse import PING, PING_INTERVAL_S, Stream, unless_disconnected
from edgeagent.errors import EdgeAgentError
from edgeagent.service.client_sink import ClientSink
from edgeagent.types import PromptText, Queued, Sink, Started, Step, TextDelta, replace

# After this time a waiting request gets its headers, and a later error is part of the stream. Refusals (a full queue,
# an unknown model, a prompt that is too long) take milliseconds. A request that takes longer is accepted and waits for
# a place or for a model to load. Clients wait 5 s or more for headers.
PATIENCE_S = 2.0
# After this time a request that said that it waits counts as accepted: as long as on a WebSocket.
REFUSAL_S = 0.25

# The log probabilities of a long prompt, with the alternatives, take tens of milliseconds to write.
MAX_INLINE_LOGPROBS = 256

Generate = Callable[[Sequence[Sink]], Coroutine[Any, Any, None]]
"""Runs the generations of an answer to their end; each gets one of the sinks."""


class AnswerWriter(ABC):
    """Writes an answer in a wire protocol. `media_type`: that of the stream. `id` names the request in the log.

    `has_logprobs`: the steps have log probabilities. Errors of the worker name fields of the Responses API, such as
    `input`; `params` maps these names to the fields of the route.
    """

    media_type = "text/event-stream"
    ping = PING
    ping_interval_s: float | None = PING_INTERVAL_S
    has_logprobs = False
    params: Mapping[str, str] = {}
    id: str

    def opening(self) -> bytes:
        """Return what is sent before the first step, or before the first one behind a Queued."""
        return b""

    def queued(self, queued: Queued) -> bytes:
        """Return what tells the client that its request waits: a comment, which other clients ignore."""
        words = " ".join(f"{name}={value}" for name, value in wait_body(queued).items())
        return f": queued {words}\n\n".encode()

    @abstractmethod
    def write(self, index: int, step: Step) -> bytes:
        """Return the bytes of a step of the generation `index`, which are sent at once."""

    @abstractmethod
    async def end(self) -> bytes:
        """Return what ends the stream. Raise an EdgeAgentError if the answer is not whole."""

    @abstractmethod
    async def fail(self, error: EdgeAgentError) -> bytes:
        """Return what ends the stream after an error."""

    def close(self) -> None:  # noqa: B027 most have nothing to close
        """End the use of the writer, also if the client has disconnected."""


async def start_stream(receive: Receive, writer: AnswerWriter, generate: Generate, num_sinks: int = 1) -> AnswerStream:
    """Start an answer's generations, wait for the first step, and return the response that streams the answer.

    Raise an error that comes before the first step, at most PATIENCE_S later, and ClientDisconnect.
    """
    stream = AnswerStream(writer, generate, num_sinks)
    await unless_disconnected(receive, stream.wait_for_first_step())
    put_headers(stream, stream.started, stream.queued)
    return stream


class AnswerStream(Stream):
    """Begins the generations of an answer when it is made, and sends the answer when it is called as a response.

    A client that disconnects cancels the generations.
    """

    def __init__(self, writer: AnswerWriter, generate: Generate, num_sinks: int = 1) -> None:
        super().__init__(media_type=writer.media_type)
        self.ping, self.ping_interval_s = writer.ping, writer.ping_interval_s
        self._writer = writer
        self._arrived = asyncio.Event()
        self._sinks = [ClientSink(partial(self._deliver, index), self._arrived) for index in range(num_sinks)]
        self._generating = asyncio.create_task(generate(self._sinks))
        self._failure: Exception | None = None

    async def wait_for_first_step(self) -> None:
        """Wait for the first step, at most PATIENCE_S. Raise an error that comes before it.

        A Queued is not the answer's first step. Behind it, wait at most REFUSAL_S.
        """
        try:
            await self._wait_for_step(PATIENCE_S)
            while self._arrived.is_set() and self._only_waits and not self._generating.done():
                self._arrived.clear()
                await self._wait_for_step(REFUSAL_S)
            if self._generating.done() and self._only_waits:
                self._generating.result()
        except BaseException:
            await self._stop()
            raise

    async def _wait_for_step(self, timeout_s: float) -> None:
        arrived = asyncio.ensure_future(self._arrived.wait())
        try:
            await asyncio.wait({self._generating, arrived}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            arrived.cancel()

    @property
    def _only_waits(self) -> bool:
        """Whether no step came but those that say that the request waits."""
        return all(sink.last is None or is_wait(sink.last.deltas) for sink in self._sinks)

    @property
    def started(self) -> Started | None:
        """Where the answer is generated; None if it has not started."""
        first = next((sink.first for sink in self._sinks if sink.first is not None), None)
        return None if first is None else started_in(first.deltas)

    @property
    def queued(self) -> Queued | None:
        """The Queued of the oldest step that is held; None if that step has none."""
        held = (delta for sink in self._sinks if sink.first is not None for delta in sink.first.deltas[:1])
        return next((delta for delta in held if isinstance(delta, Queued)), None)

    async def write_all(self) -> None:
        try:
            if self.queued is None and (opening := self._writer.opening()):
                await self.write(opening)
            for sink in self._sinks:
                sink.open()
            await asyncio.wait({self._generating})
            if last := await self._last():
                await self.write(last)
        finally:
            self._writer.close()
            await self._stop()

    async def _last(self) -> bytes:
        """Return what ends the stream, once all steps are written."""
        for sink in self._sinks:
            await sink.room()
        try:
            if self._failure is not None:
                raise self._failure
            self._generating.result()
            return await self._writer.end()
        except Exception as error:
            return await self._writer.fail(to_client_error(self._writer.id, error))

    async def _deliver(self, index: int, step: Step) -> None:
        if self._failure is not None:
            return
        try:
            if step.deltas and type(step.deltas[0]) is Queued:
                await self.write(self._writer.queued(step.deltas[0]))
                step = replace(step, deltas=step.deltas[1:])
                if not step.deltas:
                    return
            if self._writer.has_logprobs and num_logprobs(step) > MAX_INLINE_LOGPROBS:
                written = await asyncio.to_thread(self._writer.write, index, step)
            else:
                written = self._writer.write(index, step)
            if written:
                await self.write(written)
        except Exception as error:
            self._failure = error
            self._generating.cancel()

    async def _stop(self) -> None:
        self._generating.cancel()
        await asyncio.gather(self._generating, *(sink.close() for sink in self._sinks), return_exceptions=True)
        self._sinks = []  # they refer to this stream, which would keep the conversation until the next full collection


def num_logprobs(step: Step) -> int:
    """Return how many log probabilities a step has, without the alternatives."""
    return sum(len(delta.logprobs) for delta in step.deltas if isinstance(delta, TextDelta | PromptText))
