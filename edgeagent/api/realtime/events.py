"""The events of the Realtime API, made from those of the Responses API, and their types. There is no I/O.

A response's reasoning is not shown: the API has no item for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NotRequired, cast

from edgeagent.api.realtime.conversation import Entry, RealtimeConversation
from edgeagent.api.responses.body import ResponseCreate
from edgeagent.api.responses.event_json import Notes, ResponseBody, ResponseRun
from edgeagent.api.responses.events import TERMINAL
from edgeagent.api.responses.items import item_body, item_of
from edgeagent.api.wire.errors import error_body
from edgeagent.api.wire.generation import ResponseUsage
from edgeagent.api.wire.shape import Json, Shape
from edgeagent.conversation.items import Item
from edgeagent.errors import EdgeAgentError
from edgeagent.types import RouteMode, SamplingParams


class RealtimeItem(Shape):
    """An item of the conversation: a message, a function_call or a function_call_output.

    Texts of a message that follow each other are one part. The arguments of a call are JSON text.
    """

    id: str
    object: Literal["realtime.item"]
    type: Literal["message", "function_call", "function_call_output"]
    status: Literal["in_progress", "completed", "incomplete"]
    role: NotRequired[Literal["system", "user", "assistant"]]
    content: NotRequired[list[Json]]
    call_id: NotRequired[str]
    name: NotRequired[str]
    arguments: NotRequired[str]
    output: NotRequired[str]


class RealtimeUsage(Shape):
    """Token counts of a response."""

    input_tokens: int
    input_token_details: Json
    output_tokens: int
    output_token_details: Json
    total_tokens: int


class RealtimeResponse(Shape):
    """A response so far. `status_details` says why it was cancelled, cut short (incomplete) or failed."""

    id: str
    object: Literal["realtime.response"]
    status: Literal["in_progress", "completed", "cancelled", "incomplete", "failed"]
    status_details: Json | None
    output: list[RealtimeItem]
    conversation_id: str | None
    """Null if its output is not added to the conversation."""
    output_modalities: list[Literal["text"]]
    max_output_tokens: int | Literal["inf"]
    metadata: dict[str, str] | None
    usage: RealtimeUsage | None
    edgeagent: NotRequired[ResponseRun | Notes]


class RealtimeSettings(Shape):
    """The settings of a session that are in effect. Those that are too large to repeat are empty."""

    id: str
    object: Literal["realtime.session"]
    type: Literal["realtime"]
    model: str | None
    output_modalities: list[Literal["text"]]
    instructions: str
    tools: list[Json]
    tool_choice: str | Json
    parallel_tool_calls: bool
    max_output_tokens: int | Literal["inf"]
    reasoning: Json | None
    truncation: str


class RealtimeError(Shape):
    """What went wrong, and the `event_id` of the client's event that caused it; null if there is none."""

    type: str
    code: str
    message: str
    param: str | None
    late_stage: NotRequired[str]
    event_id: str | None


def shown_session(session_id: str, create: ResponseCreate) -> RealtimeSettings:
    """Return the JSON of a session whose responses are asked for with `create`, without its model."""
    echo = create.echo(SamplingParams())
    return {
        "id": session_id,
        "object": "realtime.session",
        "type": "realtime",
        "model": None,
        "output_modalities": ["text"],
        "instructions": echo["instructions"] or "",
        "tools": echo["tools"],
        "tool_choice": echo["tool_choice"],
        "parallel_tool_calls": echo["parallel_tool_calls"],
        "max_output_tokens": echo["max_output_tokens"] or "inf",
        "reasoning": echo["reasoning"] and {"effort": echo["reasoning"]["effort"]},
        "truncation": echo["truncation"],
    }


def shown_error(error: EdgeAgentError | Json, event_id: str | None) -> RealtimeError:
    """Return the JSON of an error. `error`: the error, or its JSON in the other APIs."""
    body = error_body(error) if isinstance(error, EdgeAgentError) else error
    return cast("RealtimeError", {**body, "event_id": event_id})


_NOT_SHOWN = ("annotations", "logprobs")


def shown_item(item: Item) -> Json:
    """Return the JSON of a finished item."""
    return _shown(item_body(item))


def _shown(body: Json) -> Json:
    shown: Json = {"id": body["id"], "object": "realtime.item", "type": body["type"], "status": body["status"]}
    if body["type"] == "message":
        content = [{name: value for name, value in part.items() if name not in _NOT_SHOWN} for part in body["content"]]
        return {**shown, "role": body["role"], "content": content}
    return shown | {name: body[name] for name in ("call_id", "name", "arguments", "output") if name in body}


