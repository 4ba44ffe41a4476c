"""A LiveKit agent that answers with edgeagent, hears with pocketsphinx and speaks with espeak-ng.

`pip install livekit-agents livekit-plugins-openai pocketsphinx espeakng-loader`, then `python -m examples.livekit_voice
console` for this machine's microphone and loudspeaker. LiveKit asks ahead for an answer to each transcript that may be
the last one, and keeps it if no word changes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from livekit.agents import Agent, AgentServer, AgentSession, JobContext, cli, stt, tts, utils
from livekit.agents.types import DEFAULT_API_CONNECT_OPTIONS, APIConnectOptions
from livekit.plugins import openai

from examples.voice.audio import FRAME_BYTES, RATE
from examples.voice.speech import Recogniser, Voice

URL = os.environ.get("EDGEAGENT_URL", "http://127.0.0.1:8127")
INSTRUCTIONS = "You are the voice of a house. Answer in one or two short sentences."
HOME = Path(__file__).parent / "voice" / "home.txt"


class Ears(stt.STT):
    """The recogniser of examples/voice, which also detects turns."""

    def __init__(self) -> None:
        super().__init__(capabilities=stt.STTCapabilities(streaming=True, interim_results=True))
        self.recogniser = Recogniser(HOME.read_text())

    async def _recognize_impl(self, *args: Any, **options: Any) -> stt.SpeechEvent:
        raise NotImplementedError

    def stream(
        self, *, language: Any = None, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS
    ) -> stt.RecognizeStream:
        """Return a stream of what is heard."""
        del language
        return Hearing(stt=self, conn_options=conn_options, sample_rate=RATE)


class Hearing(stt.RecognizeStream):
    """What is heard, as LiveKit's events. The words before a pause are a transcript that may be the last one."""

    async def _run(self) -> None:
        assert isinstance(self._stt, Ears)
        recogniser, sound, said = self._stt.recogniser, b"", ""
        kinds = stt.SpeechEventType
        async for pushed in self._input_ch:
            sound += b"" if isinstance(pushed, self._FlushSentinel) else bytes(pushed.data)
            while len(sound) >= FRAME_BYTES:
                frame, sound = sound[:FRAME_BYTES], sound[FRAME_BYTES:]
                for kind, words in recogniser.hear(frame):
                    text = f"{said} {words}".strip()
                    if kind == "began" and not said:
                        self._tell(kinds.START_OF_SPEECH)
                    elif kind == "partial":
                        self._tell(kinds.INTERIM_TRANSCRIPT, text)
                    elif kind == "final":
                        said = text
                        self._tell(kinds.PREFLIGHT_TRANSCRIPT, said)
                    elif kind == "end":
                        said = ""
                        self._tell(kinds.FINAL_TRANSCRIPT, text)
                        self._tell(kinds.END_OF_SPEECH)

    def _tell(self, kind: stt.SpeechEventType, text: str = "") -> None:
        if text or kind in (stt.SpeechEventType.START_OF_SPEECH, stt.SpeechEventType.END_OF_SPEECH):
            said = [stt.SpeechData(language="en", text=text)] if text else []
            self._event_ch.send_nowait(stt.SpeechEvent(kind, alternatives=said))


class Mouth(tts.TTS):
    """The voice of examples/voice."""

    def __init__(self) -> None:
        self.voice = Voice()
        capabilities = tts.TTSCapabilities(streaming=False)
        super().__init__(capabilities=capabilities, sample_rate=self.voice.rate, num_channels=1)

    def synthesize(
        self, text: str, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS
    ) -> tts.ChunkedStream:
        """Return the sound of a sentence."""
        return Speaking(tts=self, input_text=text, conn_options=conn_options)


class Speaking(tts.ChunkedStream):
    """The sound of one sentence."""

    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        assert isinstance(self._tts, Mouth)
        voice = self._tts.voice
        output_emitter.initialize(
            request_id=utils.shortuuid(), sample_rate=voice.rate, num_channels=1, mime_type="audio/pcm"
        )
        output_emitter.push(voice.speak(self.input_text))


def session() -> AgentSession[None]:
    """Return a session: the recogniser tells when a turn ends, and LiveKit's preemptive generation is on."""
    base_url = f"{URL.replace('http', 'ws', 1)}/v1/responses"
    model = openai.responses.LLM(model="builtin", api_key="unused", base_url=base_url)
    return AgentSession(
        llm=model,
        stt=Ears(),
        tts=Mouth(),
        turn_handling={"turn_detection": "stt", "preemptive_generation": {"enabled": True}},
    )


server = AgentServer()


@server.rtc_session()
async def converse(job: JobContext) -> None:
    """Converse in a room, or at the console."""
    await session().start(Agent(instructions=INSTRUCTIONS), room=job.room)


if __name__ == "__main__":
    cli.run_app(server)
