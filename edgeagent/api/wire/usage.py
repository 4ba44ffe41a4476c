"""How token counts and stage times look on the wire: OpenAI's usage, llama-server's timings, edgeagent's own object."""

from __future__ import annotations

from edgeagent.api.wire.shape import Json
from edgeagent.types import Placement, Timings, Usage


def responses_usage(usage: Usage) -> Json:
    """Return `usage` as the Responses API has it. What was computed of the prompt is what the cache had to write."""
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


def chat_usage(usage: Usage) -> Json:
    """Return `usage` as chat completions have it."""
    return {
        "prompt_tokens": usage.num_prompt_tokens,
        "completion_tokens": usage.num_output_tokens,
        "total_tokens": usage.num_prompt_tokens + usage.num_output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.num_cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.num_reasoning_tokens},
    }


def timings_body(usage: Usage, timings: Timings) -> Json:
    """Return `timings` with llama-server's names and arithmetic; drafts only where there were some."""
    num_computed = _num_computed(usage)
    body: Json = {
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


def edgeagent_body(timings: Timings, delivery_ms: float) -> Json:
    """Return edgeagent's own object: where the request ran and why, milliseconds by stage, hand-overs if any.

    Stages of which nothing is known are left out.
    """
    before_first_token = {
        "queue": timings.queue_ms,
        "load": timings.load_ms,
        "render": timings.render_ms,
        "cache": timings.cache_ms,
        "prefill": timings.prefill_ms,
    }
    # Of what a remote did before its first token nothing is known.
    is_unknown = timings.is_resumed or timings.route.startswith("remote:")
    stages = {} if is_unknown else before_first_token
    stages |= {"first_token": timings.first_token_ms, "decode": timings.decode_ms, "delivery": delivery_ms}
    body: Json = {
        "route": timings.route,
        "reason": timings.reason,
        "stages_ms": {stage: _round(milliseconds) for stage, milliseconds in stages.items()},
    }
    if timings.placement is not None:
        body |= placement_body(timings.placement)
    if timings.handovers:
        body["handovers"] = [
            {"from": move.source, "to": move.target, "after_tokens": move.num_tokens, "reason": move.reason}
            for move in timings.handovers
        ]
    return body


def placement_body(placement: Placement) -> Json:
    """Return where a request runs; host and region are a remote's, and `model_sha256` is of a model on this machine."""
    body: Json = {"served_by": placement.served_by, "model": placement.model, "reason": placement.reason}
    known = {"model_sha256": placement.sha256, "host": placement.host, "region": placement.region}
    return body | {name: value for name, value in known.items() if value}


def _num_computed(usage: Usage) -> int:
    return usage.num_prompt_tokens - usage.num_cached_tokens


def _round(milliseconds: float) -> float:
    return round(milliseconds, 3)


def _ratio(numerator: float, denominator: float) -> float:
    return round(numerator / denominator, 3) if denominator > 0 else 0.0
