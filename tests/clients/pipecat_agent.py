"""examples/pipecat_voice.py, whole: a recorded microphone, a loudspeaker in memory, and an interruption."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from cases import case, main

sys.path.insert(0, str(Path(__file__).parents[2]))

from pipecat.frames.frames import (
    EagerTranscriptionFrame,
    InputAudioRawFrame,
    InterruptionFrame,
    LLMContextFrame,
    LLMTextFrame,
    OutputAudioRawFrame,
    StartFrame,
)
from pipecat.observers.base_observer import BaseObserver, FramePushed
from pipecat.transports.base_input import BaseInputTransport
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import TransportParams
from pipecat.workers.runner import WorkerRunner

from examples.pipecat_voice import agent
from examples.voice.audio import FRAME_BYTES, FRAME_S, RATE, resampled
from examples.voice.speech import Voice

PARAMS = TransportParams(audio_in_enabled=True, audio_out_enabled=True)
LIMIT_S = 120.0


class Microphone(BaseInputTransport):
    """Hears what `say` gives it, and else silence, in real time."""

    def __init__(self) -> None:
        super().__init__(PARAMS)
        self._said = bytearray()
        self._hearing: asyncio.Task[None] | None = None

    def say(self, sound: bytes) -> None:
        self._said += sound

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        await self.set_transport_ready(frame)
        self._hearing = asyncio.create_task(self._hear())

    async def cleanup(self) -> None:
        if self._hearing is not None:
            self._hearing.cancel()
        await super().cleanup()

    async def _hear(self) -> None:
        while True:
            frame = bytes(self._said[:FRAME_BYTES])
            del self._said[:FRAME_BYTES]
            await self.push_audio_frame(InputAudioRawFrame(frame.ljust(FRAME_BYTES, b"\0"), RATE, 1))
            await asyncio.sleep(FRAME_S)


class Loudspeaker(BaseOutputTransport):
    """Takes sound in real time, and counts its parts."""

    def __init__(self) -> None:
        super().__init__(PARAMS)
        self.num_sounds = 0

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        await self.set_transport_ready(frame)

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        self.num_sounds += any(frame.audio)
        await asyncio.sleep(len(frame.audio) / 2 / frame.sample_rate)
        return True


class Watch(BaseObserver):
    """Notes what passes in the pipeline, each frame once."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[Any] = []

    async def on_push_frame(self, data: FramePushed) -> None:
        if not isinstance(data.frame, InputAudioRawFrame) and data.frame not in self.frames[-50:]:
            self.frames.append(data.frame)

    def of(self, kind: type) -> list[Any]:
        return [frame for frame in self.frames if isinstance(frame, kind)]


async def until(is_reached: Any) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not is_reached():  # noqa: ASYNC110 both sides of it are in other people's tasks
            await asyncio.sleep(0.02)


@case("an agent answers ahead, and is interrupted")
async def _() -> None:
    voice, microphone, loudspeaker, watch = Voice(), Microphone(), Loudspeaker(), Watch()
    worker = agent(microphone, loudspeaker)
    worker.add_observer(watch)
    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    running = asyncio.create_task(runner.run())
    microphone.say(bytes(RATE) + resampled(voice.speak("what can you do"), voice.rate))
    await until(lambda: loudspeaker.num_sounds > 10)
    num_before = loudspeaker.num_sounds
    microphone.say(resampled(voice.speak("tell me a joke"), voice.rate))
    await until(lambda: watch.of(InterruptionFrame)[1:])
    await until(lambda: "clock" in "".join(frame.text for frame in watch.of(LLMTextFrame)))
    await until(lambda: loudspeaker.num_sounds > num_before + 20)
    ahead = [frame.text for frame in watch.of(EagerTranscriptionFrame)]
    assert ahead == ["what can you do", "tell me a joke"], ahead
    assert watch.of(LLMContextFrame)[0].speculation
    await runner.cancel()
    await running


main()
