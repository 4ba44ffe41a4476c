"""A growing message: newer revisions replace older ones, and its answer begins before the client asks for it."""

from __future__ import annotations

from typing import Any

import pytest

from edgeagent.api.responses.socket.ahead import AheadAnswer
from edgeagent.api.responses.socket.session import MAX_ACTIVE
from edgeagent.types import (
    AHEAD_TOKENS,
    AnswerSoFar,
    FinishReason,
    Started,
    Step,
    TextDelta,
    ToolCallStarted,
)
from tests.api.responses.socket.session_client import Client, error_of, kinds
from tests.backends.fake import finished

AHEAD: dict[str, Any] = {"generate": False, "edgeagent": {"ahead": True}}
COMPLETE = ["created", "in_progress", "completed"]


def revise(client: Client, text: str = "turn on", **fields: Any) -> AheadAnswer:
    """Send a revision, let its prompt be computed, and return the answer that begins then."""
    client.create(input=text, **{**AHEAD, **fields})
    client.step(client.started[-1], Started(8, 4), finished(output=0))
    return client.ahead[-1]


def give(answer: AheadAnswer, *words: str, reason: FinishReason | None = None) -> None:
    """Give an answer one token a word, and its end."""
    for index, word in enumerate(words):
        end = [finished(reason)] if reason and index == len(words) - 1 else []
        answer.put(Step((TextDelta(word), *end), (len(word),), 1.0))


