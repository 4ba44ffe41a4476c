"""Steering, frame by frame: accepted, stopped at a boundary, and answered by a successor; or refused with its input."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgeagent.api.responses.socket import steering
from edgeagent.api.responses.socket.frames import read_frame
from edgeagent.api.responses.socket.outbox import Send
from edgeagent.api.responses.socket.session import MAX_ACTIVE, MAX_WAITING_BYTES
from edgeagent.api.responses.socket.steering import MAX_RETURNED_BYTES, MAX_STEERS
from edgeagent.api.wire.shape import Json
from edgeagent.errors import Overloaded, WorkerCrashed
from edgeagent.types import FinishReason, Message, TextDelta, ToolCallDelta, ToolCallStarted
from tests.api.responses.socket.session_client import Client, kinds
from tests.backends.fake import finished

CALL = (ToolCallStarted(0, "call_1", "look"), ToolCallDelta(0, "{}"))


def steer(client: Client, response_id: str, text: Any = "faster") -> list[Json]:
    return client.send("response.steer", previous_response_id=response_id, input=text)


def refused(events: list[Json]) -> str:
    (event,) = events
    assert event["type"] == "response.steer.failed"
    code: str = event["error"]["code"]
    return code


def talking(**fields: Any) -> tuple[Client, str]:
    """Return a client whose response has sent some text, and the response's id."""
    client = Client()
    client.create(input="count", **fields)
    client.step(client.started[0], TextDelta("one two"))
    return client, client.started[0]


