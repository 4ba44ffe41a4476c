"""The Ollama API as bytes on a real socket, and the values that reach the service."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from edgeagent import __version__
from edgeagent.config import Config, ServerConfig, StoreConfig
from edgeagent.errors import ContextLengthExceeded, EdgeAgentError, ModelLoadFailed, Overloaded, WorkerCrashed
from edgeagent.service import first_step
from edgeagent.store.hub import background
from edgeagent.store.hub.pull import Puller
from edgeagent.store.names.catalog import builtin_model
from edgeagent.store.names.own import OwnNamesFile, with_alias
from edgeagent.types import (
    ChatPrompt,
    Delta,
    FinishReason,
    JsonObjectFormat,
    JsonSchemaFormat,
    Message,
    ModelStatus,
    ReasoningDelta,
    SamplingParams,
    Started,
    TextDelta,
    TextFormat,
    TextPrompt,
    TokenLogprob,
    Tool,
    ToolCall,
    ToolCallDelta,
    ToolCallStarted,
    WorkerState,
    replace,
)
from tests.api.services import INFO, Answering, OneModel
from tests.backends.fake import Act, FakeBackend, Gate, failing, finished
from tests.daemon.running import TOKEN, Running, exchange, running
from tests.hub_server import HubServer, hub_server, sha256
from tests.store.gguf_bytes import small_model

HI = [{"role": "user", "content": "hello big world"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")
RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
BUSY = "server busy, please try again.  maximum pending requests exceeded"
INTERNAL = "An internal error occurred; the daemon's log has the details under this request's id."

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def daemon(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    folder = tmp_path_factory.mktemp("ollama")
    config = Config(model="fake", state_dir=folder, store=StoreConfig(models_dir=folder / "models"))
    async with running(Answering(models=("fake", "org/repo:Q4_K_M")), config) as daemon:
        yield daemon


async def post(daemon: Running, path: str, **fields: Any) -> httpx.Response:
    return await daemon.http.post(f"{daemon.url}/api/{path}", json=fields)


async def body_of(daemon: Running, path: str, **fields: Any) -> dict[str, Any]:
    """Return the document of an answer that is one body."""
    reply = await post(daemon, path, **({"model": "fake", "stream": False} | fields))
    assert (reply.status_code, reply.headers["content-type"]) == (200, "application/json"), reply.text
    body: dict[str, Any] = reply.json()
    return body


async def lines_of(daemon: Running, path: str, **fields: Any) -> list[dict[str, Any]]:
    """Return a stream's documents after checking their framing."""
    reply = await post(daemon, path, **({"model": "fake"} | fields))
    assert (reply.status_code, reply.headers["content-type"]) == (200, "application/x-ndjson"), reply.text
    *lines, rest = reply.text.split("\n")
    assert rest == "" and all(lines)
    return [json.loads(line) for line in lines]


async def error_of(daemon: Running, path: str, status: int, **fields: Any) -> str:
    """Return the error text of a refusal."""
    reply = await post(daemon, path, **({"model": "fake"} | fields))
    assert reply.status_code == status, reply.text
    body = reply.json()
    assert set(body) == {"error"} and isinstance(body["error"], str)
    error: str = body["error"]
    return error


def playing(*acts: Act) -> Any:
    return lambda _request: acts


def check_end(document: dict[str, Any], reason: str = "stop") -> None:
    assert (document["done"], document["done_reason"]) == (True, reason)
    assert all(type(document[name]) is int and document[name] >= 0 for name in DURATIONS)
    assert RFC3339.fullmatch(document["created_at"])


