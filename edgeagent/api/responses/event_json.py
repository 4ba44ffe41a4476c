"""The types of the response object and of its events, for the code that builds them and the API's documents."""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from edgeagent.api.responses.items import OutputItem
from edgeagent.api.wire.generation import LlamaTimings, ResponseUsage, Run
from edgeagent.api.wire.shape import Json, Shape
from edgeagent.types import RouteMode

# pydantic makes no schema of typing's TypedDict before Python 3.12.

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


Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
FailureCode = Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]


class ResponseError(Shape):
    """Why a response failed."""

    code: FailureCode
    message: str


class Notes(Shape):
    """Facts about a response's request. The response object has each of them as soon as it is known."""

    warnings: NotRequired[list[str]]
    """Unknown fields of the request, which have no effect, and keywords in schemas that cannot be followed."""
    dropped_items: NotRequired[int]
    """How many of the oldest items did not fit and were left out of the prompt, because `truncation` is `auto`."""
    ahead_tokens: NotRequired[int]
    """How many tokens were generated ahead of the request and sent at once. The stages are those of the others."""
    mode: NotRequired[RouteMode]
    """Where the response may run, if its request or an earlier one in its chain limits it. Continuations inherit it."""


class ResponseRun(Run, Notes):
    """Where a response was generated and why, the milliseconds of its stages, and warnings about its request."""

    num_delivered_tokens: NotRequired[int]
    """How many tokens were delivered before the response failed. Only a failed response has this field."""
    late_stage: NotRequired[str]
    """The stage in which a limit of time passed. Only a response that failed for this reason has this field."""


class Echo(Shape):
    """The fields of a response that repeat its request."""

    previous_response_id: str | None
    instructions: str | None
    tools: list[Json]
    tool_choice: str | Json
    text: Json
    metadata: dict[str, str]
    truncation: str
    parallel_tool_calls: bool
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    reasoning: Json | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    store: bool
    background: bool
    service_tier: str
    safety_identifier: str | None
    prompt_cache_key: str | None
    user: str | None


class ResponseBody(Echo):
    """A response so far: its request, its output, and its token counts."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Status
    error: ResponseError | None
    incomplete_details: dict[str, str] | None
    model: str
    output: list[OutputItem]
    usage: ResponseUsage | None
    timings: NotRequired[LlamaTimings]
    prompt_cache_diagnostics: NotRequired[CacheDiagnostics]
    edgeagent: NotRequired[ResponseRun | Notes]


class SteerEcho(Shape):
    """The input of a `response.steer`, and the response that it steers."""

    previous_response_id: str
    id: NotRequired[str]
    input: NotRequired[Any]
    """The input, if it is returned because it was refused; "" if it has more than 256 KiB."""


class SteerError(Shape):
    """Why an input was refused."""

    type: Literal["invalid_request_error"]
    code: str
    message: str


class RequiredInput(Shape):
    """A call whose result the client must send before the waiting input is used."""

    type: Literal["function_call_output"]
    call_id: str
    name: str
