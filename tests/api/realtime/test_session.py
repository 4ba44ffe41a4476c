"""A Realtime session without a socket: each event that a client gets, and each prompt that is computed."""

from __future__ import annotations

import json

import pytest

from edgeagent.api.realtime.body import MAX_EVENT_BYTES, MAX_ITEMS, read_event
from edgeagent.api.realtime.session import MAX_APART, MAX_NEW_AHEAD
from edgeagent.api.responses.socket.outbox import Send
from edgeagent.api.wire.request_id import OWN_HEADERS
from edgeagent.api.wire.shape import Json
from edgeagent.errors import ContextLengthExceeded, ModelNotFound, Overloaded, WorkerCrashed
from edgeagent.types import FinishReason, Queued, ReasoningDelta, Started, TextDelta, ToolCallDelta, ToolCallStarted
from tests.api.realtime.realtime_client import RealtimeClient, error_of, kinds, message
from tests.backends.fake import finished

TIMER = {"type": "function", "name": "set_timer", "parameters": {"type": "object"}}
CALL = (ToolCallStarted(0, "call_1", "set_timer"), ToolCallDelta(0, '{"minutes"'), ToolCallDelta(0, ":5}"))


@pytest.fixture
def client() -> RealtimeClient:
    return RealtimeClient()


def done(events: list[Json]) -> Json:
    assert events[-1]["type"] == "response.done"
    response: Json = events[-1]["response"]
    return response


def test_what_an_event_repeats_counts_until_it_is_written(client: RealtimeClient) -> None:
    text = "x" * 10_000
    item = json.dumps({"type": "conversation.item.create", "item": message(text, id="a")})
    asked = json.dumps({"type": "conversation.item.retrieve", "item_id": "a"})
    sent = [action for each in (item, asked) for action in client.realtime.receive(read_event(each))]
    assert [action.num_bytes > len(text) for action in sent if isinstance(action, Send)] == [True, True, True]


def test_the_first_event_has_the_settings(client: RealtimeClient) -> None:
    (event,) = client.opening
    assert event["type"] == "session.created"
    assert event["session"]["model"] == "fake"
    assert event["session"]["output_modalities"] == ["text"]
    assert event["session"]["max_output_tokens"] == "inf"


