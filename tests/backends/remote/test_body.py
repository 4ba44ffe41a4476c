"""The body sent for a request: everything that the request asks for, in each server's field names, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from edgeagent.backends.remote.body import Target, write_body
from edgeagent.backends.remote.dialect import LLAMA_SERVER, OPENAI, UNKNOWN, VLLM, Dialect, dialect_of
from edgeagent.errors import NotSupported
from edgeagent.types import (
    AnswerSoFar,
    CachePolicy,
    ChatPrompt,
    GenerateRequest,
    JsonObjectFormat,
    JsonSchemaFormat,
    MediaPlace,
    Message,
    SamplingParams,
    TextPrompt,
    TokenPrompt,
    Tool,
    ToolCall,
    ToolChoice,
    replace,
)
from tests.media import RED, SILENCE, b64, data_url, media

WEATHER = Tool(
    "weather", "Tells the weather.", '{"type":"object","properties":{"city":{"type":"string"}}}', strict=True
)
CLOCK = Tool("clock")
TALK = (
    Message("system", "Be brief."),
    Message("user", "Weather?", name="ada"),
    Message("assistant", reasoning="Cologne.", tool_calls=(ToolCall("c1", "weather", '{"city":"Köln"}'),)),
    Message("tool", "sunny", tool_call_id="c1"),
)
FULL = GenerateRequest(
    id="resp_secret",
    model="local-name",
    prompt=ChatPrompt(TALK, (WEATHER, CLOCK), ToolChoice("required", ("weather",)), False, '{"enable_thinking":false}'),
    sampling=SamplingParams(0.0, 20, 0.9, 0.05, 1.1, 64, 0.1, 0.2, 7),
    format=JsonSchemaFormat('{"type":"object"}', "shape"),
    max_tokens=50,
    stop=("\n\n",),
    logprobs=2,
    cache=CachePolicy(partition="secret-partition", lane="secret-lane"),
    client="secret-client",
)
PLAIN = GenerateRequest("r", "m", ChatPrompt((Message("user", "Hi"),)))


def body(request: GenerateRequest, dialect: Dialect = VLLM, so_far: AnswerSoFar | None = None, **more: Any) -> Any:
    written = write_body(request, Target("tiny", dialect, **more), so_far)
    return {"path": written.path} | json.loads(written.content)


def test_token_ids_are_asked_for_with_short_prompts_alone() -> None:
    """The answer then holds the prompt's ids too, so they are requested for short prompts only."""
    long = replace(PLAIN, prompt=ChatPrompt((Message("user", "Hi" * 16_384),)))
    assert body(PLAIN)["return_token_ids"] and "return_token_ids" not in body(long)
    assert "return_token_ids" not in body(PLAIN, UNKNOWN)


def test_everything_that_a_request_asks() -> None:
    called = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Köln"}'}}
    assert body(FULL, cache_salt="salt") == {
        "path": "/chat/completions",
        "model": "tiny",
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "return_token_ids": True,
        "max_tokens": 50,
        "stop": ["\n\n"],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "shape", "schema": {"type": "object"}, "strict": True},
        },
        "cache_salt": "salt",
        "temperature": 0.0,
        "top_p": 0.9,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "seed": 7,
        "top_k": 20,
        "min_p": 0.05,
        "repetition_penalty": 1.1,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Weather?", "name": "ada"},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "Cologne.",
                "reasoning": "Cologne.",
                "tool_calls": [called],
            },
            {"role": "tool", "content": "sunny", "tool_call_id": "c1"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "weather",
                    "description": "Tells the weather.",
                    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
                    "strict": True,
                },
            }
        ],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "parallel_tool_calls": False,
        "logprobs": True,
        "top_logprobs": 2,
        "chat_template_kwargs": {"enable_thinking": False},
    }


def test_what_is_not_asked_is_not_sent() -> None:
    assert body(PLAIN, UNKNOWN) == {
        "path": "/chat/completions",
        "model": "tiny",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "Hi"}],
    }


def test_nothing_of_this_machine_is_sent() -> None:
    request = replace(FULL, stop=(), sampling=SamplingParams(0.0))
    content = write_body(request, Target("tiny", VLLM)).content
    assert b"secret" not in content and b"local-name" not in content


def test_each_server_gets_its_own_fields() -> None:
    openai = body(FULL, OPENAI, cache_salt="salt")
    assert openai["max_completion_tokens"] == 50
    assert not {"max_tokens", "top_k", "min_p", "cache_salt", "chat_template_kwargs"} & openai.keys()
    assert "reasoning_content" not in openai["messages"][2]
    llama = body(FULL, LLAMA_SERVER, cache_salt="salt")
    assert (llama["repeat_penalty"], llama["repeat_last_n"]) == (1.1, 64)
    assert "cache_salt" not in llama
    assert llama["timings_per_token"] is True
    effort = replace(PLAIN, prompt=ChatPrompt((Message("user", "Hi"),), template_kwargs='{"reasoning_effort":"low"}'))
    assert body(effort, OPENAI)["reasoning_effort"] == "low"
    assert dialect_of("vLLM") is VLLM
    assert dialect_of("somebody") is UNKNOWN


@pytest.mark.parametrize(
    ("choice", "said", "names"),
    [
        (ToolChoice(), "auto", ["weather", "clock"]),
        (ToolChoice("none"), "none", ["weather", "clock"]),
        (ToolChoice("required"), "required", ["weather", "clock"]),
        (ToolChoice("auto", ("clock",)), "auto", ["clock"]),
        (ToolChoice("required", ("clock", "weather")), "required", ["weather", "clock"]),
    ],
)
def test_tool_choices(choice: ToolChoice, said: str, names: list[str]) -> None:
    request = replace(PLAIN, prompt=ChatPrompt((Message("user", "Hi"),), (WEATHER, CLOCK), choice))
    sent = body(request)
    assert sent["tool_choice"] == said
    assert [tool["function"]["name"] for tool in sent["tools"]] == names