class TestChat:
    async def test_a_stream_is_the_default(self, daemon: Running, backend: FakeBackend) -> None:
        *chunks, last = await lines_of(daemon, "chat", messages=HI)
        assert [chunk["message"] for chunk in chunks] == [
            {"role": "assistant", "content": text} for text in ("hello", " big", " world")
        ]
        assert all(chunk["done"] is False and RFC3339.fullmatch(chunk["created_at"]) for chunk in chunks)
        assert {chunk["model"] for chunk in chunks} == {"fake"}
        check_end(last)
        assert last["message"] == {"role": "assistant", "content": ""}
        assert (last["prompt_eval_count"], last["eval_count"]) == (3, 3)
        assert (last["prompt_eval_duration"], last["eval_duration"]) == (8_000_000, 20_000_000)
        assert last["edgeagent"]["route"] == "local"

    async def test_one_body(self, daemon: Running, backend: FakeBackend) -> None:
        body = await body_of(daemon, "chat", messages=HI, options={"num_predict": 2})
        check_end(body, "length")
        assert body["message"] == {"role": "assistant", "content": "hello big"}

    async def test_reasoning(self, daemon: Running, backend: FakeBackend) -> None:
        backend.script = playing(Started(8, 4), (ReasoningDelta("Hm"), ReasoningDelta(".")), TextDelta("2"), finished())
        *chunks, _ = await lines_of(daemon, "chat", messages=HI, think=True)
        assert [chunk["message"] for chunk in chunks] == [
            {"role": "assistant", "content": "", "thinking": "Hm"},
            {"role": "assistant", "content": "", "thinking": "."},
            {"role": "assistant", "content": "2"},
        ]
        body = await body_of(daemon, "chat", messages=HI)
        assert body["message"] == {"role": "assistant", "content": "2", "thinking": "Hm."}

    async def test_calls_come_whole_with_arguments_as_an_object(self, daemon: Running, backend: FakeBackend) -> None:
        backend.script = playing(
            Started(8, 4),
            TextDelta("Let me see."),
            (ToolCallStarted(0, "call_a", "weather"), ToolCallDelta(0, '{"city":')),
            ToolCallDelta(0, '"Bonn"}'),
            (ToolCallStarted(1, "call_b", "clock"),),
            finished(FinishReason.TOOL_CALLS),
        )
        weather = {"id": "call_a", "function": {"index": 0, "name": "weather", "arguments": {"city": "Bonn"}}}
        clock = {"id": "call_b", "function": {"index": 1, "name": "clock", "arguments": {}}}
        text, *calls, last = await lines_of(daemon, "chat", messages=HI)
        assert text["message"]["content"] == "Let me see."
        assert [chunk["message"]["tool_calls"] for chunk in calls] == [[weather], [clock]]
        assert "tool_calls" not in last["message"]
        check_end(last)
        body = await body_of(daemon, "chat", messages=HI)
        assert body["message"]["tool_calls"] == [weather, clock]

    @pytest.mark.parametrize("arguments", ['{"a":', "[1]", "null", "1"])
    async def test_a_call_without_an_object_is_left_out(
        self, daemon: Running, backend: FakeBackend, arguments: str
    ) -> None:
        call: tuple[Delta, ...] = (ToolCallStarted(0, "call_a", "weather"), ToolCallDelta(0, arguments))
        backend.script = playing(Started(8, 4), call, finished(FinishReason.LENGTH))
        [last] = await lines_of(daemon, "chat", messages=HI)
        check_end(last, "length")
        assert "tool_calls" not in (await body_of(daemon, "chat", messages=HI))["message"]

    async def test_log_probabilities(self, daemon: Running, backend: FakeBackend) -> None:
        token = TokenLogprob(5, b"hi", -0.5, top=(TokenLogprob(5, b"hi", -0.5), TokenLogprob(6, b"\xff", -2.0)))
        backend.script = playing(Started(8, 4), TextDelta("hi", (token,)), finished())
        expected = {
            "token": "hi",
            "logprob": -0.5,
            "bytes": [104, 105],
            "top_logprobs": [
                {"token": "hi", "logprob": -0.5, "bytes": [104, 105]},
                {"token": "\ufffd", "logprob": -2.0, "bytes": [255]},
            ],
        }
        chunk, last = await lines_of(daemon, "chat", messages=HI, logprobs=True, top_logprobs=2)
        assert chunk["logprobs"] == [expected] and "logprobs" not in last
        assert (await body_of(daemon, "chat", messages=HI, logprobs=True))["logprobs"] == [expected]
        assert [request.logprobs for request in backend.requests] == [2, 0]

    async def test_the_conversation_as_the_model_gets_it(self, daemon: Running, backend: FakeBackend) -> None:
        calls = [
            {"id": "x1", "function": {"name": "weather", "arguments": {"city": "Köln"}}},
            {"function": {"name": "clock", "arguments": {}}},
            {"function": {"name": "weather", "arguments": {}}},
        ]
        messages = [
            {"role": "System", "content": "Be brief."},
            {"role": "USER", "content": "Weather?"},
            {"role": "assistant", "content": "", "thinking": "Hm", "tool_calls": calls},
            {"role": "tool", "content": "rain", "tool_call_id": "x1"},
            {"role": "tool", "content": "sun", "tool_name": "weather"},
            {"role": "tool", "content": "noon"},
            {"role": "tool", "content": "whose?"},
            {"role": "assistant", "tool_calls": [{"id": "x1", "function": {"name": "clock", "arguments": {}}}]},
            {"role": "tool", "content": "one", "tool_call_id": "x1"},
        ]
        tool = {"type": "function", "function": {"name": "weather", "description": "now", "parameters": SCHEMA}}
        await body_of(daemon, "chat", messages=messages, tools=[tool], think=False)
        [request] = backend.requests
        assert isinstance(request.prompt, ChatPrompt)
        assert request.prompt.messages == (
            Message("system", "Be brief."),
            Message("user", "Weather?"),
            Message(
                "assistant",
                "",
                "Hm",
                (
                    ToolCall("call_1", "weather", '{"city": "Köln"}'),
                    ToolCall("call_2", "clock", "{}"),
                    ToolCall("call_3", "weather", "{}"),
                ),
            ),
            Message("tool", "rain", tool_call_id="call_1"),
            Message("tool", "sun", tool_call_id="call_3", name="weather"),
            Message("tool", "noon", tool_call_id="call_2"),
            Message("tool", "whose?", tool_call_id="call_4"),
            Message("assistant", tool_calls=(ToolCall("call_5", "clock", "{}"),)),
            Message("tool", "one", tool_call_id="call_5"),
        )
        assert request.prompt.tools == (Tool("weather", "now", json.dumps(SCHEMA, separators=(",", ":"))),)
        assert json.loads(request.prompt.template_kwargs) == {"enable_thinking": False}

    async def test_results_without_ids_answer_the_calls_in_order(self, daemon: Running, backend: FakeBackend) -> None:
        calls = [{"function": {"name": "weather", "arguments": {"n": n}}} for n in range(3)]
        results = [{"role": "tool", "content": str(n)} for n in range(3)]
        await body_of(daemon, "chat", messages=[*HI, {"role": "assistant", "tool_calls": calls}, *results])
        prompt = backend.requests[0].prompt
        assert isinstance(prompt, ChatPrompt)
        made = [call.id for call in prompt.messages[1].tool_calls]
        assert [message.tool_call_id for message in prompt.messages[2:]] == made and len(set(made)) == 3

    async def test_options(self, daemon: Running, backend: FakeBackend) -> None:
        options = {
            "num_ctx": 131_072.0,
            "num_predict": 7.0,
            "temperature": 0,
            "top_k": 40.0,
            "top_p": 0.9,
            "min_p": 0.05,
            "seed": 42,
            "stop": ["\n", ""],
            "repeat_penalty": 1.1,
            "repeat_last_n": -1,
            "presence_penalty": 0.5,
            "frequency_penalty": -0.5,
            "num_thread": 4,
            "mirostat": 2,
            "use_mmap": None,
            "no_such_option": {"a": []},
        }
        await body_of(daemon, "chat", messages=HI, options=options, format="", keep_alive="5m")
        [request] = backend.requests
        assert request.sampling == SamplingParams(
            temperature=0,
            top_k=40,
            top_p=0.9,
            min_p=0.05,
            seed=42,
            repeat_penalty=1.1,
            repeat_last_n=-1,
            presence_penalty=0.5,
            frequency_penalty=-0.5,
        )
        assert (request.max_tokens, request.stop, request.format) == (7, ("\n",), TextFormat())

    @pytest.mark.parametrize("num_predict", [-2, -1, 0])
    async def test_no_limit(self, daemon: Running, backend: FakeBackend, num_predict: int) -> None:
        await body_of(
            daemon, "chat", messages=HI, options={"num_predict": num_predict, "top_k": -1, "seed": -1, "stop": ""}
        )
        [request] = backend.requests
        assert request.max_tokens is None
        assert (request.sampling, request.stop) == (SamplingParams(top_k=0), ())

    async def test_formats(self, daemon: Running, backend: FakeBackend) -> None:
        await body_of(daemon, "chat", messages=HI, format="json")
        await body_of(daemon, "chat", messages=HI, format=SCHEMA)
        assert [request.format for request in backend.requests] == [
            JsonObjectFormat(),
            JsonSchemaFormat(json.dumps(SCHEMA, separators=(",", ":"))),
        ]

    @pytest.mark.parametrize(
        ("think", "kwargs"),
        [
            (None, {}),
            (True, {"enable_thinking": True}),
            (False, {"enable_thinking": False}),
            ("high", {"enable_thinking": True, "reasoning_effort": "high"}),
        ],
    )
    async def test_think(self, daemon: Running, backend: FakeBackend, think: Any, kwargs: Any) -> None:
        await body_of(daemon, "chat", messages=HI, think=think)
        prompt = backend.requests[0].prompt
        assert isinstance(prompt, ChatPrompt)
        assert json.loads(prompt.template_kwargs) == kwargs

    @pytest.mark.parametrize(
        ("keep_alive", "seconds"),
        [
            *((None, None), (0, 0), (-1, math.inf), (300, 300), (0.5, 0.5), ("5m", 300), ("-1s", math.inf)),
            *(("1h30m", 5400), ("300", 300), ("-1", math.inf), ("1.5h", 5400), ("0", 0)),
        ],
    )
    async def test_keep_alive(self, daemon: Running, backend: FakeBackend, keep_alive: Any, seconds: Any) -> None:
        assert (await body_of(daemon, "chat", messages=HI, keep_alive=keep_alive))["done_reason"] == "stop"
        assert backend.requests[0].keep_alive_s == seconds

    async def test_how_long_a_model_is_kept_is_the_owners(self, daemon: Running, backend: FakeBackend) -> None:
        page = {"user-agent": "Mozilla/5.0"}
        body = {"model": "fake", "messages": HI, "keep_alive": -1, "stream": False}
        reply = await daemon.http.post(f"{daemon.url}/api/chat", json=body, headers=page)
        assert (reply.status_code, backend.requests[0].keep_alive_s) == (200, None)
        body = {"model": "fake", "keep_alive": 0}
        assert (await daemon.http.post(f"{daemon.url}/api/chat", json=body, headers=page)).status_code == 403
        assert backend.unloaded == []

    @pytest.mark.parametrize(
        ("fields", "told"),
        [
            ({"model": None}, "model"),
            ({"model": ""}, "model"),
            ({"messages": [{"role": "robot", "content": "hi"}]}, "messages[0].role"),
            ({"messages": [{"content": "hi"}]}, "messages[0].role"),
            ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
            ({"messages": [{"role": "user", "content": "hi", "images": ["aGk="]}]}, "images are not supported"),
            ({"messages": [{"role": "user", "content": "hi", "images": [0] * 32_000}]}, "images are not supported"),
            ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "a"}}]}]}, "tool_calls[0]"),
            (
                {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "{}"}}]}]},
                "an object",
            ),
            ({"messages": "hi"}, "messages"),
            ({"messages": HI, "tools": [{"type": "function"}]}, "tools[0]"),
            ({"messages": HI, "tools": [{"function": {"name": "a b"}}]}, "tools[0].function.name"),
            (
                {"messages": HI, "tools": [{"function": {"name": "a", "parameters": {"type": "string"}}}]},
                "tools[0].function.parameters must describe an object",
            ),
            ({"messages": HI, "format": "yaml"}, "format"),
            ({"messages": HI, "think": "hard"}, "think"),
            ({"messages": HI, "keep_alive": "soon"}, "keep_alive"),
            ({"messages": HI, "keep_alive": "5 m"}, "keep_alive"),
            ({"messages": HI, "options": {"temperature": "hot"}}, "options.temperature"),
            ({"messages": HI, "options": {"top_k": 1.5}}, "options.top_k"),
            ({"messages": HI, "options": []}, "options"),
            ({"messages": HI, "top_logprobs": 21}, "top_logprobs"),
            ({"messages": HI, "stream": "yes"}, "stream"),
        ],
    )
    async def test_what_is_wrong_is_named(
        self, daemon: Running, backend: FakeBackend, fields: dict[str, Any], told: str
    ) -> None:
        assert told in await error_of(daemon, "chat", 400, **fields)
        assert backend.requests == []

    @pytest.mark.parametrize("stream", [True, False])
    @pytest.mark.parametrize(
        ("error", "status", "text"),
        [
            (
                Overloaded("full", retry_after_s=3),
                503,
                "server busy, please try again.  maximum pending requests exceeded",
            ),
            (ContextLengthExceeded("9 tokens, 8 fit"), 400, "9 tokens, 8 fit"),
            (ModelLoadFailed("no"), 500, "no"),
            (
                EdgeAgentError("secret"),
                500,
                "An internal error occurred; the daemon's log has the details under this request's id.",
            ),
        ],
    )
    async def test_a_refusal_has_its_status(
        self, daemon: Running, backend: FakeBackend, stream: bool, error: EdgeAgentError, status: int, text: str
    ) -> None:
        backend.script = failing(error)
        reply = await post(daemon, "chat", model="fake", messages=HI, stream=stream)
        assert (reply.status_code, reply.json()) == (status, {"error": text})
        assert reply.headers.get("retry-after") == ("3" if status == 503 else None)

    @pytest.mark.parametrize("path", ["chat", "generate"])
    async def test_a_stream_that_waits_in_the_queue_has_its_headers(
        self, daemon: Running, backend: FakeBackend, path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(first_step, "PATIENCE_S", 0.0)
        gate = Gate()
        backend.script = playing(gate, Started(8, 4), TextDelta("he"), finished())
        fields = {"model": "fake", "messages": HI, "prompt": "hello"}
        async with daemon.http.stream("POST", f"{daemon.url}/api/{path}", json=fields) as reply:
            assert (reply.status_code, reply.headers["content-type"]) == (200, "application/x-ndjson")
            gate.opened.set()
            lines = [json.loads(line) async for line in reply.aiter_lines()]
        assert [line["done"] for line in lines] == [False, True]

    async def test_a_refusal_after_the_patience_is_the_last_line(
        self, daemon: Running, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(first_step, "PATIENCE_S", 0.0)
        gate = Gate()
        gate.opened.set()
        backend.script = failing(Overloaded("full"), gate)
        assert await lines_of(daemon, "chat", messages=HI) == [{"error": BUSY}]

    async def test_a_failure_in_mid_stream_is_the_last_line(self, daemon: Running, backend: FakeBackend) -> None:
        backend.script = failing(WorkerCrashed("the model's process ended"), Started(8, 4), TextDelta("he"))
        chunk, last = await lines_of(daemon, "chat", messages=HI)
        assert chunk["message"]["content"] == "he"
        assert last == {"error": "the model's process ended"}

    async def test_a_bug_in_mid_stream_tells_nothing(
        self, daemon: Running, backend: FakeBackend, caplog: pytest.LogCaptureFixture
    ) -> None:
        backend.script = playing(Started(8, 4), ValueError("my secret"))
        [last] = await lines_of(daemon, "chat", messages=HI)
        assert "internal error" in last["error"] and "secret" not in last["error"] + caplog.text
        assert "ValueError" in caplog.text

    async def test_an_answer_cut_short_is_an_error(self, daemon: Running, backend: FakeBackend) -> None:
        backend.script = playing(Started(8, 4), TextDelta("he"), finished(FinishReason.CANCELLED))
        assert "cut short" in (await lines_of(daemon, "chat", messages=HI))[-1]["error"]
        assert "cut short" in await error_of(daemon, "chat", 503, messages=HI, stream=False)

    @pytest.mark.parametrize("before", [(), (Started(8, 4), TextDelta("he"))])
    @pytest.mark.parametrize("stream", [True, False])
    async def test_leaving_cancels(
        self, daemon: Running, backend: FakeBackend, before: tuple[Act, ...], stream: bool
    ) -> None:
        gate = Gate()
        backend.script = playing(*before, gate)
        asking = asyncio.create_task(post(daemon, "chat", model="fake", messages=HI, stream=stream))
        await gate.reached.wait()
        asking.cancel()
        await asyncio.wait([asking])
        await backend.until(lambda backend: backend.num_live == 0)
        assert backend.closed == [backend.requests[0].id]


class TestGenerate:
    async def test_a_stream(self, daemon: Running, backend: FakeBackend) -> None:
        *chunks, last = await lines_of(daemon, "generate", prompt="hello big world", system="Be brief.")
        assert [chunk["response"] for chunk in chunks] == ["hello", " big", " world"]
        assert last["response"] == ""
        check_end(last)
        assert "message" not in last
        [request] = backend.requests
        assert isinstance(request.prompt, ChatPrompt)
        assert request.prompt.messages == (Message("system", "Be brief."), Message("user", "hello big world"))

    async def test_one_body(self, daemon: Running, backend: FakeBackend) -> None:
        backend.script = playing(Started(8, 4), ReasoningDelta("Hm"), TextDelta("yes"), finished())
        body = await body_of(daemon, "generate", prompt="a b")
        check_end(body)
        assert (body["response"], body["thinking"]) == ("yes", "Hm")

    async def test_raw(self, daemon: Running, backend: FakeBackend) -> None:
        await body_of(daemon, "generate", prompt="<s>a", raw=True, system="unused")
        await body_of(daemon, "generate", prompt="def f(", suffix="return x")
        await body_of(daemon, "generate", prompt="a", suffix="")
        assert [request.prompt for request in backend.requests] == [
            TextPrompt("<s>a", parse_special=True),
            TextPrompt("def f(", suffix="return x"),
            ChatPrompt((Message("user", "a"),)),
        ]

    @pytest.mark.parametrize(
        ("fields", "error"),
        [
            ({"template": "{{ .Prompt }}"}, "the field template is not supported; leave it out"),
            ({"context": [1, 2]}, "context is not supported; send the earlier turns to /api/chat instead"),
            ({"images": ["aGk="]}, "the field images is not supported; leave it out"),
        ],
    )
    async def test_what_is_not_supported(self, daemon: Running, fields: dict[str, Any], error: str) -> None:
        assert await error_of(daemon, "generate", 400, prompt="hi", **fields) == error


class TestLoading:
    @pytest.mark.parametrize(
        ("path", "fields", "empty"),
        [
            ("chat", {"messages": []}, {"message": {"role": "assistant", "content": ""}}),
            ("chat", {}, {"message": {"role": "assistant", "content": ""}}),
            ("generate", {"prompt": ""}, {"response": ""}),
            ("generate", {}, {"response": ""}),
        ],
    )
    @pytest.mark.parametrize("keep_alive", [None, 0, "0s", "5m"])
    async def test_nothing_to_say_means_load_or_unload(
        self, daemon: Running, backend: FakeBackend, path: str, fields: Any, empty: Any, keep_alive: Any
    ) -> None:
        # The answer is one document, although the request did not turn streaming off.
        reply = await post(daemon, path, model="fake", keep_alive=keep_alive, **fields)
        body = reply.json()
        is_unload = keep_alive in (0, "0s")
        assert (reply.status_code, body["done"]) == (200, True)
        assert body["done_reason"] == ("unload" if is_unload else "load")
        assert body.items() >= empty.items()
        assert backend.unloaded == (["fake"] if is_unload else [])
        # A loaded model gets a request only if its unload time changes.
        assert [request.keep_alive_s for request in backend.requests] == ([300] if keep_alive == "5m" else [])

    async def test_it_waits_for_a_model_that_is_loading(self, daemon: Running, backend: FakeBackend) -> None:
        gate = Gate()

        class Loading(FakeBackend):
            def models(self) -> list[ModelStatus]:
                return [ModelStatus("fake", WorkerState.STARTING)]

        loading = Loading(playing(gate, finished()))
        async with running(loading) as other:
            asking = asyncio.create_task(post(other, "chat", model="fake"))
            await gate.reached.wait()
            assert not asking.done()
            gate.opened.set()
            assert (await asking).json()["done_reason"] == "load"
            assert loading.requests[0].prefill_only
            loading.script = failing(ModelLoadFailed("the file is damaged"))
            assert await error_of(other, "chat", 500) == "the file is damaged"


class TestNames:
    @pytest.mark.parametrize(
        ("name", "model"),
        [
            ("fake", "fake"),
            ("fake:latest", "fake"),
            ("default", "fake"),
            ("org/repo:Q4_K_M", "org/repo:Q4_K_M"),
        ],
    )
    async def test_a_model_has_several(self, daemon: Running, backend: FakeBackend, name: str, model: str) -> None:
        body = await body_of(daemon, "chat", model=name, messages=HI)
        assert (body["model"], backend.requests[0].model) == (name, model)

    @pytest.mark.parametrize("path", ["chat", "generate", "show"])
    @pytest.mark.parametrize("name", ["nope", "fake:7b", "org/repo", "/etc/passwd", "../fake"])
    async def test_an_unknown_one(self, daemon: Running, backend: FakeBackend, path: str, name: str) -> None:
        error = await error_of(daemon, path, 404, model=name, messages=HI, prompt="hi")
        assert error.startswith(f"model '{name}' not found")
        assert backend.requests == []


class Loaded(FakeBackend):
    """A backend whose model is the bundled file under another name."""

    def models(self) -> list[ModelStatus]:
        path = str(builtin_model().path)
        sampling = SamplingParams(temperature=0.8, top_k=40)
        info = replace(INFO, path=path, sampling=sampling)
        return [ModelStatus("mine", WorkerState.READY, info=info), ModelStatus("other", WorkerState.STARTING)]


class TestModels:
    @pytest_asyncio.fixture(loop_scope="module")
    async def loaded(self, tmp_path: Path) -> AsyncIterator[Running]:
        config = Config(state_dir=tmp_path, store=StoreConfig(models_dir=tmp_path / "models"))
        async with running(Loaded(models=("mine",)), config) as daemon:
            yield daemon

    async def test_tags(self, loaded: Running) -> None:
        document = (await loaded.http.get(f"{loaded.url}/api/tags")).json()
        mine, other = document["models"]  # the bundled file is loaded under this name, so it is not listed twice
        assert (mine["name"], mine["model"], other["name"]) == ("mine:latest", "mine:latest", "other:latest")
        assert mine["size"] == INFO.size_bytes
        assert re.fullmatch("[0-9a-f]{64}", mine["digest"])
        details = mine["details"]
        assert (details["format"], details["family"], details["families"]) == ("gguf", "llama", ["llama"])
        assert re.fullmatch(r"\d+\.\dM", details["parameter_size"]) and details["quantization_level"]
        assert set(details) == {
            "parent_model", "format", "family", "families", "parameter_size", "quantization_level"
        }  # fmt: skip
        modified_at = datetime.fromisoformat(mine["modified_at"]).timestamp()
        assert modified_at == pytest.approx(builtin_model().path.stat().st_mtime, abs=1e-3)

    async def test_tags_list_what_is_on_disk(self, daemon: Running) -> None:
        models = (await daemon.http.get(f"{daemon.url}/api/tags")).json()["models"]
        assert [model["name"] for model in models] == ["fake:latest", "org/repo:Q4_K_M", "builtin:latest"]
        assert models[2]["size"] == builtin_model().path.stat().st_size

    async def test_ps(self, loaded: Running) -> None:
        [mine] = (await loaded.http.get(f"{loaded.url}/api/ps")).json()["models"]
        assert (mine["name"], mine["context_length"], mine["size_vram"]) == ("mine:latest", 4096, 0)
        assert datetime.fromisoformat(mine["expires_at"]) > datetime.fromisoformat("2100-01-01T00:00:00Z")

    async def test_ps_says_when_an_unused_model_leaves(self, tmp_path: Path) -> None:
        backend = OneModel(WorkerState.READY, info=INFO)
        backend.status = replace(backend.status, unload_in_s=60.0)
        async with running(backend, Config(state_dir=tmp_path)) as daemon:
            [mine] = (await daemon.http.get(f"{daemon.url}/api/ps")).json()["models"]
            left = datetime.fromisoformat(mine["expires_at"]) - datetime.now(UTC)
            assert timedelta() < left <= timedelta(seconds=60)

    @pytest.mark.parametrize("key", ["model", "name"])
    async def test_show(self, loaded: Running, key: str) -> None:
        reply = await loaded.http.post(f"{loaded.url}/api/show", json={key: "mine:latest", "verbose": True})
        body = reply.json()
        info = body["model_info"]
        assert info["general.architecture"] == "llama"
        assert info["general.parameter_count"] > 1_000_000
        assert info["llama.context_length"] > 0 and info["llama.block_count"] > 0
        assert body["capabilities"] == ["completion", "tools"]
        assert body["parameters"].splitlines() == ["num_ctx 4096", "temperature 0.8", "top_k 40"]
        assert {"details", "template", "modelfile", "license", "modified_at"} <= set(body)
        assert str(builtin_model().path) not in reply.text

    async def test_show_what_is_only_on_disk(self, daemon: Running) -> None:
        body = (await post(daemon, "show", model="builtin")).json()
        assert body["model_info"]["general.architecture"] == "llama"
        assert (body["capabilities"], body["parameters"]) == (["completion"], "")

    async def test_show_of_an_unknown_or_damaged_model_says_why(self, tmp_path: Path) -> None:
        (tmp_path / "bad.gguf").write_bytes(b"GGUF")
        config = Config(state_dir=tmp_path, store=StoreConfig(models_dir=tmp_path))
        async with running(FakeBackend(), config) as daemon:
            unknown, bad = [await post(daemon, "show", model=name) for name in ("buildin", "bad")]
        assert unknown.status_code == 404
        assert (
            unknown.json()["error"].startswith("model 'buildin' not found: ") and "builtin" in unknown.json()["error"]
        )
        assert (bad.status_code, "the file ends at byte 4" in bad.json()["error"]) == (422, True)

    async def test_a_name_for_a_file_elsewhere_is_listed(self, tmp_path: Path) -> None:
        outside = tmp_path / "outside.gguf"
        outside.write_bytes(small_model())
        OwnNamesFile(tmp_path).change(lambda names: with_alias(names, "mine", str(outside)))
        config = Config(state_dir=tmp_path, store=StoreConfig(models_dir=tmp_path / "models"))
        async with running(FakeBackend(), config) as daemon:
            tags = (await daemon.http.get(f"{daemon.url}/api/tags")).json()["models"]
            models = (await daemon.http.get(f"{daemon.url}/v1/models")).json()["data"]
            shown = await post(daemon, "show", model="mine")
        assert [model["name"] for model in tags][-1] == "mine:latest"
        assert [model["id"] for model in models][-1] == "mine"
        assert shown.status_code == 200

    async def test_show_needs_a_name(self, daemon: Running) -> None:
        reply = await daemon.http.post(f"{daemon.url}/api/show", json={})
        assert (reply.status_code, "model is required" in reply.json()["error"]) == (400, True)

    async def test_thinking_is_refused_where_the_model_cannot(self, loaded: Running) -> None:
        for think in (True, "low"):
            error = await error_of(loaded, "chat", 400, model="mine", messages=HI, think=think)
            assert error == '"mine" does not support thinking'
        assert (await post(loaded, "chat", model="mine", messages=HI, think=False)).status_code == 200


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    from huggingface_hub import close_session

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    close_session()
    with hub_server() as server:
        monkeypatch.setattr(background, "Puller", partial(Puller, endpoint=server.url))
        yield server
        close_session()


class TestPull:
    MODEL = small_model(1, 200_000)
    NAME = "org/model-GGUF"

    @pytest_asyncio.fixture(loop_scope="module")
    async def puller(self, tmp_path: Path) -> AsyncIterator[Running]:
        store = StoreConfig(models_dir=tmp_path / "models", min_free_bytes=0)
        async with running(FakeBackend(), Config(model="fake", state_dir=tmp_path, store=store)) as daemon:
            yield daemon

    async def test_progress_as_lines(self, hub: HubServer, puller: Running) -> None:
        hub.add(self.NAME, {"model-Q4_K_M.gguf": self.MODEL})
        first, *others, last = await lines_of(puller, "pull", model=f"{self.NAME}:latest")
        assert (first, last) == ({"status": "pulling manifest"}, {"status": "success"})
        digest = sha256(self.MODEL)
        downloads = [each for each in others if "digest" in each]
        assert {each["digest"] for each in downloads} <= {f"sha256:{digest}"}
        assert {each["total"] for each in downloads} <= {len(self.MODEL)}
        models = (await puller.http.get(f"{puller.url}/api/tags")).json()["models"]
        [pulled] = [model for model in models if model["name"] == f"{self.NAME}:Q4_K_M"]
        assert (pulled["digest"], pulled["size"]) == (digest, len(self.MODEL))

    async def test_one_body(self, hub: HubServer, puller: Running) -> None:
        hub.add(self.NAME, {"model-Q4_K_M.gguf": self.MODEL})
        assert await body_of(puller, "pull", model=None, name=self.NAME) == {"status": "success"}

    async def test_what_is_served_needs_no_hub(self, daemon: Running) -> None:
        lines = await lines_of(daemon, "pull", model="fake:latest")
        assert lines == [{"status": "pulling manifest"}, {"status": "success"}]

    async def test_failures(self, hub: HubServer, puller: Running) -> None:
        _, last = await lines_of(puller, "pull", model="org/nothing")
        assert set(last) == {"error"} and "org/nothing" in last["error"]
        assert "org/nothing" in await error_of(puller, "pull", 404, model="org/nothing", stream=False)
        assert "path" in await error_of(puller, "pull", 400, model="/etc/passwd", stream=False)

    async def test_one_at_a_time_until_its_client_leaves(self, hub: HubServer, puller: Running) -> None:
        hub.add(self.NAME, {"model-Q4_K_M.gguf": self.MODEL})
        hub.faults.hold_after = 100_000
        async with puller.http.stream("POST", f"{puller.url}/api/pull", json={"model": self.NAME}) as reply:
            lines = reply.aiter_lines()
            while "completed" not in (line := json.loads(await anext(lines))):
                pass
            assert 0 <= line["completed"] < line["total"]
            assert "another model" in await error_of(puller, "pull", 503, model="org/other", stream=False)
        hub.faults.hold_after = None
        hub.release.set()
        # The next progress line ends the first pull. Then another may start, and it continues where the first one
        # stopped.
        while (await post(puller, "pull", model=self.NAME, stream=False)).status_code == 503:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        models = (await puller.http.get(f"{puller.url}/api/tags")).json()["models"]
        assert sha256(self.MODEL) in [model["digest"] for model in models]


class TestRest:
    @pytest.mark.parametrize("path", ["/", "/api/version", "/api/tags", "/api/ps"])
    async def test_get(self, daemon: Running, path: str) -> None:
        assert (await daemon.http.get(daemon.url + path)).status_code == 200

    async def test_who_is_there(self, daemon: Running) -> None:
        assert (await daemon.http.get(daemon.url)).text == "Ollama is running"
        for path in ("/", "/api/version", "/api/tags"):
            reply = await daemon.http.head(daemon.url + path)
            assert (reply.status_code, reply.content) == (200, b"")
        version = (await daemon.http.get(f"{daemon.url}/api/version")).json()
        assert re.fullmatch(r"\d+\.\d+\.\d+", version["version"]) and version["edgeagent"] == __version__

    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("POST", "create"),
            ("POST", "push"),
            ("POST", "blobs/sha256:0"),
        ],
    )
    async def test_what_is_not_to_be_had(self, daemon: Running, method: str, path: str) -> None:
        reply = await daemon.http.request(method, f"{daemon.url}/api/{path}", json={"model": "fake", "input": "a"})
        assert reply.status_code == 501
        assert set(reply.json()) == {"error"} and isinstance(reply.json()["error"], str)

    @pytest.mark.parametrize(("method", "path", "status"), [("GET", "/api/nothing", 404), ("GET", "/api/chat", 405)])
    async def test_a_wrong_path_is_a_text_here(self, daemon: Running, method: str, path: str, status: int) -> None:
        reply = await daemon.http.request(method, daemon.url + path)
        assert reply.status_code == status
        assert path in reply.json()["error"] and "/v1/" not in reply.json()["error"]

    @pytest.mark.parametrize("body", ["", "[]", "{", '{"model": "fake", "model": "fake"}', '{"model": NaN}'])
    @pytest.mark.parametrize("path", ["chat", "generate", "show", "pull"])
    async def test_a_body_that_is_no_object(self, daemon: Running, path: str, body: str) -> None:
        reply = await daemon.http.post(
            f"{daemon.url}/api/{path}", content=body, headers={"content-type": "application/json"}
        )
        assert reply.status_code == 400
        assert isinstance(reply.json()["error"], str)


