"""examples/livekit_voice.py, whole: a recorded microphone, a loudspeaker in memory, and an interruption."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cases import case, main
from livekit import rtc
from livekit.agents import Agent, llm, utils
from livekit.agents.voice.io import AudioInput, AudioOutput, AudioOutputCapabilities

sys.path.insert(0, str(Path(__file__).parents[2]))

from examples.livekit_voice import INSTRUCTIONS, session
from examples.voice.audio import FRAME_BYTES, FRAME_S, RATE, resampled
from examples.voice.speech import Voice

LIMIT_S = 100.0


class Microphone(AudioInput):
    """Hears what `say` gives it, and else silence, in real time."""

    def __init__(self) -> None:
        super().__init__(label="recording")
        self._said = bytearray()

    def say(self, sound: bytes) -> None:
        self._said += sound

    async def __anext__(self) -> rtc.AudioFrame:
        await asyncio.sleep(FRAME_S)
        frame = bytes(self._said[:FRAME_BYTES])
        del self._said[:FRAME_BYTES]
        return rtc.AudioFrame(frame.ljust(FRAME_BYTES, b"\0"), RATE, 1, FRAME_BYTES // 2)


class Loudspeaker(AudioOutput):
    """Takes sound, and says in real time when it was played."""

    def __init__(self) -> None:
        super().__init__(label="memory", capabilities=AudioOutputCapabilities(pause=False))
        self.waiting_s = 0.0
        self.num_interrupted = 0
        self._playing: asyncio.Task[None] | None = None

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        await super().capture_frame(frame)
        self.waiting_s += frame.duration

    def flush(self) -> None:
        super().flush()
        if self.waiting_s:
            self._playing = asyncio.create_task(self._play(self.waiting_s))

    async def _play(self, duration_s: float) -> None:
        await asyncio.sleep(duration_s)
        self._end(is_interrupted=False)

    def clear_buffer(self) -> None:
        if self.waiting_s:
            self.num_interrupted += 1
            self._end(is_interrupted=True)

    def _end(self, *, is_interrupted: bool) -> None:
        if self._playing is not None:
            self._playing.cancel()
        played_s, self.waiting_s = self.waiting_s, 0.0
        self.on_playback_finished(playback_position=played_s, interrupted=is_interrupted)


async def until(is_reached: Callable[[], Any]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not is_reached():  # noqa: ASYNC110 both sides of it are in other people's tasks
            await asyncio.sleep(0.02)


class Listener(Agent):
    """Notes what is asked before it is final."""

    def __init__(self, finals: list[str]) -> None:
        super().__init__(instructions=INSTRUCTIONS)
        self.finals = finals
        self.asked_ahead: list[str] = []

    async def llm_node(self, chat_ctx: llm.ChatContext, *rest: Any) -> Any:
        text = chat_ctx.messages()[-1].text_content or ""
        if text not in self.finals:
            self.asked_ahead.append(text)
        async for chunk in Agent.default.llm_node(self, chat_ctx, *rest):
            yield chunk


@case("an agent answers ahead, and is interrupted")
async def _() -> None:
    voice, microphone, loudspeaker = Voice(), Microphone(), Loudspeaker()
    finals: list[str] = []
    listener = Listener(finals)
    async with utils.http_context.open():
        talk = session()
        talk.input.audio, talk.output.audio = microphone, loudspeaker
        talk.on("user_input_transcribed", lambda event: finals.append(event.transcript) if event.is_final else None)
        await talk.start(listener)
        try:
            microphone.say(bytes(RATE) + resampled(voice.speak("what can you do"), voice.rate))
            await until(lambda: loudspeaker.waiting_s > 1)
            microphone.say(resampled(voice.speak("tell me a joke"), voice.rate))
            await until(lambda: loudspeaker.num_interrupted)

            def said() -> str:
                return " ".join(message.text_content or "" for message in talk.history.messages())

            await until(lambda: "clock" in said())
            assert listener.asked_ahead == ["what can you do", "tell me a joke"], listener.asked_ahead
            assert finals == listener.asked_ahead, finals
        finally:
            await talk.aclose()


main()
