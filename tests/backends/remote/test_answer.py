"""Reading streams of chat and text completions, as real engines send them, into deltas."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.backends.remote.answer import ChatReader
from edgeagent.backends.remote.failures import Kind, failure_of_body
from edgeagent.types import (
    Delta,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from tests.backends.remote.streams import DONE, OVERLOADED, ROLE, answer, chunk, cut, event, read, usage


def call(index: int, **fields: object) -> bytes:
    return chunk({"tool_calls": [{"index": index, **fields}]})


CALLS = b"".join(
    [
        ROLE,
        chunk({"reasoning_content": "Which"}),
        chunk({"reasoning": " city?"}),
        chunk({"content": "Ich prüfe 😀 "}),
        call(0, id="call_a", type="function", function={"name": "weather", "arguments": ""}),
        call(0, function={"arguments": '{"city":'}),
        call(0, function={"arguments": '"Köln"}'}),
        call(2, id="call_b", function={"name": "time", "arguments": None}),
        call(5, function={"name": "light", "arguments": {"on": True}}),
        chunk(finish="tool_calls"),
        usage(prompt=20, output=11, cached=16),
        DONE,
    ]
)
DELTAS: tuple[Delta, ...] = (
    ReasoningDelta("Which city?"),
    TextDelta("Ich prüfe 😀 "),
    ToolCallStarted(0, "call_a", "weather"),
    ToolCallDelta(0, '{"city":"Köln"}'),
    ToolCallStarted(1, "call_b", "time"),
    ToolCallStarted(2, "call_2", "light"),
    ToolCallDelta(2, '{"on":true}'),
    ToolCallDelta(1, "{}"),
)


@given(st.lists(st.integers(0, 100_000), max_size=12))
def test_any_cut_gives_the_same_deltas(places: list[int]) -> None:
    reader = ChatReader()
    assert read(reader, cut(CALLS, places)) == (DELTAS, None)
    assert reader.finish is FinishReason.TOOL_CALLS
    assert reader.usage == Usage(20, 16, 11)
    assert reader.model == "tiny"


@given(st.lists(st.integers(0, 100_000), max_size=6), st.integers(0, len(CALLS) - len(DONE)))
def test_a_stream_that_stops_anywhere_is_no_success(places: list[int], end: int) -> None:
    deltas, failure = read(ChatReader(), cut(CALLS[:end], places))
    assert failure is not None and failure.kind is Kind.CUT
    whole, _ = read(ChatReader(), [CALLS[:end]])
    assert deltas == whole


@given(st.lists(st.integers(0, 100_000), max_size=6))
def test_an_error_within_a_stream_ends_it_behind_what_came_before(places: list[int]) -> None:
    stream = ROLE + chunk({"content": "Half"}) + event({"error": {"message": "boom", "code": 500}}) + DONE
    deltas, failure = read(ChatReader(), cut(stream, places))
    assert deltas == (TextDelta("Half"),)
    assert failure is not None and failure.kind is Kind.SERVER_ERROR and failure.detail == "boom"


def test_vllm_over_its_limit_says_so_in_a_good_stream() -> None:
    deltas, failure = read(ChatReader(), [OVERLOADED])
    assert not deltas
    assert failure is not None and failure.kind is Kind.OVERLOADED and failure.status == 503


@pytest.mark.parametrize(
    ("stream", "kind"),
    [
        (b"data: {\n\n", Kind.GARBLED),
        (b"data: [1, 2]\n\n", Kind.GARBLED),
        (b'data: {"choices": [{"delta": {"content": 7}}]}\n\n', Kind.GARBLED),
        (b'data: {"choices": [{"delta": {"content": "\xff"}}]}\n\n', Kind.GARBLED),
        (b"data: " + b"[" * 100_000 + b"\n\n", Kind.GARBLED),
        (b"<html><body>Sign in to this network</body></html>", Kind.CUT),
        (b"", Kind.CUT),
        (ROLE + DONE, Kind.CUT),
        (chunk(finish="abort") + DONE, Kind.SERVER_ERROR),
        (event({"error": "rate limited"}), Kind.SERVER_ERROR),
        (event({"error": {"type": "rate_limit_error"}}), Kind.OVERLOADED),
        (event({"object": "error", "message": "no", "code": 429}), Kind.OVERLOADED),
        (event({"error": {"code": "invalid_api_key", "type": "authentication_error"}}), Kind.REFUSED_KEY),
    ],
)
def test_what_is_no_answer(stream: bytes, kind: Kind) -> None:
    _, failure = read(ChatReader(), [stream])
    assert failure is not None and failure.kind is kind


def test_tokens_are_counted_where_a_chunk_has_several() -> None:
    """vLLM joins the tokens that a slow reader has not taken into one chunk, and states how many tokens came so far."""

    def told(count: int) -> dict[str, int]:
        return {"prompt_tokens": 7, "completion_tokens": count, "total_tokens": 7 + count}

    reader = ChatReader()
    deltas = reader.feed(
        ROLE + chunk({"content": "One"}, usage=told(1)) + chunk({"content": " two three"}, usage=told(3))
    )
    assert [delta.text for delta in deltas if isinstance(delta, TextDelta)] == ["One", " two three"]
    assert reader.num_tokens == 3
    reader.feed(chunk({"content": " four"}, usage=told(4)))
    assert reader.num_tokens == 4


def test_named_functions_end_with_stop_on_vllm() -> None:
    stream = call(0, id="x", function={"name": "f", "arguments": "{}"}) + chunk(finish="stop") + DONE
    reader = ChatReader()
    assert read(reader, [stream])[1] is None
    assert reader.finish is FinishReason.TOOL_CALLS


def test_what_follows_the_end_is_ignored() -> None:
    assert read(ChatReader(), [answer("a") + chunk({"content": "b"})]) == ((TextDelta("a"),), None)


def test_logprobs_of_chat() -> None:
    content = [
        {
            "token": "H",
            "logprob": -0.5,
            "bytes": [72],
            "top_logprobs": [{"token": "H", "logprob": -0.5}, {"token": "J", "logprob": -1.0, "bytes": None}],
        },
        {"token": "i", "logprob": None, "bytes": None},
    ]
    choice = {"index": 0, "delta": {"content": "Hi"}, "logprobs": {"content": content}, "finish_reason": None}
    reader = ChatReader(num_alternatives=1)
    (delta,) = reader.feed(chunk({"content": "Oh "}) + event({"choices": [choice]}))[1:]
    assert isinstance(delta, TextDelta)
    assert [(token.piece, token.start) for token in delta.logprobs] == [(b"H", 3), (b"i", 4)]
    assert [rival.piece for rival in delta.logprobs[0].top] == [b"H"]
    assert math.isnan(delta.logprobs[1].logprob)
    assert reader.num_tokens == 3
    assert not ChatReader().feed(event({"choices": [choice]}))[0].logprobs  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "counted", [{"usage": {"prompt_tokens": 5, "completion_tokens": 3}}, {"timings": {"predicted_n": 3}}]
)
def test_a_chunk_of_several_tokens(counted: dict[str, Any]) -> None:
    """vLLM joins chunks that are not read at once; one character may need several tokens."""
    reader = ChatReader()
    reader.feed(chunk({"content": "😀"}, **counted))
    assert reader.num_tokens == 3 and not reader.is_estimated
    reader.feed(chunk({"content": "!"}))
    assert reader.num_tokens == 4 and reader.is_estimated


def test_a_count_that_does_not_grow_is_not_believed_for_long() -> None:
    """Otherwise an answer without an end would have no token."""
    reader = ChatReader(max_tokens=20)
    for _ in range(200):
        reader.feed(chunk({"content": "a"}, timings={"predicted_n": 1}))
    assert reader.num_tokens == 20 and reader.is_cut


def test_a_chunk_with_the_ids_of_its_tokens() -> None:
    """vLLM's router omits continuous_usage_stats."""
    reader = ChatReader()
    for text, ids in (("one two", [7, 8]), ("", [9]), ("!", [10])):
        choice = {"index": 0, "delta": {"content": text}, "token_ids": ids}
        reader.feed(event({"choices": [choice]}))
    assert reader.num_tokens == 4


