"""Completions, infill and embeddings in llama-server's own shapes, on a fake backend."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import httpx
import pytest

from edgeagent.errors import NotSupported
from edgeagent.types import (
    CachePolicy,
    Embed,
    FinishReason,
    GenerateRequest,
    JsonSchemaFormat,
    PromptProgress,
    SamplingParams,
    Started,
    Step,
    TextDelta,
    TextPrompt,
    TokenLogprob,
    TokenPrompt,
    replace,
)
from tests.api.services import Answering
from tests.backends.fake import Act, failing, finished
from tests.daemon.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def post(daemon: Running, path: str = "/completion", **fields: Any) -> httpx.Response:
    return await daemon.http.post(f"{daemon.url}{path}", json=fields)


async def events_of(daemon: Running, path: str = "/completion", **fields: Any) -> list[dict[str, Any]]:
    reply = await post(daemon, path, stream=True, **fields)
    assert reply.status_code == 200
    assert reply.headers["content-type"].startswith("text/event-stream")
    *events, rest = reply.text.split("\n\n")
    assert rest == ""
    assert "data: [DONE]" not in events
    return [json.loads(event.removeprefix("data: ")) for event in events]


def scored(_request: GenerateRequest) -> Iterable[Act]:
    rival = TokenLogprob(9, b"\xff", float("-inf"))
    yield Started(8, 5)
    yield Step((TextDelta("é", (TokenLogprob(4, b"\xc3", -0.5, (rival,)), TokenLogprob(5, b"\xa9", -0.25))),), (4, 5))
    yield Step((TextDelta("\n", (TokenLogprob(6, b"\n", -1.0),)),), (6,))
    yield finished(FinishReason.LENGTH, prompt=8, cached=5, output=3)


PROBABILITIES = [
    {
        "id": 4,
        "token": "\ufffd",
        "bytes": [0xC3],
        "logprob": -0.5,
        "top_logprobs": [{"id": 9, "token": "\ufffd", "bytes": [0xFF], "logprob": -9999.0}],
    },
    {"id": 5, "token": "\ufffd", "bytes": [0xA9], "logprob": -0.25, "top_logprobs": []},
    {"id": 6, "token": "\n", "bytes": [10], "logprob": -1.0, "top_logprobs": []},
]


@pytest.mark.parametrize("path", ["/completion", "/completions"])
async def test_a_whole_completion(daemon: Running, backend: Answering, path: str) -> None:
    body = (await post(daemon, path, prompt="hello big world")).json()
    assert body.pop("timings")["predicted_n"] == 3
    assert body.pop("edgeagent")["route"] == "local"
    assert body == {
        "index": 0,
        "content": "hello big world",
        "tokens": [],
        "stop": True,
        "id_slot": -1,
        "tokens_predicted": 3,
        "tokens_evaluated": 3,
        "model": "fake",
        "stop_type": "eos",
        "stopping_word": "",
        "has_new_line": False,
        "truncated": False,
        "tokens_cached": 0,
    }
    (request,) = backend.requests
    assert (request.prompt, request.max_tokens) == (TextPrompt("hello big world", parse_special=True), None)


async def test_tokens_and_probabilities_if_they_are_asked_for(daemon: Running, backend: Answering) -> None:
    backend.script = scored
    body = (await post(daemon, prompt="a", n_probs=1, return_tokens=True, n_predict=3)).json()
    assert (body["content"], body["tokens"], body["completion_probabilities"]) == ("é\n", [4, 5, 6], PROBABILITIES)
    assert (body["tokens_evaluated"], body["tokens_cached"], body["tokens_predicted"]) == (8, 5, 3)
    assert (body["stop_type"], body["has_new_line"], body["truncated"]) == ("limit", True, False)
    assert backend.requests[0].logprobs == 1
    assert (await post(daemon, prompt="a", n_predict=9)).json()["truncated"]  # only a full context ends it before


async def test_a_stream_ends_with_the_measurements(daemon: Running, backend: Answering) -> None:
    backend.script = scored
    first, second, last = await events_of(daemon, prompt="a", n_probs=1, stream_options={"include_usage": True})
    assert first == {
        "index": 0,
        "content": "é",
        "tokens": [4, 5],
        "stop": False,
        "id_slot": -1,
        "tokens_predicted": 2,
        "tokens_evaluated": 8,
        "completion_probabilities": PROBABILITIES[:2],
    }
    assert (second["content"], second["tokens"], second["tokens_predicted"]) == ("\n", [6], 3)
    assert (last["content"], last["tokens"], last["stop"], last["stop_type"]) == ("", [], True, "limit")
    assert last["timings"]["predicted_n"] == 3
    assert "completion_probabilities" not in last


async def test_a_stream_tells_its_progress_and_its_timings(daemon: Running, backend: Answering) -> None:
    backend.script = lambda _: ((Started(10, 4), PromptProgress(8)), (PromptProgress(10), TextDelta("x")), finished())
    events = await events_of(daemon, prompt="a", return_progress=True, timings_per_token=True)
    assert [event["prompt_progress"]["processed"] for event in events if "prompt_progress" in event] == [8, 10]
    assert all(event["timings"]["cache_n"] == 4 for event in events[:-1])
    assert "".join(event["content"] for event in events) == "x"


async def test_several_prompts_and_answers_are_a_list(daemon: Running, backend: Answering) -> None:
    bodies = (await post(daemon, prompt=["one", [5, 6]], n_cmpl=2)).json()
    assert [body["index"] for body in bodies] == [0, 1, 2, 3]
    assert [body["content"] for body in bodies[:2]] == ["one", "one"]
    prompts = [request.prompt for request in backend.requests]
    assert prompts.count(TokenPrompt((5, 6))) == prompts.count(TextPrompt("one", parse_special=True)) == 2
    events = await events_of(daemon, prompt=["one two", "three"])
    assert "".join(event["content"] for event in events if event["index"] == 0) == "one two"
    assert [event["stop"] for event in events].count(True) == 2


async def test_the_stop_string_is_named(daemon: Running, backend: Answering) -> None:
    backend.script = lambda _: (Started(1, 0), TextDelta("x"), replace(finished(), stop="END"))
    body = (await post(daemon, prompt="a", stop=["END"])).json()
    assert (body["stop_type"], body["stopping_word"]) == ("word", "END")
    assert backend.requests[0].stop == ("END",)


async def test_fields_reach_the_request(daemon: Running, backend: Answering) -> None:
    sampling: dict[str, Any] = {"temperature": 0.5, "top_k": 3, "top_p": 0.75, "min_p": 0.25, "seed": 7}
    fields: dict[str, Any] = {"n_predict": 5, "max_tokens": 9, "cache_prompt": False, "json_schema": {"type": "object"}}
    assert (await post(daemon, prompt="x", **sampling, **fields)).status_code == 200
    (request,) = backend.requests
    assert request.sampling == SamplingParams(**sampling)
    assert (request.max_tokens, request.cache) == (5, CachePolicy(False, False))
    assert request.format == JsonSchemaFormat('{"type":"object"}', strict=False)


async def test_only_the_fields_that_are_asked_for(daemon: Running, backend: Answering) -> None:
    fields = ["content", "timings/prompt_n", "timings/none", "content/x", "generation_settings/n_predict"]
    body = (await post(daemon, prompt="one", response_fields=fields)).json()
    assert body == {"content": "one", "timings/prompt_n": 1}


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/completion", {}, "prompt"),
        ("/completion", {"prompt": [1, "a"]}, "prompt"),
        ("/completion", {"prompt": ["a"] * 129}, "prompt"),
        ("/completion", {"prompt": "a", "n_predict": -2}, "n_predict"),
        ("/completion", {"prompt": "a", "grammar": "root ::= [a-z]"}, "grammar"),
        ("/infill", {"input_suffix": ""}, "input_prefix"),
        ("/infill", {"input_prefix": ""}, "input_suffix"),
        ("/infill", {"input_prefix": "", "input_suffix": "", "prompt": [1]}, "prompt"),
        (
            "/infill",
            {"input_prefix": "", "input_suffix": "", "input_extra": [{"filename": "a"}]},
            "input_extra[0].text",
        ),
        ("/embedding", {}, "content"),
        ("/embedding", {"content": ["a", ""]}, "content[1]"),
        ("/embedding", {"input": []}, "input"),
        ("/embedding", {"content": "a", "embd_normalize": -1}, "embd_normalize"),
    ],
)
async def test_a_wrong_field_is_named(
    daemon: Running, backend: Answering, path: str, fields: dict[str, Any], param: str
) -> None:
    reply = await post(daemon, path, **fields)
    assert reply.status_code in (400, 501)
    assert reply.json()["error"]["param"] == param
    assert backend.requests == []


class TestInfill:
    async def test_what_editors_send(self, daemon: Running, backend: Answering) -> None:
        """The fields of llama.cpp's plugins for editors; a warning names those without effect."""
        reply = await post(
            daemon,
            "/infill",
            input_prefix="def f(",
            prompt="    ",
            input_suffix="): pass",
            input_extra=[{"filename": "a.py", "text": "A = 1\n", "time": 5}, {"text": "b"}],
            n_predict=8,
            n_indent=4,
            stop=[],
            top_k=40,
            top_p=0.5,
            samplers=["top_k", "top_p", "infill"],
            cache_prompt=True,
            t_max_prompt_ms=500,
            t_max_predict_ms=1000,
            response_fields=["content", "timings/predicted_n"],
        )
        assert set(reply.json()) == {"content", "timings/predicted_n"}
        (request,) = backend.requests
        assert request.prompt == TextPrompt("def f(    ", "): pass", files=(("a.py", "A = 1\n"), ("tmp", "b")))
        assert (request.max_tokens, request.sampling.top_k, request.sampling.min_p) == (8, 40, 0.0)
        warning = reply.headers["x-edgeagent-warning"]
        assert "t_max_predict_ms has no effect" in warning
        assert "the sampler infill has no effect" in warning

    async def test_a_gap_at_the_end_is_a_gap(self, daemon: Running, backend: Answering) -> None:
        events = await events_of(daemon, "/infill", input_prefix="one two", input_suffix="")
        assert "".join(event["content"] for event in events) == "one two"
        assert backend.requests[0].prompt == TextPrompt("one two", "")

    @pytest.mark.parametrize("stream", [False, True])
    async def test_a_model_without_marks_is_an_error_that_names_the_field(
        self, daemon: Running, backend: Answering, stream: bool
    ) -> None:
        backend.script = failing(NotSupported("This model cannot fill in the middle", param="suffix"))
        reply = await post(daemon, "/infill", input_prefix="a", input_suffix="b", stream=stream)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "input_suffix")


class TestEmbedding:
    @pytest.mark.parametrize("path", ["/embedding", "/embeddings"])
    @pytest.mark.parametrize("name", ["content", "input"])
    async def test_several_texts(self, daemon: Running, backend: Answering, path: str, name: str) -> None:
        reply = await post(daemon, path, **{name: ["ab", [5]]}, embd_normalize=2, encoding_format="float")
        assert [(each["index"], len(each["embedding"])) for each in reply.json()] == [(0, 1), (1, 1)]
        assert reply.json()[0]["embedding"] == [[2.0, 0.25, -1.5, 0.0]]
        assert backend.queries == [Embed((TextPrompt("ab"), TokenPrompt((5,))))]
        assert "x-edgeagent-warning" not in reply.headers

    async def test_one_text_is_a_list_of_one(self, daemon: Running, backend: Answering) -> None:
        reply = await post(daemon, "/embedding", content="ab", model="fake")
        assert reply.json() == [{"index": 0, "embedding": [[2.0, 0.25, -1.5, 0.0]]}]
