"""A Pipecat agent that answers with edgeagent, hears with pocketsphinx and speaks with espeak-ng.

`pip install "pipecat-ai[local,openai]" pocketsphinx espeakng-loader`, then `python -m examples.pipecat_voice`. The
recogniser says when a turn may have ended; Pipecat has it answered ahead, and keeps the answer if no word changes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path

from pipecat.frames.frames import (
    Frame,
    InterimTranscriptionFrame,
    ProposedUserStartedSpeakingFrame,
    ProposedUserStoppedSpeakingFrame,
    STTMetadataFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.frame_processor import FrameProcessor
from pipecat.services.openai.responses.llm import OpenAIResponsesLLMService
from pipecat.services.settings import STTSettings, TTSSettings
from pipecat.services.stt_service import STTService
from pipecat.services.tts_service import TTSService
from pipecat.turns.eager_end_of_turn_mixin import EagerEndOfTurnSTTServiceMixin
from pipecat.utils.time import time_now_iso8601
from pipecat.workers.runner import WorkerRunner

from examples.voice.audio import FRAME_BYTES, RATE
from examples.voice.speech import Recogniser, Voice

URL = os.environ.get("EDGEAGENT_URL", "http://127.0.0.1:8127")
INSTRUCTIONS = "You are the voice of a house. Answer in one or two short sentences."
HOME = Path(__file__).parent / "voice" / "home.txt"


class Ears(EagerEndOfTurnSTTServiceMixin, STTService):
    """The recogniser of examples/voice, which also detects turns."""

    def __init__(self) -> None:
        settings = STTSettings(model=None, language=None)
        super().__init__(enable_eager_end_of_turn=True, sample_rate=RATE, settings=settings)
        self._recogniser = Recogniser(HOME.read_text())
        self._sound = b""
        self._words = ""

    @property
    def supports_ttfs(self) -> bool:
        return False  # turns are detected here

    def service_metadata_frame(self) -> STTMetadataFrame:
        """Return what the pipeline is told: the turns are ours, and an answer ahead is wanted."""
        frame = super().service_metadata_frame()
        frame.user_turn_strategies = self.recommended_user_turn_strategies(enable_interruptions=True)
        return frame

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
        """Push what the sound tells."""
        self._sound += audio
        while len(self._sound) >= FRAME_BYTES:
            frame, self._sound = self._sound[:FRAME_BYTES], self._sound[FRAME_BYTES:]
            for kind, words in self._recogniser.hear(frame):
                await self._follow(kind, words)
        yield None

    async def _follow(self, kind: str, words: str) -> None:
        said = f"{self._words} {words}".strip()
        if kind == "began":
            await self._cancel_eager_end_of_turn()
            await self.broadcast_frame(ProposedUserStartedSpeakingFrame)
        elif kind == "partial":
            await self.push_frame(InterimTranscriptionFrame(said, "", time_now_iso8601()))
        elif kind == "final":
            self._words = said
            if said:
                await self._push_eager_end_of_turn(said, user_id="")
        else:
            self._words = ""
            self._clear_eager_end_of_turn()
            if said:
                await self.push_frame(TranscriptionFrame(said, "", time_now_iso8601(), finalized=True))
            await self.broadcast_frame(ProposedUserStoppedSpeakingFrame)


class Mouth(TTSService):
    """The voice of examples/voice."""

    def __init__(self) -> None:
        self._voice = Voice()
        settings = TTSSettings(model=None, voice=None, language=None)
        super().__init__(push_start_frame=True, push_stop_frames=True, sample_rate=self._voice.rate, settings=settings)

    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        """Yield the sound of a sentence."""
        yield TTSAudioRawFrame(self._voice.speak(text), self._voice.rate, 1, context_id=context_id)


def agent(microphone: FrameProcessor, loudspeaker: FrameProcessor) -> PipelineWorker:
    """Return the agent between a microphone and a loudspeaker: the two ends of any of Pipecat's transports."""
    llm = OpenAIResponsesLLMService(
        ws_url=f"{URL.replace('http', 'ws', 1)}/v1/responses",
        base_url=f"{URL}/v1",
        api_key="unused",
        settings=OpenAIResponsesLLMService.Settings(model="builtin", system_instruction=INSTRUCTIONS),
    )
    mouth = Mouth()
    context = LLMContextAggregatorPair(LLMContext())
    pipeline = Pipeline([microphone, Ears(), context.user(), llm, mouth, loudspeaker, context.assistant()])
    return PipelineWorker(pipeline, params=PipelineParams(audio_in_sample_rate=RATE))


async def main() -> None:
    """Converse through this machine's microphone and loudspeaker until Ctrl-C."""
    from pipecat.transports.local.audio import LocalAudioTransport, LocalAudioTransportParams

    params = LocalAudioTransportParams(audio_in_enabled=True, audio_out_enabled=True)
    transport = LocalAudioTransport(params)
    runner = WorkerRunner()
    await runner.add_workers(agent(transport.input(), transport.output()))
    await runner.run()


if __name__ == "__main__":
    asyncio.run(main())