def test_text_and_tokens() -> None:
    text = replace(PLAIN, prompt=TextPrompt("Once"), logprobs=0, max_tokens=5)
    assert body(text, OPENAI)["max_tokens"] == 5
    assert (body(text)["path"], body(text)["prompt"], body(text)["logprobs"]) == ("/completions", "Once", 0)
    so_far = AnswerSoFar(" upon", num_tokens=2)
    assert body(text, so_far=so_far)["prompt"] == "Once upon"
    assert body(text, so_far=so_far)["max_tokens"] == 3
    tokens = replace(PLAIN, prompt=TokenPrompt((1, 2)))
    assert body(tokens)["prompt"] == [1, 2]
    for dialect, rest in ((OPENAI, None), (UNKNOWN, None), (VLLM, so_far)):
        with pytest.raises(NotSupported, match="token ids"):
            body(tokens, dialect, rest)


def test_an_answer_goes_on() -> None:
    so_far = AnswerSoFar("The sum is", "Adding.", num_tokens=3)
    sent = body(replace(PLAIN, max_tokens=10), so_far=so_far)
    assert sent["messages"][-1]["content"] == "The sum is"
    assert sent["messages"][-1]["reasoning_content"] == "Adding."
    assert (sent["continue_final_message"], sent["add_generation_prompt"], sent["max_tokens"]) == (True, False, 7)
    llama = body(PLAIN, LLAMA_SERVER, so_far)
    assert llama["messages"][-1]["role"] == "assistant" and llama["continue_final_message"] is True
    asked = body(PLAIN, OPENAI, so_far, in_words=True)
    assert [message["role"] for message in asked["messages"]] == ["user", "assistant", "user"]
    assert "Continue it" in asked["messages"][-1]["content"]
    assert body(PLAIN, so_far=AnswerSoFar()) == body(PLAIN)


@pytest.mark.parametrize(
    ("request_", "so_far"),
    [
        (PLAIN, AnswerSoFar(reasoning="Half a thou")),
        (replace(PLAIN, format=JsonObjectFormat()), AnswerSoFar('{"a":')),
        (replace(PLAIN, prompt=ChatPrompt(TALK, (CLOCK,), ToolChoice("required"))), AnswerSoFar("Let me")),
    ],
)
def test_an_answer_that_cannot_go_on(request_: GenerateRequest, so_far: AnswerSoFar) -> None:
    with pytest.raises(NotSupported):
        body(request_, so_far=so_far)


def test_who_cannot_continue_says_so() -> None:
    with pytest.raises(NotSupported, match="exactly"):
        body(PLAIN, OPENAI, AnswerSoFar("The"))


@pytest.mark.parametrize(
    "request_",
    [
        replace(PLAIN, echo=True),
        replace(PLAIN, prefill_only=True),
        replace(PLAIN, sampling=SamplingParams(logit_bias=((5, 1.0),))),
        replace(PLAIN, prompt=TextPrompt("a", suffix="b")),
    ],
)
def test_what_no_remote_can_be_asked_for(request_: GenerateRequest) -> None:
    with pytest.raises(NotSupported):
        write_body(request_, Target("tiny", VLLM))


def test_a_conversation_that_may_lose_turns_is_sent_as_it_is() -> None:
    """Whether it fits the remote is the estimate's question. Ollama's routes allow it for each request."""
    whole, may_lose = (replace(PLAIN, prompt=ChatPrompt(TALK, truncate=each)) for each in (False, True))
    assert write_body(may_lose, Target("tiny", VLLM)) == write_body(whole, Target("tiny", VLLM))


def test_images_and_sounds_are_parts_of_their_message() -> None:
    places = (MediaPlace(0, 0), MediaPlace(5, 1))
    message = Message("user", "What is this?", media=places)
    prompt = ChatPrompt((message,), media=(media(RED), media(SILENCE, "audio")))
    (sent,) = body(replace(PLAIN, prompt=prompt))["messages"]
    assert sent == {
        "role": "user",
        "content": [
            {"type": "image_url", "image_url": {"url": data_url(RED)}},
            {"type": "text", "text": "What "},
            {"type": "input_audio", "input_audio": {"data": b64(SILENCE), "format": "wav"}},
            {"type": "text", "text": "is this?"},
        ],
    }


def test_what_a_tool_shows_follows_its_results_as_the_users() -> None:
    """OpenAI's API takes no images in the message of a tool."""
    look = ToolCall("a", "look", "{}"), ToolCall("b", "look", "{}")
    messages = (
        Message("user", "Look."),
        Message("assistant", "", tool_calls=look),
        Message("tool", "", tool_call_id="a", name="look", media=(MediaPlace(0, 0),)),
        Message("tool", "Dark.", tool_call_id="b"),
    )
    prompt = ChatPrompt(messages, media=(media(RED),))
    for after in ((), (Message("assistant", "Red."),)):
        sent = body(replace(PLAIN, prompt=replace(prompt, messages=messages + after)))["messages"]
        assert [each["role"] for each in sent[:5]] == ["user", "assistant", "tool", "tool", "user"]
        assert sent[2]["content"] == "What it shows is in the next message of the user."
        assert sent[4]["content"] == [
            {"type": "text", "text": "The tool look shows:"},
            {"type": "image_url", "image_url": {"url": data_url(RED)}},
        ]
        assert len(sent) == 5 + len(after)
