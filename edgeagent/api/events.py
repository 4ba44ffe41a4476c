"""From deltas to the events of one response, and the response object itself: a pure state machine.

It does not know sockets, lanes or history. Order and fields are the Responses API's; every item and part that is opened
is closed before the one terminal event.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from edgeagent.api.errors import error_body
from edgeagent.api.items import CallItem, Item, MessageItem, ReasoningItem
from edgeagent.api.usage import edgeagent_body, responses_usage, timings_body
from edgeagent.errors import EdgeAgentError, InvalidRequest, Overloaded
from edgeagent.types import (
    Delta,
    Finished,
    FinishReason,
    ReasoningDelta,
    Started,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    ToolCallStarted,
)

Event = dict[str, Any]
NewId = Callable[[str], str]

# JSON has no -inf; OpenAI writes this for a token that could not come.
_MIN_LOGPROB = -9999.0

TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed"})


def new_id(prefix: str) -> str:
    """Return a fresh id of a kind: resp, msg, fc, rs."""
    return f"{prefix}_{uuid.uuid4().hex}"


def new_response(response_id: str, model: str, echo: Event, created_at: int) -> Event:
    """Return a response object that has just begun: every field that any client or conformance suite asks for."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_at,
        "completed_at": None,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "model": model,
        "output": [],
        "usage": None,
        **echo,
    }


def set_delivery(terminal: Event, delivery_ms: float) -> None:
    """Write the measured delivery into a terminal event that is about to be sent: known only there."""
    stages = terminal["response"]["edgeagent"]["stages_ms"]
    if stages:
        stages["delivery"] = round(delivery_ms, 3)


