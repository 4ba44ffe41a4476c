"""Requests that forbid calls to the bundled model: the prompt stays the same, and no markup appears as text."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.integration.conftest import Daemon
from tests.patience import patient

PARAMETERS = {"type": "object", "properties": {"minutes": {"type": "integer"}}, "required": ["minutes"]}
SET_TIMER = {"name": "set_timer", "description": "Set a timer.", "parameters": PARAMETERS}
ASK = {"role": "user", "content": "Set a timer for 5 minutes."}
SYSTEM = {"role": "system", "content": "You are a helpful voice assistant in a kitchen."}
MARKS = ("<tool", "tool_call", "set_timer", "{")


def post(daemon: Daemon, path: str, body: dict[str, Any]) -> dict[str, Any]:
    reply = httpx.post(f"{daemon.url}{path}", json={"model": "builtin", **body}, timeout=patient(60))
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def is_plain(text: str) -> bool:
    return bool(text.strip()) and not any(mark in text for mark in MARKS)


@pytest.mark.parametrize("temperature", [0, 1])
def test_chat_completions(daemon: Daemon, temperature: float) -> None:
    tools = [{"type": "function", "function": SET_TIMER}]
    body = {"messages": [SYSTEM, ASK], "tools": tools, "temperature": temperature, "seed": 7}
    called = post(daemon, "/v1/chat/completions", body)
    assert called["choices"][0]["finish_reason"] == "tool_calls"
    answered = post(daemon, "/v1/chat/completions", {**body, "tool_choice": "none"})
    (choice,) = answered["choices"]
    assert choice["finish_reason"] == "stop"
    assert "tool_calls" not in choice["message"]
    assert is_plain(choice["message"]["content"])
    usage, before = answered["usage"], called["usage"]
    assert usage["prompt_tokens"] == before["prompt_tokens"]
    # An answer computes the last tokens of a cached prompt again.
    assert usage["prompt_tokens_details"]["cached_tokens"] >= usage["prompt_tokens"] - 4


def test_responses(daemon: Daemon) -> None:
    body = {"instructions": SYSTEM["content"], "input": ASK["content"], "temperature": 0, "store": False}
    tools = [{"type": "function", **SET_TIMER}]
    called = post(daemon, "/v1/responses", {**body, "tools": tools})
    assert [item["type"] for item in called["output"]] == ["function_call"]
    answered = post(daemon, "/v1/responses", {**body, "tools": tools, "tool_choice": "none"})
    (message,) = answered["output"]
    assert is_plain(message["content"][0]["text"])
    usage = answered["usage"]
    assert usage["input_tokens"] == called["usage"]["input_tokens"]
    assert usage["input_tokens_details"]["cached_tokens"] >= usage["input_tokens"] - 4
    # The call's result continues in a conversation without tools.
    call = called["output"][0]
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "ok"}
    history = [{"type": "message", **ASK}, call, result, {"type": "message", **ASK}]
    (message,) = post(daemon, "/v1/responses", {**body, "input": history})["output"]
    assert message["type"] == "message"
    assert is_plain(message["content"][0]["text"])


@pytest.mark.parametrize("seed", range(4))
def test_a_history_with_calls_and_no_tools(daemon: Daemon, seed: int) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "set_timer", "arguments": '{"minutes": 5}'}}
    messages = [
        ASK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "ok"},
        {"role": "user", "content": "Set a timer for 7 minutes."},
    ]
    body = {"messages": messages, "temperature": 1.5 if seed else 0, "seed": seed, "max_tokens": 100}
    assert is_plain(post(daemon, "/v1/chat/completions", body)["choices"][0]["message"]["content"])
    messages[1] = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "set_timer", "arguments": {"minutes": 5}}}],
    }
    options = {"temperature": 1.5 if seed else 0, "seed": seed, "num_predict": 100}
    answer = post(daemon, "/api/chat", {"messages": messages, "stream": False, "options": options})
    assert is_plain(answer["message"]["content"])
