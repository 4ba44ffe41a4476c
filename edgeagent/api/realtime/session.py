"""One Realtime client's session without the socket: its events in, the connection's actions out.

It has the settings and the conversation. Each response is a create of a session of the Responses API, which runs it:
those of the conversation on its default lane, others on lanes of their own. The events of that session are translated.
"""

from __future__ import annotations

import secrets
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pydantic_core import to_json

from edgeagent.api.realtime.body import (
    MAX_EVENT_BYTES,
    ItemCreate,
    ItemDelete,
    ItemRetrieve,
    ItemTruncate,
    RealtimeEdgeagent,
    RealtimeInput,
    RealtimeResponseCancel,
    RealtimeResponseCreate,
    Received,
    ResponseParams,
    SessionUpdate,
    create_of,
)
from edgeagent.api.realtime.conversation import (
    Entry,
    RealtimeConversation,
    UnknownItemToRetrieve,
    UnknownItemToTruncate,
    num_bytes_of,
)
from edgeagent.api.realtime.events import AskedResponse, RealtimeSettings, shown_error, shown_item, shown_session
from edgeagent.api.responses.body import ResponseCreate
from edgeagent.api.responses.events import TERMINAL
from edgeagent.api.responses.items import InputCall, InputReference, to_items, with_id
from edgeagent.api.responses.socket.frames import CreateFrame, OtherFrame
from edgeagent.api.responses.socket.outbox import POLICY_VIOLATION, Close, Send
from edgeagent.api.responses.socket.session import Action, End, Session
from edgeagent.api.wire.errors import http_status
from edgeagent.api.wire.fields import route_of
from edgeagent.api.wire.shape import Json
from edgeagent.conversation.items import CallItem, Item, ReasoningItem, ReferenceItem
from edgeagent.errors import EdgeAgentError, InvalidRequest, NotSupported, Overloaded, PayloadTooLarge
from edgeagent.router.policy import strictest
from edgeagent.types import RouteMode

MAX_APART = 8
"""The most responses outside of the conversation that run at once."""
MAX_NEW_AHEAD = 256
"""A prompt with more new items is not computed ahead. Otherwise each small event could make a long prompt again."""


class ActiveResponse(InvalidRequest):
    """A response answers the conversation of a Realtime session already. Wait for it, or cancel it."""

    code = "conversation_already_has_active_response"


class NoActiveResponse(InvalidRequest):
    """The Realtime session has no such response under way, so none is cancelled."""

    code = "response_cancel_not_active"