class ResponseEvents:
    """The events of one response. Call `created` first, then `step` until `is_over`, or `fail` once instead."""

    def __init__(
        self,
        response: Event,
        *,
        stream_id: str | None = None,
        make_id: NewId = new_id,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.response = response
        self.is_over = False
        self._stream_id = stream_id
        self._make_id = make_id
        self._clock = clock
        self._num_events = 0
        self._num_items = 0
        self._events: list[Event] = []
        self._open: _OpenItem | None = None
        self._output: list[Event] = []

    def created(self, *, is_queued: bool = False) -> list[Event]:
        """Return the opening events: created and in_progress, or created and queued."""
        status = "queued" if is_queued else "in_progress"
        self.response["status"] = status
        self._emit_response("response.created")
        self._emit_response(f"response.{status}")
        return self._take()

    def in_progress(self) -> list[Event]:
        """Return the event that says that a queued response goes on."""
        self.response["status"] = "in_progress"
        self._emit_response("response.in_progress")
        return self._take()

    def step(self, deltas: Sequence[Delta]) -> list[Event]:
        """Return the events of one step's deltas."""
        for delta in deltas:
            match delta:
                case TextDelta():
                    self._message().add(delta.text, _logprobs(delta.logprobs))
                case ReasoningDelta():
                    self._reasoning().add(delta.text)
                case ToolCallStarted():
                    self._open_item(_OpenCall(self, delta))
                case ToolCallDelta():
                    self._call(delta.index).add(delta.arguments)
                case Finished():
                    self._finish(delta)
                case Started():
                    pass
        return self._take()

    def fail(self, error: EdgeAgentError) -> list[Event]:
        """Return the events that end a response which has begun and cannot go on."""
        self._close_item("incomplete")
        self.response["status"] = "failed"
        self.response["error"] = {"code": _failure_code(error), "message": error_body(error)["message"]}
        # No timings came with the failure; who failed and why is known.
        self.response["edgeagent"] = {"route": error.served_by, "reason": error.code, "stages_ms": {}}
        self._end("response.failed")
        return self._take()

    @property
    def items(self) -> tuple[Item, ...]:
        """What a continuation inherits of the output: a call that was cut off is nothing a client could answer."""
        return tuple(_to_item(item) for item in self._output if item["type"] != "function_call" or _is_whole(item))

    def emit(self, kind: str, **fields: object) -> None:
        """Add one event, numbered (for the open items below)."""
        event: Event = {"type": kind, "sequence_number": self._num_events, **fields}
        if self._stream_id is not None:
            event["stream_id"] = self._stream_id
        self._num_events += 1
        self._events.append(event)

    def next_item(self, prefix: str) -> tuple[str, int]:
        """Return the id and output index of the next item (for the open items below)."""
        self._num_items += 1
        return self._make_id(prefix), self._num_items - 1

    def _take(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _emit_response(self, kind: str) -> None:
        # A copy: events wait in buffers while the response goes on.
        self.emit(kind, response=self.response | {"output": list(self._output)})

    def _message(self) -> _OpenMessage:
        if not isinstance(self._open, _OpenMessage):
            self._open_item(_OpenMessage(self))
        assert isinstance(self._open, _OpenMessage)
        return self._open

    def _reasoning(self) -> _OpenReasoning:
        if not isinstance(self._open, _OpenReasoning):
            self._open_item(_OpenReasoning(self))
        assert isinstance(self._open, _OpenReasoning)
        return self._open

    def _call(self, index: int) -> _OpenCall:
        # A backend's calls come one after another, so the arguments are always the open call's.
        assert isinstance(self._open, _OpenCall) and self._open.index == index, f"arguments for closed call {index}"
        return self._open

    def _open_item(self, item: _OpenItem) -> None:
        self._close_item("completed")
        self._open = item
        item.open()

    def _close_item(self, status: str) -> None:
        if self._open is not None:
            self._output.append(self._open.close(status))
            self._open = None

    def _finish(self, finished: Finished) -> None:
        is_whole = finished.reason in (FinishReason.STOP, FinishReason.TOOL_CALLS)
        self._close_item("completed" if is_whole else "incomplete")
        self.response["usage"] = responses_usage(finished.usage)
        self.response["timings"] = timings_body(finished.usage, finished.timings)
        self.response["edgeagent"] = edgeagent_body(finished.timings, finished.timings.delivery_ms)
        match finished.reason:
            case FinishReason.LENGTH:
                self.response["status"] = "incomplete"
                self.response["incomplete_details"] = {"reason": "max_output_tokens"}
                self._end("response.incomplete")
            case FinishReason.CANCELLED:
                # No literal of incomplete_details.reason fits; clients wait for one of the three terminal types.
                self.response["status"] = "cancelled"
                self._end("response.incomplete")
            case _:
                self.response["status"] = "completed"
                self.response["completed_at"] = int(self._clock())
                self._end("response.completed")

    def _end(self, kind: str) -> None:
        self.response["output"] = self._output
        self._emit_response(kind)
        self.is_over = True


class _OpenItem:
    """An output item between its added and its done event."""

    def __init__(self, events: ResponseEvents, prefix: str) -> None:
        self._events = events
        self._prefix = prefix
        self._parts: list[str] = []

    def open(self) -> None:
        self._id, self._index = self._events.next_item(self._prefix)
        self._events.emit("response.output_item.added", output_index=self._index, item=self._item("in_progress", ""))

    def close(self, status: str) -> Event:
        text = "".join(self._parts)
        self._close_content(text)
        item = self._item(status, text)
        self._events.emit("response.output_item.done", output_index=self._index, item=item)
        return item

    def _item(self, status: str, text: str) -> Event:
        raise NotImplementedError

    def _close_content(self, text: str) -> None:
        raise NotImplementedError

    def _emit(self, kind: str, **fields: object) -> None:
        self._events.emit(kind, item_id=self._id, output_index=self._index, **fields)


class _OpenMessage(_OpenItem):
    def __init__(self, events: ResponseEvents) -> None:
        super().__init__(events, "msg")
        self._logprobs: list[Event] = []

    def open(self) -> None:
        super().open()
        self._emit("response.content_part.added", content_index=0, part=self._part(""))

    def add(self, text: str, logprobs: list[Event]) -> None:
        self._parts.append(text)
        self._logprobs += logprobs
        self._emit("response.output_text.delta", content_index=0, delta=text, logprobs=logprobs)

    def _close_content(self, text: str) -> None:
        self._emit("response.output_text.done", content_index=0, text=text, logprobs=self._logprobs)
        self._emit("response.content_part.done", content_index=0, part=self._part(text))

    def _part(self, text: str) -> Event:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(self._logprobs)}

    def _item(self, status: str, text: str) -> Event:
        content = [] if status == "in_progress" else [self._part(text)]
        return {"id": self._id, "type": "message", "role": "assistant", "status": status, "content": content}


class _OpenReasoning(_OpenItem):
    def __init__(self, events: ResponseEvents) -> None:
        super().__init__(events, "rs")

    def open(self) -> None:
        super().open()
        self._emit("response.content_part.added", content_index=0, part={"type": "reasoning_text", "text": ""})

    def add(self, text: str) -> None:
        self._parts.append(text)
        self._emit("response.reasoning_text.delta", content_index=0, delta=text)

    def _close_content(self, text: str) -> None:
        self._emit("response.reasoning_text.done", content_index=0, text=text)
        self._emit("response.content_part.done", content_index=0, part={"type": "reasoning_text", "text": text})

    def _item(self, status: str, text: str) -> Event:
        content = [] if status == "in_progress" else [{"type": "reasoning_text", "text": text}]
        return {"id": self._id, "type": "reasoning", "summary": [], "content": content, "status": status}


class _OpenCall(_OpenItem):
    def __init__(self, events: ResponseEvents, call: ToolCallStarted) -> None:
        super().__init__(events, "fc")
        self.index = call.index
        self._call = call

    def add(self, arguments: str) -> None:
        self._parts.append(arguments)
        self._emit("response.function_call_arguments.delta", delta=arguments)

    def close(self, status: str) -> Event:
        # Clients parse the arguments of a finished call as JSON; a function without parameters may have none.
        if status == "completed" and not "".join(self._parts).strip():
            self.add("{}")
        return super().close(status)

    def _close_content(self, text: str) -> None:
        self._emit("response.function_call_arguments.done", arguments=text, name=self._call.name)

    def _item(self, status: str, text: str) -> Event:
        return {
            "id": self._id,
            "type": "function_call",
            "call_id": self._call.id,
            "name": self._call.name,
            "arguments": text,
            "status": status,
        }


def _logprobs(tokens: tuple[TokenLogprob, ...]) -> list[Event]:
    return [{**_logprob(token), "top_logprobs": [_logprob(rival) for rival in token.top]} for token in tokens]


def _logprob(token: TokenLogprob) -> Event:
    return {
        "token": token.piece.decode("utf-8", "replace"),
        "bytes": list(token.piece),
        "logprob": max(token.logprob, _MIN_LOGPROB),
    }


def _failure_code(error: EdgeAgentError) -> str:
    # A closed literal in strict clients.
    match error:
        case InvalidRequest():
            return "invalid_prompt"
        case Overloaded():
            return "rate_limit_exceeded"
    return "server_error"


def _is_whole(item: Event) -> bool:
    return bool(item["status"] == "completed")


def _to_item(item: Event) -> Item:
    match item:
        case {"type": "message", "id": item_id, "content": content}:
            return MessageItem(item_id, "assistant", content[0]["text"])
        case {"type": "reasoning", "id": item_id, "content": content}:
            return ReasoningItem(item_id, content[0]["text"])
    return CallItem(item["id"], item["call_id"], item["name"], item["arguments"])
