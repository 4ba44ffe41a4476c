"""Shares remote streams: requests that must get the same answer read one running stream, which is paid for once.

A later request reads the stream from its beginning and opens no connection. Each request reads at its own pace and can
be cancelled alone. The stream is stopped at the remote when its last request has ended. Nothing is kept of a stream
that has ended.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, Callable, Hashable
from contextlib import aclosing

from edgeagent.backends.base import Backend
from edgeagent.router.hedge import has_content
from edgeagent.types import (
    AnswerSoFar,
    CachePolicy,
    Delta,
    Finished,
    FinishReason,
    GenerateRequest,
    Permit,
    Placement,
    Started,
    Step,
    Tier,
    Timings,
    Usage,
    replace,
)

Steps = AsyncGenerator[Step, None]

COALESCED = "coalesced"
"""The placement reason of a request for which nothing was sent, because it read another request's stream."""
# A stream with more steps takes no more readers, so that its first steps need not be kept.
_MAX_KEPT_STEPS = 8192


class SharedStreams:
    """The running remote streams that several requests may read."""

    def __init__(self, clock: Callable[[], float], max_kept_steps: int = _MAX_KEPT_STEPS) -> None:
        self._clock = clock
        self._max_kept_steps = max_kept_steps
        self._open: dict[Hashable, _Stream] = {}
        self._read: dict[tuple[str, str], _Stream] = {}

    def steps(
        self, backend: Backend, request: GenerateRequest, permit: Permit | None, so_far: AnswerSoFar | None
    ) -> Steps:
        """Return the steps of a request, as Backend.generate does; read them from a running stream if one matches."""
        key = None if permit is None else _key(backend, request, so_far)
        if key is None:
            return backend.generate(request, permit, so_far)
        return self._follow(key, backend, request, permit, so_far)

    def can_follow(self, backend: Backend, request: GenerateRequest, so_far: AnswerSoFar | None) -> bool:
        """Whether a request would read a running stream of a backend, and so would need no capacity there."""
        if not any(stream.backend == backend.name for stream in self._open.values()):
            return False
        key = _key(backend, request, so_far)
        return key is not None and self._running(key) is not None

    def num_starting(self, backend: str) -> int:
        """Return how many streams are about to start on a backend, which does not count them as live yet."""
        return sum(stream.backend == backend and not stream.has_begun for stream in self._open.values())

    def cancel(self, backend: Backend, request_id: str) -> None:
        """Cancel a request. If another request reads the same stream, the stream continues."""
        stream = self._read.get((backend.name, request_id))
        if stream is None:
            backend.cancel(request_id)
        elif not stream.leave(request_id):
            self._close(stream)
            backend.cancel(stream.request_id)

    async def _follow(
        self,
        key: Hashable,
        backend: Backend,
        request: GenerateRequest,
        permit: Permit | None,
        so_far: AnswerSoFar | None,
    ) -> Steps:
        stream = self._running(key)
        if stream is None:
            steps = backend.generate(request, permit, so_far)
            stream = self._open[key] = _Stream(key, backend.name, request.id, steps, self._max_kept_steps)
        reader = _Reader(backend.name, request, so_far, self._clock, is_first=stream.request_id == request.id)
        self._read[backend.name, request.id] = stream
        try:
            async with aclosing(stream.read(reader)) as own_steps:
                async for step in own_steps:
                    if stream.is_too_long:
                        self._close(stream)
                    yield step
        finally:
            del self._read[backend.name, request.id]
            if not stream.readers:
                self._close(stream)
                await stream.stop()

    def _running(self, key: Hashable) -> _Stream | None:
        stream = self._open.get(key)
        return None if stream is None or stream.is_over else stream

    def _close(self, stream: _Stream) -> None:
        """Allow no further request to read a stream."""
        stream.first = None
        if self._open.get(stream.key) is stream:
            del self._open[stream.key]


class _Link:
    """A step and a link to the next one. Once no request may join, steps that every reader has read are freed."""

    __slots__ = ("next", "step")

    def __init__(self, step: Step) -> None:
        self.step = step
        self.next: _Link | None = None


