"""A client of a Realtime session without a socket. The openai package's models check each event that it gets."""

from __future__ import annotations

import functools
import itertools
import json
from typing import Any

import jsonschema_rs
from openai.types.realtime.realtime_server_event import RealtimeServerEvent

from edgeagent.api.documents.asyncapi import asyncapi_document
from edgeagent.api.realtime.body import read_event
from edgeagent.api.realtime.session import RealtimeSession
from edgeagent.api.responses.socket.lanes import LaneTurn
from edgeagent.api.responses.socket.outbox import Close, Send
from edgeagent.api.responses.socket.session import (
    Action,
    BeginAhead,
    Cancel,
    Drop,
    End,
    Fetch,
    Queue,
    Session,
    Start,
)
from edgeagent.api.wire.shape import Json
from edgeagent.conversation.history import ConnectionHistory, StoreResult
from edgeagent.errors import EdgeAgentError
from edgeagent.service.live_service import LiveService
from edgeagent.types import ChatPrompt, Delta, GenerateRequest, Step, TextDelta
from tests.api.serving import models_by_type
from tests.backends.fake import FakeBackend, finished

MODELS = models_by_type(RealtimeServerEvent)


@functools.cache
def _validator(kind: str) -> Any:
    document = asyncapi_document()
    payload = document["components"]["messages"][f"realtime.{kind}"]["payload"]
    return jsonschema_rs.validator_for({**payload, "components": document["components"]})


def check_event(event: Json) -> None:
    """Raise if an event is not as the openai package or our own document describes it."""
    model = MODELS[event["type"]].model_validate(event)
    assert event["event_id"], event
    missing = set(type(model).model_fields) - set(event)
    assert not missing, f"{missing} of {event}"
    _validator(event["type"]).validate(event)


# The events that repeat what a client has sent. What they take counts, until they are written.
REPEATING = ("session.created", "session.updated")


class RealtimeClient:
    """Feeds events to a session, and sorts its actions. `requests` has those that were started, by their id."""

    def __init__(self) -> None:
        count = itertools.count(1)
        self.history = ConnectionHistory()
        make_id = lambda prefix: f"{prefix}_{next(count)}"  # noqa: E731
        service = LiveService(FakeBackend(), lambda request: request)
        self.realtime = RealtimeSession(Session(service, self.history, make_id=make_id, clock=lambda: 1.7e9))
        self.session = self.realtime.session
        self.live: dict[str, LaneTurn] = {}
        self.requests: dict[str, GenerateRequest] = {}
        self.cancelled: list[str] = []
        self.dropped: list[str] = []
        self.ended: list[str] = []
        self.closed: list[int] = []
        self.events: list[Json] = []
        self.event_ids: set[str] = set()
        self.opening = self.take(self.realtime.open())

    def take(self, actions: list[Action]) -> list[Json]:
        events: list[Json] = []
        fetching: list[str | None] = []
        for action in actions:
            match action:
                case Start(live):
                    self.requests[live.id], self.live[live.id] = live.turn.request, live
                case Queue(live):
                    self.live[live.id] = live
                case Cancel(live):
                    self.cancelled.append(live.id)
                case Drop(live):
                    self.dropped.append(live.id)
                case End(live, stored):
                    assert stored is None, "nothing is stored"
                    self.ended.append(live.id)
                case Fetch(lane):
                    fetching.append(lane)
                case Close(code):
                    self.closed.append(code)
                case BeginAhead():
                    pass
                case Send(event=event, is_terminal=is_terminal, request_id=request_id, num_bytes=num_bytes):
                    assert num_bytes or event["type"] not in REPEATING
                    assert is_terminal == (event["type"] == "response.done")
                    assert not is_terminal or request_id == event["response"]["id"]
                    check_event(event)
                    assert event["event_id"] not in self.event_ids
                    self.event_ids.add(event["event_id"])
                    events.append(event)
        self.events += events
        for lane in fetching:
            events += self.take(self.session.fetched(lane, StoreResult()))
        return events

    def send(self, kind: str, **fields: Any) -> list[Json]:
        return self.send_text(json.dumps({"type": kind, **fields}))

    def send_text(self, text: str) -> list[Json]:
        return self.take(self.realtime.receive(self.realtime.prepare(read_event(text))))

    def say(self, text: str = "hi", **fields: Any) -> list[Json]:
        return self.send("conversation.item.create", item=message(text), **fields)

    def respond(self, **response: Any) -> str:
        """Ask for a response, and return its id."""
        events = self.send("response.create", response=response)
        assert not [event for event in events if event["type"] == "error"], events
        return list(self.requests)[-1]

    def step(self, request_id: str, *deltas: Delta) -> list[Json]:
        return self.take(self.session.step(self.live[request_id], Step(deltas, at_s=1.0)))

    def fail(self, request_id: str, error: EdgeAgentError) -> list[Json]:
        return self.take(self.session.failed(self.live[request_id], error))

    def finish(self, request_id: str, text: str = "yes") -> list[Json]:
        return self.step(request_id, TextDelta(text), finished())

    def turn(self, text: str = "hi", answer: str = "yes") -> str:
        """Say a text, let a response to it end, and return the response's id."""
        self.say(text)
        request_id = self.respond()
        self.finish(request_id, answer)
        return request_id

    def prompt(self, request_id: str) -> list[tuple[str, str]]:
        """Return the roles and texts of a request's prompt."""
        prompt = self.requests[request_id].prompt
        assert isinstance(prompt, ChatPrompt)
        return [(each.role, each.content) for each in prompt.messages]

    @property
    def last(self) -> GenerateRequest:
        """The last request that was started."""
        return list(self.requests.values())[-1]


def message(text: str, role: str = "user", **fields: Any) -> Json:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}], **fields}


def kinds(events: list[Json]) -> list[str]:
    return [event["type"] for event in events]


def error_of(events: list[Json]) -> Json:
    (event,) = events
    assert event["type"] == "error", event
    error: Json = event["error"]
    return error
