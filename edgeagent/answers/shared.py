"""One answer for several clients that asked the same at the same time: who gets what, without tasks and clocks.

The first step that a follower gets has all that came before. One that leaves, reads slowly or fails changes nothing
for the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgeagent.service.client_sink import merge_steps
from edgeagent.types import (
    AnswerOrigin,
    Finished,
    FinishReason,
    PromptProgress,
    Queued,
    Sink,
    Started,
    Step,
    Timings,
    Usage,
    replace,
)

_MAX_STEPS = 64  # more are joined, so that the record of a long answer stays short
BEFORE_CONTENT = (Started, Queued, PromptProgress)
OnEnd = Callable[[Exception | None], None]


@dataclass(slots=True)
class Follower:
    """A request that gets a shared answer. `on_end` is called at the end, with the error that ends it or None.

    `joined_s`: how long the answer had been running when this request joined; None for the one that began it.
    """

    sink: Sink
    on_end: OnEnd
    joined_s: float | None = None
    has_content: bool = False


class SharedAnswer(Sink):
    """The sink of one generation, which passes each step on to all followers.

    A follower gets its terminal delta or its error exactly once, and nothing after it. `clock`: time.monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began_s = clock()
        self._followers: dict[str, Follower] = {}
        self._joined: list[Step] = []
        self._recent: list[Step] = []
        self._waiting: Step | None = None  # that the request waits; told to those who join before it starts
        self._has_started = False
        self._num_tokens = 0
        self.has_content = False
        self.finished: Finished | None = None
        self.is_open = True
        """Whether others may join. Once it is False, it stays so."""

    @property
    def num_followers(self) -> int:
        return len(self._followers)

    @property
    def steps(self) -> list[Step]:
        """All steps so far, the older ones joined. After the end, the last one ends with a Finished."""
        return [*self._joined, *self._recent]

    @property
    def usage(self) -> Usage:
        """The counts so far."""
        started = next((delta for step in self.steps[:1] for delta in step.deltas if type(delta) is Started), None)
        if started is None:
            return Usage()
        return Usage(started.num_prompt_tokens, started.num_cached_tokens, self._num_tokens)

    @property
    def sinks(self) -> list[Sink]:
        """The sinks of all followers."""
        return [follower.sink for follower in self._followers.values()]

    def join(self, request_id: str, sink: Sink, on_end: OnEnd) -> None:
        """Add a follower, which gets all steps so far as one. The answer must be open."""
        assert self.is_open, "it has ended, or is about to"
        steps = self.steps
        joined_s = self._clock() - self._began_s if self._followers or steps else None
        follower = self._followers[request_id] = Follower(sink, on_end, joined_s)
        if steps:
            follower.has_content = self.has_content
            self._give(request_id, follower, replace(merge_steps(steps), at_s=self._clock()))
        elif self._waiting is not None:
            self._give(request_id, follower, self._waiting)

    def leave(self, request_id: str) -> None:
        """Remove a follower, which gets nothing more. An unknown id is ignored."""
        self._followers.pop(request_id, None)
        if not self._followers:
            self.is_open = False

    def cancel(self, request_id: str) -> bool:
        """End one follower as cancelled. Return False if it is the only one: then cancel the generation itself.

        An unknown id is ignored.
        """
        if request_id not in self._followers:
            return True
        if len(self._followers) == 1:
            self.is_open = False
            return False
        follower = self._followers[request_id]
        ended = Finished(FinishReason.CANCELLED, self.usage, Timings(reason="cancelled"))
        self._give(request_id, follower, Step((ended,), at_s=self._clock()))
        if self._followers.pop(request_id, None) is not None:
            follower.on_end(None)
        return True

    def put(self, step: Step) -> None:
        deltas = step.deltas
        if not self._has_started and deltas and type(deltas[0]) is Queued:
            self._waiting = step
        else:
            self._has_started = True
            self._record(step)
        if deltas and type(end := deltas[-1]) is Finished:
            self.finished, self.is_open = end, False
        for request_id, follower in list(self._followers.items()):
            if self._followers.get(request_id) is follower:
                follower.has_content = self.has_content
                self._give(request_id, follower, step)
        if self.finished is not None:
            self.end(None)

    def end(self, error: Exception | None) -> None:
        """End all followers that are left."""
        self.is_open = False
        followers, self._followers = self._followers, {}
        for follower in followers.values():
            follower.on_end(error)

    def _record(self, step: Step) -> None:
        if len(self._recent) >= _MAX_STEPS:
            self._joined.append(merge_steps(self._recent))
            self._recent = []
        self._recent.append(step)
        self._num_tokens += step.num_delivered
        if not self.has_content:
            self.has_content = any(not isinstance(delta, BEFORE_CONTENT) for delta in step.deltas)

    def _give(self, request_id: str, follower: Follower, step: Step) -> None:
        if follower.joined_s is not None and step.deltas and type(end := step.deltas[-1]) is Finished:
            ended = replace(end, timings=_joined(end.timings, follower.joined_s))
            step = replace(step, deltas=(*step.deltas[:-1], ended))
        try:
            follower.sink.put(step)
        except Exception as error:  # it is this client's own, and the others go on
            self.leave(request_id)
            follower.on_end(error)


def _joined(timings: Timings, joined_s: float | None) -> Timings:
    return timings if joined_s is None else replace(timings, origin=AnswerOrigin("joined", joined_s))