class _Reader:
    """One request that reads a stream. A request that joined later gets its own times, not the first request's."""

    def __init__(
        self,
        backend: str,
        request: GenerateRequest,
        so_far: AnswerSoFar | None,
        clock: Callable[[], float],
        *,
        is_first: bool,
    ) -> None:
        self.request_id = request.id
        self.left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._place = Placement(backend, request.model, COALESCED)
        self._clock = clock
        self._is_first = is_first
        self._began_s = clock()
        self._first_s: float | None = None
        self._usage = Usage(num_output_tokens=0 if so_far is None else so_far.num_tokens)

    def take(self, step: Step) -> Step:
        """Return a step of the shared stream as this request gets it.

        A request that joined a running stream gets its own times and placement reason.
        """
        usage = self._usage
        self._usage = replace(usage, num_output_tokens=usage.num_output_tokens + len(step.tokens))
        for delta in step.deltas:
            if isinstance(delta, Started):
                prompt, cached = delta.num_prompt_tokens, delta.num_cached_tokens
                self._usage = replace(self._usage, num_prompt_tokens=prompt, num_cached_tokens=cached)
        if self._first_s is None and has_content(step):
            self._first_s = self._clock()
        if self._is_first:
            return step
        return replace(step, deltas=tuple(map(self._for_client, step.deltas)), at_s=self._clock())

    def cancelled(self) -> Step:
        """Return the terminal step of a request that was cancelled while others still read the stream."""
        finished = Finished(FinishReason.CANCELLED, self._usage, Timings())
        return Step((self._for_client(finished),), at_s=self._clock())

    def _for_client(self, delta: Delta) -> Delta:
        match delta:
            case Started(placement=placement):
                return replace(delta, placement=replace(placement or self._place, reason=COALESCED))
            case Finished(timings=timings):
                now_s = self._clock()
                first_s = now_s if self._first_s is None else self._first_s
                times = {"first_token_ms": 1000 * (first_s - self._began_s), "decode_ms": 1000 * (now_s - first_s)}
                return replace(delta, timings=replace(timings, **times))
            case _:
                return delta


class _Stream:
    """One request's steps at a remote, for several readers. A reader that has read all steps waits for the next.

    The next step is read from the remote only while a reader waits, so the fastest reader sets the pace.
    """

    def __init__(self, key: Hashable, backend: str, request_id: str, steps: Steps, max_kept_steps: int) -> None:
        self.key = key
        self.backend = backend
        self.has_begun = False
        self.request_id = request_id
        self._last = _Link(Step(()))  # before the first step
        self.first: _Link | None = self._last  # None: no further request may read
        self.readers: dict[str, _Reader] = {}
        self._steps = steps
        self._max_kept_steps = max_kept_steps
        self._num_steps = 0
        self._pulling: asyncio.Task[None] | None = None
        self._error: Exception | None = None
        self.is_over = False

    @property
    def is_too_long(self) -> bool:
        """Whether the stream is too long to keep its first steps for further readers."""
        return self._num_steps > self._max_kept_steps

    async def read(self, reader: _Reader) -> Steps:
        """Add a reader, and yield it the stream's steps from the first one. After `leave`, yield its terminal step."""
        link = self.first
        assert link is not None, "a stream that takes no more readers is in no list"
        self.readers[reader.request_id] = reader
        try:
            while not reader.left.done():
                if link.next is not None:
                    link = link.next
                    yield reader.take(link.step)
                elif self._error is not None:
                    # Each reader gets a copy, since the code that catches the error changes it.
                    raise copy.copy(self._error)
                elif self.is_over:
                    return
                else:
                    await self._wait(reader)
            yield reader.cancelled()
        finally:
            del self.readers[reader.request_id]

    def leave(self, request_id: str) -> bool:
        """Let a cancelled request stop reading, and return True.

        If no other request reads the stream, change nothing and return False. The caller then ends the whole stream.
        """
        others = [reader for reader in self.readers.values() if reader.request_id != request_id]
        if all(reader.left.done() for reader in others):
            return False
        if not (left := self.readers[request_id].left).done():
            left.set_result(None)
        return True

    async def stop(self) -> None:
        """Stop the stream at the remote."""
        if self._pulling is not None:
            self._pulling.cancel()
            await asyncio.wait([self._pulling])
        await self._steps.aclose()

    async def _wait(self, reader: _Reader) -> None:
        if self._pulling is None or self._pulling.done():
            self._pulling = asyncio.get_running_loop().create_task(self._pull())
        await asyncio.wait([self._pulling, reader.left], return_when=asyncio.FIRST_COMPLETED)

    async def _pull(self) -> None:
        self.has_begun = True
        try:
            step = await anext(self._steps)
        except StopAsyncIteration:
            self.is_over = True
        except Exception as error:
            self.is_over, self._error = True, error
        else:
            self._last.next = link = _Link(step)
            self._last = link
            self._num_steps += 1


def _key(backend: Backend, request: GenerateRequest, so_far: AnswerSoFar | None) -> Hashable | None:
    """Return a key that is equal for requests with the same answer from a backend; None if a request shares nothing.

    A request shares nothing if its answer varies (sampled without a seed), if its cache policy restricts reading,
    writing or storing, or if it has its own timeout. Fields that do not change the answer, such as the tier, are left
    out of the key, but the client and its cache partition are part of the key. The key contains the backend itself,
    since a changed remote gets a new backend of the same name.
    """
    sampling, cache = request.sampling, request.cache
    is_the_same_each_time = sampling.temperature == 0 or sampling.seed is not None
    may_be_shared = cache.read and cache.write and cache.persist and request.timeout_s is None
    if not (is_the_same_each_time and may_be_shared):
        return None
    alike = replace(
        request,
        id="",
        tier=Tier.INTERACTIVE,
        cache=CachePolicy(partition=cache.partition),
        reports_progress=False,
        route=None,
    )
    return backend, alike, so_far
