"""What each wire says of a generation: its token counts and times, where it runs, its log probabilities, its warnings.

The counts and times have the forms of OpenAI, of llama-server (`timings`) and of edgeagent. The place and the warnings
are in headers of the answer. A stream has them in an early event, and the place again at its end, because a generation
may move.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, cast
from urllib.parse import quote

from starlette.responses import Response
from typing_extensions import TypedDict

from edgeagent.api.wire.body import WARNING_HEADER
from edgeagent.api.wire.errors import EXPECTED_HEADER
from edgeagent.api.wire.shape import Json, Shape
from edgeagent.errors import printable
from edgeagent.types import AnswerOrigin, Placement, Queued, Started, Tier, Timings, TokenLogprob, Usage, Verdict


class ResponseUsage(Shape):
    """Token counts of a response."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class ChatUsage(Shape):
    """Token counts of a chat completion."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: dict[str, int]


class LlamaTimings(Shape):
    """Token counts and times of one generation, as llama-server names them.

    `cache_n`: prompt tokens from the cache. `prompt_n`: prompt tokens that were computed. `predicted_n`: output tokens.
    """

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: NotRequired[int]
    draft_n_accepted: NotRequired[int]


_Ends = TypedDict("_Ends", {"from": str, "to": str})


class Handover(_Ends, Shape):
    """A hand-over: after `after_tokens` output tokens, the generation moved to another backend or to a new worker."""

    after_tokens: int
    reason: str


class RunsAt(Shape):
    """Where a generation runs: on this machine or at a remote, under which name there, and why.

    `route_overruled` says which stricter mode applies instead of the one that the request asked for.
    """

    served_by: str
    model: str
    reason: str
    model_sha256: NotRequired[str]
    host: NotRequired[str]
    region: NotRequired[str]
    route_overruled: NotRequired[str]


class LatencyVerdict(Shape):
    """Whether an answer kept its latency target: the time to the first token (TTFT), and that between tokens (ITL).

    The ITL is kept if 95 % of the tokens keep it; null: the answer was not streamed. `late_stage` is the stage that
    broke the target: queue, load, render, cache, prefill, decode, delivery, remote, or unknown after a crash. null: the
    target was met.
    """

    tier: Tier
    ttft_target_ms: float
    itl_target_ms: float | None
    met: bool
    late_stage: str | None


class Miss(Shape):
    """Why most of a prompt was computed: it differs from an earlier prompt of the same client.

    `shared_tokens`: how many tokens both share before the difference. `recomputed_tokens`: how many both have behind
    it. They were computed again, which took `recomputed_ms`. `earlier` and `now` are the first words that differ.
    """

    part: Literal["instructions", "messages"]
    shared_tokens: int
    recomputed_tokens: int
    recomputed_ms: float
    earlier: str
    now: str


class AnswerUse(Shape):
    """Where an answer comes from that no model computed for this request alone.

    `kind`: `exact`: a kept answer to the same request, `similar`: to a similar one, `joined`: the answer of an equal
    request that was running. `age_s`: the kept answer's age, or for how long the equal request had been running.
    `id`: the kept answer's, by which it can be deleted. `similarity`: of both questions, 0 to 1.
    """

    kind: Literal["exact", "similar", "joined"]
    age_s: float
    id: NotRequired[str]
    similarity: NotRequired[float]


class CacheUse(Shape):
    """What is remarkable about a request's use of the caches: that of prompts, and that of answers.

    `shifted_tokens`: how many of the cached tokens were used at other positions than those at which they were computed,
    behind another text, so the answer is not exact (`--cache-shift`).
    """

    shifted_tokens: NotRequired[int]
    miss: NotRequired[Miss]
    answer: NotRequired[AnswerUse]


class Run(Shape):
    """Where a generation ran and why, the milliseconds of its stages, and whether it kept its latency target.

    `expected_ms`: the stage `first_token` as it was predicted when the request was accepted.
    """

    route: str
    reason: str
    stages_ms: dict[str, float]
    expected_ms: NotRequired[float]
    slo: NotRequired[LatencyVerdict]
    cache: NotRequired[CacheUse]
    handovers: NotRequired[list[Handover]]
    served_by: NotRequired[str]
    model: NotRequired[str]
    model_sha256: NotRequired[str]
    host: NotRequired[str]
    region: NotRequired[str]
    route_overruled: NotRequired[str]


def responses_usage(usage: Usage) -> ResponseUsage:
    """Return `usage` in the form of the Responses API. There, the computed prompt tokens are `cache_write_tokens`."""
    return {
        "input_tokens": usage.num_prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.num_cached_tokens,
            "cache_write_tokens": _num_computed(usage),
        },
        "output_tokens": usage.num_output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.num_reasoning_tokens},
        "total_tokens": usage.num_prompt_tokens + usage.num_output_tokens,
    }


def chat_usage(usage: Usage) -> ChatUsage:
    """Return `usage` in the form of chat completions."""
    return {
        "prompt_tokens": usage.num_prompt_tokens,
        "completion_tokens": usage.num_output_tokens,
        "total_tokens": usage.num_prompt_tokens + usage.num_output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.num_cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.num_reasoning_tokens},
    }


def timings_body(usage: Usage, timings: Timings) -> LlamaTimings:
    """Return `timings` as llama-server names and computes them. Draft tokens are counted only if there were any."""
    num_computed = _num_computed(usage)
    body: LlamaTimings = {
        "cache_n": usage.num_cached_tokens,
        "prompt_n": num_computed,
        "prompt_ms": _round(timings.prefill_ms),
        "prompt_per_token_ms": _ratio(timings.prefill_ms, num_computed),
        "prompt_per_second": _ratio(1000.0 * num_computed, timings.prefill_ms),
        "predicted_n": usage.num_output_tokens,
        "predicted_ms": _round(timings.decode_ms),
        "predicted_per_token_ms": _ratio(timings.decode_ms, usage.num_output_tokens),
        "predicted_per_second": _ratio(1000.0 * usage.num_output_tokens, timings.decode_ms),
    }
    if timings.num_draft_tokens:
        body["draft_n"] = timings.num_draft_tokens
        body["draft_n_accepted"] = timings.num_accepted_tokens
    return body


def edgeagent_body(timings: Timings, delivery_ms: float) -> Run:
    """Return the object `edgeagent`: where the request ran and why, the times of its stages, and what else is known.

    Unknown stages are left out. `delivery_ms`: the mean time of a step from the engine to the client.
    """
    stages = timings.stages_before_first_token_ms
    stages |= {"first_token": timings.first_token_ms, "decode": timings.decode_ms, "delivery": delivery_ms}
    body: Run = {
        "route": timings.route,
        "reason": timings.reason,
        "stages_ms": {stage: _round(milliseconds) for stage, milliseconds in stages.items()},
    }
    if timings.expected_ms is not None:
        body["expected_ms"] = _round(timings.expected_ms)
    if timings.verdict is not None:
        body["slo"] = _verdict_body(timings.verdict)
    if timings.handovers:
        body["handovers"] = [
            {"from": move.source, "to": move.target, "after_tokens": move.num_tokens, "reason": move.reason}
            for move in timings.handovers
        ]
    if cache := _cache_use(timings):
        body["cache"] = cache
    return body if timings.placement is None else {**body, **placement_body(timings.placement)}


def _verdict_body(verdict: Verdict) -> LatencyVerdict:
    target = verdict.target
    return {
        "tier": verdict.tier,
        "ttft_target_ms": _round(1000.0 * target.first_token_s),
        "itl_target_ms": None if math.isinf(target.token_s) else _round(1000.0 * target.token_s),
        "met": not verdict.late_stage,
        "late_stage": verdict.late_stage or None,
    }


def _cache_use(timings: Timings) -> CacheUse:
    use: CacheUse = {}
    if timings.num_shifted_tokens:
        use["shifted_tokens"] = timings.num_shifted_tokens
    if (miss := timings.miss) is not None:
        use["miss"] = {
            "part": "instructions" if miss.in_instructions else "messages",
            "shared_tokens": miss.num_shared,
            "recomputed_tokens": miss.num_lost,
            "recomputed_ms": _round(miss.lost_ms),
            "earlier": miss.earlier,
            "now": miss.now,
        }
    if (origin := timings.origin) is not None:
        use["answer"] = _answer_use(origin)
    return use


def _answer_use(origin: AnswerOrigin) -> AnswerUse:
    use = AnswerUse(kind=cast("Any", origin.kind), age_s=round(origin.age_s, 3))
    if origin.id:
        use["id"] = origin.id
    if origin.similarity is not None:
        use["similarity"] = round(origin.similarity, 4)
    return use


def placement_body(placement: Placement) -> RunsAt:
    """Return where a request runs. Fields that are unknown or do not apply are left out."""
    body: RunsAt = {"served_by": placement.served_by, "model": placement.model, "reason": placement.reason}
    if placement.sha256:
        body["model_sha256"] = placement.sha256
    if placement.host:
        body["host"] = placement.host
    if placement.region:
        body["region"] = placement.region
    if placement.overruled:
        body["route_overruled"] = placement.overruled
    return body


def _num_computed(usage: Usage) -> int:
    return usage.num_prompt_tokens - usage.num_cached_tokens


def _round(milliseconds: float) -> float:
    return round(milliseconds, 3)


def _ratio(numerator: float, denominator: float) -> float:
    return round(numerator / denominator, 3) if denominator > 0 else 0.0


@dataclass(slots=True)
class DeliveryTime:
    """The mean time that the steps of a response take from the engine to the client."""

    total_s: float = 0.0
    num: int = 0

    def add(self, at_s: float) -> None:
        """Count a step that has just been handed to the client.

        `at_s`: when the engine made the step (time.monotonic). A step with 0 is not counted: no engine made it.
        """
        if at_s:
            self.total_s += max(0.0, time.monotonic() - at_s)
            self.num += 1

    @property
    def mean_ms(self) -> float:
        """The mean delivery time in milliseconds per step; 0 if no step was counted."""
        return 1000.0 * self.total_s / max(self.num, 1)


MIN_LOGPROB = -9999.0
"""JSON has no -inf. OpenAI writes this number for a token with probability 0."""


class Rival(Shape):
    """A token, its bytes, and its log probability."""

    token: str
    logprob: float
    bytes: list[int]


class Scored(Rival):
    """A token that was generated, and its alternatives: the likeliest tokens at its position."""

    top_logprobs: list[Rival]


class ChatLogprobs(Shape):
    """The log probabilities of an answer's tokens."""

    content: list[Scored]
    refusal: None


