"""examples/voice with a real recogniser, a real voice and a real daemon; espeak-ng also says what is recognised."""

# ruff: noqa: E402

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import sys
import wave
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from tests.integration.conftest import Daemon
from tests.patience import patient

for package in ("pocketsphinx", "espeakng_loader"):
    pytest.importorskip(package, reason=f"{package} is not installed; `make setup` installs it")

from edgeagent.client import Client, connect
from examples.voice.__main__ import INSTRUCTIONS, SENTENCES
from examples.voice.assistant import Assistant
from examples.voice.audio import FRAME_BYTES, RATE, Loudspeaker, Recordings, devices, read, resampled
from examples.voice.speech import Recogniser, Voice

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/guides/voice-assistant.md").read_text(encoding="utf-8")
VOICE = Voice()
SECOND = bytes(2 * RATE)


@pytest.fixture(scope="module")
def recogniser() -> Recogniser:
    return Recogniser(SENTENCES.read_text())


@pytest.fixture
async def client(daemon: Daemon) -> AsyncIterator[Client]:
    async with connect(state_dir=daemon.state_dir) as connected:
        yield connected


def said(*texts: str, pause_s: float = 0.0) -> bytes:
    """Return what a microphone hears if somebody says texts with a pause between them."""
    pause = bytes(2 * int(RATE * pause_s))
    return pause.join(resampled(VOICE.speak(text), VOICE.rate) for text in texts)


def unheard(_: str) -> None:
    """Take a stage, and do nothing."""


class Room:
    """An assistant, and a microphone that hears the next clip half a second after an answer's first sound."""

    def __init__(self, client: Client, *clips: bytes, **fields: Any) -> None:
        self.stages: list[str] = []
        self._clips = list(clips)
        loudspeaker = Loudspeaker(VOICE.rate, self._note)
        self.recordings = Recordings(loudspeaker)
        self.conversation = client.conversation(instructions=INSTRUCTIONS, temperature=0, **fields)
        self.assistant = Assistant(self.conversation, VOICE, loudspeaker, self._note)

    def _note(self, stage: str) -> None:
        # Each token and each sentence is told; here the first of each turn counts.
        if stage not in self.stages[-4:]:
            self.stages.append(stage)
        if stage == "first sound" and self._clips:
            self.recordings.say(SECOND[::2] + self._clips.pop(0))

    async def listen(self, recogniser: Recogniser) -> None:
        """Converse until the last clip is answered."""
        self.recordings.say(self._clips.pop(0))
        frames = self.recordings.frames(lambda: not self._clips and self.assistant.is_idle())
        await asyncio.wait_for(self.assistant.listen(frames, recogniser), patient(120))


TURN = ["end of speech", "first token", "first sentence", "first sound"]


async def test_it_answers_and_is_interrupted(
    client: Client, recogniser: Recogniser, capsys: pytest.CaptureFixture[str]
) -> None:
    room = Room(client, said("what can you do"), said("tell me a joke"))
    await room.listen(recogniser)
    assert room.stages == [*TURN, "barge-in", "silence", *TURN, "silence"]
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if line.startswith("you: ")] == ["you: what can you do", "you: tell me a joke"]
    assert "assistant: Why did the clock go to school?" in printed


async def test_a_pause_does_not_end_a_turn(
    client: Client, recogniser: Recogniser, capsys: pytest.CaptureFixture[str]
) -> None:
    room = Room(client, said("turn on the light", "in the kitchen", pause_s=0.4))
    await room.listen(recogniser)
    assert "you: turn on the light in the kitchen" in capsys.readouterr().out
    assert room.stages == [*TURN, "silence"]


async def test_noise_without_words_is_not_answered(client: Client, recogniser: Recogniser) -> None:
    room = Room(client, b"\x00\x20\x00\xe0" * RATE)
    await room.listen(recogniser)
    assert room.stages == [] and room.conversation.response_id is None


async def test_an_error_is_spoken(client: Client, recogniser: Recogniser, capsys: pytest.CaptureFixture[str]) -> None:
    room = Room(client, said("who are you"), model="nothing")
    await room.listen(recogniser)
    assert "edgeagent: " in capsys.readouterr().out
    assert room.stages == ["end of speech", "first sentence", "first sound", "silence"]


def commands() -> list[str]:
    """Return the commands of the guide that need no microphone."""
    return re.findall(r"^(python -m examples\.voice .*--(?:say|microphone).*)$", GUIDE, re.M)


