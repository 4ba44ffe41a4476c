"""A turn is a response while it is generated, over HTTP or WebSocket: how it begins, its steps, and who follows it.

Over HTTP, a Drive applies a turn's steps. A WebSocket's session does so itself, because it sends the events of several
lanes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from pydantic_core import from_json

from edgeagent.api.context import Context
from edgeagent.api.responses.body import ResponseCreate
from edgeagent.api.responses.events import (
    Compacted,
    Compacting,
    NewId,
    ResponseEvents,
    new_id,
    new_response,
    set_delivery,
)
from edgeagent.api.wire.addresses import LOCAL_ONLY
from edgeagent.api.wire.answer_stream import AnswerWriter
from edgeagent.api.wire.errors import to_client_error
from edgeagent.api.wire.fields import with_adapter
from edgeagent.api.wire.generation import DeliveryTime, is_wait
from edgeagent.api.wire.shape import Json
from edgeagent.api.wire.sse import DONE, event
from edgeagent.conversation.compaction import (
    EARLY_SHARE,
    EarlySummaries,
    SummaryCancelled,
    compacted,
    num_input_tokens,
    num_to_summarize,
    summarize,
)
from edgeagent.conversation.history import ConnectionHistory, Conversation, StoredResponse, StoreResult, Transcript
from edgeagent.conversation.items import CallItem, CompactionItem, Item
from edgeagent.conversation.store import ResponseStore
from edgeagent.errors import ContextLengthExceeded, EdgeAgentError, InternalError
from edgeagent.router.policy import strictest
from edgeagent.service.live_requests import LiveRequest, LiveRequests
from edgeagent.service.service import Service, info_of
from edgeagent.types import (
    AnswerSoFar,
    ChatPrompt,
    Delta,
    FinishReason,
    GenerateRequest,
    Queued,
    RouteMode,
    SamplingParams,
    Sink,
    Step,
    Usage,
    unrun,
)
from edgeagent.types import replace as msgspec_replace


@dataclass(slots=True, eq=False)
class Turn:
    """One response under way. `conversation`: what the response answers; a compaction replaces it by a shorter one.

    `ahead`: the beginning of the answer, if it was generated ahead of the request.
    """

    create: ResponseCreate
    request: GenerateRequest
    events: ResponseEvents
    conversation: Conversation
    ahead: AnswerSoFar | None = None

    @property
    def usage_ahead(self) -> Usage:
        """The token counts of what was generated ahead; zeros if nothing was."""
        started = self.events.started
        if self.ahead is None or started is None:
            return Usage()
        return Usage(started.num_prompt_tokens, started.num_cached_tokens, self.ahead.num_tokens)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to compute, because the prompt has no messages.

        Only a request that generates nothing may have such a prompt.
        """
        prompt = self.request.prompt
        return isinstance(prompt, ChatPrompt) and not prompt.messages

    @property
    def why_uncomputed(self) -> str:
        """Why the turn ends at once and nothing is computed; empty if something is.

        A prompt is computed ahead for this machine's cache, which a request for remotes alone does not use.
        """
        if self.is_empty:
            return "empty prompt"
        request = self.request
        return "remote_only" if request.prefill_only and request.asked_route is RouteMode.REMOTE_ONLY else ""

    @property
    def partition(self) -> str:
        return self.request.cache.partition

    def count_wait(self, waited_s: float) -> None:
        """Add to the seconds that the client has waited for the request to begin."""
        self.request = msgspec_replace(self.request, waited_s=self.request.waited_s + waited_s)

    def shorten(self, items: tuple[Item, ...]) -> None:
        """Replace the conversation by `items`, a shorter form of it, and make the request again with the same id."""
        transcript = Transcript().extended(items)
        self.conversation = replace(self.conversation, items=items, transcript=transcript, num_inherited=0)
        shorter = self.create.request(self.request.id, self.request.model, self.conversation, self.partition)
        same = {name: getattr(self.request, name) for name in ("cache", "route", "asked_route", "is_whole", "waited_s")}
        self.request = msgspec_replace(shorter, **same)

    def stored(self) -> StoredResponse:
        """Return what the store keeps, so that the response can be continued.

        The text of an answer that was cut off or cancelled is included, because the client has it.
        """
        return StoredResponse(
            id=self.request.id,
            context=self.conversation.items,
            output=self.events.items,
            num_inherited=self.conversation.num_inherited,
            previous_id=self.create.previous_id,
            partition=self.partition,
            is_storable=self.events.response["store"],
            is_failed=self.events.response["status"] == "failed",
            route=self.request.route,
            transcript=self.conversation.transcript.extended(self.events.items),
        )


