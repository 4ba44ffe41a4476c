"""Ollama's chat and generate as bytes on a real socket, and the values that reach the service."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import pytest

from edgeagent.api.wire import answer_stream
from edgeagent.errors import (
    ContextLengthExceeded,
    DeadlineUnreachable,
    EdgeAgentError,
    ModelLoadFailed,
    Overloaded,
    WorkerCrashed,
)
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
)
from tests.api.ollama.requests import HI, RFC3339, SCHEMA, body_of, check_end, error_of, lines_of, playing, post
from tests.backends.fake import Act, FakeBackend, Gate, failing, finished
from tests.daemon.running import Running, running
from tests.media import RED, b64

pytestmark = pytest.mark.asyncio(loop_scope="module")

BUSY = "server busy, please try again.  maximum pending requests exceeded"


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

    @pytest.mark.parametrize("is_streamed", [True, False])
    async def test_half_of_an_emoji_in_a_call_is_replaced(
        self, daemon: Running, backend: FakeBackend, is_streamed: bool
    ) -> None:
        """A model may write it as an escape, and no UTF-8 can hold it."""
        call: tuple[Delta, ...] = (ToolCallStarted(0, "call_a", "add"), ToolCallDelta(0, r'{"\udc00": "a\ud83d"}'))
        backend.script = playing(Started(8, 4), call, finished(FinishReason.TOOL_CALLS))
        if is_streamed:
            first, _ = await lines_of(daemon, "chat", messages=HI)
        else:
            first = await body_of(daemon, "chat", messages=HI)
        assert first["message"]["tool_calls"][0]["function"]["arguments"] == {"\ufffd": "a\ufffd"}

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
            JsonSchemaFormat(json.dumps(SCHEMA, separators=(",", ":")), strict=False),
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
            ({"messages": [{"role": "user", "content": "hi", "images": ["aGk="]}]}, "images[0] is no PNG"),
            (
                {"messages": [{"role": "user", "content": "hi", "images": [0] * 32_000}]},
                "images[0] must be an image in base64",
            ),
            (
                {"messages": [{"role": "assistant", "content": "hi", "images": [b64(RED)]}]},
                "images are supported only in messages of users and tools",
            ),
            ({"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "a"}}]}]}, "tool_calls[0]"),
            (
                {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": []}}]}]},
                "a JSON object",
            ),
            ({"messages": "hi"}, "messages"),
            ({"messages": HI, "tools": [{"type": "function"}]}, "tools[0]"),
            ({"messages": HI, "tools": [{"function": {"name": "a b"}}]}, "tools[0].function.name"),
            (
                {"messages": HI, "tools": [{"function": {"name": "a", "parameters": 5}}]},
                "tools[0].function.parameters of tool 'a' must be a JSON schema",
            ),
            ({"messages": HI, "format": "yaml"}, "format"),
            ({"messages": HI, "think": "hard"}, "think"),
            ({"messages": HI, "keep_alive": "soon"}, "keep_alive"),
            ({"messages": HI, "keep_alive": "5 m"}, "keep_alive"),
            ({"messages": HI, "options": {"temperature": "hot"}}, "options.temperature"),
            ({"messages": HI, "options": {"top_k": 1.5}}, "options.top_k"),
            ({"messages": HI, "options": [1]}, "options"),
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
            (DeadlineUnreachable("too soon", retry_after_s=3), 503, "too soon"),
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
        monkeypatch.setattr(answer_stream, "PATIENCE_S", 0.0)
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
        monkeypatch.setattr(answer_stream, "PATIENCE_S", 0.0)
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
            ({"images": [b64(RED)], "raw": True}, "images need the chat template: leave out raw and suffix"),
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
            def statuses(self) -> list[ModelStatus]:
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
