"""Raw text completions through the real openai client, and as raw bytes where the client would hide faults."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator, Iterable
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, BadRequestError
from openai.types import Completion

from edgeagent.errors import ContextLengthExceeded, InvalidRequest, Overloaded, WorkerCrashed
from edgeagent.service import live_service
from edgeagent.service.live_service import MAX_AT_ONCE, MAX_BYTES_AT_ONCE
from edgeagent.types import (
    CachePolicy,
    FinishReason,
    GenerateRequest,
    JsonSchemaFormat,
    PromptProgress,
    PromptText,
    SamplingParams,
    Started,
    Step,
    TextDelta,
    TextPrompt,
    Tier,
    TokenLogprob,
    TokenPrompt,
    replace,
)
from tests.backends.fake import Act, FakeBackend, Gate, echo, failing, finished
from tests.daemon.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def post(daemon: Running, fields: Any) -> httpx.Response:
    return await daemon.http.post(f"{daemon.url}/v1/completions", json=fields)


async def chunks_of(daemon: Running, **fields: Any) -> list[dict[str, Any]]:
    """Return a stream's documents after checking its framing, and each chunk against the openai package."""
    reply = await post(daemon, {"prompt": "hello big world", "stream": True, **fields})
    assert reply.status_code == 200
    *events, last, rest = reply.text.split("\n\n")
    assert (last, rest) == ("data: [DONE]", "")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    for chunk in chunks:
        # The package has no model for chunks. Its model requires a finish reason, which only the last chunk has, as at
        # OpenAI.
        choices_with_reason = [
            {**choice, "finish_reason": choice["finish_reason"] or "stop"} for choice in chunk["choices"]
        ]
        Completion.model_validate({**chunk, "choices": choices_with_reason}, strict=True)
    assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
    return chunks


def scored(_request: GenerateRequest) -> Iterable[Act]:
    """Echo a prompt of three tokens, then answer with "é", whose two tokens hold half of it each, and "!"."""
    rival = TokenLogprob(9, b"\xff", float("-inf"))
    yield Started(3, 0)
    yield (
        PromptText(
            "a bc",
            (
                TokenLogprob(1, b"a", math.nan),
                TokenLogprob(2, b" b", -1.0, (TokenLogprob(7, b" x", -0.5),), 1),
                TokenLogprob(3, b"c", -2.0, (TokenLogprob(3, b"c", -2.0),), 3),
            ),
        ),
        TextDelta("é", (TokenLogprob(4, b"\xc3", -0.1, (rival,)), TokenLogprob(5, b"\xa9", -0.2))),
    )
    yield TextDelta("!", (TokenLogprob(6, b"!", -0.3, (), 1),))
    yield finished(FinishReason.LENGTH, prompt=3, cached=0, output=3)


LOGPROBS = {
    "tokens": ["a", " b", "c", "bytes:\\xc3", "bytes:\\xa9", "!"],
    "token_logprobs": [None, -1.0, -2.0, -0.1, -0.2, -0.3],
    "top_logprobs": [
        None,
        {" x": -0.5, " b": -1.0},
        {"c": -2.0},
        {"bytes:\\xff": -9999.0, "bytes:\\xc3": -0.1},
        {"bytes:\\xa9": -0.2},
        {"!": -0.3},
    ],
    "text_offset": [0, 1, 3, 4, 4, 5],
}


async def test_a_prompt_is_gone_on_with(client: AsyncOpenAI, backend: FakeBackend) -> None:
    completion = await client.completions.create(model="fake", prompt="hello big world")
    assert completion.object == "text_completion"
    assert [choice.text for choice in completion.choices] == ["hello big world"]
    assert completion.choices[0].finish_reason == "stop"
    assert completion.choices[0].logprobs is None
    assert completion.usage is not None
    assert (completion.usage.prompt_tokens, completion.usage.completion_tokens) == (3, 3)
    assert completion.model_extra is not None
    assert completion.model_extra["edgeagent"]["route"] == "local"
    assert completion.model_extra["timings"]["predicted_n"] == 3
    (request,) = backend.requests
    assert request.prompt == TextPrompt("hello big world", parse_special=True)
    assert (request.max_tokens, request.echo, request.logprobs) == (16, False, None)


