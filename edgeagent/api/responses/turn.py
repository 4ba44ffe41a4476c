"""A turn is a response while it is generated, over HTTP or WebSocket: how it begins, its steps, and who follows it.

Over HTTP, `drive` runs a turn to its end. A WebSocket's session drives its turns itself, because it sends the events of
several lanes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

from pydantic_core import to_json

from edgeagent.api.context import Context
from edgeagent.api.responses.body import ResponseCreate
from edgeagent.api.responses.events import (
    Compacted,
    Compacting,
    CompactionStep,
    NewId,
    ResponseEvents,
    new_id,
    new_response,
)
from edgeagent.api.wire.errors import to_client_error
from edgeagent.api.wire.fields import with_adapter
from edgeagent.api.wire.shape import Json
from edgeagent.conversation.compaction import SummaryCancelled, compacted, num_input_tokens, num_to_summarize, summarize
from edgeagent.conversation.history import ConnectionHistory, Conversation, StoredResponse, StoreResult, Transcript
from edgeagent.conversation.items import CompactionItem, Item
from edgeagent.errors import EdgeAgentError, InternalError
from edgeagent.router.policy import strictest
from edgeagent.service.first_step import Stream
from edgeagent.service.live_requests import LiveRequest, LiveRequests
from edgeagent.service.service import Service, status_of
from edgeagent.types import (
    ChatPrompt,
    Finished,
    FinishReason,
    GenerateRequest,
    SamplingParams,
    Step,
    Timings,
    Usage,
)
from edgeagent.types import replace as msgspec_replace


@dataclass(slots=True, eq=False)
class Turn:
    """One response under way. `conversation`: what the response answers; a compaction replaces it by a shorter one."""

    create: ResponseCreate
    request: GenerateRequest
    events: ResponseEvents
    conversation: Conversation

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to compute, because the prompt has no messages.

        Only a request that generates nothing may have such a prompt.
        """
        prompt = self.request.prompt
        return isinstance(prompt, ChatPrompt) and not prompt.messages

    @property
    def partition(self) -> str:
        """The partition of the client."""
        return self.request.cache.partition

    def shorten(self, items: tuple[Item, ...]) -> None:
        """Replace the conversation by `items`, a shorter form of it, and make the request again with the same id."""
        transcript = Transcript().extended(items)
        self.conversation = replace(self.conversation, items=items, transcript=transcript, num_inherited=0)
        shorter = self.create.request(self.request.id, self.request.model, self.conversation, self.partition)
        self.request = msgspec_replace(shorter, cache=self.request.cache, route=self.request.route)

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

    `found`: what the store has of the ids that `history` does not have. `lane`: the key of a WebSocket's lane; the
    prompt then stays cached until the lane's next response. "": the prompt is cached like any other.
    """
    conversation = history.continue_from(create.previous_id, create.items, found)
    model = with_adapter(create.body.model or default_model or service.models.default(), create.body.edgeagent)
    request = create.request(make_id("resp"), model, conversation, partition)
    route = strictest(conversation.route, request.route)
    request = msgspec_replace(request, cache=msgspec_replace(request.cache, lane=lane), route=route)
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


def unrun(reason: FinishReason, why: str) -> Finished:
    """Return the terminal delta of a request that was not sent to a backend."""
    return Finished(reason, Usage(), Timings(route="edgeagent", reason=why))


def _defaults(service: Service, model: str) -> SamplingParams:
    try:
        name = service.models.find(model)
    except EdgeAgentError:
        return SamplingParams()  # the service will raise the error
    status = status_of(service.models, name)
    return status.info.sampling if status is not None and status.info is not None else SamplingParams()


TurnSteps = Stream[Step | CompactionStep]


async def steps_of(turn: Turn, service: Service) -> AsyncGenerator[Step | CompactionStep, None]:
    """Yield a turn's steps. Either the last step ends the turn, or an EdgeAgentError is raised.

    The caller must give each step to `turn.events` before it takes the next step. InternalError is raised if
    `turn.events` is not over after the last step.
    """
    if turn.is_empty:
        yield Step((unrun(FinishReason.STOP, "empty prompt"),))
        return
    if await _is_too_long(turn, service):
        item_id = new_id("cmp")
        yield CompactionStep((Compacting(item_id),))
        try:
            item = await _compact(turn, service, item_id)
        except SummaryCancelled as cancelled:
            yield Step((cancelled.end,))
            return
        yield CompactionStep((Compacted(item),))
    async with aclosing(service.generate(turn.request)) as steps:
        async for step in steps:
            yield step
    if not turn.events.is_over:
        raise InternalError("the backend ended without finishing")


async def _is_too_long(turn: Turn, service: Service) -> bool:
    threshold = turn.create.compact_threshold
    if threshold is None or not num_to_summarize(turn.conversation.items):
        return False
    return await num_input_tokens(turn.request, service) > threshold


async def _compact(turn: Turn, service: Service, item_id: str) -> CompactionItem:
    items = turn.conversation.items
    num_old = num_to_summarize(items)
    summary, _ = await summarize(turn.request, turn.create.body.instructions, items[:num_old], service)
    item, *calls = compacted(items[:num_old], summary, item_id)
    turn.shorten((item, *calls, *items[num_old:]))
    return item


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


async def drive(live: LiveTurn, steps: TurnSteps, context: Context) -> AsyncGenerator[tuple[list[Json], float], None]:
    """Run a turn. For each step, yield its events and the time (time.monotonic) when an engine computed the step.

    The time is 0 if no engine did. A failure does not raise an error: the last event reports the failure. While the
    turn runs, clients find it by its id. The response is stored before the terminal event is yielded.
    """
    failure: EdgeAgentError | None = None
    turn, events, requests = live.turn, live.turn.events, context.service.live
    requests.show(live)
    try:
        if not events.has_begun:
            yield events.created(), 0.0
        try:
            async with aclosing(steps):
                async for step in steps:
                    begun = events.in_progress() if events.is_queued else []
                    made = events.step(step.deltas)
                    live.wake_followers()
                    if events.is_over:
                        await _keep(turn, context)
                    yield [*begun, *made] if begun else made, step.at_s
        except Exception as error:
            failure = to_client_error(turn.request.id, error)
        if failure is not None and not events.is_over:
            made = events.fail(failure)
            await _keep(turn, context)
            yield made, 0.0
    finally:
        requests.hide(live)


async def _keep(turn: Turn, context: Context) -> None:
    """Store the response of a turn that is over, if no request in its chain of responses forbids it.

    Afterwards a response that has not failed can be continued, also after a restart if responses are in a file.
    """
    await context.responses.store.add(turn.stored(), to_json(turn.events.response))