class RealtimeSession:
    """What one connection asks for, and what it is told. It takes over `session`, to which the connection reports.

    The client's URL may name the model, which is then the session's default. A model in the settings takes precedence.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        session.translate = self._translated
        make_id = session.make_id
        self._id, self._conversation_id = make_id("sess"), make_id("conv")
        self._event_prefix, self._num_events = f"event_{secrets.token_hex(6)}", 0
        self._settings: Json = {}
        self._conversation = RealtimeConversation()
        self._plain: ResponseCreate | None = None  # what the settings ask for; None before `open`
        # By lane: the responses that were asked for and have not ended, in order.
        self._asked: defaultdict[str | None, deque[AskedResponse]] = defaultdict(deque)
        # The last response that answered the conversation, and its items, with those before it.
        self._last: tuple[str, tuple[Item, ...]] = ("", ())
        # What the responses to the conversation asked for. It holds for all that read an item of the conversation.
        self._route: RouteMode | None = None
        self._is_storable = True
        self._is_ahead_due = False
        self._is_audio_refused = False
        self._unchecked: set[str] = set()  # the items whose files no model has read yet

    def open(self) -> list[Action]:
        """Return the actions that begin the session. It is closed if a header of the handshake is wrong."""
        try:
            self._plain = create_of(self._settings, "session")
        except EdgeAgentError as error:
            return [self._error(error, None), Close(POLICY_VIOLATION, "a header of the handshake is wrong")]
        return [self._settings_event("session.created", shown_session(self._id, self._plain))]

    @property
    def num_kept_bytes(self) -> int:
        """About the memory of the conversation."""
        return self._conversation.num_bytes

    @property
    def model(self) -> str:
        """The model of the settings or of the URL, or else the default one; raise EdgeAgentError if there is none."""
        return self._settings.get("model") or self.session.default_model or self.session.service.models.default()

    def forget(self) -> None:
        """Free the conversation at the end of its connection, whose objects refer to each other."""
        self._conversation.clear()

    @property
    def is_local(self) -> bool:
        """Whether the conversation must not leave this machine."""
        under_way = (asked.route for asked in self._asked[None])
        return strictest(self._route, route_of(self._settings.get("edgeagent")), *under_way) is RouteMode.LOCAL_ONLY

    def references(self, sent: Sequence[RealtimeInput]) -> tuple[Item, ...]:
        """Return the references in an input to items that are none of the conversation's."""
        items = (item for item in to_items([*sent]) if isinstance(item, ReferenceItem))
        return tuple(item for item in items if self._conversation.find(item.id) is None)

    def num_bytes_to_prepare(self, received: Received, num_bytes: int) -> int:
        """Return how much `prepare` reads for an event of `num_bytes`. With settings, it reads the tools again."""
        if self._plain is None or not (received.settings or isinstance(received.event, SessionUpdate)):
            return 0
        return num_bytes + sum(len(tool.parameters) for tool in self._plain.offered.tools)

    def prepare(self, received: Received) -> Received:
        """Return an event with the create that its settings give, or with their error. It may run in a thread."""
        try:
            match received.event:
                case SessionUpdate():
                    create = create_of({**self._settings, **received.settings}, "session", received.warning)
                    return replace(received, create=create, shown=shown_session(self._id, create))
                case RealtimeResponseCreate() if received.settings:
                    create = create_of(self._changed_by(received.settings), "response", received.warning)
                    return replace(received, create=create)
        except EdgeAgentError as error:
            return replace(received, event=error)
        return received

    def receive(self, received: Received) -> list[Action]:
        """Return the actions that answer a client's event, which is prepared."""
        if received.is_append:
            # One error says it. Clients send fifty of these events in a second.
            is_refused, self._is_audio_refused = self._is_audio_refused, True
            if is_refused:
                return []
        try:
            return self._answer(received)
        except EdgeAgentError as error:
            return [self._error(error, received.event_id)]

    def _answer(self, received: Received) -> list[Action]:
        match received.event:
            case EdgeAgentError() as error:
                return [self._error(error, received.event_id)]
            case SessionUpdate():
                assert received.shown is not None, "an update is prepared"
                self._settings = {**self._settings, **received.settings}
                self._plain = received.create
                return [self._settings_event("session.updated", received.shown), *self._begin_ahead()]
            case ItemCreate() as sent:
                return self._add(sent, received.is_unchecked)
            case ItemDelete(item_id=item_id):
                self._conversation.remove(item_id)
                self._unchecked.discard(item_id)
                return [self._event("conversation.item.deleted", item_id=item_id)]
            case ItemRetrieve(item_id=item_id):
                entry = self._conversation.find(item_id)
                if entry is None:
                    message = f"Error retrieving item: the item with id '{item_id}' does not exist."
                    raise UnknownItemToRetrieve(message, param="item_id")
                return [self._event("conversation.item.retrieved", num_bytes_of(entry.item), item=entry.shown)]
            case ItemTruncate(item_id=item_id):
                if self._conversation.find(item_id) is None:
                    message = f"Error truncating item: the item with id '{item_id}' does not exist."
                    raise UnknownItemToTruncate(message, param="item_id")
                raise NotSupported("no item has audio to truncate; delete the item, and create a shorter one")
            case RealtimeResponseCreate(response=params):
                return self._respond(received, params or ResponseParams())
            case RealtimeResponseCancel(response_id=response_id):
                return self._cancel(response_id)
        raise AssertionError(f"an event without an answer: {received.event!r:.80}")

    def _add(self, sent: ItemCreate, is_unchecked: bool) -> list[Action]:
        if isinstance(sent.item, InputReference):
            raise InvalidRequest("a reference can only be in the input of response.create; send the item", param="item")
        item = with_id(to_items([sent.item])[0], self.session.make_id)
        if isinstance(item, CallItem) and isinstance(sent.item, InputCall) and not sent.item.call_id:
            item = replace(item, call_id=self.session.make_id("call"))
        self._conversation.check(item)
        num_bytes = sum(len(medium.data) for _, medium in getattr(item, "media", ()))
        if 4 * num_bytes > 3 * MAX_EVENT_BYTES:  # an image that was fetched: the event that shows it has it in base64
            raise PayloadTooLarge(
                f"item has images of {num_bytes} bytes; at most {3 * MAX_EVENT_BYTES // 4} are possible", param="item"
            )
        shown = shown_item(item)
        previous_id = self._conversation.insert(Entry(shown, item), sent.previous_item_id)
        if is_unchecked:
            self._unchecked.add(item.id)
        told: list[Action] = [
            self._event(f"conversation.item.{kind}", num_bytes_of(item), previous_item_id=previous_id, item=shown)
            for kind in ("added", "done")
        ]
        # An item in the middle may be followed by others, and the prompt is computed from there on.
        return [*told, *self._begin_ahead()] if self._conversation.last_id == item.id else told

    def _begin_ahead(self) -> list[Action]:
        """Compute the prompt so far, if no response is under way. The next `response.create` ends that.

        The model is loaded for it, since the client soon asks for an answer, which would wait for the load.
        While one is computed, the next waits: otherwise each item of a flood would make the worker prepare a prompt.
        """
        self._is_ahead_due = bool(self._asked[None])
        if self._plain is None or self._is_ahead_due:
            return []
        create = self._continued(self._plain)
        if not (create.items or create.previous_id or create.body.instructions) or len(create.items) > MAX_NEW_AHEAD:
            return []
        create = replace(create, body=create.body.model_copy(update={"generate": False}))
        return self._ask(None, AskedResponse(is_hidden=True), create)

    def _respond(self, received: Received, params: ResponseParams) -> list[Action]:
        is_apart = params.conversation == "none"
        if not is_apart and (active := self._active) is not None:
            raise ActiveResponse(
                f"Conversation already has an active response in progress: {active.id or 'it is about to begin'}. "
                "Wait until the response is finished before creating a new one."
            )
        create = received.create or self._plain
        assert create is not None, "the session is open, and what changes its settings is prepared"
        if params.input is None:
            create = self._continued(create)
        else:
            if any(isinstance(each, InputReference) for each in params.input):
                create = self._restricted(create)
            create = replace(create, items=tuple(self._resolved(params.input)))
        if not (create.items or create.previous_id or create.body.instructions):
            raise InvalidRequest("the conversation is empty: create an item, or send input", param="response.input")
        conversation_id = None if is_apart else self._conversation_id
        asked = AskedResponse(received.event_id, conversation_id)
        return self._ask(self._free_lane() if is_apart else None, asked, create)

    def _changed_by(self, settings: Json) -> Json:
        """Return the settings for one response. What it leaves out of `edgeagent`, such as a route, stays."""
        changed = {**self._settings, **settings}
        usual, own = self._settings.get("edgeagent"), settings.get("edgeagent")
        if usual is not None and own is not None:
            changed["edgeagent"] = usual.model_copy(update=own.model_dump(exclude_none=True))
        return changed

    def can_cancel(self, response_id: str | None) -> bool:
        """Whether a cancel finds its response under way."""
        return any(self._found(response_id))

    def _found(self, response_id: str | None) -> Iterator[tuple[str | None, AskedResponse]]:
        """Yield the responses that a cancel may mean, with their lanes: one, if it is under way."""
        for lane, asked in self._under_way():
            if asked.id == response_id if response_id else lane is None:
                yield lane, asked

    def _cancel(self, response_id: str | None) -> list[Action]:
        for lane, _ in self._found(response_id):
            return self.session.receive(OtherFrame({"type": "response.cancel", "stream_id": lane}))
        raise NoActiveResponse("Cancellation failed: no active response found", param=response_id and "response_id")

    @property
    def _active(self) -> AskedResponse | None:
        """The response that answers the conversation, if one is under way."""
        return next((asked for lane, asked in self._under_way() if lane is None), None)

    def _under_way(self) -> Iterator[tuple[str | None, AskedResponse]]:
        return ((lane, each) for lane, asked in self._asked.items() for each in asked if not each.is_hidden)

    def _free_lane(self) -> str:
        for lane in map(str, range(MAX_APART)):
            if not self._asked[lane]:
                return lane
        raise Overloaded(f"{MAX_APART} responses run outside of the conversation already; wait until one ends")

    def _continued(self, create: ResponseCreate) -> ResponseCreate:
        """Return a create that answers the conversation. It continues the last response that did, if it can."""
        previous_id, items = self._last
        new = self._conversation.after(items) if self.session.history.remembers(previous_id) else None
        if new is None:
            return replace(self._restricted(create), items=self._conversation.items)
        return create.succeeded_by(previous_id, new)

    def _restricted(self, create: ResponseCreate) -> ResponseCreate:
        """Return a create that goes no further than the responses to the conversation, as if it continued them."""
        edgeagent = create.body.edgeagent or RealtimeEdgeagent()
        edgeagent = edgeagent.model_copy(update={"route": strictest(self._route, route_of(edgeagent))})
        store = create.body.store if self._is_storable else False
        return replace(create, body=create.body.model_copy(update={"edgeagent": edgeagent, "store": store}))

    def _resolved(self, sent: Sequence[RealtimeInput]) -> Iterator[Item]:
        """Yield the items of an input. A reference to none of the conversation's items is left to the other session."""
        for item in to_items([*sent]):
            entry = self._conversation.find(item.id) if isinstance(item, ReferenceItem) else None
            yield with_id(item, self.session.make_id) if entry is None or entry.item is None else entry.item

    def _ask(self, lane: str | None, asked: AskedResponse, create: ResponseCreate) -> list[Action]:
        asked.route = route_of(create.body.edgeagent)
        self._asked[lane].append(asked)
        return self.session.receive(CreateFrame(create, lane, is_named=lane is not None, num_bytes=0))

    def _translated(self, actions: Iterable[Action]) -> list[Action]:
        """Return actions of the session of the Responses API with the events of this API. Nothing is stored."""
        made: list[Action] = []
        for action in actions:
            match action:
                case Send():
                    made += self._told(action)
                case End(live):
                    asked = self._asked[live.lane.name][0]
                    items = (*live.turn.conversation.items, *live.turn.events.items)
                    if live.turn.events.response["status"] == "completed":
                        self._unchecked.difference_update(item.id for item in items)
                    if asked.is_hidden or asked.conversation_id is not None:
                        self._last = live.id, tuple([item for item in items if not isinstance(item, ReasoningItem)])
                        self._route = strictest(self._route, live.turn.request.route)
                        self._is_storable &= live.turn.events.response["store"]
                    if not asked.is_hidden:  # of a hidden one no terminal event is written
                        made.append(End(live, None))
                case _:
                    made.append(action)
        if self._is_ahead_due and not self._asked[None]:
            made += self._begin_ahead()
        return made

    def _told(self, send: Send) -> list[Send]:
        event = send.event
        responses = self._asked[event.get("stream_id")]
        if event["type"] == "error":
            asked = responses.popleft() if responses else AskedResponse()
            error = event["error"]
            if error["type"] == "invalid_request_error":
                error = self._naming_unchecked(error)
            return [] if asked.is_hidden else [self._error_event(event["status"], error, asked.event_id)]
        asked = responses[0]
        if event["type"] in TERMINAL:
            responses.popleft()
        if event["type"] == "response.failed" and event["response"]["error"]["code"] == "invalid_prompt":
            error = self._naming_unchecked(event["response"]["error"])
            event = {**event, "response": {**event["response"], "error": error}}
        events = [] if asked.is_hidden else asked.events(event, self._conversation)
        return [replace(send, event=self._numbered(each)) for each in events]

    def _naming_unchecked(self, error: Json) -> Json:
        """Return the error of a wrong prompt, with the items at its end that may have a damaged file."""
        if not self._unchecked:
            return error
        names = ", ".join(sorted(self._unchecked))
        return {**error, "message": f"{error['message']} (their files were not checked when they were added: {names})"}

    def _error(self, error: EdgeAgentError, event_id: str | None) -> Send:
        return self._error_event(http_status(error), error, event_id)

    def _error_event(self, status: int, error: EdgeAgentError | Json, event_id: str | None) -> Send:
        return self._event("error", status=status, error=shown_error(error, event_id))

    def _event(self, kind: str, num_bytes: int = 0, **fields: Any) -> Send:
        return Send(self._numbered({"type": kind, **fields}), num_bytes=num_bytes)

    def _settings_event(self, kind: str, session: RealtimeSettings) -> Send:
        model = None
        with suppress(EdgeAgentError):  # a response will be refused with the reason
            model = self.model
        return self._event(kind, len(to_json(session)), session={**session, "model": model})

    def _numbered(self, event: Json) -> Json:
        self._num_events += 1
        event["event_id"] = f"{self._event_prefix}_{self._num_events}"
        return event
