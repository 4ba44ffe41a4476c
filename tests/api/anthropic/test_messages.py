"""Anthropic's messages as bytes on a real socket: events, whole answers, errors, and the values of the headers.

`make golden` writes the golden files again; review the changes afterwards.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from edgeagent.api.anthropic.messages import SIGNATURE
from edgeagent.api.wire import answer_stream
from edgeagent.config import Config, ServerConfig
from edgeagent.errors import (
    BackendUnavailable,
    ContextLengthExceeded,
    DeadlineUnreachable,
    EdgeAgentError,
    InvalidRequest,
    ModelDamaged,
    ModelLoading,
    Overloaded,
    PayloadTooLarge,
    RequestTimeout,
    WorkerCrashed,
)
from edgeagent.types import (
    Finished,
    FinishReason,
    Placement,
    Queued,
    ReasoningDelta,
    Started,
    TextDelta,
    Tier,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
)
from tests.api.anthropic.messages import HI, WEATHER, body_of, error_of, events_of, post, read_error, read_events
from tests.api.serving import compare_golden
from tests.backends.fake import TIMINGS, Act, FakeBackend, Gate, failing, finished
from tests.daemon.running import TOKEN, Running, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

GOLDEN = Path(__file__).parent / "golden"
STARTED = Started(8, 4)
CALLS: tuple[Act, ...] = (
    (ToolCallStarted(0, "call_a", "weather"), ToolCallDelta(0, '{"city":')),
    ToolCallDelta(0, '"Bonn"}'),
    (ToolCallStarted(1, "call_b", "clock"),),
)
SCENARIOS: dict[str, tuple[Act, ...]] = {
    "text": (STARTED, TextDelta("hel"), TextDelta("lo"), finished()),
    "reasoning_text_calls": (
        STARTED,
        (ReasoningDelta("Hm"), ReasoningDelta(".")),
        TextDelta("Let me see."),
        *CALLS,
        Finished(FinishReason.TOOL_CALLS, Usage(8, 4, 9, num_reasoning_tokens=2), TIMINGS),
    ),
    "stop_sequence": (STARTED, TextDelta("one "), Finished(FinishReason.STOP, Usage(8, 4, 2), TIMINGS, stop="two")),
    "length": (STARTED, TextDelta("hello big"), finished(FinishReason.LENGTH)),
    "empty": (STARTED, finished(output=0)),
    "placed": (Started(8, 4, placement=Placement("local", "fake", "why")), TextDelta("hi"), finished()),
    "failed": (STARTED, TextDelta("ye"), WorkerCrashed("the worker ended: signal 9", retry_after_s=1)),
    "cancelled": (STARTED, TextDelta("ye"), finished(FinishReason.CANCELLED)),
}
FAILED = ("failed", "cancelled")


def playing(*acts: Act) -> Any:
    return lambda _request: acts


@pytest.mark.parametrize("name", SCENARIOS)
async def test_golden(daemon: Running, backend: FakeBackend, name: str) -> None:
    backend.script = playing(*SCENARIOS[name])
    events = await events_of(daemon)
    for event in events:
        event.get("edgeagent", {}).pop("slo", None)  # a slow machine may miss its target
    compare_golden(GOLDEN / f"{name}.json", events)


@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in FAILED])
async def test_a_whole_answer_is_what_its_events_add_up_to(daemon: Running, backend: FakeBackend, name: str) -> None:
    backend.script = playing(*SCENARIOS[name])
    start, *middle, delta, stop = await events_of(daemon)
    assert (start["type"], delta["type"], stop) == ("message_start", "message_delta", {"type": "message_stop"})
    whole = await body_of(daemon)
    content: list[dict[str, Any]] = []
    texts: list[str] = []
    for event in middle:
        assert event["index"] == len(content) - (event["type"] != "content_block_start")
        match event:
            case {"type": "content_block_start", "content_block": block}:
                content.append(dict(block))
                texts = []
            case {"type": "content_block_delta", "delta": {"type": "signature_delta", "signature": signature}}:
                content[-1]["signature"] = signature
            case {"type": "content_block_delta", "delta": {"type": _, **added}}:
                texts += map(str, added.values())
            case {"type": "content_block_stop"}:
                kind = content[-1]["type"]
                joined = "".join(texts)
                content[-1] |= {"input": json.loads(joined or "{}")} if kind == "tool_use" else {kind: joined}
    assert whole["content"] == content
    assert {**start["message"], **delta["delta"], "id": "", "content": content, "usage": delta["usage"]} == {
        name: "" if name == "id" else value for name, value in whole.items() if name not in ("timings", "edgeagent")
    }
    assert whole["timings"] == delta["timings"]


async def test_reasoning_without_its_text(daemon: Running, backend: FakeBackend) -> None:
    backend.script = playing(STARTED, ReasoningDelta("Hm"), TextDelta("2"), finished())
    thinking = {"type": "adaptive", "display": "omitted"}
    whole = await body_of(daemon, thinking=thinking)
    hidden = {"type": "thinking", "thinking": "", "signature": SIGNATURE}
    assert whole["content"] == [hidden, {"type": "text", "text": "2"}]
    events = await events_of(daemon, thinking=thinking)
    assert [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"] == [
        "signature_delta",
        "text_delta",
    ]


async def test_a_call_that_has_no_object_yet_is_left_out(daemon: Running, backend: FakeBackend) -> None:
    call = (ToolCallStarted(0, "call_a", "weather"), ToolCallDelta(0, '{"ci'))
    backend.script = playing(STARTED, call, finished(FinishReason.LENGTH))
    whole = await body_of(daemon, tools=[WEATHER])
    assert (whole["content"], whole["stop_reason"]) == ([], "max_tokens")


@pytest.mark.parametrize(
    ("fields", "counts"),
    [
        ({}, (4, 0, 4)),
        ({"cache_control": {"type": "ephemeral"}}, (0, 4, 4)),
        ({"system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]}, (0, 4, 4)),
        ({"tools": [WEATHER | {"cache_control": {"type": "ephemeral"}}]}, (0, 4, 4)),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]}
                ]
            },
            (0, 4, 4),
        ),
        ({"system": [{"type": "text", "text": "a", "cache_control": None}]}, (4, 0, 4)),
    ],
)
async def test_counts(daemon: Running, backend: FakeBackend, fields: Any, counts: tuple[int, int, int]) -> None:
    """Of eight tokens four are cached. The others count as written to the cache if the client marks what to cache."""
    backend.script = playing(STARTED, finished())
    names = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    expected = dict(zip(names, counts, strict=True))
    assert (await body_of(daemon, **fields))["usage"] == expected | {"output_tokens": 2}
    start, delta, _ = await events_of(daemon, **fields)
    assert start["message"]["usage"] == expected | {"output_tokens": 0}
    assert delta["usage"] == expected | {"output_tokens": 2}


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("failure", "status", "kind"),
    [
        (InvalidRequest("no", param="input"), 400, "invalid_request_error"),
        (ContextLengthExceeded("The prompt has 9000 tokens", param="input"), 400, "invalid_request_error"),
        (PayloadTooLarge("no"), 413, "request_too_large"),
        (Overloaded("full", retry_after_s=2), 529, "overloaded_error"),
        (DeadlineUnreachable("late"), 529, "overloaded_error"),
        (ModelLoading("loading"), 529, "overloaded_error"),
        (BackendUnavailable("gone"), 529, "overloaded_error"),
        (WorkerCrashed("signal 9"), 503, "api_error"),
        (ModelDamaged("bad"), 422, "api_error"),
        (RequestTimeout("late"), 504, "timeout_error"),
        (EdgeAgentError("secret"), 500, "api_error"),
    ],
)
async def test_failures(
    daemon: Running, backend: FakeBackend, failure: EdgeAgentError, status: int, kind: str, is_streamed: bool
) -> None:
    backend.script = failing(failure)
    reply = await post(daemon, stream=is_streamed)
    assert reply.status_code == status
    error = read_error(reply)
    details = {"error_code": failure.code, "param": "messages" if failure.param else None}
    if isinstance(failure, DeadlineUnreachable | RequestTimeout):
        details["late_stage"] = "queue"
    assert (error["type"], error["details"]) == (kind, details)
    assert "secret" not in error["message"]
    assert ("retry-after" in reply.headers) is (status in (529, 503))
    if isinstance(failure, ContextLengthExceeded):
        assert error["message"] == "prompt is too long: The prompt has 9000 tokens"


async def test_what_is_wrong_before_the_model(daemon: Running, backend: FakeBackend) -> None:
    assert (await error_of(daemon, 404, model="nope"))["type"] == "not_found_error"
    assert (await error_of(daemon, 404, stream=True, model="nope"))["details"]["param"] == "model"
    error = await error_of(daemon, 400, temperature=9)
    assert (error["type"], error["details"]["param"]) == ("invalid_request_error", "temperature")
    assert (await error_of(daemon, 404, "/batches"))["type"] == "not_found_error"
    for reply, status, kind in (
        (await daemon.http.get(f"{daemon.url}/v1/messages"), 405, "invalid_request_error"),
        (await daemon.http.post(f"{daemon.url}/v1/messages", content=b"{}"), 400, "invalid_request_error"),
        (
            await daemon.http.post(f"{daemon.url}/v1/messages", json={}, headers={"origin": "http://a"}),
            403,
            "permission_error",
        ),
    ):
        assert (reply.status_code, read_error(reply)["type"]) == (status, kind)


async def test_the_token_is_in_either_header() -> None:
    async with running(FakeBackend(), Config(server=ServerConfig(token_required=True))) as daemon:
        fields = {"model": "fake", "max_tokens": 9, "messages": HI}
        for headers, status in (
            ({}, 401),
            ({"x-api-key": "sk-ant-unknown"}, 401),
            ({"x-api-key": TOKEN, "anthropic-version": "2023-06-01", "anthropic-beta": "a,b"}, 200),
            ({"x-api-key": TOKEN, "authorization": f"Bearer {TOKEN}"}, 200),
            ({"x-api-key": "", "authorization": f"Bearer {TOKEN}"}, 200),
            ({"x-api-key": f"Bearer {TOKEN}"}, 200),
            ({"x-api-key": ""}, 401),
            ({"x-api-key": "sk-ant-unknown", "authorization": f"Bearer {TOKEN}"}, 401),
        ):
            reply = await daemon.http.post(f"{daemon.url}/v1/messages", json=fields, headers=headers)
            assert reply.status_code == status, headers
            assert reply.headers["request-id"].startswith("req_")
            if status == 401:
                assert read_error(reply)["type"] == "authentication_error"


async def test_other_routes_have_no_second_request_id(daemon: Running) -> None:
    assert "request-id" not in (await daemon.http.get(f"{daemon.url}/v1/models")).headers


async def test_tokens_are_counted(daemon: Running, backend: FakeBackend) -> None:
    reply = await post(daemon, "/count_tokens", system="Be kind.", tools=[WEATHER])
    assert (reply.status_code, reply.json()) == (200, {"input_tokens": len("<system>Be kind.<user>hello big world")})
    assert backend.requests == []
    assert (await error_of(daemon, 404, "/count_tokens", model="nope"))["type"] == "not_found_error"
    error = await error_of(daemon, 400, "/count_tokens", messages=[])
    assert error["message"] == "messages must hold at least 1 item"


async def test_a_silent_stream_pings(daemon: Running, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_stream, "PATIENCE_S", 0.0)
    monkeypatch.setattr(answer_stream.AnswerWriter, "ping_interval_s", 0.01)
    gate = Gate()
    backend.script = playing(gate, STARTED, TextDelta("late"), finished())
    fields = {"model": "fake", "max_tokens": 9, "messages": HI, "stream": True}
    async with daemon.http.stream("POST", f"{daemon.url}/v1/messages", json=fields) as reply:
        text = ""
        async for part in reply.aiter_text():
            text += part
            if text.count("event: ping\n") >= 2:
                gate.opened.set()
    events = read_events(text)
    assert events[:2] == [{"type": "ping"}] * 2
    assert next(event["type"] for event in events if event["type"] != "ping") == "message_start"


async def test_a_failure_after_the_headers_is_an_event(
    daemon: Running, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_stream, "PATIENCE_S", 0.0)
    gate = Gate()
    gate.opened.set()
    backend.script = failing(Overloaded("full"), gate)
    reply = await post(daemon, stream=True)
    [event] = read_events(reply.text)
    assert (event["type"], event["error"]["type"]) == ("error", "overloaded_error")
    assert event["request_id"] == reply.headers["request-id"]


async def test_a_wait_is_a_comment(daemon: Running, backend: FakeBackend) -> None:
    backend.script = playing(Queued(3, 1.5), STARTED, TextDelta("hi"), finished())
    reply = await post(daemon, stream=True)
    comment, _, events = reply.text.partition("\n\n")
    assert comment == ": queued place=3 expected_ms=1500.0"
    assert read_events(events)[0]["type"] == "message_start"


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_leaving_cancels(daemon: Running, backend: FakeBackend, is_streamed: bool) -> None:
    gate = Gate()
    backend.script = playing(STARTED, TextDelta("x"), gate, finished())
    body = json.dumps({"model": "fake", "max_tokens": 9, "messages": HI, "stream": is_streamed})
    _, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
    head = f"POST /v1/messages HTTP/1.1\r\nHost: 127.0.0.1:{daemon.port}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    await gate.reached.wait()
    writer.close()
    await backend.until(lambda backend: backend.num_live == 0)
    assert len(backend.closed) == 1


async def test_what_runs_where_is_said(daemon: Running, backend: FakeBackend) -> None:
    backend.script = playing(*SCENARIOS["placed"])
    fields: Any = {"edgeagent": {"tier": "batch"}}
    reply = await post(daemon, **fields)
    assert reply.headers["x-edgeagent-served-by"] == "local"
    assert reply.json()["edgeagent"]["stages_ms"]["first_token"] == TIMINGS.first_token_ms
    start, *_, delta, _ = await events_of(daemon, **fields)
    assert start["edgeagent"] == {"served_by": "local", "model": "fake", "reason": "why"}
    assert delta["edgeagent"]["route"] == "local"
    assert [request.tier for request in backend.requests] == [Tier.BATCH] * 2