def test_a_turn_has_these_events_in_this_order(client: RealtimeClient) -> None:
    said = client.say("hello", event_id="mine")
    assert kinds(said) == ["conversation.item.added", "conversation.item.done"]
    assert said[0]["previous_item_id"] is None
    user = said[1]["item"]
    assert user["content"] == [{"type": "input_text", "text": "hello"}] and user["status"] == "completed"
    request_id = client.respond(metadata={"a": "b"}, max_output_tokens=9)
    events = client.step(request_id, Started(3, 0), TextDelta("one"))
    events += client.step(request_id, TextDelta(" two"), finished(prompt=8, cached=4, output=2))
    assert kinds(events) == [
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    created, added, in_conversation, *_, text_done, part_done, item_done, _, _ = events
    assert created["response"]["status"] == "in_progress" and created["response"]["metadata"] == {"a": "b"}
    assert added["item"]["status"] == "in_progress" and added["item"]["content"] == []
    assert in_conversation["previous_item_id"] == item_done["previous_item_id"] == user["id"]
    assert text_done["text"] == "one two" and part_done["part"] == {"type": "text", "text": "one two"}
    assert {event["response_id"] for event in events if "response_id" in event} == {request_id}
    response = done(events)
    assert response["output"] == [item_done["item"]]
    assert response["output"][0]["content"] == [{"type": "output_text", "text": "one two"}]
    assert (response["status"], response["status_details"]) == ("completed", None)
    assert (response["max_output_tokens"], client.last.max_tokens) == (9, 9)
    assert response["conversation_id"] == created["response"]["conversation_id"] is not None
    usage = response["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (8, 2, 10)
    assert usage["input_token_details"]["cached_tokens"] == 4
    assert usage["input_token_details"]["text_tokens"] == 8
    assert response["edgeagent"]["route"] == "local"
    request_id = client.turn("more")
    assert client.prompt(request_id) == [("user", "hello"), ("assistant", "one two"), ("user", "more")]
    assert client.live[request_id].turn.conversation.num_inherited == 2, "it is continued, not sent anew"


def test_a_call_and_its_result(client: RealtimeClient) -> None:
    client.send("session.update", session={"tools": [TIMER], "tool_choice": "auto"})
    client.say("five minutes")
    request_id = client.respond()
    events = client.step(request_id, *CALL, finished(FinishReason.TOOL_CALLS))
    assert kinds(events) == [
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    assert {event["call_id"] for event in events if "arguments" in event or "delta" in event} == {"call_1"}
    (call,) = done(events)["output"]
    assert (call["name"], call["call_id"], call["arguments"]) == ("set_timer", "call_1", '{"minutes":5}')
    result = {"type": "function_call_output", "call_id": "call_1", "output": "set"}
    told = client.send("conversation.item.create", item=result)
    assert told[1]["item"]["output"] == "set" and told[1]["previous_item_id"] == call["id"]
    assert client.last.prefill_only and client.prompt(client.last.id)[-1] == ("tool", "set")
    assert client.prompt(client.respond())[-1] == ("tool", "set")


def test_a_result_needs_its_call(client: RealtimeClient) -> None:
    result = {"type": "function_call_output", "call_id": "call_9", "output": "set"}
    error = error_of(client.send("conversation.item.create", item=result, event_id="e1"))
    assert (error["param"], error["event_id"]) == ("item.call_id", "e1") and "call_9" in error["message"]
    error = error_of(client.send("conversation.item.create", item={"type": "function_call_output", "output": "set"}))
    assert error["param"] == "item.call_id"


@pytest.mark.parametrize("how", ["deleted", "behind"])
def test_a_result_without_a_call_before_it_is_not_in_the_prompt(client: RealtimeClient, how: str) -> None:
    client.say("Which time?")
    call = {"type": "function_call", "id": "c", "call_id": "call_a", "name": "time", "arguments": "{}"}
    client.send("conversation.item.create", item=call)
    place = {"previous_item_id": "root"} if how == "behind" else {}
    output = {"type": "function_call_output", "call_id": "call_a", "output": "noon"}
    client.send("conversation.item.create", item=output, **place)
    if how == "deleted":
        client.send("conversation.item.delete", item_id="c")
    for _ in range(2):
        client.say("Well?")
        request_id = client.respond()
        assert "noon" not in str(client.prompt(request_id))
        assert client.finish(request_id)[-1]["response"]["status"] == "completed"


def test_a_call_that_was_cut_is_shown_and_not_in_the_next_prompt(client: RealtimeClient) -> None:
    client.send("session.update", session={"tools": [TIMER]})
    client.say("five minutes")
    events = client.step(client.respond(), *CALL[:2], finished(FinishReason.LENGTH))
    response = done(events)
    assert (response["status"], response["status_details"]["reason"]) == ("incomplete", "max_output_tokens")
    (call,) = response["output"]
    assert call["status"] == "incomplete"
    (retrieved,) = client.send("conversation.item.retrieve", item_id=call["id"])
    assert retrieved["item"] == call
    assert client.prompt(client.turn("again")) == [("user", "five minutes"), ("user", "again")]


def test_reasoning_is_not_shown(client: RealtimeClient) -> None:
    client.say()
    events = client.step(client.respond(), ReasoningDelta("Hm."), TextDelta("yes"), finished())
    assert "reasoning" not in json.dumps([event for event in events if event["type"] != "response.done"])
    assert [event["output_index"] for event in events if "output_index" in event] == [0] * 6
    assert [item["type"] for item in done(events)["output"]] == ["message"]
    request = client.requests[client.turn("more")]
    assert client.prompt(request.id)[1] == ("assistant", "yes")


class TestAhead:
    def test_an_item_and_the_settings_are_computed_ahead_and_nothing_is_told(self, client: RealtimeClient) -> None:
        told = client.send("session.update", session={"instructions": "Be brief."})
        assert kinds(told) == ["session.updated"]
        assert client.last.prefill_only and client.prompt(client.last.id) == [("system", "Be brief.")]
        assert client.step(client.last.id, Started(2, 0), finished(output=0)) == []
        client.say()
        ahead = client.last
        assert ahead.prefill_only and client.prompt(ahead.id)[-1] == ("user", "hi")
        request_id = client.respond()
        assert ahead.id in client.dropped, "the create ends what is computed ahead"
        assert not client.last.prefill_only and client.last.cache.lane == ahead.cache.lane != ""
        assert done(client.finish(request_id))["status"] == "completed"
        assert client.ended == [request_id]

    def test_nothing_is_computed_ahead_of_nothing_or_beside_a_response(self, client: RealtimeClient) -> None:
        client.send("session.update", session={"temperature": 0})
        assert not client.requests
        client.say()
        request_id = client.respond()
        client.say("and this")
        assert client.last.id == request_id
        client.finish(request_id)
        assert [text for _, text in client.prompt(client.respond())] == ["hi", "and this", "yes"]

    def test_a_long_conversation_that_changed_in_the_middle_is_not_computed_ahead(self, client: RealtimeClient) -> None:
        for index in range(MAX_NEW_AHEAD + 1):
            client.send("conversation.item.create", item=message(str(index), id=f"i{index}"))
            client.step(client.last.id, finished(output=0))
        ahead = client.last
        assert client.prompt(ahead.id)[-1] == ("user", str(MAX_NEW_AHEAD)), "each continues the one before"
        client.send("conversation.item.delete", item_id="i5")
        client.say("a")
        client.say("b")
        assert client.last is ahead
        client.finish(client.respond())
        client.say("c")
        assert client.last.prefill_only and client.prompt(client.last.id)[-1] == ("user", "c")

    def test_an_item_whose_place_is_named_is_computed_if_it_is_the_last(self, client: RealtimeClient) -> None:
        client.send("conversation.item.create", item=message("b", id="b"), previous_item_id="root")
        client.step(client.last.id, finished(output=0))
        client.send("conversation.item.create", item=message("a", id="a"), previous_item_id="root")
        assert len(client.requests) == 1
        client.send("conversation.item.create", item=message("c", id="c"), previous_item_id="b")
        assert [text for _, text in client.prompt(client.last.id)] == ["a", "b", "c"]

    def test_of_many_items_one_prompt_at_a_time_is_computed_ahead(self, client: RealtimeClient) -> None:
        client.say("a")
        first = client.last
        for text in "bcd":
            client.say(text)
        assert list(client.requests) == [first.id], "each would be prepared, and others would wait for that"
        assert client.step(first.id, finished(output=0)) == []
        assert [text for _, text in client.prompt(client.last.id)] == ["a", "b", "c", "d"]
        assert client.last.prefill_only and len(client.requests) == 2
        client.say("e")
        client.fail(client.last.id, WorkerCrashed("x"))
        assert client.prompt(client.last.id)[-1] == ("user", "e") and client.last.prefill_only
        client.finish(client.respond())
        assert len(client.requests) == 4

    def test_a_failure_ahead_is_not_told(self, client: RealtimeClient) -> None:
        client.say()
        assert client.fail(client.last.id, ModelNotFound("no such model")) == []
        request_id = client.respond()
        error = error_of(client.fail(request_id, ModelNotFound("no such model", param="model")))
        assert (error["code"], error["param"]) == ("model_not_found", "model")


class TestSettings:
    def test_only_what_is_sent_changes_and_empty_values_clear(self, client: RealtimeClient) -> None:
        first = {"instructions": "Be brief.", "tools": [TIMER], "max_output_tokens": 7, "temperature": 0}
        client.send("session.update", session={"type": "realtime", **first})
        (event,) = client.send("session.update", session={"tool_choice": "none"})
        shown = event["session"]
        assert (shown["instructions"], shown["max_output_tokens"], shown["tool_choice"]) == ("Be brief.", 7, "none")
        assert shown["tools"][0]["name"] == "set_timer"
        (event,) = client.send("session.update", session={"instructions": "", "tools": [], "max_output_tokens": "inf"})
        shown = event["session"]
        assert (shown["instructions"], shown["tools"], shown["max_output_tokens"]) == ("", [], "inf")
        for truncation, meant in ("disabled", "disabled"), (None, "auto"):
            (event,) = client.send("session.update", session={"truncation": truncation})
            assert event["session"]["truncation"] == meant
        client.turn()
        assert client.last.max_tokens is None and client.last.sampling.temperature == 0

    def test_a_wrong_setting_changes_nothing(self, client: RealtimeClient) -> None:
        error = error_of(client.send("session.update", session={"tool_choice": "required"}, event_id="e1"))
        assert (error["param"], error["event_id"]) == ("session.tool_choice", "e1")
        assert error["message"].startswith("session.tool_choice asks for a call")
        error = error_of(client.send("session.update", session={"instructions": "x", "tools": [{"type": "function"}]}))
        assert error["param"] == "session.tools[0].name"
        (event,) = client.send("session.update", session={})
        assert (event["session"]["tool_choice"], event["session"]["instructions"]) == ("auto", "")

    def test_a_response_overrides_them_once(self, client: RealtimeClient) -> None:
        client.send("session.update", session={"instructions": "Be brief.", "tools": [TIMER]})
        client.say()
        request_id = client.respond(
            instructions="Be long.", tools=[], max_output_tokens="inf", parallel_tool_calls=None
        )
        assert client.prompt(request_id)[0] == ("system", "Be long.")
        assert client.requests[request_id].prompt.tools == ()  # type: ignore[union-attr]
        client.finish(request_id)
        request_id = client.respond()
        assert client.prompt(request_id)[0] == ("system", "Be brief.")
        assert client.requests[request_id].prompt.tools  # type: ignore[union-attr]

    def test_the_model_can_be_chosen(self, client: RealtimeClient) -> None:
        (event,) = client.send("session.update", session={"model": "other"})
        assert event["session"]["model"] == "other"
        client.say()
        assert client.last.model == "other"

    def test_a_field_without_effect_is_warned_of(self, client: RealtimeClient) -> None:
        tools = [TIMER, {"type": "mcp", "server_label": "x"}]
        client.send("session.update", session={"tools": tools, "tool_chioce": "auto", "audio": {"input": {}}})
        client.say()
        run = done(client.finish(client.respond()))["edgeagent"]
        (warning,) = run["warnings"]
        assert "tool_chioce (did you mean tool_choice?)" in warning and "tools of type mcp" in warning
        assert "audio" not in warning

    def test_a_wrong_header_of_the_handshake_closes(self) -> None:
        token = OWN_HEADERS.set({"x-edgeagent-tier": "fast"})
        try:
            client = RealtimeClient()
        finally:
            OWN_HEADERS.reset(token)
        assert error_of(client.opening)["param"] == "x-edgeagent-tier" and client.closed == [1008]
        assert kinds(client.say()) == ["conversation.item.added", "conversation.item.done"]


class TestAudio:
    REFUSED: tuple[tuple[str, Json, str], ...] = (
        ("session.update", {"session": {"output_modalities": ["audio"]}}, "session.output_modalities"),
        ("response.create", {"response": {"output_modalities": ["audio", "text"]}}, "response.output_modalities"),
        ("input_audio_buffer.commit", {}, "type"),
        ("input_audio_buffer.clear", {}, "type"),
        ("output_audio_buffer.clear", {}, "type"),
        (
            "conversation.item.create",
            {"item": {"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": ""}]}},
            "item.content[0]",
        ),
    )

    @pytest.mark.parametrize(("kind", "fields", "param"), REFUSED)
    def test_it_is_refused(self, client: RealtimeClient, kind: str, fields: Json, param: str) -> None:
        for _ in range(2):
            error = error_of(client.send(kind, event_id="e1", **fields))
            assert (error["code"], error["param"], error["event_id"]) == ("not_supported", param, "e1")

    def test_a_stream_of_it_is_refused_once(self, client: RealtimeClient) -> None:
        error = error_of(client.send("input_audio_buffer.append", audio="AAAA"))
        assert error["code"] == "not_supported" and "text" in error["message"]
        assert client.send("input_audio_buffer.append", audio="AAAA") == []

    def test_there_is_none_to_truncate(self, client: RealtimeClient) -> None:
        item_id = client.say()[0]["item"]["id"]
        fields: Json = {"content_index": 0, "audio_end_ms": 100}
        assert error_of(client.send("conversation.item.truncate", item_id=item_id, **fields))["code"] == "not_supported"
        error = error_of(client.send("conversation.item.truncate", item_id="no", **fields))
        assert error["code"] == "item_truncate_invalid_item_id"


class TestItems:
    def test_they_are_inserted_deleted_and_retrieved(self, client: RealtimeClient) -> None:
        client.say("b", previous_item_id="root")
        first = client.send("conversation.item.create", item=message("a", "system", id="a"), previous_item_id="root")
        assert first[0]["previous_item_id"] is None
        second = client.send("conversation.item.create", item=message("c", "assistant", id="c"), previous_item_id="a")
        assert second[1]["previous_item_id"] == "a"
        (retrieved,) = client.send("conversation.item.retrieve", item_id="c")
        assert retrieved["item"] == second[1]["item"]
        request_id = client.respond()
        assert client.prompt(request_id) == [("system", "a"), ("assistant", "c"), ("user", "b")]
        client.finish(request_id)
        (event,) = client.send("conversation.item.delete", item_id="c")
        assert (event["type"], event["item_id"]) == ("conversation.item.deleted", "c")
        request_id = client.respond()
        assert client.prompt(request_id) == [("system", "a"), ("user", "b"), ("assistant", "yes")]

    def test_the_answer_under_way_can_be_deleted(self, client: RealtimeClient) -> None:
        client.say()
        request_id = client.respond()
        events = client.step(request_id, TextDelta("no"))
        item_id = next(event["item_id"] for event in events if "item_id" in event)
        client.send("conversation.item.delete", item_id=item_id)
        assert done(client.step(request_id, finished()))["output"][0]["id"] == item_id
        assert client.prompt(client.respond()) == [("user", "hi")]

    def test_one_that_was_deleted_is_not_meant_by_its_id(self, client: RealtimeClient) -> None:
        client.say("old", previous_item_id="root")
        client.send("conversation.item.create", item=message("old", id="a"))
        client.finish(client.respond())
        client.send("conversation.item.delete", item_id="a")
        first = next(event["item"]["id"] for event in client.events if "item" in event)
        client.send("conversation.item.create", item=message("new", id="a"), previous_item_id=first)
        assert [text for _, text in client.prompt(client.respond())] == ["old", "new", "yes"]

    def test_calls_without_an_id_get_different_ones(self, client: RealtimeClient) -> None:
        call = {"type": "function_call", "name": "f", "arguments": "{}"}
        names = {client.send("conversation.item.create", item=call)[0]["item"]["call_id"] for _ in range(3)}
        assert len(names) == 3

    @pytest.mark.parametrize(
        ("kind", "fields", "code"),
        [
            ("create", {"item": message("x", id="root")}, "invalid_value"),
            ("create", {"item": message("x", id="a")}, "item_create_duplicate_item_id"),
            ("create", {"item": message("x"), "previous_item_id": "no"}, "invalid_value"),
            ("create", {"item": {"type": "item_reference", "id": "a"}}, "invalid_value"),
            ("create", {"item": {"type": "mcp_call", "id": "a"}}, "not_supported"),
            ("create", {"item": {"type": "message", "role": "user"}}, "invalid_value"),
            ("create", {}, "invalid_value"),
            ("delete", {"item_id": "no"}, "item_delete_invalid_item_id"),
            ("delete", {}, "invalid_value"),
            ("retrieve", {"item_id": "no"}, "item_retrieve_invalid_item_id"),
        ],
    )
    def test_what_is_wrong_is_refused(self, client: RealtimeClient, kind: str, fields: Json, code: str) -> None:
        client.send("conversation.item.create", item=message("x", id="a"))
        error = error_of(client.send(f"conversation.item.{kind}", event_id="e1", **fields))
        assert (error["code"], error["event_id"]) == (code, "e1") and error["param"]
        assert client.prompt(client.respond()) == [("user", "x")]

    def test_there_are_at_most_so_many(self, client: RealtimeClient) -> None:
        for index in range(MAX_ITEMS):
            client.say(str(index), previous_item_id="root")
        error = error_of(client.say("x"))
        assert str(MAX_ITEMS) in error["message"]
        client.send("conversation.item.delete", item_id=client.events[-2]["item"]["id"])
        assert kinds(client.say("x")) == ["conversation.item.added", "conversation.item.done"]

    def test_they_take_at_most_so_many_bytes(self, client: RealtimeClient) -> None:
        text = "x" * (MAX_EVENT_BYTES - 500)
        answers = [client.say(text, previous_item_id="root")[0]["type"] for _ in range(34)]
        assert answers == ["conversation.item.added"] * 33 + ["error"]
        error = error_of(client.send_text(json.dumps({"event_id": "e1", "type": text * 2})))
        assert error["code"] == "payload_too_large"


class TestResponses:
    def test_one_at_a_time_answers_the_conversation(self, client: RealtimeClient) -> None:
        client.say()
        request_id = client.respond()
        client.step(request_id, TextDelta("one"))
        error = error_of(client.send("response.create", event_id="e2"))
        assert (error["code"], error["event_id"]) == ("conversation_already_has_active_response", "e2")
        assert request_id in error["message"]
        assert done(client.step(request_id, finished()))["status"] == "completed"
        client.finish(client.respond())

    def test_without_anything_to_answer_it_is_refused(self, client: RealtimeClient) -> None:
        assert error_of(client.send("response.create"))["param"] == "response.input"
        assert error_of(client.send("response.create", response={"input": []}))["param"] == "response.input"
        client.finish(client.respond(instructions="Greet."))

    @pytest.mark.parametrize("names_it", [True, False])
    def test_it_is_cancelled(self, client: RealtimeClient, names_it: bool) -> None:
        client.say()
        request_id = client.respond()
        client.step(request_id, TextDelta("one"))
        named = {"response_id": request_id} if names_it else {}
        assert client.send("response.cancel", **named) == []
        assert client.cancelled == [request_id]
        response = done(client.step(request_id, finished(FinishReason.CANCELLED)))
        assert (response["status"], response["status_details"]["reason"]) == ("cancelled", "client_cancelled")
        assert response["output"][0]["status"] == "incomplete"
        error = error_of(client.send("response.cancel", event_id="e1", **named))
        assert (error["code"], error["event_id"]) == ("response_cancel_not_active", "e1")
        assert client.prompt(client.turn("more"))[1] == ("assistant", "one")

    def test_it_is_cancelled_before_it_began(self, client: RealtimeClient) -> None:
        client.say()
        request_id = client.respond()
        events = client.send("response.cancel")
        assert kinds(events) == ["response.created", "response.done"] and client.dropped[-1] == request_id
        assert done(events)["status"] == "cancelled"

    def test_what_is_computed_ahead_is_not_cancelled(self, client: RealtimeClient) -> None:
        client.say()
        assert error_of(client.send("response.cancel"))["code"] == "response_cancel_not_active"

    def test_one_that_waits_is_in_progress(self, client: RealtimeClient) -> None:
        client.say()
        request_id = client.respond()
        client.step(request_id, Queued(3, 1.0))
        (created,) = client.take(client.session.announce(client.live[request_id]))
        assert created["response"]["status"] == "in_progress"
        assert kinds(client.finish(request_id))[0] == "response.output_item.added"

    def test_a_failure_before_it_began_is_an_error_and_after_that_a_failed_response(
        self, client: RealtimeClient
    ) -> None:
        client.turn()
        client.say("more")
        client.send("response.create", event_id="e1")
        error = error_of(client.fail(client.last.id, ContextLengthExceeded("too long", param="input")))
        assert (error["code"], error["event_id"]) == ("context_length_exceeded", "e1")
        request_id = client.respond()
        client.step(request_id, TextDelta("one"))
        response = done(client.fail(request_id, Overloaded("full")))
        assert response["status"] == "failed" and response["usage"] is None
        details = response["status_details"]["error"]
        assert (details["code"], details["type"]) == ("rate_limit_exceeded", "rate_limit_error") and details["message"]
        texts = [text for _, text in client.prompt(client.respond())]
        assert texts == ["hi", "yes", "more", "one"], "the conversation has what the client has"

    def test_its_input_replaces_the_conversation(self, client: RealtimeClient) -> None:
        client.turn("hi", "yes")
        item_id = client.say("mine")[0]["item"]["id"]
        items = [message("other"), {"type": "item_reference", "id": item_id}]
        request_id = client.respond(input=items)
        assert client.prompt(request_id) == [("user", "other"), ("user", "mine")]
        assert done(client.finish(request_id, "apart"))["conversation_id"] is not None
        assert [text for _, text in client.prompt(client.respond())] == ["hi", "yes", "mine", "apart"]

    def test_a_reference_to_nothing_is_refused(self, client: RealtimeClient) -> None:
        client.say()
        response: Json = {"input": [{"type": "item_reference", "id": "no"}]}
        error = error_of(client.send("response.create", response=response, event_id="e1"))
        assert "'no' not found" in error["message"] and error["event_id"] == "e1"
        client.finish(client.respond())


class TestApart:
    """Responses outside of the conversation."""

    def test_they_run_beside_it_and_leave_it_as_it_is(self, client: RealtimeClient) -> None:
        client.say("main")
        main = client.respond()
        apart = client.respond(conversation="none", input=[message("aside")], metadata={"topic": "x"})
        assert client.prompt(apart) == [("user", "aside")]
        events = client.finish(apart, "no")
        assert not [kind for kind in kinds(events) if kind.startswith("conversation.")]
        response = done(events)
        assert (response["conversation_id"], response["metadata"]) == (None, {"topic": "x"})
        client.finish(main)
        assert [text for _, text in client.prompt(client.turn("next"))] == ["main", "yes", "next"]

    def test_without_input_they_answer_the_conversation(self, client: RealtimeClient) -> None:
        client.turn("main")
        apart = client.respond(conversation="none", instructions="Summarize.")
        texts = [text for _, text in client.prompt(apart)]
        assert texts == ["Summarize.", "main", "yes"]
        client.finish(apart)
        assert client.prompt(client.turn("next"))[-1] == ("user", "next")
        client.finish(
            client.respond(input=[{"type": "item_reference", "id": client.events[-1]["response"]["output"][0]["id"]}])
        )

    def test_each_is_cancelled_by_its_id(self, client: RealtimeClient) -> None:
        names = [client.respond(conversation="none", input=[message(str(number))]) for number in range(2)]
        for name in names:
            client.step(name, TextDelta("x"))
        assert error_of(client.send("response.cancel"))["code"] == "response_cancel_not_active"
        client.send("response.cancel", response_id=names[1])
        assert client.cancelled == [names[1]]

    def test_so_many_run_at_once(self, client: RealtimeClient) -> None:
        apart: Json = {"conversation": "none", "input": [message("x")]}
        names = [client.respond(**apart) for _ in range(MAX_APART)]
        error = error_of(client.send("response.create", response=apart, event_id="e1"))
        assert (error["type"], error["event_id"]) == ("rate_limit_error", "e1")
        client.finish(names[3])
        client.finish(client.respond(**apart))

    def test_many_of_them_do_not_make_the_conversation_forgotten(self, client: RealtimeClient) -> None:
        client.turn("main")
        for number in range(200):
            client.finish(client.respond(conversation="none", input=[message(str(number))]))
        assert [text for _, text in client.prompt(client.turn("next"))] == ["main", "yes", "next"]


class TestPrivacy:
    """What a response asked for holds wherever the conversation is read, also if it is not continued."""

    def test_it_holds_after_a_delete(self, client: RealtimeClient) -> None:
        client.send("session.update", session={"store": False, "edgeagent": {"route": "local_only"}})
        item_id = client.say()[0]["item"]["id"]
        client.finish(client.respond())
        client.send("session.update", session={"store": None, "edgeagent": None})
        client.send("conversation.item.delete", item_id=item_id)
        client.say("more")
        client.respond()
        assert client.last.route == "local_only" and not client.last.cache.persist

    def test_it_holds_for_a_reference(self, client: RealtimeClient) -> None:
        client.say()
        client.finish(client.respond(edgeagent={"route": "local_only"}))
        items = [{"type": "item_reference", "id": client.events[-1]["response"]["output"][0]["id"]}]
        client.respond(conversation="none", input=items, edgeagent={"route": "prefer_remote"})
        assert client.last.route == "local_only"

    def test_it_does_not_hold_for_what_is_apart(self, client: RealtimeClient) -> None:
        client.say()
        client.finish(client.respond(edgeagent={"route": "local_only"}))
        client.respond(conversation="none", input=[message("x")], edgeagent={"route": "prefer_remote"})
        assert client.last.route == "prefer_remote" and client.last.cache.persist

    def test_a_response_that_sets_something_else_keeps_the_route_of_the_session(self, client: RealtimeClient) -> None:
        client.send("session.update", session={"edgeagent": {"route": "local_only"}})
        client.respond(conversation="none", input=[message("x")], edgeagent={"tier": "batch"})
        assert (client.last.route, client.last.tier) == ("local_only", "batch")


@pytest.mark.parametrize(
    ("text", "param"),
    [
        ("{", None),
        ('{"type": "session.update", "session": {"max_output_tokens": 0}}', "session.max_output_tokens"),
        ('{"type": "session.update", "session": {"max_output_tokens": "5"}}', "session.max_output_tokens"),
        ("[]", None),
        ("{}", "type"),
        ('{"type": 1}', "type"),
        ('{"type": "response.steer", "event_id": "e1"}', "type"),
        ('{"type": "response.cancel", "event_id": "e1", "response_id": 5}', "response_id"),
        ('{"type": "response.create", "event_id": "e1", "response": 5}', "response"),
        ('{"type": "response.create", "event_id": "e1", "response": {"conversation": "x"}}', "response.conversation"),
        ('{"type": "session.update", "event_id": "e1"}', "session"),
        ('{"type": "session.update", "event_id": "e1", "session": {"type": "transcription"}}', "session.type"),
        ('{"type": "session.update", "event_id": "e1", "session": {"prompt": {"id": "x"}}}', "session.prompt"),
    ],
)
def test_a_wrong_event_is_refused_with_its_id(client: RealtimeClient, text: str, param: str | None) -> None:
    error = error_of(client.send_text(text))
    assert error["param"] == param and error["type"] == "invalid_request_error"
    assert error["event_id"] == ("e1" if "e1" in text else None)


def test_a_token_that_ends_closes_the_session_behind_the_response(client: RealtimeClient) -> None:
    client.say()
    request_id = client.respond()
    client.step(request_id, TextDelta("one"))
    assert client.take(client.session.expire()) == []
    *events, error = client.step(request_id, finished())
    assert done(events)["status"] == "completed"
    assert error["error"]["code"] == "invalid_api_key" and client.closed == [1008]


def test_a_crash_of_what_is_computed_ahead_does_not_lose_the_conversation(client: RealtimeClient) -> None:
    client.turn("main")
    client.say("more")
    client.fail(client.last.id, WorkerCrashed("signal 9"))
    assert [text for _, text in client.prompt(client.respond())] == ["main", "yes", "more"]