def begin_turn(
    create: ResponseCreate,
    service: Service,
    history: ConnectionHistory,
    found: StoreResult,
    *,
    default_model: str | None = None,
    stream_id: str | None = None,
    partition: str = "",
    lane: str = "",
    make_id: NewId = new_id,
    clock: Callable[[], float] = time.time,
) -> Turn:
    """Return the turn that a create asks for; raise InvalidRequest or ResponseNotFound.

    `found`: what the store has of the ids that `history` does not have. `lane`: the key of a WebSocket's lane, which
    tells its conversation from others; "" if there is none.
    """
    conversation = history.continue_from(create.previous_id, create.items, found)
    model = with_adapter(create.body.model or default_model or service.models.default(), create.body.edgeagent)
    request = create.request(make_id("resp"), model, conversation, partition)
    route, asked_route = strictest(conversation.route, request.route), request.route or conversation.route
    cache = msgspec_replace(request.cache, lane=lane)
    request = msgspec_replace(request, cache=cache, route=route, asked_route=asked_route)
    response = new_response(request.id, model, create.echo(_defaults(service, model)), int(clock()))
    # If an earlier response of the chain must not be stored, this one is not stored either. Its `store` says so.
    response["store"] = create.is_stored and conversation.is_storable
    events = ResponseEvents(response, offered=create.offered, stream_id=stream_id, make_id=make_id, clock=clock)
    if route is not None:
        # The store reads the mode back when another response continues this one.
        events.notes["mode"] = route
    if create.warning:
        events.notes["warnings"] = [create.warning.text]
    return Turn(create, request, events, conversation)


async def why_kept_here(
    previous_id: str | None, items: tuple[Item, ...], history: ConnectionHistory, store: ResponseStore, partition: str
) -> str:
    """Return why no image may be fetched for a create, since what it continues may not leave this machine; else "".

    The words are the end of a sentence about an image's address. Raise what `begin_turn` raises.
    """
    found = await store.find(history.missing(previous_id, items), partition)
    is_local = history.continue_from(previous_id, items, found).route is RouteMode.LOCAL_ONLY
    return LOCAL_ONLY if is_local else ""


def _defaults(service: Service, model: str) -> SamplingParams:
    try:
        name = service.models.find(model)
    except EdgeAgentError:
        return SamplingParams()  # the service will raise the error
    info = info_of(service.models, name)
    return SamplingParams() if info is None else info.sampling


async def compare(turn: Turn, store: ResponseStore) -> None:
    """Read the response that a turn is to be compared with, if its create names one."""
    if (comparison_id := turn.create.comparison_id) is not None:
        body = await store.body(comparison_id, turn.partition)
        turn.events.is_compared, turn.events.compared = True, None if body is None else from_json(body)


async def run_turn(turn: Turn, service: Service, sink: Sink, early: EarlySummaries) -> None:
    """Run a turn to its end, and put its steps into the sink. Raise the EdgeAgentError that ends it.

    `early`: the summaries that were written in idle time. If the conversation is summarized first, two steps say so,
    with the deltas Compacting and Compacted.
    """
    if why := turn.why_uncomputed:
        sink.put(Step((unrun(FinishReason.STOP, why),)))
        return
    began_s = time.monotonic()
    if await _is_too_long(turn, service):
        item_id = new_id("cmp")
        sink.put(Step(cast("tuple[Delta]", (Compacting(item_id),))))
        try:
            item = await _compact(turn, service, item_id, early)
        except SummaryCancelled as cancelled:
            sink.put(Step((cancelled.end,)))
            return
        sink.put(Step(cast("tuple[Delta]", (Compacted(item),))))
        turn.count_wait(time.monotonic() - began_s)
    request = turn.request
    if turn.ahead is not None:
        request = msgspec_replace(request, so_far=turn.ahead, route=RouteMode.LOCAL_ONLY)
    await service.generate(request, sink)


async def _is_too_long(turn: Turn, service: Service) -> bool:
    threshold = turn.create.compact_threshold
    if threshold is None or not num_to_summarize(turn.conversation.items):
        return False
    try:
        return await num_input_tokens(turn.request, service) > threshold
    except ContextLengthExceeded:
        return True


async def _compact(turn: Turn, service: Service, item_id: str, early: EarlySummaries) -> CompactionItem:
    items, instructions = turn.conversation.items, turn.create.body.instructions
    num_old = num_to_summarize(items)
    if (found := early.take(turn.request, instructions, items[:num_old])) is not None:
        summary, num_old = found
    else:
        part = msgspec_replace(turn.request, is_part=True)
        summary, _ = await summarize(part, instructions, items[:num_old], service)
    item, *calls = compacted(items[:num_old], summary, item_id)
    turn.shorten((item, *calls, *items[num_old:]))
    return item


