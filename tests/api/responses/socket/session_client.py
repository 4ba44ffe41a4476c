"""A client of a session without a socket: it feeds frames and sorts the session's actions."""

from __future__ import annotations

import itertools
import json
from typing import Any

from edgeagent.api.context import ITEM_FORMAT
from edgeagent.api.responses.events import TERMINAL
from edgeagent.api.responses.socket.ahead import AheadAnswer
from edgeagent.api.responses.socket.frames import read_frame
from edgeagent.api.responses.socket.lanes import LaneTurn
from edgeagent.api.responses.socket.outbox import Close, Send
from edgeagent.api.responses.socket.session import (
    Action,
    BeginAhead,
    Cancel,
    Drop,
    End,
    EndAhead,
    Fetch,
    Queue,
    Session,
    Start,
)
from edgeagent.api.wire.shape import Json
from edgeagent.conversation.database import ResponseDatabase
from edgeagent.conversation.history import ConnectionHistory, Limits, StoreResult
from edgeagent.errors import EdgeAgentError
from edgeagent.service.live_service import LiveService
from edgeagent.types import Delta, Step, TextDelta
from tests.api.event_grammar import EventGrammar
from tests.api.serving import validate_event
from tests.backends.fake import FakeBackend, finished


class Client:
    """Feeds frames to a session and sorts its actions."""

    def __init__(self, store: ResponseDatabase | None = None) -> None:
        count = itertools.count(1)
        self.store = store or ResponseDatabase(None, Limits(), lambda: 1_700_000_000.0, ITEM_FORMAT)
        self.history = ConnectionHistory()
        self.is_store_slow = False
        self.fetches: list[Fetch] = []
        self.now_s = 5.0
        self.session = Session(
            LiveService(FakeBackend(), lambda request: request),
            self.history,
            make_id=lambda prefix: f"{prefix}_{next(count)}",
            clock=lambda: 1_700_000_000.0,
            monotonic=lambda: self.now_s,
        )
        self.started: list[str] = []
        self.requests: dict[str, Any] = {}
        self.live: dict[str, LaneTurn] = {}
        self.cancelled: list[str] = []
        self.dropped: list[str] = []
        self.closed: list[int] = []
        self.ahead: list[AheadAnswer] = []  # under way
        self.events: list[Json] = []
        self.grammar = EventGrammar()

    def take(self, actions: list[Action]) -> list[Json]:
        events: list[Json] = []
        for action in actions:
            match action:
                case Start(live):
                    self.started.append(live.id)
                    self.requests[live.id] = live.turn.request
                    self.live[live.id] = live
                case Queue(live):
                    self.live[live.id] = live
                case Fetch():
                    self.fetches.append(action)
                case End(live, stored):
                    if stored is not None:
                        self.store.add(stored, json.dumps(live.turn.events.response).encode())
                case Cancel(live):
                    self.cancelled.append(live.id)
                case Drop(live):
                    self.dropped.append(live.id)
                case BeginAhead(answer):
                    self.ahead.append(answer)
                case EndAhead(answer):
                    self.ahead.remove(answer)
                case Close(code):
                    self.closed.append(code)
                case Send(event=event, is_terminal=is_terminal):
                    validate_event(event)
                    self.grammar.feed(event)
                    assert is_terminal == (event["type"] in TERMINAL)
                    events.append(event)
        self.events += events
        while self.fetches and not self.is_store_slow:
            events += self.fetch()
        return events

    def fetch(self) -> list[Json]:
        """Answer the session's oldest question to the store."""
        fetch = self.fetches.pop(0)
        wanted = fetch.missing
        previous = self.store.get(wanted.previous_id, "") if wanted.previous_id else None
        found = StoreResult(previous, *self.store.find_items(wanted.item_ids, ""))
        return self.take(self.session.fetched(fetch.lane, found))

    def send(self, kind: str, **fields: Any) -> list[Json]:
        return self.take(self.session.receive(read_frame(json.dumps({"type": kind, **fields}))))

    def create(self, **fields: Any) -> list[Json]:
        return self.send("response.create", **{"input": "hi", **fields})

    def step(self, request_id: str, *deltas: Delta) -> list[Json]:
        return self.take(self.session.step(self.live[request_id], Step(deltas, at_s=1.0)))

    def fail(self, request_id: str, error: EdgeAgentError) -> list[Json]:
        return self.take(self.session.failed(self.live[request_id], error))

    def announce(self, request_id: str) -> list[Json]:
        return self.take(self.session.announce(self.live[request_id]))

    def finish(self, request_id: str, text: str = "yes") -> list[Json]:
        return self.step(request_id, TextDelta(text), finished())

    def turn(self, **fields: Any) -> str:
        """Create a response, let it finish, and return its id."""
        self.create(**fields)
        request_id = self.started[-1]
        self.finish(request_id)
        return request_id


def kinds(events: list[Json]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def error_of(events: list[Json]) -> dict[str, Any]:
    (event,) = events
    assert event["type"] == "error"
    assert event["status"] >= 400
    error: dict[str, Any] = event["error"]
    return error
