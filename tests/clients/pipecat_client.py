"""Pipecat: a pipeline with its Responses service over the WebSocket, its HTTP variant, and its chat service."""

from __future__ import annotations

import asyncio
from typing import Any

from cases import ASK_TIMER, BASE_URL, KEY, MODEL, URL, case, main
from pipecat.adapters.schemas.function_schema import FunctionSchema
from pipecat.adapters.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import (
    EagerEndOfTurnCancelFrame,
    FunctionCallResultFrame,
    FunctionCallsStartedFrame,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMTextFrame,
    UserStartedSpeakingFrame,
    UserStoppedSpeakingFrame,
)
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.services.llm_service import FunctionCallParams
from pipecat.services.openai.llm import OpenAILLMService
from pipecat.services.openai.responses.llm import OpenAIResponsesHttpLLMService, OpenAIResponsesLLMService
from pipecat.tests.utils import SleepFrame, run_test

SCHEMA = {"type": "object", "properties": {"minutes": {"type": "integer"}}, "required": ["minutes"]}
TOOLS = ToolsSchema(
    [
        FunctionSchema(
            name="set_timer",
            description="Set a timer.",
            properties={"minutes": {"type": "integer"}},
            required=["minutes"],
        )
    ]
)


def make(kind: str) -> Any:
    """Return a service by its kind."""
    if kind == "websocket":
        settings: Any = OpenAIResponsesLLMService.Settings(model=MODEL)
        ws_url = f"{URL.replace('http', 'ws', 1)}/v1/responses"
        return OpenAIResponsesLLMService(ws_url=ws_url, base_url=BASE_URL, api_key=KEY, settings=settings)
    if kind == "http":
        settings = OpenAIResponsesHttpLLMService.Settings(model=MODEL)
        return OpenAIResponsesHttpLLMService(base_url=BASE_URL, api_key=KEY, settings=settings)
    return OpenAILLMService(base_url=BASE_URL, api_key=KEY, settings=OpenAILLMService.Settings(model=MODEL))


async def run(service: Any, *frames: Any) -> list[Any]:
    """Return the frames that a pipeline with one service sends downstream."""
    down, _ = await run_test(service, frames_to_send=list(frames), expected_down_frames=None)
    return list(down)


def spoken(frames: list[Any]) -> str:
    return "".join(frame.text for frame in frames if isinstance(frame, LLMTextFrame))


def hello(text: str = "Hello!", tools: ToolsSchema | None = None) -> LLMContextFrame:
    messages = [{"role": "user", "content": text}]
    return LLMContextFrame(LLMContext(messages) if tools is None else LLMContext(messages, tools=tools))


def add(kind: str) -> None:
    """Add the cases of a service."""

    @case(f"{kind}, streamed")
    async def _() -> None:
        frames = await run(make(kind), hello(), SleepFrame(sleep=2.0))
        assert spoken(frames)
        assert any(isinstance(frame, LLMFullResponseEndFrame) for frame in frames)

    @case(f"{kind}, two turns")
    async def _() -> None:
        service = make(kind)
        context = LLMContext([{"role": "user", "content": "Hello!"}])
        first = await run_turns(service, context)
        assert all(first), first

    @case(f"{kind}, tool call")
    async def _() -> None:
        service = make(kind)
        called: asyncio.Queue[int] = asyncio.Queue()

        async def set_timer(params: FunctionCallParams) -> None:
            await called.put(params.arguments["minutes"])
            await params.result_callback("done")

        service.register_function("set_timer", set_timer)
        frames = await run(service, hello(ASK_TIMER, TOOLS), SleepFrame(sleep=3.0))
        assert any(isinstance(frame, FunctionCallsStartedFrame) for frame in frames), frames
        assert any(isinstance(frame, FunctionCallResultFrame) for frame in frames), frames
        assert called.get_nowait() == 7

    @case(f"{kind}, interrupted, and asked again")
    async def _() -> None:
        long = hello("Tell me about timers, lights and lists, please.")
        again = hello("Hello!")
        frames = await run(
            make(kind), long, SleepFrame(sleep=0.05), InterruptionFrame(), SleepFrame(sleep=0.2), again, SleepFrame(2.0)
        )
        assert spoken(frames[[isinstance(f, InterruptionFrame) for f in frames].index(True) :]), frames

    @case(f"{kind}, an answer ahead that is withdrawn, and one that is confirmed")
    async def _() -> None:
        # Pipecat asks when the turn may have ended, for example by Deepgram's eager end of turn, and holds the answer.
        eager = [LLMContextFrame(hello(text).context, speculation=True) for text in ("Tell me about", "Hello!")]
        frames = await run(
            make(kind),
            UserStartedSpeakingFrame(),
            eager[0],
            SleepFrame(sleep=0.1),
            EagerEndOfTurnCancelFrame(),
            eager[1],
            SleepFrame(sleep=2.0),
            UserStoppedSpeakingFrame(),
            SleepFrame(sleep=2.0),
        )
        end = [isinstance(frame, UserStoppedSpeakingFrame) for frame in frames].index(True)
        assert not spoken(frames[:end]) and spoken(frames[end:]), frames
        assert sum(isinstance(frame, LLMFullResponseEndFrame) for frame in frames) == 1, frames

    @case(f"{kind}, one-shot inference and its schema")
    async def _() -> None:
        service = make(kind)
        context = LLMContext([{"role": "user", "content": ASK_TIMER}])
        assert await service.run_inference(context, max_tokens=32)
        text = await service.run_inference(context, max_tokens=32, response_schema=SCHEMA)
        assert text is not None and '"minutes"' in text, text


async def run_turns(service: Any, context: LLMContext) -> list[str]:
    """Return the answers of two turns in one conversation; the second turn includes the first answer."""
    second = LLMContext(
        [
            *context.get_messages(),
            {"role": "assistant", "content": "Hello! What can I do?"},
            {"role": "user", "content": "What can you do?"},
        ]
    )
    frames = await run(
        service, LLMContextFrame(context), SleepFrame(sleep=2.0), LLMContextFrame(second), SleepFrame(sleep=2.0)
    )
    ends = [index for index, frame in enumerate(frames) if isinstance(frame, LLMFullResponseEndFrame)]
    assert len(ends) == 2, frames
    return [spoken(frames[: ends[0]]), spoken(frames[ends[0] :])]


for each in ("websocket", "http", "chat"):
    add(each)

main()
