"""A scripted backend for tests: it yields its script's steps, waits at gates instead of sleeping, and records requests.

It also has the router's `default`, so that it can stand in for the whole service behind the wire.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass, field

from edgeagent.backends.base import Estimate
from edgeagent.errors import EdgeAgentError, ModelNotFound
from edgeagent.router.remote_access import RemoteAccess
from edgeagent.types import (
    AnswerSoFar,
    ChatPrompt,
    Delta,
    Detokenize,
    Embed,
    Embedding,
    Finished,
    FinishReason,
    GenerateRequest,
    ModelStatus,
    Permit,
    PurgeCache,
    QueryAnswer,
    RemoteStatus,
    RenderPrompt,
    Rerank,
    Score,
    Sink,
    Started,
    Step,
    TextDelta,
    TextPrompt,
    TextQuery,
    Timings,
    Tokenize,
    TokenPrompt,
    Usage,
    WorkerState,
)
from tests.backends.reading import pump


@dataclass(slots=True)
class Gate:
    """A point at which a script pauses: the backend sets `reached` on arrival and continues once `opened` is set."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)


Act = Delta | tuple[Delta, ...] | Step | Gate | Exception
Script = Callable[[GenerateRequest], Iterable[Act]]

TIMINGS = Timings(
    queue_ms=1.0,
    load_ms=0.0,
    render_ms=2.0,
    cache_ms=0.5,
    prefill_ms=8.0,
    first_token_ms=11.5,
    decode_ms=20.0,
    reason="fake",
)


def finished(
    reason: FinishReason = FinishReason.STOP, *, prompt: int = 8, cached: int = 4, output: int = 2
) -> Finished:
    """Return a Finished delta with these counts."""
    return Finished(
        reason, Usage(num_prompt_tokens=prompt, num_cached_tokens=cached, num_output_tokens=output), TIMINGS
    )


def echo(request: GenerateRequest) -> Iterable[Act]:
    """Answer with the last message's words, one per step; each word is one token."""
    match request.prompt:
        case ChatPrompt(messages=messages):
            text = messages[-1].content if messages else ""
            num_prompt = sum(len(message.content.split()) for message in messages)
        case TextPrompt(text=text):
            num_prompt = len(text.split())
        case prompt:
            text, num_prompt = " ".join(map(str, prompt.tokens)), len(prompt.tokens)
    words = [] if request.prefill_only else text.split(" ")
    reason = FinishReason.STOP
    if request.max_tokens is not None and len(words) > request.max_tokens:
        words, reason = words[: request.max_tokens], FinishReason.LENGTH
    yield Started(num_prompt, 0)
    for index, word in enumerate(words):
        yield TextDelta(word if index == 0 else " " + word)
    yield finished(reason, prompt=num_prompt, cached=0, output=len(words))


