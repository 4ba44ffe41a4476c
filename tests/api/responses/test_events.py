"""Deltas in, events out: order, numbering, fields, and the one terminal event."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgeagent.api.responses.body import read_create
from edgeagent.api.responses.events import TERMINAL, ResponseEvents, new_response, set_delivery
from edgeagent.api.wire.shape import Json
from edgeagent.conversation.items import CallItem, MessageItem, ReasoningItem
from edgeagent.errors import ContextLengthExceeded, EdgeAgentError, InternalError, Overloaded, WorkerCrashed
from edgeagent.types import (
    CacheMiss,
    Delta,
    Finished,
    FinishReason,
    ReasoningDelta,
    SamplingParams,
    Started,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
    replace,
)
from tests.api.event_grammar import EventGrammar
from tests.api.serving import check_golden, validate_event
from tests.backends.fake import TIMINGS, finished
from tests.examples import examples

TOOLS = [
    {
        "type": "function",
        "name": "set_timer",
        "parameters": {"type": "object", "properties": {"minutes": {"type": "integer"}}},
    }
]


def machine(stream_id: str | None = None, **fields: Any) -> ResponseEvents:
    count = itertools.count(1)
    echo = read_create({"input": "hi", **fields}).echo(SamplingParams(temperature=0.7, top_p=0.9))
    response = new_response("resp_1", "fake", echo, 1_700_000_000)
    return ResponseEvents(
        response, stream_id=stream_id, make_id=lambda prefix: f"{prefix}_{next(count)}", clock=lambda: 1_700_000_001.5
    )


def run(*steps: tuple[Delta, ...], events: ResponseEvents | None = None) -> list[Json]:
    events = events or machine()
    produced = events.created()
    for step in steps:
        produced += events.step(step)
    grammar = EventGrammar()
    for event in produced:
        validate_event(event)
        grammar.feed(event)
    if events.is_over:
        grammar.finish()
    return produced


def kinds(events: list[Json]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_text() -> None:
    events = run((Started(8, 4), TextDelta("Hel")), (TextDelta("lo"),), (TextDelta("."), finished()))
    check_golden("text", events)
    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        *["output_text.delta"] * 3,
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "Hello."


def test_tool_calls_after_text_and_reasoning() -> None:
    machine_ = machine(tools=TOOLS)
    events = run(
        (ReasoningDelta("A timer"), ReasoningDelta(".")),
        (TextDelta("Right."),),
        (ToolCallStarted(0, "call_a", "set_timer"), ToolCallDelta(0, '{"minutes":')),
        (ToolCallDelta(0, "5}"), ToolCallStarted(1, "call_b", "set_timer")),
        (finished(FinishReason.TOOL_CALLS),),
        events=machine_,
    )
    check_golden("reasoning_text_calls", events)
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "function_call"]
    assert [item["arguments"] for item in output[2:]] == ['{"minutes":5}', "{}"]
    assert machine_.items == (
        ReasoningItem("rs_1", "A timer."),
        MessageItem("msg_2", "assistant", "Right."),
        CallItem("fc_3", "call_a", "set_timer", '{"minutes":5}'),
        CallItem("fc_4", "call_b", "set_timer", "{}"),
    )


def test_cut_off_by_max_output_tokens() -> None:
    events = run((TextDelta("One two"),), (finished(FinishReason.LENGTH),))
    check_golden("length", events)
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert events[-1]["response"]["output"][0]["status"] == "incomplete"
    assert events[-1]["response"]["completed_at"] is None


def test_cancelled_is_incomplete_without_details() -> None:
    machine_ = machine(tools=TOOLS)
    events = run(
        (TextDelta("One"), ToolCallStarted(0, "call_a", "set_timer"), ToolCallDelta(0, '{"min')),
        (finished(FinishReason.CANCELLED),),
        events=machine_,
    )
    check_golden("cancelled", events)
    response = events[-1]["response"]
    assert (events[-1]["type"], response["status"]) == ("response.incomplete", "cancelled")
    assert response["incomplete_details"] is None
    # The call was cut off: the output shows it, but a client cannot answer it.
    assert response["output"][1] == {
        "id": "fc_2",
        "type": "function_call",
        "call_id": "call_a",
        "name": "set_timer",
        "arguments": '{"min',
        "status": "incomplete",
    }
    assert machine_.items == (MessageItem("msg_1", "assistant", "One"),)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (WorkerCrashed("signal 9", served_by="local"), "server_error"),
        (Overloaded("full"), "rate_limit_exceeded"),
        (ContextLengthExceeded("9000 tokens, 8192 fit"), "invalid_prompt"),
    ],
)
def test_failure(error: EdgeAgentError, code: str) -> None:
    machine_ = machine()
    events = run((TextDelta("One"),), events=machine_)
    events += (end := machine_.fail(error))
    for event in end:
        validate_event(event)
    assert kinds(end) == ["output_text.done", "content_part.done", "output_item.done", "failed"]
    response = end[-1]["response"]
    assert response["status"] == "failed"
    assert response["error"] == {"code": code, "message": error.message}
    assert response["output"][0]["status"] == "incomplete"
    assert response["edgeagent"]["route"] == error.served_by
    assert machine_.is_over
    if code == "server_error":
        check_golden("failed", events)


def test_internal_messages_stay_inside() -> None:
    machine_ = machine()
    machine_.created()
    assert "secret" not in str(machine_.fail(InternalError("secret path")))


def test_queued_then_in_progress() -> None:
    machine_ = machine()
    events = machine_.created(is_queued=True) + machine_.in_progress() + machine_.step((finished(),))
    assert kinds(events) == ["created", "queued", "in_progress", "completed"]
    assert [event["response"]["status"] for event in events] == ["queued", "queued", "in_progress", "completed"]
    for event in events:
        validate_event(event)


def test_nothing_generated() -> None:
    events = run((Started(8, 4), Finished(FinishReason.STOP, Usage(8, 4), TIMINGS)))
    assert kinds(events) == ["created", "in_progress", "completed"]
    assert events[-1]["response"]["output"] == []
    assert events[-1]["response"]["usage"]["output_tokens"] == 0


def test_measurements_of_the_terminal_event() -> None:
    usage = Usage(num_prompt_tokens=10, num_cached_tokens=6, num_output_tokens=5, num_reasoning_tokens=1)
    events = run((TextDelta("x"), Finished(FinishReason.STOP, usage, TIMINGS)))
    response = events[-1]["response"]
    assert response["usage"] == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 6, "cache_write_tokens": 4},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 15,
    }
    assert response["timings"] == {
        "cache_n": 6,
        "prompt_n": 4,
        "prompt_ms": 8.0,
        "prompt_per_token_ms": 2.0,
        "prompt_per_second": 500.0,
        "predicted_n": 5,
        "predicted_ms": 20.0,
        "predicted_per_token_ms": 4.0,
        "predicted_per_second": 250.0,
    }
    stages = response["edgeagent"]["stages_ms"]
    assert list(stages) == ["queue", "load", "render", "cache", "prefill", "first_token", "decode", "delivery"]
    set_delivery(events[-1], 0.1234)
    assert events[-1]["response"]["edgeagent"]["stages_ms"]["delivery"] == 0.123


def test_the_words_of_an_earlier_prompt_are_not_stored() -> None:
    events = machine()
    timings = replace(TIMINGS, miss=CacheMiss(100, 900, 5.0, True, "secret", "now"))
    sent = run((Started(8, 0), replace(finished(), timings=timings)), events=events)[-1]["response"]
    assert sent["edgeagent"]["cache"]["miss"]["earlier"] == "secret"
    stored = json.loads(events.to_store())
    assert stored["edgeagent"]["cache"]["miss"].pop("earlier") == ""
    del sent["edgeagent"]["cache"]["miss"]["earlier"]
    assert stored == sent


def test_logprobs() -> None:
    rival = TokenLogprob(8, b"\xc3", float("-inf"))
    events = run((TextDelta("a", (TokenLogprob(7, b"a", -0.5, (rival,)),)), finished()))
    entry = {
        "token": "a",
        "bytes": [97],
        "logprob": -0.5,
        "top_logprobs": [{"token": "\ufffd", "bytes": [195], "logprob": -9999.0}],
    }
    delta, done = events[4], events[5]
    assert delta["logprobs"] == [entry] == done["logprobs"]
    assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == [entry]


def test_lanes_mark_every_event() -> None:
    assert {event["stream_id"] for event in run((TextDelta("x"), finished()), events=machine("a"))} == {"a"}
    assert not any("stream_id" in event for event in run((TextDelta("x"), finished())))


def test_the_response_has_every_key_that_open_responses_asks_for() -> None:
    # The keys of Open Responses' published schema, and `user`.
    required = """
        id object created_at completed_at status incomplete_details model previous_response_id instructions output
        error tools tool_choice truncation parallel_tool_calls text top_p presence_penalty frequency_penalty
        top_logprobs temperature reasoning usage max_output_tokens max_tool_calls store background service_tier
        metadata safety_identifier prompt_cache_key user
    """
    events = run((TextDelta("x"), finished()), events=machine(tools=TOOLS))
    for event in (events[0], events[-1]):
        assert set(required.split()) <= set(event["response"])
        assert "prompt_cache_retention" not in event["response"]
    response = events[0]["response"]
    assert (response["temperature"], response["top_p"]) == (0.7, 0.9)
    assert response["tools"] == [{**TOOLS[0], "description": "", "strict": False}]


WORDS = st.sampled_from(["", "a", "{", "é ", "\u2028"])
DELTAS: st.SearchStrategy[Delta] = st.one_of(
    st.builds(TextDelta, WORDS), st.builds(ReasoningDelta, WORDS), st.just(Started(1, 0))
)


@st.composite
def scripts(draw: st.DrawFn) -> list[Delta]:
    deltas: list[Delta] = []
    num_calls = 0
    for _ in range(draw(st.integers(0, 8))):
        if draw(st.booleans()):
            deltas.append(draw(DELTAS))
        else:
            deltas.append(ToolCallStarted(num_calls, f"call_{num_calls}", "set_timer"))
            deltas += [ToolCallDelta(num_calls, part) for part in draw(st.lists(WORDS, max_size=3))]
            num_calls += 1
    reason = draw(st.sampled_from(FinishReason))
    return [*deltas, finished(reason)]


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(scripts())
def test_any_script_opens_and_closes_everything_and_ends_once(script: list[Delta]) -> None:
    events = run(*((delta,) for delta in script))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["type"] in TERMINAL for event in events] == [False] * (len(events) - 1) + [True]
    opened: dict[int, str] = {}
    texts: dict[str, str] = {}
    for event in events:
        match event["type"]:
            case "response.output_item.added":
                assert not opened, "items come one after another"
                opened[event["output_index"]] = event["item"]["id"]
            case "response.output_item.done":
                assert opened.pop(event["output_index"]) == event["item"]["id"]
            case (
                "response.output_text.delta"
                | "response.reasoning_text.delta"
                | "response.function_call_arguments.delta"
            ):
                texts[event["item_id"]] = texts.get(event["item_id"], "") + event["delta"]
    assert not opened
    for item in events[-1]["response"]["output"]:
        whole = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert whole == texts.get(item["id"], "")
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert events[-1]["response"]["output"] == done
