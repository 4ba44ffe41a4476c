"""Responses that continue others: what is remembered, fetched, stored and evicted."""

from __future__ import annotations

from edgeagent.errors import WorkerCrashed
from edgeagent.types import ChatPrompt, Message, Started, TextDelta
from tests.api.responses.socket.session_client import Client, error_of, kinds
from tests.backends.fake import finished


def test_continuation() -> None:
    client = Client()
    first = client.turn(input="one", instructions="Be brief.")
    client.create(input="two", previous_response_id=first)
    # Instructions are not inherited; the model's reply is.
    assert client.requests[client.started[1]].prompt == ChatPrompt(
        (Message("user", "one"), Message("assistant", "yes"), Message("user", "two"))
    )


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