def posting(daemon: Running, path: str, *lines: str) -> bytes:
    content = json.dumps({"model": "fake", "messages": HI, "stream": False})
    head = [f"POST {path} HTTP/1.1", f"Host: 127.0.0.1:{daemon.port}", f"Content-Length: {len(content)}", *lines]
    return "\r\n".join([*head, "", content]).encode()


FORM = "Content-Type: application/x-www-form-urlencoded"


class TestMediaType:
    @pytest.mark.parametrize("lines", [[], [FORM], ["Content-Type: text/plain"], [FORM, "User-Agent: curl/8.5.0"]])
    async def test_any_will_do_from_a_program(self, daemon: Running, lines: list[str]) -> None:
        reply = await exchange(daemon.port, posting(daemon, "/api/chat", *lines))
        assert (reply.status, json.loads(reply.body)["done"]) == (200, True)
        is_refused = lines == ["Content-Type: text/plain"]
        reply = await exchange(daemon.port, posting(daemon, "/v1/chat/completions", *lines))
        assert reply.status == (415 if is_refused else 200)

    @pytest.mark.parametrize(
        "line",
        [
            "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:60.0) Gecko/20100101 Firefox/60.0",
            "Cookie: a=b",
            "Sec-Fetch-Site: none",
            "Content-Encoding: gzip",
        ],
    )
    async def test_a_browser_has_to_send_json(self, daemon: Running, line: str) -> None:
        """A page may post a form to any address, and can tell an old browser not to send the page's origin."""
        reply = await exchange(daemon.port, posting(daemon, "/api/chat", FORM, line))
        assert reply.status == 415
        assert isinstance(json.loads(reply.body)["error"], str)

    @pytest.mark.parametrize("line", ["Origin: http://evil.example", "Origin: null", "Referer: http://evil.example/"])
    async def test_a_page_is_refused_whatever_it_sends(self, daemon: Running, line: str) -> None:
        for media_type in (FORM, "Content-Type: application/json"):
            assert (await exchange(daemon.port, posting(daemon, "/api/chat", media_type, line))).status == 403

    async def test_a_page_that_is_allowed_has_to_send_json_too(self, tmp_path: Path) -> None:
        page = "http://localhost:3000"
        config = Config(state_dir=tmp_path, server=ServerConfig(allowed_origins=(page,)))
        async with running(FakeBackend(), config) as daemon:
            for media_type, status in ((FORM, 415), ("Content-Type: application/json", 200)):
                sent = posting(daemon, "/api/chat", media_type, f"Origin: {page}")
                assert (await exchange(daemon.port, sent)).status == status

    async def test_the_token_is_asked_for_where_it_is_required(self, tmp_path: Path) -> None:
        config = Config(state_dir=tmp_path, server=ServerConfig(token_required=True))
        async with running(FakeBackend(), config) as daemon:
            reply = await exchange(daemon.port, posting(daemon, "/api/chat", FORM))
            assert (reply.status, isinstance(json.loads(reply.body)["error"], str)) == (401, True)
            sent = posting(daemon, "/api/chat", FORM, f"Authorization: Bearer {TOKEN}")
            assert (await exchange(daemon.port, sent)).status == 200
