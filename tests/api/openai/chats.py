"""What the tests of chat completions send, and how they read streams."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import httpx
from openai.types.chat import ChatCompletionChunk

from edgeagent.types import (
    FinishReason,
    GenerateRequest,
    Started,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
)
from tests.backends.fake import Act, finished
from tests.daemon.running import Running

HI: list[Any] = [{"role": "user", "content": "hello big world"}]
WEATHER: Any = {
    "type": "function",
    "function": {"name": "weather", "description": "now", "parameters": {"type": "object", "properties": {}}},
}


async def post(daemon: Running, fields: Any) -> httpx.Response:
    return await daemon.http.post(f"{daemon.url}/v1/chat/completions", json=fields)


async def chunks_of(daemon: Running, **fields: Any) -> list[dict[str, Any]]:
    """Return a stream's documents after checking its framing, and each chunk against the openai package."""
    reply = await post(daemon, {"messages": HI, "stream": True, **fields})
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    *events, last, rest = reply.text.split("\n\n")
    assert (last, rest) == ("data: [DONE]", "")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk, strict=True)
    assert {chunk["id"] for chunk in chunks} == {chunks[0]["id"]}
    return chunks


def calling(_request: GenerateRequest) -> Iterable[Act]:
    yield Started(8, 4)
    yield TextDelta("Let me see.")
    for index, name in enumerate(("weather", "clock")):
        yield (ToolCallStarted(index, f"call_{index}", name), ToolCallDelta(index, '{"a":'))
        yield ToolCallDelta(index, "1}")
    yield finished(FinishReason.TOOL_CALLS)
