"""The session's rules, frame by frame and without a socket: beginnings, errors, limits and ends."""

from __future__ import annotations

import pytest

from edgeagent.api.responses.socket.frames import CreateFrame, RefusedFrame, read_frame
from edgeagent.api.responses.socket.session import (
    MAX_ACTIVE,
    MAX_REFUSALS,
    MAX_WAITING,
    MAX_WAITING_BYTES,
    Session,
    Start,
)
from edgeagent.conversation.history import ConnectionHistory
from edgeagent.errors import ModelNotFound, Overloaded, WorkerCrashed
from edgeagent.service.live_service import LiveService
from edgeagent.types import Queued, Started, TextDelta
from tests.api.responses.socket.session_client import Client, error_of, kinds
from tests.backends.fake import FakeBackend


def test_a_response_begins_when_it_is_admitted_or_steps() -> None:
    client = Client()
    assert client.create() == []
    assert kinds(client.announce("resp_1")) == ["created", "in_progress"]
    assert client.announce("resp_1") == []
    client.finish("resp_1")
    client.create()
    assert kinds(client.step(client.started[1], Started(3, 0))) == ["created", "in_progress"]
    client.finish(client.started[1])
    assert client.announce(client.started[1]) == []


def test_a_response_that_waits_says_for_how_long() -> None:
    client = Client()
    client.create()
    assert client.step("resp_1", Queued(1, 2.0)) == []
    events = client.announce("resp_1")
    assert kinds(events) == ["created", "queued"]
    assert events[1]["edgeagent"] == {"place": 1, "expected_ms": 2000.0}
    assert client.announce("resp_1") == []
    assert kinds(client.step("resp_1", Started(3, 0))) == ["in_progress"]


def test_what_is_refused_soon_after_it_began_to_wait_is_one_envelope() -> None:
    client = Client()
    client.create()
    client.step("resp_1", Queued(1, 2.0))
    assert kinds(client.fail("resp_1", Overloaded("too late"))) == ["error"]
    client.create()
    client.step("resp_2", Queued(1, 2.0))
    assert kinds(client.step("resp_2", Started(3, 0))) == ["created", "in_progress"]


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


def test_a_connection_without_a_valid_token_closes_once_nothing_is_under_way() -> None:
    client = Client()
    client.create()
    client.create()
    assert client.take(client.session.expire()) == []
    assert client.closed == []
    events = client.finish(client.started[0])
    # The waiting create is refused; the last error is for a client that only listens.
    assert kinds(events)[-3:] == ["completed", "error", "error"]
    assert events[-1]["error"]["code"] == "invalid_api_key"
    assert client.closed == [1008]


def test_an_idle_connection_without_a_valid_token_closes_at_once() -> None:
    client = Client()
    client.turn()
    assert error_of(client.take(client.session.expire()))["code"] == "invalid_api_key"
    assert client.closed == [1008]
    assert client.take(client.session.expire()) == []


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


def test_what_waits_is_counted_until_it_runs() -> None:
    client, text = Client(), "x" * 10_000
    for number in range(MAX_ACTIVE + 1):  # the last one is queued, since so many run
        client.create(stream_id=f"l{number}", input=text)
    client.create(stream_id="l0", input=text)
    client.step(client.started[1], TextDelta("x"))
    client.send("response.steer", previous_response_id=client.started[1], input=text)
    assert 30_000 < client.session.num_waiting_bytes < 33_000
    client.finish(client.started[0])  # the queued one begins
    assert 20_000 < client.session.num_waiting_bytes < 23_000
    for request_id in client.started:  # the list grows
        client.finish(request_id)
    assert client.session.num_waiting_bytes == 0


def test_creates_on_new_lanes_that_are_too_large_to_wait_are_refused() -> None:
    client = Client()
    for number in range(MAX_ACTIVE):
        client.create(stream_id=f"l{number}")
    large = "x" * (MAX_WAITING_BYTES // 2 - 1000)
    assert all(kinds(client.create(stream_id=f"n{n}", input=large)) == ["created", "queued"] for n in range(2))
    assert error_of(client.create(stream_id="n2", input=large))["code"] == "queue_full"


def test_creates_that_wait_are_refused_in_their_turn_if_clients_send_too_much() -> None:
    client = Client()
    for _ in range(3):
        client.create()
    client.session.refuse_waiting()
    assert client.session.num_waiting_bytes == 0
    client.create()
    assert kinds(client.finish(client.started[0]))[-3:] == ["completed", "error", "error"]
    assert len(client.started) == 2


def test_an_error_that_waits_holds_nothing_of_its_frame() -> None:
    for frame in (
        '{"type": ',
        '{"type": "response.create", "input": 7}',
        '{"type": "response.create", "tools": 7}',
    ):
        match read_frame(frame + " " * 1000):
            case RefusedFrame(error) | CreateFrame(RefusedFrame(error)):
                assert (error.__cause__, error.__context__, error.__traceback__) == (None, None, None)
            case read:
                raise AssertionError(read)


def test_the_url_may_name_the_model() -> None:
    for model, expected in (("other", "other"), (None, "fake")):
        session = Session(LiveService(FakeBackend(), lambda request: request), ConnectionHistory(), default_model=model)
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