async def test_a_stream_ends_with_a_chunk_of_its_own(client: AsyncOpenAI, daemon: Running) -> None:
    stream = await client.completions.create(model="fake", prompt="hello big world", stream=True)
    texts = [chunk.choices[0].text async for chunk in stream]
    assert texts == ["hello", " big", " world", ""]
    chunks = await chunks_of(daemon)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, None, "stop"]
    assert "usage" not in chunks[-1]
    assert chunks[-1]["timings"]["predicted_n"] == 3
    chunks = await chunks_of(daemon, stream_options={"include_usage": True})
    assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * 4
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 6


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", [TextPrompt("a", parse_special=True)]),
        (["a", ""], [TextPrompt("a", parse_special=True), TextPrompt("", parse_special=True)]),
        ([1, 2], [TokenPrompt((1, 2))]),
        ([[1, 2], [3]], [TokenPrompt((1, 2)), TokenPrompt((3,))]),
        (["a", [3]], [TextPrompt("a", parse_special=True), TokenPrompt((3,))]),
    ],
)
async def test_prompts_are_texts_or_tokens(
    daemon: Running, backend: FakeBackend, prompt: Any, prompts: list[Any]
) -> None:
    body = (await post(daemon, {"prompt": prompt, "n": 2})).json()
    assert [choice["index"] for choice in body["choices"]] == list(range(2 * len(prompts)))
    by_id = {request.id: request.prompt for request in backend.requests}
    assert len(by_id) == 2 * len(prompts)
    assert sorted(map(str, by_id.values())) == sorted(map(str, prompts * 2))


