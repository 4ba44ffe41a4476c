"""A turn is a response while it is generated, over HTTP or WebSocket: its create, request, events and conversation."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from edgeagent.api.responses.body import ResponseCreate
from edgeagent.api.responses.events import NewId, ResponseEvents, new_id, new_response
from edgeagent.api.wire.fields import with_adapter
from edgeagent.conversation.history import ConnectionHistory, Conversation, StoredResponse, StoreResult, Transcript
from edgeagent.conversation.items import Item
from edgeagent.errors import EdgeAgentError
from edgeagent.router.policy import strictest
from edgeagent.service.service import Service, status_of
from edgeagent.types import (
    ChatPrompt,
    Finished,
    FinishReason,
    GenerateRequest,
    SamplingParams,
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