def summarize_early(turn: Turn, context: Context, connection: object | None = None) -> None:
    """Summarize the conversation of a turn that is over, in idle time, if it will soon be too long.

    `connection`: the WebSocket that keeps the conversation, and that alone if it is not stored.
    """
    threshold, response, output = turn.create.compact_threshold, turn.events.response, turn.events.items
    usage = response.get("usage")
    if threshold is None or usage is None or response["status"] != "completed" or turn.request.prefill_only:
        return
    is_remote = turn.request.asked_route in (RouteMode.PREFER_REMOTE, RouteMode.REMOTE_ONLY)
    if usage["total_tokens"] < EARLY_SHARE * threshold or is_remote or not output or isinstance(output[-1], CallItem):
        return
    items, early = (*turn.conversation.items, *output), context.responses.early_summaries
    owner = None if response["store"] else connection
    work = early.write(turn.request, turn.create.body.instructions, items, context.service, new_id("sum"), owner)
    context.responses.carry_on(work)


class LiveTurn(LiveRequest):
    """A turn that runs or waits to run. `cancel` asks it to end. `on_hidden` sets `over` after the turn has ended.

    Set `cancel` before clients can find the turn by its id.
    """

    def __init__(self, turn: Turn, cancel: Callable[[], None] = lambda: None) -> None:
        super().__init__(turn.request.id, turn.partition)
        self.turn = turn
        self.cancel = cancel
        self.over = asyncio.Event()
        self._change: asyncio.Event | None = None

    def on_hidden(self) -> None:
        """Set `over`, and wake the clients that follow. From now on, clients find the response only in the store."""
        self.over.set()
        self.wake_followers()

    def wake_followers(self) -> None:
        """Set the event `change`, because the turn has made progress."""
        if self._change is not None:
            self._change.set()
            self._change = None

    @property
    def change(self) -> asyncio.Event:
        """An event that is set at the next progress of the turn."""
        if self._change is None:
            self._change = asyncio.Event()
        return self._change


def find_turn(live: LiveRequests, response_id: str, partition: str) -> LiveTurn | None:
    """Return a response that runs or waits, by its id; None if the client's partition has no such response."""
    found = live.find(response_id, partition)
    return found if isinstance(found, LiveTurn) else None


class Drive(AnswerWriter, Sink):
    """Applies the steps of a turn to its events, and stores the response before its terminal event is sent.

    As an AnswerWriter, it writes the events. As a Sink, it is for a turn whose events are not sent. From the first step
    until `close`, clients find the turn by its id. A failure is an event too.
    """

    def __init__(self, live: LiveTurn, context: Context) -> None:
        self.id = live.id
        self._live = live
        self._events = live.turn.events
        self._context = context
        self._last: list[Json] = []  # the events of the step that ends the turn
        self._delivery_time = DeliveryTime()

    def opening(self) -> bytes:
        return self._open()

    def queued(self, queued: Queued) -> bytes:
        return self._open(queued)

    def _open(self, queued: Queued | None = None) -> bytes:
        self._context.service.live.show(self._live)
        return b"" if self._events.has_begun else _written(self._events.created(queued))

    def write(self, index: int, step: Step) -> bytes:
        del index
        self._delivery_time.add(step.at_s)
        return _written(self._apply(step))

    def put(self, step: Step) -> None:
        if is_wait(step.deltas) and not self._events.has_begun:
            return  # an error that comes before the answer is answered as one
        if not self._live.is_visible:
            self.opening()
        self._apply(step)

    def _apply(self, step: Step) -> list[Json]:
        begun = self._events.in_progress() if self._events.is_queued and not is_wait(step.deltas) else []
        made = begun + self._events.step(step.deltas)
        self._live.wake_followers()
        if not self._events.is_over:
            return made
        self._last += made
        return []

    async def end(self) -> bytes:
        return await self.fail(InternalError("the backend ended without finishing"))

    async def fail(self, error: EdgeAgentError) -> bytes:
        """Store the response, and return its last events. `error` is that of a response that is not over."""
        if not self._events.is_over:
            self._last = self._events.fail(error)
        elif self._delivery_time.num:
            set_delivery(self._last[-1], self._delivery_time.mean_ms)
        turn = self._live.turn
        summarize_early(turn, self._context)
        # A response that has not failed can then be continued, unless a request in its chain forbids storage.
        await self._context.responses.store.add(turn.stored(), turn.events.to_store())
        return _written(self._last) + DONE

    def close(self) -> None:
        self._context.service.live.hide(self._live)


def _written(events: Sequence[Json]) -> bytes:
    return b"".join(event(each, each["type"]) for each in events)


async def drive(live: LiveTurn, context: Context) -> None:
    """Run a turn to its end, and store its response. Raise an error only if it comes before the first step."""
    drive = Drive(live, context)
    try:
        try:
            await run_turn(live.turn, context.service, drive, context.responses.early_summaries)
        except Exception as error:
            failure = to_client_error(live.turn.request.id, error)
            if not live.is_visible:
                raise failure from None
            await drive.fail(failure)
        else:
            await drive.end()
    finally:
        drive.close()
