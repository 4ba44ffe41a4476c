"""A voice assistant. With recordings in place of a microphone, it ends when the last one is answered.

The first recording is heard at once. Each other one interrupts the answer to the one before it.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

from edgeagent.client import connect
from edgeagent.errors import EdgeAgentError
from examples.voice.assistant import Assistant
from examples.voice.audio import RATE, Loudspeaker, Recordings, devices, read, resampled
from examples.voice.speech import Recogniser, Voice

SENTENCES = Path(__file__).with_name("home.txt")
INSTRUCTIONS = "You are the voice of a house. Answer in one or two short sentences."
BEFORE_INTERRUPTION = bytes(2 * RATE)  # a second of silence


class Stages:
    """Prints when each stage of a turn is reached: the time since the end of speech, or since the barge-in."""

    def __init__(self) -> None:
        self._since_s = 0.0
        self._seen: set[str] = set()

    def note(self, stage: str) -> None:
        """Print a stage, once for each turn."""
        if stage in ("end of speech", "barge-in"):
            self._since_s, self._seen = time.perf_counter(), set()
        elif stage not in self._seen:
            self._seen.add(stage)
            print(f"    {stage} after {(time.perf_counter() - self._since_s) * 1000:.0f} ms")


async def main() -> None:
    """Converse until Ctrl-C, or until the last recording is answered."""
    parser = argparse.ArgumentParser(prog="python -m examples.voice", description=__doc__)
    parser.add_argument("--microphone", type=Path, action="append", default=[], help="a WAV file; may be repeated")
    parser.add_argument("--say", action="append", default=[], help="a text that espeak-ng says; may be repeated")
    parser.add_argument("--loudspeaker", type=Path, help="a WAV file that is written")
    args = parser.parse_args()
    if args.loudspeaker and not args.loudspeaker.parent.is_dir():
        parser.error(f"there is no folder for {args.loudspeaker}")
    voice, stages = Voice(), Stages()
    clips = [*map(read, args.microphone), *(resampled(voice.speak(text), voice.rate) for text in args.say)]

    def note(stage: str) -> None:
        stages.note(stage)
        if stage == "first sound" and clips:
            recordings.say(BEFORE_INTERRUPTION + clips.pop(0))

    loudspeaker = Loudspeaker(voice.rate, note)
    recordings = Recordings(loudspeaker)
    frames: AsyncIterator[bytes] = devices(loudspeaker)
    async with connect(start=True) as client:
        conversation = client.conversation(instructions=INSTRUCTIONS, service_tier="priority")
        assistant = Assistant(conversation, voice, loudspeaker, note)
        if clips:
            recordings.say(clips.pop(0))
            frames = recordings.frames(assistant.is_idle)
        await assistant.listen(frames, Recogniser(SENTENCES.read_text()))
    if args.loudspeaker:
        recordings.save(args.loudspeaker)


if __name__ == "__main__":
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        pass
    except EdgeAgentError as error:
        raise SystemExit(f"edgeagent: {error}") from None
