"""The events of POST /v1/responses as a stream, and of the WebSocket, as the documents show them."""

from __future__ import annotations

from typing import Any, Literal

from edgeagent.api.documents.answers import Error, OpenAnswer, Run, RunsAt, Timings
from edgeagent.api.documents.bodies import OpenBody, ResponseRequest
from edgeagent.api.wire.shape import Json
from edgeagent.types import RouteMode


class OutputText(OpenAnswer):
    """Text that was generated."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[Any]


class ReasoningText(OpenAnswer):
    """Reasoning that was generated."""

    type: Literal["reasoning_text"]
    text: str


ItemStatus = Literal["in_progress", "completed", "incomplete"]


class MessageItem(OpenAnswer):
    """A message of the model."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: ItemStatus
    content: list[OutputText]


class ReasoningItem(OpenAnswer):
    """The model's reasoning."""

    id: str
    type: Literal["reasoning"]
    status: ItemStatus
    summary: list[Any]
    content: list[ReasoningText]


class FunctionCallItem(OpenAnswer):
    """A call the model makes; the arguments are JSON text."""

    id: str
    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    status: ItemStatus


class CompactionItem(OpenAnswer):
    """Stands for the conversation before it; clients send it back as it is."""

    id: str
    type: Literal["compaction"]
    encrypted_content: str


OutputItem = MessageItem | ReasoningItem | FunctionCallItem | CompactionItem


class ResponseUsage(OpenAnswer):
    """Token counts of a response."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class ResponseError(OpenAnswer):
    """Why a response failed."""

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str


class Notes(OpenAnswer):
    """Facts about a response's request, from its first event on."""

    warnings: list[str] = []
    """Unknown fields of the request, which have no effect."""
    dropped_items: int | None = None
    """How many items were left out of the prompt, from the front, since `truncation` is `auto`."""
    mode: RouteMode | None = None
    """Where it may run, if it or a response that it continues says so; it holds for what continues this response."""


class ResponseRun(Run, Notes):
    """Where a response was generated and why, the milliseconds of its stages, and warnings about its request."""


class Response(OpenAnswer):
    """A response so far: its request, its output, and its token counts."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    error: ResponseError | None
    incomplete_details: dict[str, str] | None
    model: str
    output: list[Any]
    usage: ResponseUsage | None
    previous_response_id: str | None
    instructions: str | None
    tools: list[Any]
    tool_choice: Any
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
    timings: Timings | None = None
    edgeagent: ResponseRun | Notes | None = None


class ServerEvent(OpenAnswer):
    """The fields of every event: its number within its response, and its lane if that has a name."""

    sequence_number: int
    stream_id: str | None = None
    edgeagent: RunsAt | None = None
    """On the first event behind the decision: where the response runs, and why."""


class ResponseCreated(ServerEvent):
    """The response exists; this is its first event."""

    type: Literal["response.created"]
    response: Response


class ResponseQueued(ServerEvent):
    """The response waits for others of this connection."""

    type: Literal["response.queued"]
    response: Response


class ResponseInProgress(ServerEvent):
    """The response has begun."""

    type: Literal["response.in_progress"]
    response: Response


class ResponseCompleted(ServerEvent):
    """The response is complete. This event, response.incomplete or response.failed is its last one."""

    type: Literal["response.completed"]
    response: Response


class ResponseIncomplete(ServerEvent):
    """The response was cut: by max_output_tokens, by a cancel (status cancelled), or by a steer."""

    type: Literal["response.incomplete"]
    response: Response


class ResponseFailed(ServerEvent):
    """The response failed."""

    type: Literal["response.failed"]
    response: Response


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
    logprobs: list[Any]


class OutputTextDone(ItemEvent):
    """The whole text."""

    type: Literal["response.output_text.done"]
    content_index: int
    text: str
    logprobs: list[Any]


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


class CompactionCompacting(ItemEvent):
    """The conversation before is being summarized, as `context_management` asks."""

    type: Literal["response.compaction.compacting"]


class ErrorEvent(OpenAnswer):
    """A request was refused before its response was created. `headers` say when to try again."""

    type: Literal["error"]
    status: int
    error: Error
    headers: dict[str, str] | None = None
    stream_id: str | None = None


class Steer(OpenAnswer):
    """An input that steers a response."""

    id: str | None = None
    previous_response_id: Any = None


class SteerError(OpenAnswer):
    """Why an input was refused."""

    type: Literal["invalid_request_error"]
    code: str
    message: str


class ResponseSteerAccepted(ServerEvent):
    """The input was accepted: the response ends, and a successor answers."""

    type: Literal["response.steer.accepted"]
    steer: Steer


class ResponseSteerPending(ServerEvent):
    """The response ended with calls: the input waits for the create that brings their results."""

    type: Literal["response.steer.pending"]
    steer: Steer
    reason: Literal["waiting_for_required_input"]
    required_input: list[Json]


class ResponseSteerFailed(ServerEvent):
    """The input was refused, and is given back."""

    type: Literal["response.steer.failed"]
    steer: Steer
    error: SteerError


SERVER_EVENTS = (
    ResponseCreated,
    ResponseQueued,
    ResponseInProgress,
    OutputItemAdded,
    ContentPartAdded,
    OutputTextDelta,
    OutputTextDone,
    ReasoningTextDelta,
    ReasoningTextDone,
    ContentPartDone,
    FunctionCallArgumentsDelta,
    FunctionCallArgumentsDone,
    CompactionCompacting,
    OutputItemDone,
    ResponseCompleted,
    ResponseIncomplete,
    ResponseFailed,
    ResponseSteerAccepted,
    ResponseSteerPending,
    ResponseSteerFailed,
    ErrorEvent,
)


def kind_of(message: type[OpenBody] | type[OpenAnswer] | type[ResponseRequest]) -> str:
    """Return the type that a message carries."""
    (kind,) = message.model_fields["type"].annotation.__args__  # type: ignore[union-attr]
    return str(kind)
