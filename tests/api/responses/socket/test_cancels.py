"""What a cancel ends: a running, queued or fetching response."""

from __future__ import annotations

from typing import Any

import pytest

from edgeagent.api.responses.socket.session import MAX_ACTIVE
from edgeagent.types import FinishReason, Message, TextDelta
from tests.api.responses.socket.session_client import Client, kinds
from tests.backends.fake import finished


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


@pytest.mark.parametrize("fields", [{}, {"response_id": None}, {"response_id": ""}])
def test_cancel_without_an_id_is_the_lanes_active_response(fields: dict[str, Any]) -> None:
    client = Client()
    client.create()
    client.create(stream_id="a")
    for request_id in client.started:
        client.step(request_id, TextDelta("x"))
    client.send("response.cancel", stream_id="a", **fields)
    assert client.cancelled == [client.started[1]]
    client.send("response.cancel", **fields)
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
