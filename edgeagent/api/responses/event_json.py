"""The types of the response object and of its events, for the code that builds them and the API's documents."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field

from edgeagent.api.responses.items import OutputItem, OutputText, ReasoningText
from edgeagent.api.wire.generation import LlamaTimings, ResponseUsage, Run, RunsAt, Scored
from edgeagent.api.wire.shape import Json, Shape
from edgeagent.types import RouteMode

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
    mode: NotRequired[RouteMode]
    """Where the response may run, if its request or an earlier one in its chain limits it. Continuations inherit it."""


class ResponseRun(Run, Notes):
    """Where a response was generated and why, the milliseconds of its stages, and warnings about its request."""

    num_delivered_tokens: NotRequired[int]
    """How many tokens were delivered before the response failed. Only a failed response has this field."""


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
    edgeagent: NotRequired[ResponseRun | Notes]


class ServerEvent(Shape):
    """The fields of every event: its number within its response, and its lane if that has a name."""

    sequence_number: int
    stream_id: NotRequired[str]
    edgeagent: NotRequired[
        Annotated[
            RunsAt, Field(description="Where the response runs, and why. Only in the first event after the decision.")
        ]
    ]


class ResponseCreated(ServerEvent):
    """The response exists; this is its first event."""

    type: Literal["response.created"]
    response: ResponseBody


class ResponseQueued(ServerEvent):
    """The response waits: for other responses of its WebSocket, or, in the background, for its first step."""

    type: Literal["response.queued"]
    response: ResponseBody


class ResponseInProgress(ServerEvent):
    """The response has begun."""

    type: Literal["response.in_progress"]
    response: ResponseBody


class ResponseCompleted(ServerEvent):
    """The response is complete. Each response ends in this event, response.incomplete or response.failed."""

    type: Literal["response.completed"]
    response: ResponseBody


class ResponseIncomplete(ServerEvent):
    """The response was cut short by max_output_tokens, a full context, a cancel (status cancelled) or a steer."""

    type: Literal["response.incomplete"]
    response: ResponseBody


class ResponseFailed(ServerEvent):
    """The response failed."""

    type: Literal["response.failed"]
    response: ResponseBody


class OutputItemAdded(ServerEvent):
    """An item begins."""

    type: Literal["response.output_item.added"]
    output_index: int
    item: OutputItem


class OutputItemDone(ServerEvent):
    """An item ends; this is its final form."""

    type: Literal["response.output_item.done"]
    output_index: int
    item: OutputItem


class ItemEvent(ServerEvent):
    """An event within an item."""

    item_id: str
    output_index: int


class ContentPartAdded(ItemEvent):
    """An item's content begins."""

    type: Literal["response.content_part.added"]
    content_index: int
    part: OutputText | ReasoningText


class ContentPartDone(ItemEvent):
    """An item's content ends."""

    type: Literal["response.content_part.done"]
    content_index: int
    part: OutputText | ReasoningText


class OutputTextDelta(ItemEvent):
    """More text."""

    type: Literal["response.output_text.delta"]
    content_index: int
    delta: str
    logprobs: list[Scored]


class OutputTextDone(ItemEvent):
    """The whole text."""

    type: Literal["response.output_text.done"]
    content_index: int
    text: str
    logprobs: list[Scored]


class ReasoningTextDelta(ItemEvent):
    """More reasoning."""

    type: Literal["response.reasoning_text.delta"]
    content_index: int
    delta: str


class ReasoningTextDone(ItemEvent):
    """The whole reasoning."""

    type: Literal["response.reasoning_text.done"]
    content_index: int
    text: str


class FunctionCallArgumentsDelta(ItemEvent):
    """More of a call's arguments."""

    type: Literal["response.function_call_arguments.delta"]
    delta: str


class FunctionCallArgumentsDone(ItemEvent):
    """A call's whole arguments."""

    type: Literal["response.function_call_arguments.done"]
    arguments: str
    name: str


class CustomToolCallInputDelta(ItemEvent):
    """More of the input of a custom tool's call."""

    type: Literal["response.custom_tool_call_input.delta"]
    delta: str


class CustomToolCallInputDone(ItemEvent):
    """The whole input of a custom tool's call."""

    type: Literal["response.custom_tool_call_input.done"]
    input: str


class CompactionCompacting(ItemEvent):
    """The earlier part of the conversation is being summarized, because the request has `context_management`."""

    type: Literal["response.compaction.compacting"]


class SteerEcho(Shape):
    """The input of a `response.steer`, and the response that it steers."""

    previous_response_id: str
    id: NotRequired[str]
    input: NotRequired[Any]
    """The input, if it is returned because it was refused."""


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


class ResponseSteerAccepted(ServerEvent):
    """The input was accepted: the response ends, and a new response (its successor) answers the input."""

    type: Literal["response.steer.accepted"]
    steer: SteerEcho


class ResponseSteerPending(ServerEvent):
    """The response ended with calls. The input waits for the `response.create` that has their results."""

    type: Literal["response.steer.pending"]
    steer: SteerEcho
    reason: Literal["waiting_for_required_input"]
    required_input: list[RequiredInput]


class ResponseSteerFailed(ServerEvent):
    """The input was refused, and is returned."""

    type: Literal["response.steer.failed"]
    error: SteerError
    steer: SteerEcho