def _usage(usage: ResponseUsage) -> RealtimeUsage:
    num_cached = usage["input_tokens_details"]["cached_tokens"]
    cached = {"text_tokens": num_cached, "audio_tokens": 0, "image_tokens": 0}
    num_input, num_output = usage["input_tokens"], usage["output_tokens"]
    text = {"text_tokens": num_input, "audio_tokens": 0, "image_tokens": 0}
    return {
        "input_tokens": num_input,
        "input_token_details": {**text, "cached_tokens": num_cached, "cached_tokens_details": cached},
        "output_tokens": num_output,
        "output_token_details": {"text_tokens": num_output, "audio_tokens": 0},
        "total_tokens": usage["total_tokens"],
    }


# The fields of the events within an item that the two APIs share.
_SHARED = {
    "response.content_part.added": ("content_index",),
    "response.output_text.delta": ("content_index", "delta"),
    "response.output_text.done": ("content_index", "text"),
    "response.content_part.done": ("content_index",),
    "response.function_call_arguments.delta": ("delta",),
    "response.function_call_arguments.done": ("arguments", "name"),
}
_FAILURES = {"invalid_prompt": "invalid_request_error", "rate_limit_exceeded": "rate_limit_error"}


@dataclass(slots=True, eq=False)
class AskedResponse:
    """A response that was asked for, until its end. It makes its events from those of the Responses API.

    `event_id`: the client's, of the event that asked for it. `conversation_id`: None if its output is not added to the
    conversation. `is_hidden`: nothing of it is sent, because it only computes a prompt ahead. `route`: the mode that it
    asked for.
    """

    event_id: str | None = None
    conversation_id: str | None = None
    is_hidden: bool = False
    route: RouteMode | None = None
    id: str = ""
    _output: dict[str, Json] = field(default_factory=dict)  # its items by id
    _open: Json = field(default_factory=dict)  # its open item
    _previous_id: str | None = None  # the item before that in the conversation

    def events(self, event: Json, conversation: RealtimeConversation) -> list[Json]:
        """Return the events that report an event of the Responses API. Add its items to the conversation."""
        kind = event["type"]
        if (names := _SHARED.get(kind)) is not None:
            return self._in_item(kind, event, names)
        if kind == "response.created":
            self.id = event["response"]["id"]
            return [{"type": kind, "response": self._response(event["response"], "in_progress")}]
        if kind == "response.output_item.added" and event["item"]["type"] in ("message", "function_call"):
            self._open = self._output[event["item"]["id"]] = _shown(event["item"])
            if self.conversation_id is not None:
                self._previous_id = conversation.insert(Entry(self._open, None))
            return [self._of_item(kind), *self._of_conversation("conversation.item.added")]
        if kind == "response.output_item.done" and event["item"]["id"] in self._output:
            self._open = self._output[event["item"]["id"]] = _shown(event["item"])
            # A call that was cut off has no result, so the model does not see it.
            is_seen = self._open["type"] == "message" or self._open["status"] == "completed"
            if self.conversation_id is not None:
                conversation.complete(Entry(self._open, item_of(event["item"]) if is_seen else None))
            return [*self._of_conversation("conversation.item.done"), self._of_item(kind)]
        if kind in TERMINAL:
            return [{"type": "response.done", "response": self._response(event["response"])}]
        return []

    def _in_item(self, kind: str, event: Json, names: tuple[str, ...]) -> list[Json]:
        if event["item_id"] not in self._output:
            return []  # reasoning
        made: Json = {
            "type": kind,
            "response_id": self.id,
            "item_id": event["item_id"],
            "output_index": len(self._output) - 1,
        }
        for name in names:
            made[name] = event[name]
        if "part" in event:
            made["part"] = {"type": "text", "text": event["part"]["text"]}
        elif self._open["type"] == "function_call":
            made["call_id"] = self._open["call_id"]
        return [made]

    def _of_item(self, kind: str) -> Json:
        return {"type": kind, "response_id": self.id, "output_index": len(self._output) - 1, "item": self._open}

    def _of_conversation(self, kind: str) -> list[Json]:
        if self.conversation_id is None:
            return []
        return [{"type": kind, "previous_item_id": self._previous_id, "item": self._open}]

    def _response(self, body: ResponseBody, status: str | None = None) -> RealtimeResponse:
        status = status or body["status"]
        details: Json | None = None
        match status:
            case "cancelled":
                details = {"type": status, "reason": "client_cancelled"}
            case "incomplete":
                details = {"type": status, **(body["incomplete_details"] or {})}
            case "failed":
                error = body["error"]
                assert error is not None, "a failed response has an error"
                details = {"type": status, "error": {"type": _FAILURES.get(error["code"], "server_error"), **error}}
        response: Any = {
            "id": self.id,
            "object": "realtime.response",
            "status": status,
            "status_details": details,
            "output": list(self._output.values()),
            "conversation_id": self.conversation_id,
            "output_modalities": ["text"],
            "max_output_tokens": body["max_output_tokens"] or "inf",
            "metadata": body["metadata"] or None,
            "usage": None if body["usage"] is None else _usage(body["usage"]),
        }
        if "edgeagent" in body:
            response["edgeagent"] = body["edgeagent"]
        return cast("RealtimeResponse", response)
