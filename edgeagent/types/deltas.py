"""What a backend yields for a request, with its counts and times."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum

from msgspec import Struct

from edgeagent.types.requests import Target, Tier
from edgeagent.types.routing import Placement, is_remote


class FinishReason(StrEnum):
    """Why a response ended. An error is an exception, not a finish reason."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CANCELLED = "cancelled"


class TokenLogprob(Struct, frozen=True, omit_defaults=True):
    """The natural-log probability of a token under the unmodified distribution; `top` holds the likeliest alternatives.

    `start` is the offset of the token's text, in characters, in the answer's content or in the prompt. `logprob` is NaN
    if nothing precedes the token.
    """

    token: int
    piece: bytes
    logprob: float
    top: tuple[TokenLogprob, ...] = ()
    start: int = 0


class Usage(Struct, frozen=True):
    """Token counts. The cached tokens are the part of the prompt that was reused instead of computed."""

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_reasoning_tokens: int = 0


class Handover(Struct, frozen=True):
    """The move of a stream from backend `source` to `target`, or to a new worker, after `num_tokens` output tokens."""

    source: str
    target: str
    num_tokens: int
    reason: str


class Verdict(Struct, frozen=True):
    """Whether an answer kept its latency target, that of its tier or its own.

    `late_stage`: the stage that broke the target (see `metrics.meter.late_stage`); "" if it was kept. A time of the
    target is infinite if nothing was to be kept: an answer that its client gets as a whole has no time between tokens.
    """

    tier: Tier
    target: Target
    late_stage: str = ""


class CacheMiss(Struct, frozen=True):
    """Why most of a prompt was computed: it differs from an earlier prompt of its client, and both go on alike.

    - `num_shared`: how many leading tokens both prompts share.
    - `num_lost`: how many tokens behind the difference both have. They were computed again, which took `lost_ms`.
    - `in_instructions`: the difference is in the instructions or tools, not in the messages.
    - `earlier` and `now`: the first words that differ. Only the client that sent both prompts may see them.
    """

    num_shared: int
    num_lost: int
    lost_ms: float
    in_instructions: bool
    earlier: str
    now: str


class AnswerOrigin(Struct, frozen=True):
    """Where an answer comes from, if no model computed it for this request alone.

    - `kind`: "exact": a kept answer to the same request. "similar": one to a similar request. "joined": the answer of
      an equal request that was running.
    - `age_s`: the age of the kept answer, or for how long the equal request had been running.
    - `id`: the kept answer's, by which it can be deleted; "" for "joined".
    - `similarity`: of both questions, 0 to 1; only for "similar".
    """

    kind: str
    age_s: float
    id: str = ""
    similarity: float | None = None


class Timings(Struct, frozen=True):
    """Milliseconds of each stage, counts of draft tokens, and where the request ran.

    queue: waiting for the scheduler, without load, render and cache; load: waiting for the model; render: template and
    tokenizer; cache: lookup and restore; prefill: computing the prompt's uncached tokens; first_token: from acceptance
    to the first sampled token; decode: from the first to the last token; delivery: mean time of a step from the engine
    to the client. expected: the first_token that was predicted when the request was accepted; None if unknown. The
    worker does not set `delivery_ms`, `route`, `reason`, `handovers`, `placement`, `expected_ms`, `target` and
    `verdict`.
    miss: why most of the prompt was computed, if an earlier prompt explains it. num_shifted_tokens: cached tokens of an
    earlier prompt that were used at other positions, so the answer is not exact (see `--cache-shift`).
    origin: where the answer comes from, if no model computed it for this request alone. The answer cache sets it.
    If an answer `is_resumed`, or is cancelled and the worker does not end it soon, the times of the stages before the
    first token are unknown and 0.
    """

    queue_ms: float = 0.0
    load_ms: float = 0.0
    render_ms: float = 0.0
    cache_ms: float = 0.0
    prefill_ms: float = 0.0
    first_token_ms: float = 0.0
    decode_ms: float = 0.0
    delivery_ms: float = 0.0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    route: str = "local"
    reason: str = ""
    handovers: tuple[Handover, ...] = ()
    placement: Placement | None = None
    expected_ms: float | None = None
    target: Target | None = None
    verdict: Verdict | None = None
    miss: CacheMiss | None = None
    num_shifted_tokens: int = 0
    origin: AnswerOrigin | None = None

    @property
    def stages_before_first_token_ms(self) -> dict[str, float]:
        """Milliseconds of the stages before the first token, by name.

        Empty if they are unknown: the answer is resumed, a remote computed it, or its end came before the worker's.
        """
        is_ended_before = self.first_token_ms > self.queue_ms and not self.prefill_ms
        if self.is_resumed or is_remote(self.route) or is_ended_before:
            return {}
        return {
            "queue": self.queue_ms,
            "load": self.load_ms,
            "render": self.render_ms,
            "cache": self.cache_ms,
            "prefill": self.prefill_ms,
        }

    @property
    def is_resumed(self) -> bool:
        """Whether another worker or backend sampled the first token.

        The times of the stages before the first token are then unknown.
        """
        return bool(self.handovers) and self.handovers[-1].num_tokens > 0


