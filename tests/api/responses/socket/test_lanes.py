"""Lanes of a session: order within a lane, lanes side by side, their names and limits."""

from __future__ import annotations

import pytest

from edgeagent.api.responses.socket.session import MAX_ACTIVE, MAX_WAITING
from edgeagent.types import Message
from tests.api.responses.socket.session_client import Client, error_of, kinds


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


def test_the_wait_behind_an_earlier_response_is_counted() -> None:
    client = Client()
    for _ in range(3):
        client.create(edgeagent={"deadline_ms": 3000})
    client.now_s += 1.0
    client.finish("resp_1")
    client.now_s += 60.0
    client.finish(client.started[1])
    waits = [(request.waited_s, request.timeout_s) for request in client.requests.values()]
    assert waits == [(0.0, 3.0), (1.0, 3.0), (61.0, 3.0)]


def test_the_lookup_of_what_a_create_continues_counts_as_its_wait() -> None:
    first = Client()
    parent = first.turn()
    client = Client(first.store)
    client.is_store_slow = True
    client.create(previous_response_id=parent)
    client.now_s += 0.25
    client.fetch()
    turn = client.live[client.started[0]].turn
    assert turn.request.waited_s == 0.25
    turn.shorten(turn.conversation.items)
    assert turn.request.waited_s == 0.25


def test_lanes_run_side_by_side_and_mark_their_events() -> None:
    client = Client()
    client.create(stream_id="a")
    client.create(stream_id="b.c-D_9")
    client.create()
    assert len(client.started) == 3
    for request_id, lane in zip(client.started, ("a", "b.c-D_9", None), strict=True):
        assert {event.get("stream_id") for event in client.finish(request_id)} == {lane}


@pytest.mark.parametrize("name", ["a b", "x" * 257, "é", 5, [], "a\n"])
def test_bad_lane_names(name: object) -> None:
    error = error_of(Client().create(stream_id=name))
    assert (error["code"], error["param"]) == ("invalid_stream_id", "stream_id")


@pytest.mark.parametrize("name", [None, ""])
def test_null_is_the_default_lane(name: str | None) -> None:
    client = Client()
    client.create(stream_id=name)
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
    client.now_s += 60.0
    events = client.finish(client.started[0])
    assert kinds(events)[-2:] == ["completed", "in_progress"]
    assert len(client.started) == MAX_ACTIVE + 1
    assert [client.requests[name].waited_s for name in client.started[-2:]] == [0.0, 60.0]
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