async def test_a_text_has_no_reasoning_tokens(daemon: Running, backend: FakeBackend) -> None:
    end = finished()
    counted = replace(end, usage=replace(end.usage, num_reasoning_tokens=2))  # as a remote may count them
    backend.script = lambda _: (Started(8, 4), TextDelta("x"), counted)
    body = (await post(daemon, {"prompt": "one"})).json()
    assert body["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


async def test_choices_come_in_the_order_of_prompts(daemon: Running, backend: FakeBackend) -> None:
    body = (await post(daemon, {"prompt": ["one", "two two"], "n": 2})).json()
    assert [choice["text"] for choice in body["choices"]] == ["one", "one", "two two", "two two"]
    assert body["usage"]["prompt_tokens"] == 3
    assert body["usage"]["completion_tokens"] == 6
    chunks = await chunks_of(daemon, prompt=["one", "two two"])
    texts = dict.fromkeys(range(2), "")
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == {0: "one", 1: "two two"}


@pytest.mark.parametrize(("max_bytes", "expected"), [(MAX_BYTES_AT_ONCE, MAX_AT_ONCE), (2000, 2), (1, 1)])
async def test_not_too_many_run_at_a_time(
    daemon: Running, backend: FakeBackend, max_bytes: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_service, "MAX_BYTES_AT_ONCE", max_bytes)
    most = 0

    def script(request: GenerateRequest) -> Iterable[Act]:
        nonlocal most
        most = max(most, backend.num_live)
        return echo(request)

    backend.script = script
    body = (await post(daemon, {"prompt": ["x" * 800] * 40})).json()
    assert len(body["choices"]) == 40
    assert most <= expected


async def test_scores_of_prompt_and_answer_stand_side_by_side(
    daemon: Running, client: AsyncOpenAI, backend: FakeBackend
) -> None:
    backend.script = scored
    completion = await client.completions.create(model="fake", prompt="a bc", echo=True, logprobs=1, max_tokens=2)
    (choice,) = completion.choices
    assert choice.text == "a bcé!"
    assert choice.finish_reason == "length"
    assert choice.logprobs is not None
    assert choice.logprobs.model_dump() == LOGPROBS
    (request,) = backend.requests
    assert (request.echo, request.logprobs) == (True, 1)
    reply = await post(daemon, {"prompt": "a bc", "echo": True, "logprobs": 1, "stream": True})
    parts = [json.loads(event[6:])["choices"][0] for event in reply.text.split("\n\n")[:-2]]
    assert [part["text"] for part in parts] == ["a bcé", "!", ""]
    assert parts[-1]["logprobs"] is None
    for name, expected in LOGPROBS.items():
        assert [value for part in parts[:-1] for value in part["logprobs"][name]] == expected


async def test_scores_without_rivals_name_none(client: AsyncOpenAI, backend: FakeBackend) -> None:
    backend.script = scored
    completion = await client.completions.create(model="fake", prompt="a bc", logprobs=0)
    assert completion.choices[0].logprobs is not None
    assert completion.choices[0].logprobs.top_logprobs is None
    assert backend.requests[0].logprobs == 0


async def test_the_best_of_several_are_the_likeliest(client: AsyncOpenAI, backend: FakeBackend) -> None:
    def script(request: GenerateRequest) -> Iterable[Act]:
        number = int(request.id.partition("-")[2].partition("-")[2] or 0)
        logprob = -1.0 if number == 2 else -2.0 - number
        yield PromptText("p", (TokenLogprob(1, b"p", math.nan),))
        yield TextDelta(f"{number}", (TokenLogprob(1, b"x", logprob),))
        yield finished(output=1)

    backend.script = script
    completion = await client.completions.create(model="fake", prompt="p", n=2, best_of=4, seed=1)
    assert [choice.text for choice in completion.choices] == ["p2", "p0"]
    assert [choice.index for choice in completion.choices] == [0, 1]
    assert completion.choices[0].logprobs is None
    assert completion.usage is not None
    assert completion.usage.completion_tokens == 4
    assert {request.sampling.seed for request in backend.requests} == {1, 2, 3, 4}
    assert {request.logprobs for request in backend.requests} == {0}


async def test_a_gap_is_filled(client: AsyncOpenAI, backend: FakeBackend) -> None:
    await client.completions.create(model="fake", prompt="def f(", suffix="): pass")
    await client.completions.create(model="fake", prompt="def f(", suffix="")
    assert [request.prompt for request in backend.requests] == [
        TextPrompt("def f(", "): pass", parse_special=True),
        TextPrompt("def f(", parse_special=True),
    ]


async def test_fields_reach_the_request(daemon: Running, backend: FakeBackend) -> None:
    fields = {
        "model": "fake",
        "prompt": "x",
        "max_tokens": 5,
        "temperature": 0.5,
        "top_k": 3,
        "seed": 7,
        "stop": ["a", "b"],
        "logit_bias": {"3": -1.5},
        "service_tier": "priority",
        "cache_prompt": False,
        "json_schema": {"type": "object"},
        "user": "somebody",
        "unknown": {"a": 1},
    }
    assert (await post(daemon, fields)).status_code == 200
    (request,) = backend.requests
    assert request.sampling == SamplingParams(temperature=0.5, top_k=3, seed=7, logit_bias=((3, -1.5),))
    assert (request.max_tokens, request.stop, request.tier) == (5, ("a", "b"), Tier.REALTIME)
    assert request.cache == CachePolicy(False, False)
    assert request.format == JsonSchemaFormat('{"type":"object"}', strict=False)


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({}, 16),
        ({"max_tokens": 0}, 0),
        ({"n_predict": 7}, 7),
        ({"n_predict": -1}, None),
        ({"max_tokens": -1}, None),
        ({"max_tokens": -1, "n_predict": 7}, None),
        ({"max_tokens": 3, "n_predict": 7}, 3),
    ],
)
async def test_the_answers_length(
    daemon: Running, backend: FakeBackend, fields: dict[str, int], limit: int | None
) -> None:
    assert (await post(daemon, {"prompt": "x", **fields})).status_code == 200
    assert backend.requests[0].max_tokens == limit