def test_the_input_is_read_with_its_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large frame is read in a thread, and the session acts on the event loop."""
    client, first = talking()
    frame = read_frame(json.dumps({"type": "response.steer", "previous_response_id": first, "input": "faster"}))
    monkeypatch.setattr(steering, "read_items", lambda _: pytest.fail("it is read again"))
    [accepted] = client.take(client.session.receive(frame))
    assert accepted["type"] == "response.steer.accepted"


def test_a_response_stops_and_a_successor_answers() -> None:
    client, first = talking(stream_id="a", instructions="Be brief.", temperature=0.5)
    (accepted,) = steer(client, first)
    assert accepted["type"] == "response.steer.accepted"
    assert (accepted["steer"]["previous_response_id"], accepted["stream_id"]) == (first, "a")
    assert client.cancelled == [first]
    events = client.step(first, finished(FinishReason.CANCELLED))
    assert kinds(events) == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert events[-1]["response"]["incomplete_details"] == {"reason": "steered"}
    assert events[-1]["response"]["status"] == "incomplete"
    # The notes about a response continue its sequence numbers.
    assert [e["sequence_number"] for e in client.events] == list(range(len(client.events)))
    successor = client.started[1]
    assert client.requests[successor].prompt.messages == (
        Message("system", "Be brief."),
        Message("user", "count"),
        Message("assistant", "one two"),
        Message("user", "faster"),
    )
    assert client.requests[successor].sampling.temperature == 0.5
    events = client.finish(successor)
    assert {event["stream_id"] for event in events} == {"a"}
    assert (events[0]["type"], events[0]["response"]["previous_response_id"]) == ("response.created", first)


def test_a_successor_comes_before_what_waits_on_the_lane() -> None:
    client, first = talking()
    client.create(input="next")
    steer(client, first)
    client.step(first, finished(FinishReason.CANCELLED))
    assert client.requests[client.started[1]].prompt.messages[-1] == Message("user", "faster")
    client.finish(client.started[1])
    assert client.requests[client.started[2]].prompt.messages == (Message("user", "next"),)


def test_several_inputs_are_answered_together_in_order() -> None:
    client, first = talking()
    steer(client, first, "one")
    steer(client, first, [{"role": "user", "content": [{"type": "input_text", "text": "two"}]}])
    assert client.cancelled == [first]
    client.step(first, finished(FinishReason.CANCELLED))
    assert client.requests[client.started[1]].prompt.messages[-2:] == (Message("user", "one"), Message("user", "two"))
    assert len(client.started) == 2


def test_a_response_that_is_over_before_it_stops_completes_and_is_followed() -> None:
    client, first = talking()
    steer(client, first)
    events = client.step(first, finished())
    assert events[-1]["type"] == "response.completed"
    assert client.requests[client.started[1]].prompt.messages[-1] == Message("user", "faster")


@pytest.mark.parametrize("store", [True, False])
def test_a_successor_is_stored_as_the_first_was(store: bool) -> None:
    client, first = talking(store=store)
    steer(client, first)
    client.step(first, finished(FinishReason.CANCELLED))
    client.finish(client.started[1])
    assert [bool(client.store.get(name, "")) for name in client.started] == [store, store]


def test_a_response_that_has_not_begun_is_dropped() -> None:
    client = Client()
    client.create(input="count")
    first = client.started[0]
    events = steer(client, first)
    assert kinds(events) == ["created", "in_progress", "steer.accepted", "incomplete"]
    assert client.dropped == [first]
    assert client.requests[client.started[1]].prompt.messages == (Message("user", "count"), Message("user", "faster"))


def test_a_queued_response_can_be_steered() -> None:
    client = Client()
    for index in range(MAX_ACTIVE + 1):
        client.create(stream_id=f"lane{index}")
    queued = client.events[-1]["response"]["id"]
    events = steer(client, queued)
    assert kinds(events) == ["steer.accepted", "incomplete", "created", "queued"]
    client.finish(client.started[0])
    assert client.requests[client.started[-1]].prompt.messages[-1] == Message("user", "faster")


def test_calls_are_waited_for_and_the_input_comes_before_their_results() -> None:
    client, first = talking()
    steer(client, first)
    events = client.step(first, *CALL, finished(FinishReason.TOOL_CALLS))
    completed, pending = events[-2:]
    assert (completed["type"], pending["type"]) == ("response.completed", "response.steer.pending")
    assert pending["reason"] == "waiting_for_required_input"
    assert pending["required_input"] == [{"type": "function_call_output", "call_id": "call_1", "name": "look"}]
    assert len(client.started) == 1
    result = [{"type": "function_call_output", "call_id": "call_1", "output": "7"}]
    # On another lane the input makes a fork and does not answer the pending steer. A refused create leaves the steer
    # waiting.
    client.create(previous_response_id=first, input=result, stream_id="fork")
    client.finish(client.started[1])
    client.create(previous_response_id=first, input=result, temperature=9)
    client.create(previous_response_id=first, input=result)
    assert len(client.requests[client.started[1]].prompt.messages) == 3
    assert client.requests[client.started[2]].prompt.messages[-2:] == (
        Message("user", "faster"),
        Message("tool", "7", tool_call_id="call_1"),
    )
    client.finish(client.started[2])
    client.create(previous_response_id=first, input=result)
    assert len(client.requests[client.started[3]].prompt.messages) == 3


def test_a_client_that_cancels_after_all_gets_its_input_back() -> None:
    client, first = talking()
    (accepted,) = steer(client, first)
    client.send("response.cancel", response_id=first)
    events = client.step(first, finished(FinishReason.CANCELLED))
    assert events[-2]["response"]["status"] == "cancelled"
    assert events[-1]["type"] == "response.steer.failed"
    assert events[-1]["steer"] == {"id": accepted["steer"]["id"], "previous_response_id": first, "input": "faster"}
    assert events[-1]["error"]["code"] == "response_not_active"
    assert len(client.started) == 1


def test_a_failure_gives_the_input_back() -> None:
    client, first = talking()
    steer(client, first)
    events = client.fail(first, WorkerCrashed("signal 9"))
    assert kinds(events)[-2:] == ["failed", "steer.failed"]


def test_a_successor_that_is_refused_gives_the_input_back_and_is_no_error_of_the_lane() -> None:
    client, first = talking(stream_id="a")
    steer(client, first)
    client.step(first, finished(FinishReason.CANCELLED))
    (event,) = client.fail(client.started[1], Overloaded("full"))
    assert (event["type"], event["error"]["code"]) == ("response.steer.failed", "successor_creation_failed")
    assert (event["stream_id"], event["steer"]["input"]) == ("a", "faster")


@pytest.mark.parametrize(
    "raw",
    [
        None,
        "",
        [],
        5,
        {},
        [{"role": "system", "content": "x"}],
        [{"type": "function_call_output", "call_id": "c", "output": ""}],
        [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}],
        ["x"],
    ],
)
def test_inputs_that_are_none(raw: object) -> None:
    client, first = talking()
    # The error returns the input unchanged, so a typed client could not parse it either.
    frame = {"type": "response.steer", "previous_response_id": first, "input": raw}
    (action,) = client.session.receive(read_frame(json.dumps(frame)))
    assert isinstance(action, Send)
    assert refused([action.event]) == "invalid_input"


def test_responses_that_cannot_be_steered() -> None:
    client, first = talking()
    assert refused(steer(client, "resp_never")) == "response_not_found"
    (without_id,) = client.send("response.steer", input="x")
    assert refused([without_id]) == "response_not_found"
    assert "previous_response_id" in without_id["error"]["message"]
    client.send("response.cancel")
    assert refused(steer(client, first)) == "response_not_active"
    client.step(first, finished(FinishReason.CANCELLED))
    assert refused(steer(client, first)) == "response_already_completed"
    client.create(generate=False)
    assert refused(steer(client, client.started[1])) == "steering_not_supported"


def test_inputs_that_wait_for_results_are_bounded() -> None:
    client, first = talking(stream_id="a")
    for _ in range(MAX_STEERS):
        steer(client, first)
        client.step(first, *CALL, finished(FinishReason.TOOL_CALLS))
        client.create(stream_id="a")
        first = client.started[-1]
        client.step(first, TextDelta("one two"))
    (event,) = steer(client, first)
    assert event["error"]["code"] == "too_many_pending_steers"
    assert "send the results" in event["error"]["message"]


def test_inputs_that_wait_are_bounded() -> None:
    client, first = talking()
    for _ in range(MAX_STEERS):
        steer(client, first)
    assert refused(steer(client, first)) == "too_many_pending_steers"


def test_the_bytes_of_inputs_that_wait_are_bounded() -> None:
    client, first = talking()
    steer(client, first, "x" * (MAX_WAITING_BYTES // 2))
    assert refused(steer(client, first, "x" * (MAX_WAITING_BYTES // 2))) == "too_many_pending_steers"


def test_a_refused_input_is_returned_unless_it_is_long() -> None:
    client, _ = talking()
    for length, is_returned in ((MAX_RETURNED_BYTES // 2, True), (MAX_RETURNED_BYTES + 1, False)):
        (event,) = steer(client, "resp_never", "x" * length)
        assert event["steer"]["input"] == ("x" * length if is_returned else "")
        assert ("too long to be returned" in event["error"]["message"]) != is_returned
