"""Home Assistant's Ollama integration: the calls of its client code, with its library.

Its releases since 2024.4, which have this integration, need a newer Python than the oldest that edgeagent supports. The
library has the version that the integration's manifest required when this was written, 0.6.2. The model lists, the
messages with a tool's result and the stream are read as its conversation entity reads them.
"""

from __future__ import annotations

import json
from typing import Any

import ollama
from cases import ASK_TIMER, MODEL, TIMER, URL, case, main

NEVER_UNLOAD = "-1s"
OPTIONS = {"num_ctx": 8192}
TOOL = {
    "type": "function",
    "function": {"name": "HassStartTimer", "description": "Starts a timer", "parameters": TIMER},
}


async def converse(client: Any, messages: list[Any], tools: list[Any] | None) -> list[Any]:
    """Run one turn as the entity does: at most ten requests, until an answer has no calls. Return the calls."""
    calls: list[Any] = []
    for _ in range(10):
        stream = await client.chat(
            model=MODEL, messages=list(messages), tools=tools, stream=True, keep_alive=NEVER_UNLOAD, options=OPTIONS
        )
        text, is_new, reason = "", True, None
        asked: list[Any] = []
        async for part in stream:
            message = part["message"]
            if is_new:
                assert message["role"] == "assistant"
                is_new = False
            text += message["content"] or ""
            asked += message.get("tool_calls") or []
            if part["done"]:
                reason = part["done_reason"]
        assert reason == "stop", reason
        messages.append(ollama.Message(role="assistant", content=text or None, tool_calls=asked or None))
        if not asked:
            assert text
            return calls
        calls += asked
        messages += [ollama.Message(role="tool", content=json.dumps({"success": True})) for _ in asked]
    raise AssertionError("it calls a tool again and again")


@case("the config flow finds the model")
async def _() -> None:
    listed = await ollama.AsyncClient(host=URL).list()
    assert any(model["model"].startswith(MODEL) for model in listed["models"]), listed


@case("a conversation of two turns")
async def _() -> None:
    client = ollama.AsyncClient(host=URL)
    messages = [ollama.Message(role="system", content="You are a voice assistant for Home Assistant.")]
    for asked in ("Hello!", "What can you do?"):
        messages.append(ollama.Message(role="user", content=asked))
        assert await converse(client, messages, None) == []


@case("a tool is called, and its result goes back")
async def _() -> None:
    messages = [ollama.Message(role="user", content=ASK_TIMER)]
    calls = await converse(ollama.AsyncClient(host=URL), messages, [TOOL])
    assert calls, messages
    assert calls[0]["function"]["name"] == "HassStartTimer", calls
    assert dict(calls[0]["function"]["arguments"]) == {"minutes": 7}, calls


main()