class LlamaRival(Rival):
    """A token with its id, as llama-server writes it."""

    id: int


class LlamaScored(LlamaRival):
    """A token that was generated, and the likeliest tokens at its position, as llama-server writes them."""

    top_logprobs: list[LlamaRival]


class TextLogprobs(Shape):
    """Log probabilities of tokens, in lists of equal length. The first token of a prompt has null.

    `text_offset` counts characters. `top_logprobs` is null if none were requested.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


def token_logprobs(tokens: Sequence[TokenLogprob]) -> list[Scored]:
    """Return the JSON of tokens: each token's log probability, and its alternatives with their log probabilities."""
    return [{**_body(token), "top_logprobs": [_body(alternative) for alternative in token.top]} for token in tokens]


def llama_logprobs(tokens: Sequence[TokenLogprob]) -> list[LlamaScored]:
    """Return the JSON of tokens as `token_logprobs` does, with the tokens' ids."""
    return [
        {**_llama_body(token), "top_logprobs": [_llama_body(alternative) for alternative in token.top]}
        for token in tokens
    ]


def _llama_body(token: TokenLogprob) -> LlamaRival:
    return {"id": token.token, **_body(token)}


def _body(token: TokenLogprob) -> Rival:
    return {
        "token": token.piece.decode(errors="replace"),
        "logprob": max(token.logprob, MIN_LOGPROB),
        "bytes": list(token.piece),
    }


