"""LiveKit agents: its Responses plugin over the WebSocket and over HTTP, and its chat plugin; whole agents with them.

An agent hears no sound here: its speech recognition is a script. LiveKit's preemptive generation, which is on by
default, asks for an answer to each transcript that may be final, and cancels the one before.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from cases import ASK_TIMER, BASE_URL, KEY, MODEL, URL, case, main
from livekit import rtc
from livekit.agents import Agent, AgentSession, llm, stt, utils
from livekit.agents.types import APIConnectOptions
from livekit.agents.voice.io import AudioInput
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


SILENCE = rtc.AudioFrame(bytes(2 * 320), sample_rate=16000, num_channels=1, samples_per_channel=320)
Heard = list[tuple[stt.SpeechEventType, str]]


class Microphone(AudioInput):
    """Silence, in frames of 20 ms."""

    def __init__(self) -> None:
        super().__init__(label="silence")

    async def __anext__(self) -> rtc.AudioFrame:
        await asyncio.sleep(0.02)
        return SILENCE


class Ears(stt.STT):
    """Speech recognition that reports a script, one event every 0.15 s."""

    def __init__(self, script: Heard) -> None:
        super().__init__(capabilities=stt.STTCapabilities(streaming=True, interim_results=True))
        self.script = script

    async def _recognize_impl(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError

    def stream(self, *, language: Any = None, conn_options: APIConnectOptions = ONCE) -> stt.RecognizeStream:
        del language
        return Hearing(stt=self, conn_options=conn_options)


class Hearing(stt.RecognizeStream):
    """The events of a script. It then waits for the end of the session."""

    async def _run(self) -> None:
        assert isinstance(self._stt, Ears)
        for kind, text in self._stt.script:
            await asyncio.sleep(0.15)
            said = [stt.SpeechData(language="en", text=text, confidence=0.9)] if text else []
            self._event_ch.send_nowait(stt.SpeechEvent(kind, alternatives=said))
        async for _ in self._input_ch:
            pass


def heard(*ahead: str, final: str) -> Heard:
    """Return a script in which transcripts come ahead of the final one."""
    kinds = stt.SpeechEventType
    return [
        (kinds.START_OF_SPEECH, ""),
        *((kinds.PREFLIGHT_TRANSCRIPT, text) for text in ahead),
        (kinds.FINAL_TRANSCRIPT, final),
        (kinds.END_OF_SPEECH, ""),
    ]


async def converse(model: Any, script: Heard) -> tuple[list[str], list[str]]:
    """Let an agent hear a script. Return what it asked for, and what the conversation has after the first answer."""
    asked_for: list[str] = []

    class Listener(Agent):
        async def llm_node(self, chat_ctx: llm.ChatContext, *rest: Any) -> Any:
            asked_for.append(chat_ctx.messages()[-1].text_content or "")
            async for chunk in Agent.default.llm_node(self, chat_ctx, *rest):
                yield chunk

    answered = asyncio.Event()
    session = AgentSession(llm=model, stt=Ears(script), turn_handling={"turn_detection": "stt"})
    session.input.audio = Microphone()
    session.on("conversation_item_added", lambda event: answered.set() if event.item.role == "assistant" else None)
    await session.start(Listener(instructions="You are the voice of a house."))
    try:
        await asyncio.wait_for(answered.wait(), 60)
        return asked_for, [message.text_content or "" for message in session.history.messages()]
    finally:
        await session.aclose()


def add(kind: str) -> None:
    """Add the cases of a model."""

    @case(f"{kind}, preemptive generation of an agent")
    async def _() -> None:
        script = heard("set a timer", "set a timer for seven", ASK_TIMER, final=ASK_TIMER)
        async with utils.http_context.open():
            asked_for, said = await converse(make(kind), script)
        assert asked_for[-1] == ASK_TIMER and len(asked_for) >= 3, asked_for
        assert len(said) == 2 and said[0] == ASK_TIMER and said[1], said

    @case(f"{kind}, preemptive generation for other words than the final ones")
    async def _() -> None:
        async with utils.http_context.open():
            asked_for, said = await converse(make(kind), heard("set a timer for seven", final="Hello!"))
        assert asked_for == ["set a timer for seven", "Hello!"], asked_for
        assert len(said) == 2 and said[0] == "Hello!" and said[1], said

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