class Started(Struct, frozen=True, tag="started"):
    """The prompt is rendered, tokenized and looked up in the cache, and its prefill has begun.

    `num_dropped_items` counts the conversation's items that did not fit and were left out of the prompt. The worker
    sends no `placement`; the backend and the router add it. `warnings` name what the answer does not observe although
    the request asks for it, such as a pattern in a tool's schema; each is a line for the client. `tier` is the tier at
    which the request runs; the router adds it.
    """

    num_prompt_tokens: int
    num_cached_tokens: int
    num_dropped_items: int = 0
    placement: Placement | None = None
    warnings: tuple[str, ...] = ()
    tier: Tier | None = None


class Queued(Struct, frozen=True, tag="queued"):
    """The request is accepted, but waits, or its first token is predicted to come later than its target.

    `place`: how many requests get their first token before it. `expected_s`: the predicted seconds to its first token;
    None if unknown. No worker sends it. At most one is sent, before all other deltas.
    """

    place: int
    expected_s: float | None = None


class Interrupted(Struct, frozen=True, tag="interrupted"):
    """The backend that computes the answer has lost its state, for example because its worker crashed.

    The same backend continues the answer, unless the router moves it to another backend. The router removes this delta;
    no client sees it.
    """

    reason: str


class PromptProgress(Struct, frozen=True, tag="progress"):
    """How many of the prompt's tokens are computed or were cached. Sent only if `reports_progress` is set."""

    num_tokens: int


class PromptText(Struct, frozen=True, tag="prompt"):
    """The next piece of the prompt's text. Sent before the answer, and only if `echo` is set."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class TextDelta(Struct, frozen=True, tag="text"):
    """More text of the answer: whole UTF-8 characters, without any part of a stop string."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class ReasoningDelta(Struct, frozen=True, tag="reasoning"):
    """More of the model's reasoning."""

    text: str


class ToolCallStarted(Struct, frozen=True, tag="call"):
    """The model has begun a call. `index` counts the calls of the answer from 0. `name` is complete."""

    index: int
    id: str
    name: str


class ToolCallDelta(Struct, frozen=True, tag="args"):
    """More JSON text of a call's arguments."""

    index: int
    arguments: str


class ChoiceScores(Struct, frozen=True, tag="scores"):
    """How likely the texts in `choices` are as the whole answer, and how many tokens they have together.

    `logprobs`: the natural log of each one's probability, in the order of the request.
    """

    logprobs: tuple[float, ...]
    num_tokens: int


class Finished(Struct, frozen=True, tag="finished"):
    """The last delta of an answer. An answer that fails has no Finished delta: it ends with an exception.

    `stop`: the stop string that ended the answer; "" if none did, or if a remote does not say which.
    """

    reason: FinishReason
    usage: Usage
    timings: Timings
    stop: str = ""


def unrun(reason: FinishReason, why: str, usage: Usage | None = None) -> Finished:
    """Return the last delta of an answer if no backend gives one, such as after a cancel before the request ran."""
    return Finished(reason, usage or Usage(), Timings(route="edgeagent", reason=why))


Output = PromptProgress | PromptText | TextDelta | ReasoningDelta | ToolCallStarted | ToolCallDelta | ChoiceScores
Delta = Started | Queued | Interrupted | Output | Finished


class Step(Struct, frozen=True):
    """One engine step's output for a request: deltas in order, and the ids of the generated tokens.

    `at_s`: when the engine produced it (time.monotonic); 0 if it does not come from an engine step. `num_withheld`: how
    many tokens are generated whose text is not in the deltas, since a part of it is held back, or the client has it
    already. It is negative if text that was held back comes with this step. `is_estimated`: a remote does not state how
    many tokens these are, and they may be more.
    """

    deltas: tuple[Delta, ...]
    tokens: tuple[int, ...] = ()
    at_s: float = 0.0
    num_withheld: int = 0
    is_estimated: bool = False

    @property
    def num_delivered(self) -> int:
        """How many tokens have their text in this step. Their sum is what the client has of the answer."""
        return len(self.tokens) - self.num_withheld


class Sink(ABC):
    """The receiver of one answer's steps. Each layer between a backend and the client's socket is one.

    A step passes all sinks in one chain of calls, in which nothing is awaited.
    """

    @abstractmethod
    def put(self, step: Step) -> None:
        """Receive the next step. It must neither block nor raise an EdgeAgentError."""

    async def room(self) -> None:  # noqa: B027 most sinks keep nothing for a client, and have room
        """Wait until the client has read enough. A backend that cannot pause does not call this."""
