"""LiveKit agents: its Responses plugin over the WebSocket and over HTTP, and its chat plugin."""

from __future__ import annotations

import json
from typing import Any

from cases import ASK_TIMER, BASE_URL, KEY, MODEL, URL, case, main
from livekit.agents import llm, utils
from livekit.agents.types import APIConnectOptions
from livekit.plugins import openai

ONCE = APIConnectOptions(max_retry=0, timeout=30.0)


def make(kind: str) -> Any:
    """Return a model by its kind."""
    if kind == "websocket":
        base_url = f"{URL.replace('http', 'ws', 1)}/v1/responses"
        return openai.responses.LLM(model=MODEL, api_key=KEY, base_url=base_url)
    if kind == "http":
        return openai.responses.LLM(model=MODEL, api_key=KEY, base_url=BASE_URL, use_websocket=False)
    return openai.LLM(model=MODEL, api_key=KEY, base_url=BASE_URL)


def asked(*texts: str) -> llm.ChatContext:
    """Return a conversation with alternating texts of the user and the assistant."""
    context = llm.ChatContext.empty()
    for index, text in enumerate(texts):
        context.add_message(role="assistant" if index % 2 else "user", content=text)
    return context


async def answer(model: Any, context: llm.ChatContext, **options: Any) -> tuple[str, list[Any], Any]:
    """Return the text, the calls and the usage of an answer."""
    text, calls, usage = "", [], None
    async with model.chat(chat_ctx=context, conn_options=ONCE, **options) as stream:
        async for chunk in stream:
            if chunk.delta is not None:
                text += chunk.delta.content or ""
                calls += chunk.delta.tool_calls
            usage = chunk.usage or usage
    return text, calls, usage


@llm.function_tool
async def set_timer(minutes: int) -> str:
    """Set a timer.

    Args:
        minutes: how long
    """
    return f"{minutes} minutes"


def add(kind: str) -> None:
    """Add the cases of a model."""

    @case(f"{kind}, streamed")
    async def _() -> None:
        async with utils.http_context.open():
            text, _, usage = await answer(make(kind), asked("Hello!"))
        assert text and usage is not None and usage.completion_tokens > 0

    @case(f"{kind}, two turns")
    async def _() -> None:
        async with utils.http_context.open():
            model = make(kind)
            first, _, _ = await answer(model, asked("Hello!"))
            second, _, _ = await answer(model, asked("Hello!", first, "What can you do?"))
        assert first and second

    @case(f"{kind}, tool call")
    async def _() -> None:
        async with utils.http_context.open():
            _, calls, _ = await answer(make(kind), asked(ASK_TIMER), tools=[set_timer], tool_choice="required")
        (call,) = calls
        assert call.name == "set_timer" and isinstance(json.loads(call.arguments)["minutes"], int)


for each in ("websocket", "http", "chat"):
    add(each)

main()