def test_text_completions() -> None:
    lists = {"tokens": ["a", "b"], "token_logprobs": [-0.1, -0.2], "top_logprobs": [{"a": -0.1, "c": -3}, None]}
    body = {"object": "text_completion", "choices": [{"index": 0, "text": "ab", "logprobs": lists}]}
    stream = event(body) + event({"choices": [{"text": "", "finish_reason": "length"}]}) + DONE
    reader = ChatReader(num_alternatives=2)
    (delta,) = reader.feed(stream)
    assert isinstance(delta, TextDelta) and delta.text == "ab"
    assert [len(token.top) for token in delta.logprobs] == [2, 0]
    reader.end()
    assert reader.finish is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("status", "body", "kind", "detail"),
    [
        (429, b"", Kind.OVERLOADED, ""),
        (503, b"Request dropped due to backpressure", Kind.OVERLOADED, "Request dropped due to backpressure"),
        (503, b"<html>busy</html>", Kind.OVERLOADED, ""),
        (408, b"", Kind.OVERLOADED, ""),
        (
            500,
            b'{"error":{"message":"cannot schedule new futures after shutdown","code":500}}',
            Kind.SERVER_ERROR,
            None,
        ),
        (400, b'{"object":"error","message":"too long","code":400}', Kind.REJECTED, "too long"),
        (401, b'{"error":{"message":"Incorrect key sk-123"}}', Kind.REFUSED_KEY, ""),
        (403, b"sk-123", Kind.REFUSED_KEY, ""),
        (404, b"\xff", Kind.NO_MODEL, None),
        (307, b"", Kind.REDIRECT, ""),
        (502, b"x" * 100_000, Kind.SERVER_ERROR, "x" * 500),
    ],
)
def test_refusals(status: int, body: bytes, kind: Kind, detail: str | None) -> None:
    failure = failure_of_body(status, body, None)
    assert failure.kind is kind
    assert detail is None or failure.detail == detail


def test_no_more_calls_than_can_be_meant() -> None:
    stream = b"".join(call(number, function={"name": "f"}) for number in range(129))
    deltas, failure = read(ChatReader(), [stream])
    assert len(deltas) == 128
    assert failure is not None and "more than 128 tool calls" in failure.message