@pytest.mark.slow(seconds=9)
def test_the_guides_commands(daemon: Daemon, tmp_path: Path) -> None:
    assert len(commands()) == 2
    with wave.open(str(tmp_path / "question.wav"), "wb") as file:
        file.setparams((1, 2, VOICE.rate, 0, "NONE", ""))
        file.writeframes(VOICE.speak("who are you"))
    environment = {**os.environ, "EDGEAGENT_STATE_DIR": str(daemon.state_dir), "PYTHONPATH": str(ROOT)}
    for command in commands():
        words = [sys.executable, *shlex.split(command)[1:]]
        done = subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=patient(120)
        )
        assert done.returncode == 0, done.stderr
        num_turns = len(re.findall("--say|--microphone", command))
        assert done.stdout.count("you: ") == done.stdout.count("first sound after ") == num_turns, done.stdout
    with wave.open(str(tmp_path / "answer.wav")) as file:
        assert file.getframerate() == VOICE.rate and any(file.readframes(file.getnframes()))


def test_without_a_daemon_it_says_why(tmp_path: Path) -> None:
    environment = {**os.environ, "EDGEAGENT_STATE_DIR": str(tmp_path), "EDGEAGENT_PORT": "none"}
    command = [sys.executable, "-m", "examples.voice", "--say", "hello"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=patient(120))
    assert done.returncode == 1 and done.stderr.startswith("edgeagent: "), done.stderr


class Stream:
    """A stream of sounddevice. Its callback is called by hand."""

    def __init__(self, *about: int, callback: Callable[..., None], **how: object) -> None:
        self.about = about
        self.callback = callback

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.callback = unheard


async def test_devices_hear_and_play(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Stream] = []

    def open_stream(*about: int, **how: Any) -> Stream:
        opened.append(Stream(*about, **how))
        return opened[-1]

    monkeypatch.setitem(
        sys.modules, "sounddevice", SimpleNamespace(RawInputStream=open_stream, RawOutputStream=open_stream)
    )
    loudspeaker = Loudspeaker(22050, unheard)
    frames = devices(loudspeaker)
    waiting = asyncio.ensure_future(anext(frames))
    await asyncio.sleep(0)
    microphone, output = opened
    assert (microphone.about, output.about) == ((RATE, FRAME_BYTES // 2), (22050,))
    microphone.callback(b"\1" * FRAME_BYTES, FRAME_BYTES // 2, None, None)
    assert await waiting == b"\1" * FRAME_BYTES
    loudspeaker.play(b"\2" * 6)
    played = bytearray(8)
    output.callback(memoryview(played), 4, None, None)
    assert played == b"\2" * 6 + b"\0" * 2
    await frames.aclose()


async def test_without_a_device_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_stream(*about: int, **how: object) -> Stream:
        raise RuntimeError("no device")

    monkeypatch.setitem(sys.modules, "sounddevice", SimpleNamespace(RawInputStream=open_stream))
    with pytest.raises(SystemExit, match="cannot be used: no device"):
        await anext(devices(Loudspeaker(22050, unheard)))


def test_a_folder_that_is_not_there_is_refused_at_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.voice", "--say", "hello", "--loudspeaker", str(tmp_path / "none/a.wav")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=patient(120))
    assert done.returncode == 2 and "there is no folder for" in done.stderr, done.stderr


def test_sound_that_is_played_while_a_part_is_taken_is_heard() -> None:
    """The device's thread takes it. Here more is played before each line of `take`."""
    loudspeaker, num_played = Loudspeaker(RATE, unheard), 0

    def play(frame: FrameType, event: str, _: object) -> Any:
        nonlocal num_played
        if frame.f_code is Loudspeaker.take.__code__ and event == "line":
            loudspeaker.play(b"\1" * 2)
            num_played += 2
        return play

    before = sys.gettrace()
    sys.settrace(play)
    try:
        heard = loudspeaker.take(8)
    finally:
        sys.settrace(before)
    while loudspeaker.is_playing:
        heard += loudspeaker.take(8)
    assert heard.count(1) == num_played > 2


def test_a_recording_has_the_rate_of_the_microphone(tmp_path: Path) -> None:
    path = tmp_path / "said.wav"
    for channels, rate in ((1, 8000), (1, 48000), (2, 16000)):
        with wave.open(str(path), "wb") as file:
            file.setparams((channels, 2, rate, 0, "NONE", ""))
            file.writeframes(bytes(2 * channels * rate))
        if channels == 1:
            assert len(read(path)) == 2 * RATE
        else:
            with pytest.raises(SystemExit, match="mono"):
                read(path)


@pytest.mark.parametrize("content", [None, b"", b"RIFF", b"A text, and no sound." * 9])
def test_a_file_that_is_no_recording_is_refused_in_a_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "said.wav"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SystemExit, match=r"said\.wav: it cannot be read: .*[a-z]"):
        read(path)


def test_a_recording_without_sound_is_silence_and_one_cut_short_is_heard(tmp_path: Path) -> None:
    path = tmp_path / "said.wav"
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
    assert read(path) == b""
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(SECOND)
    path.write_bytes(path.read_bytes()[:-1])
    assert len(read(path)) == 2 * RATE - 2