def text_of(events: list[Any]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")


class TestPrefill:
    def test_a_newer_create_of_the_lane_ends_it_at_once(self) -> None:
        client = Client()
        client.create(input="turn", generate=False)
        client.create(input="hello", generate=False, stream_id="other")
        events = client.create(input="turn on", generate=False)
        assert kinds(events) == [*COMPLETE]
        assert events[-1]["response"]["edgeagent"]["reason"] == "superseded"
        assert not events[-1]["response"]["store"] and client.store.get("resp_1", "") is None
        assert (client.dropped, client.started) == (["resp_1"], ["resp_1", "resp_2", "resp_3"])
        assert all(client.requests[name].is_ahead for name in client.started)
        events = client.create(input="turn on the light")
        assert kinds(events) == [*COMPLETE]
        assert not client.requests[client.started[-1]].is_ahead
        assert client.finish("resp_1") == []
        assert kinds(client.finish(client.started[-1]))[-1] == "completed"
        client.create(input="again", previous_response_id="resp_1")
        assert client.requests[client.started[-1]].prompt.messages[0].content == "turn"

    def test_what_the_newer_create_continues_is_stored(self) -> None:
        client = Client()
        client.create(input="turn", generate=False)
        events = client.create(input="on", previous_response_id="resp_1")
        assert kinds(events) == [*COMPLETE]
        assert events[-1]["response"]["store"] and client.store.get("resp_1", "") is not None
        events = client.finish("resp_2")
        assert events[-1]["response"]["store"] and client.store.get("resp_2", "") is not None

    def test_a_burst_leaves_only_the_last(self) -> None:
        client = Client()
        for index in range(MAX_ACTIVE):
            client.create(stream_id=f"lane{index}")
        client.create(input="turn", generate=False)
        assert kinds(client.events[-2:]) == ["created", "queued"]
        events = client.create(input="turn on", generate=False)
        assert kinds(events) == ["in_progress", "completed", "created", "queued"]
        assert client.dropped == [events[1]["response"]["id"]]

    def test_what_is_no_create_and_what_is_no_prefill_waits(self) -> None:
        client = Client()
        client.create(input="turn", generate=False)
        assert client.create(temperature=9) == []
        client.finish("resp_1")
        client.create()
        assert client.create(generate=False) == []
        assert client.dropped == []

    def test_a_summary_is_awaited(self) -> None:
        client = Client()
        client.create(generate=False, context_management=[{"type": "compaction", "compact_threshold": 1000}])
        assert client.create(generate=False) == []


class TestAnswer:
    def test_the_same_text_releases_it_and_goes_on(self) -> None:
        client = Client()
        answer = revise(client)
        assert (answer.request.is_ahead, answer.request.prefill_only) == (True, False)
        answer.put(Step((Started(8, 8),), (), 1.0))
        give(answer, "it", " is", " on")
        events = client.create(input="turn on", service_tier="priority", edgeagent={"ttft_ms": 5000})
        assert text_of(events) == "it is on"
        assert client.ahead == []
        give(answer, " late")
        name = client.started[-1]
        turn = client.live[name].turn
        assert turn.ahead == AnswerSoFar("it is on", num_tokens=3, tokens=(2, 3, 3), step_lengths=(1, 1, 1))
        assert text_of(client.step(name, TextDelta(" now"))) == " now"
        response = client.finish(name, ".")[-1]["response"]
        assert response["edgeagent"]["ahead_tokens"] == 3
        assert response["output"][0]["content"][0]["text"] == "it is on now."

    def test_a_whole_answer_needs_no_backend(self) -> None:
        client = Client()
        give(revise(client, max_output_tokens=2), "it", " is", reason=FinishReason.LENGTH)
        num_started = len(client.started)
        events = client.create(input="turn on", max_output_tokens=2)
        assert (text_of(events), kinds(events)[-1]) == ("it is", "incomplete")
        assert events[-1]["response"]["edgeagent"]["slo"]["met"]
        assert len(client.started) == num_started
        call = revise(client)
        call.put(Step((ToolCallStarted(0, "call_1", "f"), finished(FinishReason.TOOL_CALLS)), (1,), 1.0))
        assert not any("call" in kind for kind in kinds(client.events))
        assert kinds(client.create(input="turn on"))[-1] == "completed"
        assert len(client.started) == num_started + 1  # the revision

    @pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.CANCELLED])
    def test_the_step_that_was_cut_is_generated_again(self, reason: FinishReason) -> None:
        client = Client()
        answer = revise(client, max_output_tokens=AHEAD_TOKENS + 1)
        give(answer, "it", " i", reason=reason)
        assert text_of(client.create(input="turn on", max_output_tokens=AHEAD_TOKENS + 1)) == "it"
        assert client.live[client.started[-1]].turn.ahead is not None

    @pytest.mark.parametrize(
        "fields",
        [
            {"input": "turn off"},
            {"temperature": 0.5},
            {"instructions": "Be brief."},
            {"tools": [{"type": "function", "name": "f"}]},
            {"store": False},
            {"max_output_tokens": 5},
            {"input": "turn off", **AHEAD},
        ],
    )
    def test_any_other_create_drops_it(self, fields: dict[str, Any]) -> None:
        client = Client()
        give(revise(client), "it")
        assert text_of(client.create(**{"input": "turn on", **fields})) == ""
        assert client.ahead == []
        assert client.live[client.started[-1]].turn.ahead is None

    def test_a_revision_with_the_same_text_keeps_it(self) -> None:
        client = Client()
        answer = revise(client)
        give(answer, "it")
        assert revise(client) is answer
        assert text_of(client.create(input="turn on")) == "it"

    def test_without_a_token_the_create_begins_as_usual(self) -> None:
        client = Client()
        revise(client)
        assert kinds(client.create(input="turn on")) == []
        assert client.live[client.started[-1]].turn.ahead is None
        assert client.ahead == []

    @pytest.mark.parametrize("reason", [None, FinishReason.STOP])
    @pytest.mark.parametrize("limit", ["ttft_ms", "deadline_ms"])
    def test_a_create_whose_limit_has_passed_does_not_get_it(self, limit: str, reason: FinishReason | None) -> None:
        client = Client()
        give(revise(client), "it", " is", reason=reason)
        summing = {"context_management": [{"type": "compaction", "compact_threshold": 5000}]}
        client.create(input="turn on", generate=False, **summing)  # the next create waits for it
        client.create(input="turn on", edgeagent={limit: 1000})
        client.now_s += 1.0
        events = client.step(client.started[-1], Started(8, 4), finished(output=0))
        assert (text_of(events), client.ahead) == ("", [])
        assert client.requests[client.started[-1]].waited_s == 1.0
        assert client.live[client.started[-1]].turn.ahead is None

    def test_a_superseded_or_failed_revision_has_none(self) -> None:
        client = Client()
        client.create(input="turn", **AHEAD)
        client.create(input="turn on", **AHEAD)
        assert client.ahead == []
        client.send("response.cancel")
        assert client.ahead == []

    @pytest.mark.parametrize("fields", [{}, {"response_id": "resp_1"}])
    def test_a_cancel_drops_it(self, fields: dict[str, Any]) -> None:
        client = Client()
        revise(client)
        assert client.send("response.cancel", **fields) == []
        assert client.ahead == []

    def test_a_cancel_behind_the_release_counts_what_was_sent(self) -> None:
        client = Client()
        answer = revise(client)
        answer.put(Step((Started(8, 8),), (), 1.0))
        give(answer, "it", " is")
        client.create(input="turn on")
        events = client.send("response.cancel")
        assert events[-1]["response"]["status"] == "cancelled"
        assert events[-1]["response"]["usage"]["output_tokens"] == 2

    def test_where_it_is_refused(self) -> None:
        client = Client()
        error = error_of(client.create(edgeagent={"ahead": True}))
        assert (error["param"], error["message"]) == (
            "edgeagent.ahead",
            "an answer begins ahead only with generate: false",
        )
        client.create(top_logprobs=2, **AHEAD)
        client.finish(client.started[-1])
        assert client.ahead == []

    @pytest.mark.parametrize("route", ["prefer_remote", "remote_only"])
    def test_this_machine_does_not_begin_what_a_remote_is_to_answer(self, route: str) -> None:
        client = Client()
        client.create(input="turn on", generate=False, edgeagent={"ahead": True, "route": route})
        assert bool(client.started) == (route == "prefer_remote"), "the prompt is computed only where it may be of use"
        if client.started:
            client.finish(client.started[-1])
        assert client.ahead == []
