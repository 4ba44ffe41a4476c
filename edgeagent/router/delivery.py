"""Tracks the part of an answer that the client has received, so that another backend can continue from it."""

from __future__ import annotations

import time
from collections.abc import Callable

from edgeagent import metrics
from edgeagent.router.policy import Route
from edgeagent.types import (
    AnswerSoFar,
    ChoiceScores,
    Delta,
    Finished,
    FinishReason,
    GenerateRequest,
    Handover,
    Interrupted,
    Placement,
    PromptProgress,
    PromptText,
    Queued,
    ReasoningDelta,
    Started,
    Step,
    TextDelta,
    Timings,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
    replace,
)

_CONTENT = (TextDelta, ReasoningDelta, ToolCallStarted, ToolCallDelta, ChoiceScores)
FOR_ROUTER = frozenset({Started, Queued, Interrupted, Finished})


def has_content(step: Step) -> bool:
    """Whether a step has content or the end of an answer, and not only reports about its start or progress."""
    return any(isinstance(delta, (*_CONTENT, PromptText, Finished)) for delta in step.deltas)


class Delivery:
    """One answer and its delivery to the client. The answer may move from one backend to another."""

    def __init__(
        self, request: GenerateRequest, clock: Callable[[], float] = time.monotonic, overruled: str = ""
    ) -> None:
        """For `overruled`, see Placement."""
        self._overruled = overruled
        self._request = request
        self._clock = clock
        self._began_s = clock()
        self._texts: list[str] = []
        self._reasonings: list[str] = []
        self._has_calls = False
        self._started: Started | None = None
        self._first_token_s: float | None = None
        self._handovers: tuple[Handover, ...] = ()
        self._expected_s: float | None = None  # until the first token, as it was predicted at first
        self._placement: Placement | None = None  # where the answer runs, as the backend reported it
        self._is_estimated = False
        self.route: Route | None = None
        self.num_tokens = 0

    @property
    def has_content(self) -> bool:
        """Whether the client has received text, reasoning or a part of a tool call."""
        return bool(self._texts or self._reasonings) or self._has_calls

    @property
    def so_far(self) -> AnswerSoFar | None:
        """The part of the answer from which the next backend continues; None if it begins a new answer.

        It consists of the part that came with the request, and of what the client has received since.
        """
        given = self._request.so_far
        if not self.has_content:
            return given
        before = given or AnswerSoFar()
        text, reasoning = before.text + "".join(self._texts), before.reasoning + "".join(self._reasonings)
        return AnswerSoFar(text, reasoning, before.num_tokens + self.num_tokens, is_estimated=self._is_estimated)

    @property
    def why_not_movable(self) -> str:
        """Why no other backend can continue the answer once it has content; empty if one can."""
        if self._has_calls:
            return "it has begun a tool call"
        if self._request.logprobs is not None or self._request.echo:
            return "it carries log probabilities, or its prompt"
        return ""

    @property
    def has_reached_limit(self) -> bool:
        """Whether the answer has its maximum number of tokens, so that only its terminal event is missing."""
        limit = self._request.max_tokens
        return self.has_content and limit is not None and self.num_tokens >= limit

    def begin(self, route: Route) -> None:
        """Set the route that the answer takes from now on. If the answer has no content yet, set `num_tokens` to 0."""
        if self.route is None:
            self._expected_s = route.expected_s
        self.route, self._placement = route, None
        if not self.has_content:
            self.num_tokens = 0

    def move(self, target: str, reason: str) -> None:
        """Record that the backend `target` continues the answer, and why."""
        assert self.route is not None
        self._handovers += (Handover(self.route.backend, target, self.num_tokens, reason),)
        metrics.handovers_total.labels(self.route.backend, target, reason).inc()

    def take(self, step: Step) -> Step | None:
        """Record a step of the current backend. Return the step for the client, or None if nothing is to be sent."""
        if FOR_ROUTER.isdisjoint(map(type, step.deltas)):
            self.note(step)
            return step
        deltas = tuple(for_client for delta in step.deltas if (for_client := self._for_client(delta)) is not None)
        self.note(step)
        return replace(step, deltas=deltas) if deltas or step.tokens else None

    def cancelled(self) -> Step:
        """Return the terminal step of an answer that was cancelled while it moved between two backends."""
        return self._ended(FinishReason.CANCELLED)

    def cut_at_limit(self) -> Step:
        """Return the terminal step of an answer that has its maximum number of tokens."""
        return self._ended(FinishReason.LENGTH)

    def _ended(self, reason: FinishReason) -> Step:
        started = self._started or Started(0, 0)
        usage = Usage(started.num_prompt_tokens, started.num_cached_tokens, self.num_tokens)
        finished = self._for_client(Finished(reason, usage, Timings()))
        assert finished is not None
        return Step((finished,), at_s=self._clock())

    def note(self, step: Step) -> None:
        """Record the content of a step that the client gets."""
        self.num_tokens += step.num_delivered
        self._is_estimated = self._is_estimated or step.is_estimated
        for delta in step.deltas:
            match delta:
                case TextDelta(text):
                    self._texts.append(text)
                case ReasoningDelta(text):
                    self._reasonings.append(text)
                case ToolCallStarted() | ToolCallDelta():
                    self._has_calls = True
                case ChoiceScores():
                    pass
                case PromptProgress() | PromptText() | Started() | Queued() | Interrupted() | Finished():
                    continue
            if self._first_token_s is None:
                self._first_token_s = step.at_s or self._clock()

    def _for_client(self, delta: Delta) -> Delta | None:
        match delta:
            case Started():
                self._placement = delta.placement
                if self.has_content:
                    return None
                warnings = (*self._request.warnings, *delta.warnings)
                self._started = replace(delta, placement=self.placement, tier=self._request.tier, warnings=warnings)
                return self._started
            case Interrupted():
                return None
            case Finished():
                return self._finished(delta)
            case _:
                return delta

    def _finished(self, finished: Finished) -> Finished:
        """Return the delta with the answer's route, its handovers, and its times over all backends.

        If the answer has moved, the numbers of prompt tokens and cached tokens are those of the backend that began it.
        The times of the stages before the first token are 0 if another backend finishes the answer, since it does not
        know them.
        """
        assert self.route is not None
        expected_s = self._expected_s
        timings = replace(
            finished.timings,
            route=self.route.backend,
            reason=self.placement.reason,
            placement=self.placement,
            expected_ms=None if expected_s is None else 1000 * expected_s,
            target=self._request.target,
        )
        usage = finished.usage
        if self._handovers:
            handovers = tuple(sorted((*self._handovers, *timings.handovers), key=lambda move: move.num_tokens))
            timings = replace(timings, handovers=handovers)
            if timings.is_resumed and self._first_token_s is not None:
                before = dict.fromkeys(("queue_ms", "load_ms", "render_ms", "cache_ms", "prefill_ms"), 0.0)
                decode_ms = (self._clock() - self._first_token_s) * 1000
                timings = replace(timings, **before, decode_ms=decode_ms)
            if self._first_token_s is not None:
                timings = replace(timings, first_token_ms=(self._first_token_s - self._began_s) * 1000)
            if self._started is not None:
                # The backend that finishes the answer may have counted the delivered part as prompt.
                num_prompt = self._started.num_prompt_tokens or usage.num_prompt_tokens
                num_cached = min(self._started.num_cached_tokens, num_prompt)
                usage = replace(usage, num_prompt_tokens=num_prompt, num_cached_tokens=num_cached)
        return replace(finished, usage=usage, timings=timings)

    @property
    def placement(self) -> Placement:
        """Where the answer runs: as the backend reported it, or else as the router chose it."""
        assert self.route is not None
        if self._placement is None:
            return Placement(self.route.backend, self._request.model, self.route.reason, overruled=self._overruled)
        reason = self._placement.reason or self.route.reason
        return replace(self._placement, reason=reason, overruled=self._overruled)
