"""How token counts and stage times look on the wire: OpenAI's usage, llama-server's timings, edgeagent's own object."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NotRequired

from typing_extensions import TypedDict

from edgeagent.api.wire.shape import Shape
from edgeagent.types import Placement, Timings, Usage


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


class Run(Shape):
    """Where a generation ran and why, and the milliseconds of its stages."""

    route: str
    reason: str
    stages_ms: dict[str, float]
    handovers: NotRequired[list[Handover]]
    served_by: NotRequired[str]
    model: NotRequired[str]
    model_sha256: NotRequired[str]
    host: NotRequired[str]
    region: NotRequired[str]
    route_overruled: NotRequired[str]


def responses_usage(usage: Usage) -> ResponseUsage:
    """Return `usage` in the form of the Responses API. `cache_write_tokens` counts the computed prompt tokens."""
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
    """Return the object `edgeagent`: where the request ran and why, milliseconds by stage, and any hand-overs.

    Unknown stages are left out. `delivery_ms`: the mean time of a step from the engine to the client.
    """
    stages = timings.stages_before_first_token_ms
    stages |= {"first_token": timings.first_token_ms, "decode": timings.decode_ms, "delivery": delivery_ms}
    body: Run = {
        "route": timings.route,
        "reason": timings.reason,
        "stages_ms": {stage: _round(milliseconds) for stage, milliseconds in stages.items()},
    }
    if timings.handovers:
        body["handovers"] = [
            {"from": move.source, "to": move.target, "after_tokens": move.num_tokens, "reason": move.reason}
            for move in timings.handovers
        ]
    return body if timings.placement is None else {**body, **placement_body(timings.placement)}


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