class FakeBackend:
    """Runs `script(request)` for each request. It raises an Exception in a script; a script without an end hangs.

    `requests` and `queries` hold what was asked, `cancelled` the ids of live requests that `cancel` was called for, and
    `closed` the ids of requests that were cancelled by their task before their end.
    """

    name = "fake"
    remote_access: RemoteAccess | None = None

    def __init__(self, script: Script = echo, models: tuple[str, ...] = ("fake",)) -> None:
        self.script = script
        self.requests: list[GenerateRequest] = []
        self.queries: list[TextQuery] = []
        self.cancelled: list[str] = []
        self.closed: list[str] = []
        self.is_started = False
        self._names = models
        self.reloaded: list[str] = []
        self.unloaded: list[str] = []
        self.remote_statuses: list[RemoteStatus] = []
        self._live: dict[str, asyncio.Event] = {}
        self._changed = asyncio.Event()

    def remotes(self) -> list[RemoteStatus]:
        """Return `remote_statuses`."""
        return self.remote_statuses

    def estimate(self, request: GenerateRequest) -> Estimate:
        """Return unlimited room for any request."""
        del request
        return Estimate(self.name, num_live=self.num_live)

    async def generate(
        self, request: GenerateRequest, sink: Sink, permit: Permit | None = None, so_far: AnswerSoFar | None = None
    ) -> None:
        """Put the steps of `play` into the sink."""
        await pump(self.play(request, permit, so_far), sink)

    async def play(
        self, request: GenerateRequest, permit: Permit | None = None, so_far: AnswerSoFar | None = None
    ) -> AsyncGenerator[Step, None]:
        """Play the script for a request; a cancel ends it at the next act, or at the gate where it waits."""
        self.requests.append(request)
        self._notify()
        self.find(request.model)
        cancel = self._live[request.id] = asyncio.Event()
        is_over = False
        try:
            for act in self.script(request):
                if isinstance(act, Gate):
                    await _pass(act, cancel)
                # A real backend waits between steps, so other tasks run.
                await asyncio.sleep(0)
                if cancel.is_set():
                    is_over = True
                    yield Step((finished(FinishReason.CANCELLED),), at_s=time.monotonic())
                    return
                match act:
                    case Gate():
                        continue
                    case Exception():
                        is_over = True
                        raise act
                    case Step():
                        yield act
                    case deltas:
                        step = deltas if isinstance(deltas, tuple) else (deltas,)
                        is_over = isinstance(step[-1], Finished)
                        yield Step(step, at_s=time.monotonic())
        finally:
            del self._live[request.id]
            if not is_over:
                self.closed.append(request.id)
            self._notify()

    async def ask(self, name: str, query: TextQuery) -> QueryAnswer:
        """Answer like a model whose tokens are the code points of the text."""
        self.queries.append(query)
        self._notify()
        self.find(name)
        await asyncio.sleep(0)
        has_pieces = True
        match query:
            case Tokenize(text, add_bos, with_pieces=has_pieces):
                text = f"^{text}" if add_bos else text
            case Detokenize(tokens):
                text = "".join(map(chr, tokens))
            case RenderPrompt(prompt):
                text = "".join(f"<{message.role}>{message.content}" for message in prompt.messages)
            case PurgeCache():
                text = "0"
            case Embed():
                return QueryAnswer(embeddings=tuple(_embedding(prompt, query.dimensions) for prompt in query.inputs))
            case Rerank(asked, documents):
                return QueryAnswer(scores=tuple(Score(0.5, len(asked) + len(document)) for document in documents))
        pieces = tuple(char.encode() for char in text) if has_pieces else ()
        return QueryAnswer(text, tuple(map(ord, text)), pieces)

    def cancel(self, request_id: str) -> None:
        """Cancel a live request; an unknown or finished id is ignored."""
        if request_id in self._live:
            self.cancelled.append(request_id)
            self._live[request_id].set()
            self._notify()

    @property
    def models(self) -> FakeBackend:
        """The fake itself, which has the verbs of `Models` too."""
        return self

    def statuses(self) -> list[ModelStatus]:
        """Return the given models, all ready."""
        return [ModelStatus(name, WorkerState.READY, progress=1.0) for name in self._names]

    def reload(self, name: str) -> None:
        """Record the call; raise ModelNotFound."""
        self.find(name)
        self.reloaded.append(name)

    def default(self) -> str:
        """Return the first model."""
        return self._names[0]

    def find(self, name: str) -> str:
        """Return the name of a model; "" and "default" mean the first. Raise ModelNotFound."""
        if name in ("", "default"):
            return self.default()
        if name not in self._names:
            raise ModelNotFound(f"model '{name}' not found; there is {', '.join(self._names)}", param="model")
        return name

    async def locate(self, name: str) -> str:
        """Return the same as `find`."""
        return self.find(name)

    async def unload(self, name: str) -> int:
        """Record the call; raise ModelNotFound."""
        self.unloaded.append(self.find(name))
        return 0

    async def start(self) -> None:
        """Record that it was started."""
        self.is_started = True

    async def stop(self) -> None:
        """Cancel the live requests."""
        self.is_started = False
        for request_id in list(self._live):
            self.cancel(request_id)

    @property
    def num_live(self) -> int:
        """The number of requests that have begun and not ended."""
        return len(self._live)

    async def until(self, condition: Callable[[FakeBackend], bool]) -> None:
        """Return once `condition` holds; it is checked when a query or a request begins, ends or is cancelled."""
        while not condition(self):
            await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _embedding(prompt: TextPrompt | TokenPrompt, dimensions: int | None) -> Embedding:
    """Return a vector whose first number is the number of tokens; in a text, each character is one token."""
    num_tokens = len(prompt.text) if isinstance(prompt, TextPrompt) else len(prompt.tokens)
    return Embedding(struct.pack("<4f", num_tokens, 0.25, -1.5, 0.0)[: 4 * (dimensions or 4)], num_tokens)


async def _pass(gate: Gate, cancel: asyncio.Event) -> None:
    gate.reached.set()
    waits = [asyncio.ensure_future(gate.opened.wait()), asyncio.ensure_future(cancel.wait())]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def failing(error: EdgeAgentError, *before: Act) -> Script:
    """Return a script that plays `before` and then raises."""
    return lambda _request: (*before, error)
