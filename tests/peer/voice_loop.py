"""Measures the whole voice loop of `examples/voice`: `python -m tests.peer.voice_loop [MODEL]`.

A recorded microphone says one sentence after another, in real time. Each one interrupts the answer to the one before,
half a second after its first sound. The times are those of the loop: the end of speech and the barge-in are when the
recogniser tells them, and the first two rows say how long that takes. Sound is taken in parts of 30 ms, as a device
does, so a stage that ends with sound or silence includes up to 30 ms of waiting.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from statistics import median

from edgeagent.client import Address, connect
from edgeagent.runtime_file import find_daemon
from examples.voice.__main__ import INSTRUCTIONS, SENTENCES
from examples.voice.assistant import Assistant
from examples.voice.audio import RATE, Loudspeaker, Recordings, resampled
from examples.voice.speech import Recogniser, Voice
from tests.peer.servers import Child, edgeagent_command, free_port
from tests.present import present

SAID = ("what can you do", "tell me a joke", "who are you", "good morning")
BEFORE_INTERRUPTION = bytes(RATE)  # half a second
# The stage, since when, and the bar in milliseconds.
STAGES = (
    ("end of speech", "last word", None),
    ("barge-in", "first word", None),
    ("first token", "end of speech", 30),
    ("first sentence", "end of speech", 100),
    ("first sound", "end of speech", None),
    ("silence", "barge-in", 100),
)


class Times:
    """When each stage was last reached, and the samples of all stages in milliseconds."""

    def __init__(self) -> None:
        self._reached_s: dict[str, float] = {}
        self.samples: dict[str, list[float]] = {stage: [] for stage, _, _ in STAGES}

    def note(self, stage: str) -> None:
        """Take a stage that is reached. Only the first one since its beginning counts."""
        now_s = time.perf_counter()
        for known, since, _ in STAGES:
            began_s = self._reached_s.get(since)
            if stage == known and began_s is not None and began_s > self._reached_s.get(stage, 0.0):
                self.samples[stage].append((now_s - began_s) * 1000)
        self._reached_s[stage] = now_s


async def heard(frames: AsyncIterator[bytes], times: Times) -> AsyncIterator[bytes]:
    """Yield the frames, and note the first and the last one of each sentence."""
    was_sound = False
    async for frame in frames:
        is_sound = any(frame)
        if is_sound and not was_sound:
            times.note("first word")
        if is_sound:
            times.note("last word")
        was_sound = is_sound
        yield frame


async def measure(address: Address, num_turns: int) -> Times:
    """Hold a conversation of so many turns; return its times."""
    voice, times = Voice(), Times()
    clips = [resampled(voice.speak(SAID[number % len(SAID)]), voice.rate) for number in range(num_turns)]

    def note(stage: str) -> None:
        times.note(stage)
        if stage == "first sound" and clips:
            recordings.say(BEFORE_INTERRUPTION + clips.pop(0))

    loudspeaker = Loudspeaker(voice.rate, note)
    recordings = Recordings(loudspeaker)
    recordings.say(bytes(RATE) + clips.pop(0))
    async with connect(address.url, address.token) as client:
        conversation = client.conversation(instructions=INSTRUCTIONS, service_tier="priority")
        assistant = Assistant(conversation, voice, loudspeaker, note)
        frames = recordings.frames(lambda: not clips and assistant.is_idle())
        await assistant.listen(heard(frames, times), Recogniser(SENTENCES.read_text(encoding="utf-8")))
    return times


def show(times: Times) -> None:
    """Print the table."""
    print(f"{'':34} {'median ms':>9} {'worst':>7} {'turns':>6}  bar")
    for stage, since, bar_ms in STAGES:
        samples = times.samples[stage]
        row = f"{median(samples):9.1f} {max(samples):7.1f}" if samples else f"{'-':>9} {'-':>7}"
        is_met = "" if bar_ms is None else f"{bar_ms} ms: {'met' if samples and max(samples) <= bar_ms else 'missed'}"
        print(f"{since + ' -> ' + stage:34} {row} {len(samples):6}  {is_met}".rstrip())


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the daemon, and measure the loop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="builtin", help="a model file or name")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=20)
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        state, port = Path(folder, "state"), free_port()
        command = edgeagent_command(args.model, state, port, "--threads", str(args.threads), "--parallel", "2")
        child = Child(command, Path(folder, "log"), f"http://127.0.0.1:{port}/ready")
        try:
            token = present(find_daemon(state)).token
            show(asyncio.run(measure(Address(f"http://127.0.0.1:{port}", token), args.turns)))
        finally:
            child.stop()


if __name__ == "__main__":
    main()
