"""Makes the events of one response from deltas, and builds the response object: a state machine without I/O.

It does not use sockets, lanes or history. The events have the order and fields of the Responses API. Every item and
part that is opened is closed before the one terminal event.

The events of a background response are recreated from the response itself, after any given event. No events are stored,
because the number of each event can be computed from the response. An event's number is the number of the event before
it plus 1. For a delta, the length of the delta in characters is added instead of 1, so the number tells how much text
was sent. A client sends the number of the last event that it received, and gets the later events. Their text may be
split into deltas at other places: a client that reads slowly gets fewer and longer deltas.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from pydantic_core import to_json

from edgeagent.api.responses.event_json import Echo, FailureCode, Notes, ResponseBody, ResponseRun, diagnose
from edgeagent.api.responses.items import ItemStatus, OutputItem, item_of
from edgeagent.api.responses.open_items import (
    OpenCall,
    OpenCompaction,
    OpenCustomCall,
    OpenItem,
    OpenMessage,
    OpenReasoning,
    closed_item,
)
from edgeagent.api.responses.tools import NO_TOOLS, OfferedTools
from edgeagent.api.wire.errors import error_body
from edgeagent.api.wire.generation import (
    Run,
    RunsAt,
    Wait,
    edgeagent_body,
    placement_body,
    responses_usage,
    timings_body,
    wait_body,
    warnings_of,
)
from edgeagent.api.wire.latency import service_tier_of
from edgeagent.api.wire.shape import Json
from edgeagent.conversation.items import CompactionItem, Item
from edgeagent.errors import EdgeAgentError, InvalidRequest, Overloaded
from edgeagent.types import (
    Delta,
    Finished,
    FinishReason,
    Queued,
    ReasoningDelta,
    Started,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
    is_remote,
)


@dataclass(frozen=True, slots=True)
class Compacting:
    """The earlier part of the conversation is being summarized. The summary becomes the item with this id."""

    item_id: str


@dataclass(frozen=True, slots=True)
class Compacted:
    """The summary is ready: this item replaces the earlier part of the conversation."""

    item: CompactionItem


@dataclass(frozen=True, slots=True)
class ResponseState:
    """The state of a response: its object, its finished items, and its open item (None if no item is open)."""

    response: ResponseBody
    output: Sequence[OutputItem]
    open: OpenItem | None = None
    is_over: bool = True


ItemT = TypeVar("ItemT", bound=OpenItem)
NewId = Callable[[str], str]

TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed"})


def new_id(prefix: str) -> str:
    """Return a fresh id that begins with a prefix, such as resp, msg, fc or rs."""
    return f"{prefix}_{uuid.uuid4().hex}"


def new_response(response_id: str, model: str, echo: Echo, created_at: int) -> ResponseBody:
    """Return the object of a response that has just begun: its own fields, and those that repeat its request."""
    own: Json = {
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
    }
    return cast("ResponseBody", own | echo)


def response_event(kind: str, response: ResponseBody | Json) -> Json:
    """Return an event of the type `kind` with the response. It gets its number when it is emitted."""
    return {"type": kind, "sequence_number": 0, "response": response}


def set_delivery(terminal: Json, delivery_ms: float) -> None:
    """Write the measured delivery time into a terminal event. Call it just before the event is sent.

    A failed response has no stage times, so its event is not changed.
    """
    stages = terminal["response"]["edgeagent"]["stages_ms"]
    if stages:
        stages["delivery"] = round(delivery_ms, 3)


class ResponseEvents:
    """The events of one response.

    Call `created` first, and `in_progress` when a queued response begins. Then call `step` for each step until
    `is_over`. If the response fails before that, call `fail` once; it ends the response.
    """

    def __init__(
        self,
        response: ResponseBody,
        *,
        offered: OfferedTools = NO_TOOLS,
        stream_id: str | None = None,
        make_id: NewId = new_id,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.response = response
        # Parts of the response's `edgeagent` object that are known before its end.
        self.notes: Notes = {}
        # The response to compare with, if that was asked for and it was found.
        self.is_compared = False
        self.compared: Json | None = None
        self.is_over = False
        self.started: Started | None = None
        self.failure: EdgeAgentError | None = None
        # True if the cancel of the response was caused by a steer, not by a client's cancel.
        self.is_steered = False
        self._offered = offered
        self._stream_id = stream_id
        self._make_id = make_id
        self._clock = clock
        self._num_events = 0
        self._events: list[Json] = []
        self._unsent: RunsAt | Wait | None = None  # where the response runs, or its place, until the next event says it
        self._wait: Wait | Json = {}  # how long the response waits, while it is queued
        self._open: OpenItem | None = None
        self._output: list[OutputItem] = []

    def created(self, queued: Queued | None = None, *, is_queued: bool = False) -> list[Json]:
        """Begin or queue the response. Return the opening events: created, then in_progress or queued.

        `queued`: what the request waits for, if that is known. `is_queued`: it waits for something else.
        """
        is_queued = is_queued or queued is not None
        self.response["status"] = "queued" if is_queued else "in_progress"
        self._emit_response("response.created")
        if queued is not None:
            self._wait = self._unsent = wait_body(queued)
        self._emit_response("response.queued" if is_queued else "response.in_progress")
        return self._take()

    def in_progress(self) -> list[Json]:
        """Begin a queued response. Return the event that says so."""
        self.response["status"] = "in_progress"
        self._emit_response("response.in_progress")
        return self._take()

    def step(self, deltas: Sequence[Delta | Compacting | Compacted]) -> list[Json]:
        """Apply the deltas of one step to the response, and return the events that report them."""
        for delta in deltas:
            match delta:
                case TextDelta():
                    self._text(OpenMessage).add(delta.text, delta.logprobs)
                case ReasoningDelta():
                    self._text(OpenReasoning).add(delta.text)
                case ToolCallStarted():
                    call = self._offered.call(delta)
                    self._open_item(OpenCustomCall if call.is_custom else OpenCall, call, delta.index)
                case ToolCallDelta():
                    self._call(delta.index).add(delta.arguments)
                case Finished():
                    self._finish(delta)
                case Queued():
                    self._wait = wait_body(delta)
                case Compacting(item_id):
                    self._open_item(OpenCompaction, item_id)
                case Compacted(item):
                    assert isinstance(self._open, OpenCompaction), "no compaction is open"
                    self._open.content = item.content
                    self._close_item("completed")
                case Started(num_dropped_items=num_dropped, placement=placement):
                    self.started = self.started or delta
                    if num_dropped:
                        self.notes["dropped_items"] = num_dropped
                    if delta.tier is not None:
                        self.response["service_tier"] = service_tier_of(delta.tier)
                    if delta.warnings:
                        self.notes["warnings"] = [*self.notes.get("warnings", []), *warnings_of(delta)]
                    self._unsent = None if placement is None else placement_body(placement)
        return self._take()

    def fail(self, error: EdgeAgentError) -> list[Json]:
        """End the response, which has begun, with an error. Return the events that end it."""
        self.failure = error
        self._close_item("incomplete")
        self.response["status"] = "failed"
        self.response["error"] = {"code": _failure_code(error), "message": error_body(error)["message"]}
        # An error has no timings, but it says who failed and why.
        run: ResponseRun = {"route": error.served_by, "reason": error.code, "stages_ms": {}}
        if error.num_delivered_tokens:
            run["num_delivered_tokens"] = error.num_delivered_tokens
        if error.late_stage:
            run["late_stage"] = error.late_stage
        self._set_run(run)
        self._end("response.failed")
        return self._take()

    @property
    def has_begun(self) -> bool:
        """Whether the first event of the response has been made."""
        return self._num_events > 0

    @property
    def is_queued(self) -> bool:
        """Whether the response waits: on a WebSocket for other responses, in the background for its first step."""
        return self.response["status"] == "queued"

    def so_far(self) -> ResponseBody:
        """Return the response object with its finished output items."""
        response: ResponseBody = {**self.response, "output": list(self._output)}
        wait = self._wait if self.is_queued else {}
        if self.notes or wait:
            response["edgeagent"] = cast("Notes", {**self.response.get("edgeagent", {}), **self.notes, **wait})
        return response

    def to_store(self) -> bytes:
        """Return the response object as the store keeps it.

        It lacks the words of an earlier prompt (`cache.miss.earlier`), since that prompt may not be stored.
        """
        response: Json = {**self.response}
        run = response.get("edgeagent", {})
        if "miss" in (cache := run.get("cache", {})):
            cache = {**cache, "miss": {**cache["miss"], "earlier": ""}}
            response["edgeagent"] = {**run, "cache": cache}
        return to_json(response)

    def numbered(self, event: Json) -> list[Json]:
        """Give an event the next number of the response, and return the event in a list."""
        self._emit(event)
        return self._take()

    @property
    def state(self) -> ResponseState:
        """The state of the response so far, for the clients that follow it."""
        return ResponseState(self.so_far(), self._output, self._open, is_over=self.is_over)

    @property
    def items(self) -> tuple[Item, ...]:
        """The output items that a continuation inherits.

        Calls that were cut off are left out, because they have no results. A compaction is left out, because the
        conversation already has it.
        """
        return tuple(item_of(item) for item in self._output if _is_inherited(item))

    def _emit(self, event: Json) -> None:
        event["sequence_number"] = self._num_events
        if self._stream_id is not None:
            event["stream_id"] = self._stream_id
        if self._unsent is not None:
            event["edgeagent"], self._unsent = self._unsent, None
        self._num_events += 1
        self._events.append(event)

    def _take(self) -> list[Json]:
        events, self._events = self._events, []
        return events

    def _emit_response(self, kind: str) -> None:
        # A copy: events wait in buffers while the response changes.
        self._emit(response_event(kind, self.so_far()))

    def _set_run(self, run: Run) -> None:
        self.response["edgeagent"] = cast("ResponseRun", {**run, **self.notes})

    def _open_item(self, kind: type[ItemT], *details: Any) -> ItemT:
        self._close_item("completed")
        item = kind(self._emit, self._make_id(kind.prefix), len(self._output), *details)
        item.open()
        self._open = item
        return item

    def _text(self, kind: type[ItemT]) -> ItemT:
        return self._open if isinstance(self._open, kind) else self._open_item(kind)

    def _call(self, index: int) -> OpenCall:
        # A backend's calls come one after another, so the arguments are always the open call's.
        call = self._open
        assert isinstance(call, OpenCall) and call.call_index == index, f"arguments for call {index}, which is not open"
        return call

    def _close_item(self, status: ItemStatus) -> None:
        if self._open is not None:
            self._output.append(self._open.close(status))
            self._open = None

    def _finish(self, finished: Finished) -> None:
        is_whole = finished.reason in (FinishReason.STOP, FinishReason.TOOL_CALLS)
        self._close_item("completed" if is_whole else "incomplete")
        self.response["usage"] = responses_usage(finished.usage)
        self.response["timings"] = timings_body(finished.usage, finished.timings)
        if self.is_compared:
            is_elsewhere = is_remote(finished.timings.route)
            diagnostics = diagnose(self.compared, cast("Json", self.response), is_remote=is_elsewhere)
            self.response["prompt_cache_diagnostics"] = diagnostics
        self._set_run(edgeagent_body(finished.timings, finished.timings.delivery_ms))
        match finished.reason:
            case FinishReason.LENGTH:
                self.response["status"] = "incomplete"
                self.response["incomplete_details"] = {"reason": "max_output_tokens"}
                self._end("response.incomplete")
            case FinishReason.CANCELLED if self.is_steered:
                self.response["status"] = "incomplete"
                self.response["incomplete_details"] = {"reason": "steered"}
                self._end("response.incomplete")
            case FinishReason.CANCELLED:
                # A cancel has no terminal event of its own. Clients wait for completed, incomplete or failed, so
                # `incomplete` is sent. `incomplete_details` stays null: no allowed reason fits.
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


def _failure_code(error: EdgeAgentError) -> FailureCode:
    # Strict clients accept only these codes.
    match error:
        case InvalidRequest():
            return "invalid_prompt"
        case Overloaded():
            return "rate_limit_exceeded"
    return "server_error"


def _is_inherited(item: OutputItem) -> bool:
    # A compaction is already part of the shortened context.
    return bool(
        item["type"] != "compaction"
        and (item["type"] not in ("function_call", "custom_tool_call") or item["status"] == "completed")
    )


_NOT_BEGUN = ("response.created", "response.queued")
_TERMINAL = {"completed": "response.completed", "failed": "response.failed"}


def events_after(state: ResponseState, after: int) -> list[Json]:
    """Return the events so far with a number greater than `after` (-1: all of them)."""
    return _Replayer(after).replay(state)


def last_number(state: ResponseState) -> int:
    """Return the number of the latest event so far."""
    replayer = _Replayer(-1)
    replayer.replay(state)
    return replayer.number - 1


class _Replayer:
    def __init__(self, after: int) -> None:
        self.number = 0
        self._after = after
        self._events: list[Json] = []

    def replay(self, state: ResponseState) -> list[Json]:
        response = state.response
        for kind in _NOT_BEGUN:
            self._emit_begun(kind, response, "queued")
        if response["status"] == "queued":
            return self._events
        self._emit_begun("response.in_progress", response, "in_progress")
        for index, body in enumerate(state.output):
            status = "completed" if body["type"] == "compaction" else body["status"]
            self._replay_item(closed_item(body, index, self._emit), status)
        if state.open is not None:
            self._replay_item(state.open.copy_for(self._emit), None)
        if state.is_over:
            self._emit(response_event(_TERMINAL.get(response["status"], "response.incomplete"), response))
        return self._events

    def _replay_item(self, item: OpenItem, status: ItemStatus | None) -> None:
        """Emit the events of an item that the client lacks. `status`: the item's final status; None: it is open."""
        num_closing = 0 if status is None else item.num_closing
        before = self.number + item.num_opening - 1  # the number of the last opening event
        if before + item.num_chars + num_closing <= self._after:
            self.number = before + item.num_chars + num_closing + 1
            return
        item.open()
        num_sent = max(0, self._after - before)
        if item.num_chars:
            self.number = before + item.num_chars
            if item.num_chars > num_sent:
                item.emit_tail(item.num_chars - num_sent)
            else:
                self.number += 1
        if status is not None:
            item.close(status)

    def _emit_begun(self, kind: str, response: ResponseBody, status: str) -> None:
        if self.number > self._after:
            self._emit(response_event(kind, _as_begun(response, status)))
        else:
            self.number += 1

    def _emit(self, event: Json) -> None:
        if self.number > self._after:
            event["sequence_number"] = self.number
            self._events.append(event)
        self.number += 1


_OF_END = frozenset({"timings", "prompt_cache_diagnostics", "edgeagent"})  # fields that a response gets at its end


def _as_begun(response: ResponseBody, status: str) -> Json:
    """Return the response object as it was before the first output, but with the status `status`."""
    begun = {name: value for name, value in response.items() if name not in _OF_END}
    notes = cast("Json", response.get("edgeagent", {}))
    if known := {name: notes[name] for name in Notes.__annotations__ if name in notes}:
        begun["edgeagent"] = known
    nothing = dict.fromkeys(("completed_at", "error", "incomplete_details", "usage"))
    return begun | nothing | {"status": status, "output": []}