async def test_a_stream_tells_its_prompts_progress_and_its_timings(daemon: Running, backend: FakeBackend) -> None:
    backend.script = lambda _: (
        (Started(10, 4), PromptProgress(4)),
        PromptProgress(8),
        (PromptProgress(10), TextDelta("x")),
        finished(),
    )
    chunks = await chunks_of(daemon, return_progress=True, timings_per_token=True)
    progress = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
    assert [(each["total"], each["cache"], each["processed"]) for each in progress] == [
        (10, 4, 4),
        (10, 4, 8),
        (10, 4, 10),
    ]
    assert all(each["time_ms"] >= 0 for each in progress)
    assert all("timings" in chunk for chunk in chunks)
    assert chunks[0]["timings"]["cache_n"] == 4
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "x"
    assert backend.requests[0].reports_progress
    await post(daemon, {"prompt": "x", "return_progress": True})
    assert not backend.requests[1].reports_progress


async def test_tokens_are_told_where_they_are_asked_for(daemon: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(*_: object) -> AsyncGenerator[Step, None]:
        yield Step((Started(1, 0),))
        yield Step((), (5,))
        yield Step((TextDelta("é"),), (6, 7))
        yield Step((finished(),))

    monkeypatch.setattr(FakeBackend, "play", play)
    body = (await post(daemon, {"prompt": "x", "return_tokens": True})).json()
    assert body["choices"][0]["tokens"] == [5, 6, 7]
    chunks = await chunks_of(daemon, return_tokens=True)
    assert [chunk["choices"][0]["tokens"] for chunk in chunks] == [[5], [6, 7], []]
    assert "tokens" not in (await post(daemon, {"prompt": "x"})).json()["choices"][0]


BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": {}}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt[0]"),
    ({"prompt": ["a", None]}, "prompt[1]"),
    ({"prompt": ["a", 5]}, "prompt[1]"),
    ({"prompt": [1, "a"]}, "prompt"),
    ({"prompt": [1, True]}, "prompt"),
    ({"prompt": [1, -1]}, "prompt"),
    ({"prompt": [1, 2**31]}, "prompt"),
    ({"prompt": [[1], [1.5]]}, "prompt[1]"),
    ({"prompt": ["a"] * 129}, "prompt"),
    ({"prompt": ["a"] * 17, "n": 8}, "prompt"),
    ({"n": 9}, "n"),
    ({"best_of": 9}, "best_of"),
    ({"n": 3, "best_of": 2}, "best_of"),
    ({"best_of": 2, "stream": True}, "best_of"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"max_tokens": -2}, "max_tokens"),
    ({"suffix": "x", "echo": True}, "echo"),
    ({"suffix": "x", "prompt": [1]}, "suffix"),
    ({"suffix": 5}, "suffix"),
    ({"grammar": "root ::= x"}, "grammar"),
    ({"lora": [{"id": 0}]}, "lora"),
    ({"post_sampling_probs": True}, "post_sampling_probs"),
    ({"t_max_predict_ms": 100}, "t_max_predict_ms"),
    ({"samplers": ["temperature", "top_k"]}, "samplers"),
    ({"samplers": ["mirostat"]}, "samplers"),
    ({"json_schema": 5}, "json_schema"),
    ({"n_probs": 21}, "n_probs"),
    ({"id_slot": "x"}, "id_slot"),
    ({"sse_ping_interval": -2}, "sse_ping_interval"),
]


@pytest.mark.parametrize(("fields", "param"), BAD_FIELDS, ids=str)
async def test_bad_fields_are_named(daemon: Running, backend: FakeBackend, fields: dict[str, Any], param: str) -> None:
    reply = await post(daemon, {"prompt": "x", **fields})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param
    assert not backend.requests