def legacy_logprobs(tokens: Sequence[TokenLogprob], num_alternatives: int) -> TextLogprobs:
    """Return the field `logprobs` of a completion. The first token of a prompt has None instead of a log probability.

    Each token is among its own alternatives, as in OpenAI's API. If `num_alternatives` is 0, `top_logprobs` is None.
    """
    return {
        "tokens": [_name(token) for token in tokens],
        "token_logprobs": [None if math.isnan(token.logprob) else max(token.logprob, MIN_LOGPROB) for token in tokens],
        "top_logprobs": [_alternatives(token) for token in tokens] if num_alternatives else None,
        "text_offset": [token.start for token in tokens],
    }


def _alternatives(token: TokenLogprob) -> dict[str, float] | None:
    if math.isnan(token.logprob):
        return None
    return {_name(alternative): max(alternative.logprob, MIN_LOGPROB) for alternative in (*token.top, token)}


def _name(token: TokenLogprob) -> str:
    """Return a token's text, or `bytes:` and hex codes if its bytes are not whole characters.

    OpenAI does the same. So different tokens have different names.
    """
    try:
        return token.piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.piece)


# The characters that are not quoted: printable ASCII without the percent sign. A remote's names may have others.
_PLAIN = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")


MAX_WARNINGS = 8


