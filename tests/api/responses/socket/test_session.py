"""The session's rules, frame by frame and without a socket: lanes, limits, cancels, errors, one end for each create."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from edgeagent.api.responses.events import TERMINAL
from edgeagent.api.responses.frontend import ITEM_FORMAT
from edgeagent.api.responses.socket.actions import Action, Cancel, Drop, End, Fetch, Queue, Start
from edgeagent.api.responses.socket.frames import read_frame
from edgeagent.api.responses.socket.lanes import Expiry, LaneTurn
from edgeagent.api.responses.socket.session import MAX_ACTIVE, MAX_REFUSALS, MAX_WAITING, Session
from edgeagent.api.socket.actions import Close, Send
from edgeagent.api.wire.shape import Json
from edgeagent.conversation.database import Limits, ResponseDatabase
from edgeagent.conversation.history import ConnectionHistory, Recalled
from edgeagent.errors import EdgeAgentError, ModelNotFound, Overloaded, WorkerCrashed
from edgeagent.types import ChatPrompt, Delta, FinishReason, Message, Started, Step, TextDelta, ToolCallStarted
from tests.api.event_grammar import EventGrammar
from tests.api.serving import validate_event
from tests.backends.fake import FakeBackend, finished
from tests.examples import examples


class Client:
    """Feeds frames to a session and sorts its actions."""

    def __init__(self, store: ResponseDatabase | None = None) -> None:
        count = itertools.count(1)
        self.store = store or ResponseDatabase(None, Limits(), lambda: 1_700_000_000.0, ITEM_FORMAT)
        self.history = ConnectionHistory()
        self.is_store_slow = False
        self.fetches: list[Fetch] = []
        self.session = Session(
            FakeBackend(),
            self.history,
            make_id=lambda prefix: f"{prefix}_{next(count)}",
            clock=lambda: 1_700_000_000.0,
        )
        self.started: list[str] = []
        self.requests: dict[str, Any] = {}
        self.live: dict[str, LaneTurn] = {}
        self.cancelled: list[str] = []
        self.dropped: list[str] = []
        self.closed: list[int] = []
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
        found = Recalled(previous, *self.store.find_items(wanted.item_ids, ""))
        return self.take(self.session.fetched(fetch.lane, found))

    def send(self, kind: str, **fields: Any) -> list[Json]:
        return self.take(self.session.receive(read_frame(json.dumps({"type": kind, **fields}))))

    def create(self, **fields: Any) -> list[Json]:
        return self.send("response.create", **{"input": "hi", **fields})

    def step(self, request_id: str, *deltas: Delta) -> list[Json]:
        return self.take(self.session.step(self.live[request_id], Step(deltas, at_s=1.0)))

    def fail(self, request_id: str, error: EdgeAgentError) -> list[Json]:
        return self.take(self.session.failed(self.live[request_id], error))

    def admit(self, request_id: str) -> list[Json]:
        return self.take(self.session.admitted(self.live[request_id]))

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


def test_what_a_response_leaves_in_the_cache_is_its_lanes_own() -> None:
    client, other = Client(), Client()
    for each in (client, other):
        each.create()
        each.create(stream_id="a")
        each.turn(stream_id="b")
        each.create(stream_id="b")
    names = [[request.cache.lane for request in each.requests.values()] for each in (client, other)]
    assert all(lanes[2] == lanes[3] for lanes in names)
    assert len({*names[0], *names[1]}) == 6
    assert all(name for lanes in names for name in lanes)


def test_a_response_begins_when_it_is_admitted_or_steps() -> None:
    client = Client()
    assert client.create() == []
    assert kinds(client.admit("resp_1")) == ["created", "in_progress"]
    assert client.admit("resp_1") == []
    client.finish("resp_1")
    client.create()
    assert kinds(client.step(client.started[1], Started(3, 0))) == ["created", "in_progress"]
    client.finish(client.started[1])
    assert client.admit(client.started[1]) == []


def test_continuation() -> None:
    client = Client()
    first = client.turn(input="one", instructions="Be brief.")
    client.create(input="two", previous_response_id=first)
    # Instructions are not inherited; the model's reply is.
    assert client.requests[client.started[1]].prompt == ChatPrompt(
        (Message("user", "one"), Message("assistant", "yes"), Message("user", "two"))
    )


def test_a_refusal_before_created_is_one_envelope_with_its_status() -> None:
    client = Client()
    client.create(model="nope")
    events = client.fail("resp_1", ModelNotFound("model 'nope' not found", param="model"))
    assert events == [
        {
            "type": "error",
            "status": 404,
            "error": {
                "message": "model 'nope' not found",
                "type": "not_found_error",
                "param": "model",
                "code": "model_not_found",
            },
        }
    ]
    client.create(stream_id="a")
    (event,) = client.fail(client.started[1], Overloaded("full", retry_after_s=2))
    assert (event["status"], event["stream_id"], event["headers"]["retry-after"]) == (429, "a", "2")


def test_a_failure_after_created_is_a_failed_response_and_no_envelope() -> None:
    client = Client()
    client.create()
    client.step("resp_1", TextDelta("ye"))
    events = client.fail("resp_1", WorkerCrashed("signal 9"))
    assert kinds(events) == ["output_text.done", "content_part.done", "output_item.done", "failed"]
    assert client.fail("resp_1", WorkerCrashed("again")) == []
    assert client.step("resp_1", TextDelta("late")) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not valid JSON"),
        ("[]", "object"),
        ('"hi"', "object"),
        ("[" * 99 + "]" * 99, "nested"),
        ("{}", "got no type;"),
        ('{"type":5}', "got a type that is no string;"),
        ('{"type":"x"}', "got 'x'; send response.create"),
    ],
)
def test_frames_that_are_none(text: str, words: str) -> None:
    client = Client()
    error = error_of(client.take(client.session.receive(read_frame(text))))
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_value")
    assert words in error["message"]


def test_unknown_types_are_errors_only_while_nothing_runs() -> None:
    client = Client()
    assert error_of(client.send("session.update"))["param"] == "type"
    client.create()
    assert client.send("session.update") == []
    assert client.send("response.processed", response_id="resp_1") == []
    client.finish("resp_1")
    assert client.send("response.processed", response_id="resp_1") == []


def test_a_broken_frame_is_answered_in_its_turn() -> None:
    client = Client()
    client.create()
    assert client.take(client.session.receive(read_frame("{"))) == []
    assert kinds(client.finish("resp_1"))[-2:] == ["completed", "error"]


def test_a_lane_is_first_in_first_out() -> None:
    client = Client()
    client.create(input="one")
    # Its parent does not exist yet; it is looked up when this create starts.
    assert client.create(input="two", previous_response_id="resp_1") == []
    assert client.create(temperature=9) == []
    assert client.started == ["resp_1"]
    assert kinds(client.finish("resp_1"))[-1] == "completed"
    second = client.started[1]
    assert len(client.requests[second].prompt.messages) == 3
    assert kinds(client.finish(second))[-2:] == ["completed", "error"]


def test_lanes_run_side_by_side_and_mark_their_events() -> None:
    client = Client()
    client.create(stream_id="a")
    client.create(stream_id="b.c-D_9")
    client.create()
    assert len(client.started) == 3
    for request_id, lane in zip(client.started, ("a", "b.c-D_9", None), strict=True):
        assert {event.get("stream_id") for event in client.finish(request_id)} == {lane}


@pytest.mark.parametrize("name", ["", "a b", "x" * 257, "é", 5, [], "a\n"])
def test_bad_lane_names(name: object) -> None:
    error = error_of(Client().create(stream_id=name))
    assert (error["code"], error["param"]) == ("invalid_stream_id", "stream_id")


def test_null_is_the_default_lane() -> None:
    client = Client()
    client.create(stream_id=None)
    assert not any("stream_id" in event for event in client.finish("resp_1"))


def test_a_connection_has_32_named_lanes() -> None:
    client = Client()
    for index in range(32):
        client.turn(stream_id=f"lane{index}")
    (event,) = client.create(stream_id="one-more")
    assert (event["status"], event["stream_id"]) == (400, "one-more")
    assert (event["error"]["code"], event["error"]["param"]) == ("websocket_stream_limit_reached", "stream_id")
    client.turn(stream_id="lane0")
    client.turn()


def test_sixteen_run_and_more_are_queued() -> None:
    client = Client()
    for index in range(MAX_ACTIVE):
        client.create(stream_id=f"lane{index}")
    events = client.create(stream_id="late")
    assert kinds(events) == ["created", "queued"]
    assert kinds(client.create(stream_id="later")) == ["created", "queued"]
    assert len(client.started) == MAX_ACTIVE
    events = client.finish(client.started[0])
    assert kinds(events)[-2:] == ["completed", "in_progress"]
    assert len(client.started) == MAX_ACTIVE + 1
    assert kinds(client.finish(client.started[-1]))[-2:] == ["completed", "in_progress"]


def test_a_busy_lane_does_not_starve_the_others() -> None:
    client = Client()
    for index in range(MAX_ACTIVE):
        client.create(stream_id=f"lane{index}")
        client.create(stream_id=f"lane{index}")
    client.create(stream_id="late", input="late")
    client.finish(client.started[0])
    assert client.requests[client.started[-1]].prompt.messages == (Message("user", "late"),)


def test_many_that_need_no_backend_are_no_recursion() -> None:
    client = Client()
    for index in range(MAX_ACTIVE):
        client.create(stream_id=f"lane{index}")
    for index in range(MAX_ACTIVE):
        for _ in range(MAX_WAITING):
            client.create(stream_id=f"empty{index}", generate=False, input=[])
    for request_id in client.started[:MAX_ACTIVE]:
        client.finish(request_id)
    num_ends = sum(event["type"] == "response.completed" for event in client.events)
    assert num_ends == MAX_ACTIVE + MAX_ACTIVE * MAX_WAITING


def test_cancel_of_a_running_response() -> None:
    client = Client()
    client.create()
    client.step("resp_1", TextDelta("ye"))
    assert client.send("response.cancel", response_id="resp_1") == []
    assert client.cancelled == ["resp_1"]
    events = client.step("resp_1", finished(FinishReason.CANCELLED))
    assert kinds(events)[-1] == "incomplete"
    assert events[-1]["response"]["status"] == "cancelled"


@pytest.mark.parametrize(
    "fields",
    [
        {"response_id": "resp_9"},
        {"response_id": 5},
        {"stream_id": "never"},
        {"stream_id": 5},
        {"response_id": "x" * 9999},
    ],
)
def test_cancel_of_nothing_is_ignored(fields: dict[str, Any]) -> None:
    client = Client()
    assert client.send("response.cancel", **fields) == []
    client.create()
    client.step("resp_1", TextDelta("x"))
    assert client.send("response.cancel", **fields) == []
    client.finish("resp_1")
    assert client.send("response.cancel", response_id="resp_1") == []
    assert client.send("response.cancel") == []
    assert client.cancelled == []


def test_cancel_without_an_id_is_the_lanes_active_response() -> None:
    client = Client()
    client.create()
    client.create(stream_id="a")
    for request_id in client.started:
        client.step(request_id, TextDelta("x"))
    client.send("response.cancel", stream_id="a")
    assert client.cancelled == [client.started[1]]
    client.send("response.cancel")
    assert client.cancelled == client.started[::-1]


def test_cancel_before_the_first_step_ends_at_once() -> None:
    client = Client()
    client.create()
    events = client.send("response.cancel")
    assert kinds(events) == ["created", "in_progress", "incomplete"]
    assert client.dropped == ["resp_1"]
    assert client.step("resp_1", TextDelta("late")) == []
    client.turn()


def test_cancel_of_a_queued_response() -> None:
    client = Client()
    for index in range(MAX_ACTIVE + 1):
        client.create(stream_id=f"lane{index}")
    queued = client.events[-1]["response"]["id"]
    events = client.send("response.cancel", response_id=queued)
    assert kinds(events) == ["incomplete"]
    assert (client.dropped, client.cancelled) == ([queued], [])
    client.finish(client.started[0])
    assert len(client.started) == MAX_ACTIVE


def test_a_cancel_keeps_the_parent_and_can_itself_be_continued() -> None:
    client = Client()
    parent = client.turn(store=False)
    client.create(previous_response_id=parent, store=False)
    cancelled = client.started[-1]
    client.step(cancelled, TextDelta("I wan"))
    client.send("response.cancel", response_id=cancelled)
    client.step(cancelled, finished(FinishReason.CANCELLED))
    client.turn(previous_response_id=parent, store=False)
    client.create(previous_response_id=cancelled, store=False)
    assert client.requests[client.started[-1]].prompt.messages[-2] == Message("assistant", "I wan")


def test_a_failed_continuation_evicts_its_parent() -> None:
    client = Client()
    parent = client.turn(store=False)
    output = [{"type": "function_call_output", "call_id": "call_x", "output": "1"}]
    error = error_of(client.create(previous_response_id=parent, input=output, store=False))
    assert "call_x" in error["message"]
    error = error_of(client.create(previous_response_id=parent, store=False))
    assert error == {
        "message": f"Previous response with id '{parent}' not found.",
        "type": "invalid_request_error",
        "param": "previous_response_id",
        "code": "previous_response_not_found",
    }


def test_a_continuation_that_fails_under_way_evicts_too_but_a_fork_does_not() -> None:
    client = Client()
    parent = client.turn(store=False)
    client.create(previous_response_id=parent, store=False, stream_id="fork")
    client.fail(client.started[-1], WorkerCrashed("x"))
    client.create(previous_response_id=parent, store=False)
    client.step(client.started[-1], TextDelta("x"))
    client.fail(client.started[-1], WorkerCrashed("x"))
    assert error_of(client.create(previous_response_id=parent, store=False))["code"] == "previous_response_not_found"


def test_stored_responses_outlive_their_connection_and_others_do_not() -> None:
    first = Client()
    stored, unstored = first.turn(), first.turn(store=False)
    second = Client(first.store)
    assert second.create(previous_response_id=stored) == []
    second.finish(second.started[-1])
    assert error_of(second.create(previous_response_id=unstored))["code"] == "previous_response_not_found"


def test_failed_responses_cannot_be_continued() -> None:
    client = Client()
    client.create()
    client.fail("resp_1", WorkerCrashed("x"))
    assert error_of(client.create(previous_response_id="resp_1"))["code"] == "previous_response_not_found"


def test_prefill_only_completes_and_can_be_continued() -> None:
    client = Client()
    client.create(generate=False, input="one", store=False)
    assert client.requests["resp_1"].prefill_only
    events = client.step("resp_1", Started(1, 0), finished(output=0))
    assert kinds(events) == ["created", "in_progress", "completed"]
    assert events[-1]["response"]["output"] == []
    assert events[-1]["response"]["usage"]["output_tokens"] == 0
    client.create(input="two", previous_response_id="resp_1", store=False)
    assert client.requests[client.started[-1]].prompt.messages == (Message("user", "one"), Message("user", "two"))


def test_prefill_of_nothing_completes_without_a_backend() -> None:
    client = Client()
    events = client.create(generate=False, input=[], tools=[{"type": "function", "name": "f"}])
    assert kinds(events) == ["created", "in_progress", "completed"]
    assert client.started == []
    assert client.create(previous_response_id=events[-1]["response"]["id"]) == []


def test_a_parent_that_is_not_remembered_is_fetched_while_other_lanes_go_on() -> None:
    first = Client()
    parent = first.turn(input="one")
    client = Client(first.store)
    client.is_store_slow = True
    assert client.create(previous_response_id=parent, input="two") == []
    # The lane keeps its order: the next create waits behind the fetch.
    assert client.create(input="three") == []
    client.create(input="elsewhere", stream_id="a")
    assert len(client.started) == 1
    client.fetch()
    assert client.requests[client.started[1]].prompt.messages[-2:] == (
        Message("assistant", "yes"),
        Message("user", "two"),
    )
    client.finish(client.started[1])
    assert len(client.started) == 3


def test_a_cancel_while_a_parent_is_fetched() -> None:
    first = Client()
    parent = first.turn()
    client = Client(first.store)
    client.is_store_slow = True
    client.create(previous_response_id=parent)
    assert client.send("response.cancel") == []
    assert kinds(client.fetch()) == ["created", "in_progress", "incomplete"]
    assert client.started == []
    client.is_store_slow = False
    client.create(previous_response_id=parent)
    assert len(client.started) == 1


def test_a_fetch_that_comes_after_the_disconnect_is_nothing() -> None:
    client = Client()
    client.is_store_slow = True
    client.create(previous_response_id="resp_x")
    client.session.disconnected()
    assert client.fetch() == []


def test_what_follows_on_an_unstored_response_is_not_stored_either() -> None:
    client = Client()
    parent = client.turn(store=False, input="secret")
    child = client.turn(previous_response_id=parent, input="more")
    assert client.events[-1]["response"]["store"] is False
    assert client.store.get(child, "") is None
    # The caches must not write its prompt to disk either.
    assert [client.requests[name].cache.persist for name in (parent, child)] == [False, False]
    client.create(previous_response_id=child)
    assert len(client.started) == 3


def test_no_store_keeps_a_response_off_the_disk_too() -> None:
    client = Client()
    response = client.turn(no_store=True)
    assert client.events[-1]["response"]["store"] is False
    assert client.store.get(response, "") is None
    assert client.requests[client.turn()].cache.persist


def test_an_old_connection_closes_once_nothing_is_under_way() -> None:
    client = Client()
    client.create()
    client.create()
    assert client.take(client.session.expire(Expiry.by_age(3600))) == []
    assert client.closed == []
    events = client.finish(client.started[0])
    # The waiting create is refused; the last error is for a client that only listens.
    assert kinds(events)[-3:] == ["completed", "error", "error"]
    assert events[-1]["error"] == {
        "message": "Responses websocket connection limit reached (60 minutes). "
        "Create a new websocket connection to continue.",
        "type": "invalid_request_error",
        "param": None,
        "code": "websocket_connection_limit_reached",
    }
    assert client.closed == [1001]


def test_an_idle_old_connection_closes_at_once() -> None:
    client = Client()
    client.turn()
    assert (
        error_of(client.take(client.session.expire(Expiry.by_age(90))))["code"] == "websocket_connection_limit_reached"
    )
    assert client.closed == [1001]
    assert client.take(client.session.expire(Expiry.by_age(90))) == []


def test_too_many_waiting_are_refused_in_their_turn_and_a_flood_closes() -> None:
    client = Client()
    client.create()
    for _ in range(MAX_WAITING + 1):
        assert client.create() == []
    assert client.closed == []
    for _ in range(MAX_WAITING + 1):
        last = client.finish(client.started[-1])
    assert error_of(last[-1:])["code"] == "queue_full"
    client.create()
    for _ in range(MAX_REFUSALS + 1):
        client.create()
    assert client.closed == [1008]


def test_the_url_may_name_the_model() -> None:
    for model, expected in (("other", "other"), (None, "fake")):
        session = Session(FakeBackend(), ConnectionHistory(), default_model=model)
        (start,) = session.receive(read_frame('{"type":"response.create","input":"hi"}'))
        assert isinstance(start, Start)
        assert start.live.turn.request.model == expected


def test_nothing_comes_after_a_disconnect() -> None:
    client = Client()
    client.create()
    client.create(stream_id="a")
    client.create(stream_id="a")
    client.session.disconnected()
    for request_id in client.started:
        assert client.finish(request_id) == []
        assert client.fail(request_id, WorkerCrashed("x")) == []
    assert len(client.started) == 2


class Sessions(RuleBasedStateMachine):
    """Any interleaving: each create ends in exactly one terminal message, and responses of a lane never overlap."""

    @initialize()
    def connect(self) -> None:
        self.client = Client()
        self.num_creates: dict[str | None, int] = {}
        self.live: list[str] = []

    @rule(lane=st.sampled_from([None, "a", "b"]), is_good=st.booleans(), is_chained=st.booleans())
    def create(self, lane: str | None, is_good: bool, is_chained: bool) -> None:
        fields: dict[str, Any] = {} if is_good else {"temperature": 9}
        if lane:
            fields["stream_id"] = lane
        if is_chained and self.client.started:
            fields["previous_response_id"] = self.client.started[0]
        self.num_creates[lane] = self.num_creates.get(lane, 0) + 1
        self.client.create(**fields)

    @rule(is_slow=st.booleans())
    def store(self, is_slow: bool) -> None:
        """Make the store slow, or let it answer all that waits."""
        self.client.is_store_slow = is_slow
        while self.client.fetches and not is_slow:
            self.client.fetch()

    @rule(name=st.sampled_from(["resp_1", "resp_2", "resp_3"]))
    def delete(self, name: str) -> None:
        """Delete a response, as another connection would."""
        self.client.store.remove(name, "")
        self.client.history.forget(name)

    @rule(which=st.integers(0, 20), act=st.sampled_from(["text", "call", "finish", "fail", "admit", "cancel", "steer"]))
    def act(self, which: int, act: str) -> None:
        if not self.client.started:
            return
        request_id = self.client.started[which % len(self.client.started)]
        match act:
            case "text":
                self.client.step(request_id, TextDelta("x"))
            case "call":
                self.client.step(request_id, ToolCallStarted(0, "call_1", "f"), finished(FinishReason.TOOL_CALLS))
            case "steer":
                self.client.send("response.steer", previous_response_id=request_id, input="x")
                if request_id in self.client.cancelled:
                    self.client.step(request_id, finished(FinishReason.CANCELLED))
            case "finish":
                self.client.finish(request_id)
            case "fail":
                self.client.fail(request_id, WorkerCrashed("x"))
            case "admit":
                self.client.admit(request_id)
            case "cancel":
                self.client.send("response.cancel", response_id=request_id)
                if request_id in self.client.cancelled:
                    self.client.step(request_id, finished(FinishReason.CANCELLED))

    @invariant()
    def lanes_are_in_order(self) -> None:
        for lane in (None, "a", "b"):
            current = None
            for event in self.client.events:
                if event.get("stream_id") != lane:
                    continue
                if event["type"] == "error":
                    assert current is None
                elif event["type"] == "response.created":
                    assert current is None
                    current = event["response"]["id"]
                elif event["type"] in TERMINAL:
                    assert current == event["response"]["id"]
                    current = None

    def teardown(self) -> None:
        self.store(False)
        # The list grows during the loop: each end starts the response that waited. Finishing a finished one does
        # nothing.
        for request_id in self.client.started:
            self.client.finish(request_id)
        for lane, num_creates in self.num_creates.items():
            of_lane = [event for event in self.client.events if event.get("stream_id") == lane]
            num_ends = sum(event["type"] in {*TERMINAL, "error"} for event in of_lane)
            began = {event["response"]["id"] for event in of_lane if event["type"] == "response.created"}
            num_successors = len(began & self.successors())
            assert num_ends == num_creates + num_successors

    def successors(self) -> set[str]:
        """Return the responses that no create started: their prompts end with the input of a steer."""
        return {
            request_id
            for request_id, request in self.client.requests.items()
            if request.prompt.messages[-1] == Message("user", "x")
        }


TestSessions = Sessions.TestCase
TestSessions.settings = settings(
    max_examples=examples(40), stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
