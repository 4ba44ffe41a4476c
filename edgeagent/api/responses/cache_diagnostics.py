"""Why a response did not reuse the prompt of an earlier one (`prompt_cache_options.comparison_response_id`).

The names are those of OpenAI. The words that differ are in `edgeagent.cache.miss`.
"""

from __future__ import annotations

from typing import Literal, NotRequired

from edgeagent.api.wire.shape import Json, Shape

# So many tokens of an equal prompt are computed all the same: its last ones, and those behind a saved state.
_NUM_ALWAYS_COMPUTED = 32
# Fields of a response that change its prompt before any message, and the reason that each gives.
_REASONS: dict[str, Literal["model_changed", "tools_changed", "reasoning_effort_changed"]] = {
    "model": "model_changed",
    "tools": "tools_changed",
    "reasoning": "reasoning_effort_changed",
}


class CacheDiagnostics(Shape):
    """Whether a response reused the prompt of the response that it is compared with.

    `comparison_reusable_tokens`: the tokens of the earlier prompt. `cache_missed_tokens`: how many of them were not
    reused. `unavailable`: a remote answered.
    """

    type: Literal["cache_hit", "cache_miss", "comparison_response_not_found", "unavailable"]
    reason: NotRequired[Literal["model_changed", "tools_changed", "reasoning_effort_changed", "input_changed"]]
    comparison_reusable_tokens: NotRequired[int]
    cache_missed_tokens: NotRequired[int]


def diagnose(earlier: Json | None, response: Json, *, is_remote: bool) -> CacheDiagnostics:
    """Compare a response with an earlier one. `earlier`: None if the client has no such stored response."""
    if is_remote:
        return {"type": "unavailable"}
    if earlier is None or not earlier.get("usage"):
        return {"type": "comparison_response_not_found"}
    num_reusable: int = earlier["usage"]["input_tokens"]
    usage = response["usage"]
    num_missed = min(num_reusable, usage["input_tokens"]) - usage["input_tokens_details"]["cached_tokens"]
    if num_missed <= _NUM_ALWAYS_COMPUTED:
        return {"type": "cache_hit"}
    changed = (reason for field, reason in _REASONS.items() if earlier.get(field) != response.get(field))
    return {
        "type": "cache_miss",
        "reason": next(changed, "input_changed"),
        "comparison_reusable_tokens": num_reusable,
        "cache_missed_tokens": num_missed,
    }