def warnings_of(started: Started) -> list[str]:
    """Return the first MAX_WARNINGS of an answer's warnings, each cut and safe to show."""
    return [printable(text[:600]) for text in started.warnings[:MAX_WARNINGS]]


def started_body(started: Started) -> Json:
    """Return where a generation runs and its warnings, for the first part of a stream; empty if neither is known."""
    place = {} if started.placement is None else {**placement_body(started.placement)}
    return {**place, "warnings": warnings_of(started)} if started.warnings else place


def started_in(deltas: Iterable[object]) -> Started | None:
    """Return the delta that says where a generation runs and what its warnings are; None if there is none."""
    return next((delta for delta in deltas if isinstance(delta, Started)), None)


class Wait(Shape):
    """A request that waits: how many others get their first token before it, and when it is predicted to get its own.

    `expected_ms` is missing if that is unknown.
    """

    place: int
    expected_ms: NotRequired[float]


def is_wait(deltas: Sequence[object]) -> bool:
    """Whether a step's deltas only say that the request waits."""
    return len(deltas) == 1 and isinstance(deltas[0], Queued)


def wait_body(queued: Queued) -> Wait:
    """Return how long a request waits."""
    if queued.expected_s is None:
        return {"place": queued.place}
    return {"place": queued.place, "expected_ms": _round(1000 * queued.expected_s)}


def put_headers(response: Response, started: Started | None, queued: Queued | None = None) -> None:
    """Add the headers to `response`. `started` and `queued`: None if the generation has not sent it yet."""
    if queued is not None and queued.expected_s is not None:
        response.headers[EXPECTED_HEADER] = str(round(1000 * queued.expected_s))
    if started is None:
        return
    for text in warnings_of(started):
        response.headers.append(WARNING_HEADER.decode(), text.encode("ascii", "backslashreplace").decode())
    if (place := started.placement) is None:
        return
    fields = {
        "x-edgeagent-served-by": place.served_by,
        "x-edgeagent-reason": place.reason,
        "x-edgeagent-model": place.model,
        "x-edgeagent-model-sha256": place.sha256,
        "x-edgeagent-host": place.host,
    }
    response.headers.update({name: quote(value, safe=_PLAIN) for name, value in fields.items() if value})