async def test_harmless_extensions_change_nothing(daemon: Running, backend: FakeBackend) -> None:
    fields = {
        "id_slot": 3,
        "n_keep": -1,
        "t_max_predict_ms": -1,
        "response_fields": ["content"],
        "lora": [],
        "grammar": "",
        "post_sampling_probs": False,
        "sse_ping_interval": -1,
        "samplers": ["penalties", "dry", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"],
    }
    await post(daemon, {"prompt": "x"})
    await post(daemon, {"prompt": "x", **fields})
    plain, extended = backend.requests
    assert extended.sampling == plain.sampling
    assert await chunks_of(daemon, **fields)


async def test_samplers_that_are_left_out_do_nothing(daemon: Running, backend: FakeBackend) -> None:
    await post(daemon, {"prompt": "x", "samplers": ["top_k"], "top_k": 5, "temperature": 0.3})
    sampling = backend.requests[0].sampling
    assert (sampling.top_k, sampling.top_p, sampling.min_p, sampling.temperature) == (5, 1.0, 0.0, 1.0)
    assert (sampling.repeat_penalty, sampling.presence_penalty, sampling.frequency_penalty) == (1.0, 0.0, 0.0)


async def test_n_probs_asks_for_scores(daemon: Running, backend: FakeBackend) -> None:
    await post(daemon, {"prompt": "x", "n_probs": 2})
    await post(daemon, {"prompt": "x", "n_probs": 0})
    assert [request.logprobs for request in backend.requests] == [2, None]


async def test_a_refusal_names_the_prompt(client: AsyncOpenAI, backend: FakeBackend) -> None:
    backend.script = failing(ContextLengthExceeded("too long", param="input"))
    with pytest.raises(BadRequestError) as caught:
        await client.completions.create(model="fake", prompt="x", stream=True)
    assert caught.value.param == "prompt"
    assert caught.value.code == "context_length_exceeded"


async def test_a_refusal_names_the_schema(client: AsyncOpenAI, backend: FakeBackend) -> None:
    backend.script = failing(InvalidRequest("it cannot be followed", param="text.format"))
    with pytest.raises(BadRequestError) as caught:
        await client.completions.create(model="fake", prompt="x", extra_body={"json_schema": {"type": "object"}})
    assert caught.value.param == "json_schema"


async def test_a_failing_prompt_ends_all(daemon: Running, backend: FakeBackend) -> None:
    backend.script = lambda request: (
        [Overloaded("full")] if request.id.endswith("-p1") else [Started(1, 0), Gate(), finished()]
    )
    reply = await post(daemon, {"prompt": ["a", "b", "c"]})
    assert reply.status_code == 429
    assert "retry-after" in reply.headers
    await backend.until(lambda backend: backend.num_live == 0)


async def test_a_failure_in_the_stream_is_its_last_event(daemon: Running, backend: FakeBackend) -> None:
    backend.script = failing(WorkerCrashed("signal 9", num_delivered_tokens=1), Started(1, 0), TextDelta("x"))
    reply = await post(daemon, {"prompt": "x", "stream": True})
    *_, last, rest = reply.text.split("\n\n")
    assert rest == ""
    event = json.loads(last.removeprefix("data: "))
    assert event["error"]["code"] == "worker_crashed"
    assert event["edgeagent"]["num_delivered_tokens"] == 1


async def test_a_client_that_leaves_cancels_all(daemon: Running, backend: FakeBackend) -> None:
    backend.script = lambda _: (Started(1, 0), TextDelta("x"), Gate(), finished())
    fields = {"prompt": ["a", "b"], "n": 2, "stream": True}
    async with daemon.http.stream("POST", f"{daemon.url}/v1/completions", json=fields) as reply:
        assert reply.status_code == 200
        await backend.until(lambda backend: backend.num_live == 4)
    await backend.until(lambda backend: backend.num_live == 0)
    assert len(backend.closed) == 4
