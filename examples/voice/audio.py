"""Microphone and loudspeaker: devices, or recordings in real time. Sound is bytes: mono, 16 bits a sample."""

from __future__ import annotations

import asyncio
import wave
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path

import numpy as np

RATE = 16_000  # samples of the microphone in a second
FRAME_S = 0.03
FRAME_BYTES = int(RATE * FRAME_S) * 2


class Loudspeaker:
    """What is to be heard. A device or a file takes it, a part at a time."""

    def __init__(self, rate: int, note: Callable[[str], None]) -> None:
        self.rate = rate
        self._note = note
        self._sound = bytearray()
        self._is_heard = False

    @property
    def is_playing(self) -> bool:
        return self._is_heard or bool(self._sound)

    def play(self, sound: bytes) -> None:
        """Play a sound after those that wait."""
        self._sound += sound

    def stop(self) -> None:
        """Drop what is not heard yet."""
        self._sound.clear()

    def take(self, num_bytes: int) -> bytes:
        """Return the next part, filled up with silence."""
        part = bytes(self._sound[:num_bytes])
        del self._sound[: len(part)]  # a device's thread takes it, and more may be played meanwhile
        if self._is_heard != bool(part):
            self._is_heard = bool(part)
            self._note("first sound" if part else "silence")
        return part.ljust(num_bytes, b"\0")


async def devices(loudspeaker: Loudspeaker) -> AsyncGenerator[bytes, None]:
    """Yield the frames of the microphone, while the other device plays what the loudspeaker has."""
    loop, frames = asyncio.get_running_loop(), asyncio.Queue[bytes]()

    def hear(sound: bytes, *_: object) -> None:
        loop.call_soon_threadsafe(frames.put_nowait, bytes(sound))

    def play(sound: bytearray, *_: object) -> None:
        sound[:] = loudspeaker.take(len(sound))

    how = {"channels": 1, "dtype": "int16", "latency": "low"}
    try:
        import sounddevice  # on Linux it needs PortAudio

        microphone = sounddevice.RawInputStream(RATE, FRAME_BYTES // 2, callback=hear, **how)
        output = sounddevice.RawOutputStream(loudspeaker.rate, callback=play, **how)
    except Exception as error:  # PortAudio's own kind has a name only if PortAudio is there
        raise SystemExit(f"the microphone or the loudspeaker cannot be used: {error}") from None
    with microphone, output:
        while True:
            yield await frames.get()


class Recordings:
    """A microphone that hears what `say` gives it, and a file for what the loudspeaker plays. Both run in real time.

    Their frames are taken together, so a slow machine changes nothing in what is heard at the same time.
    """

    def __init__(self, loudspeaker: Loudspeaker) -> None:
        self._loudspeaker = loudspeaker
        self._said = bytearray()
        self._played = bytearray()

    def say(self, sound: bytes) -> None:
        """Let the microphone hear a sound after those that wait."""
        self._said += sound

    async def frames(self, is_over: Callable[[], bool]) -> AsyncIterator[bytes]:
        """Yield what is said, then silence until `is_over`."""
        loop = asyncio.get_running_loop()
        next_s = loop.time()
        while self._said or not is_over():
            next_s = max(next_s + FRAME_S, loop.time())
            await asyncio.sleep(next_s - loop.time())
            self._played += self._loudspeaker.take(int(self._loudspeaker.rate * FRAME_S) * 2)
            frame = bytes(self._said[:FRAME_BYTES])
            del self._said[:FRAME_BYTES]
            yield frame.ljust(FRAME_BYTES, b"\0")

    def save(self, path: Path) -> None:
        """Write what was played."""
        with wave.open(str(path), "wb") as file:
            file.setparams((1, 2, self._loudspeaker.rate, 0, "NONE", ""))
            file.writeframes(self._played)


def read(path: Path) -> bytes:
    """Return the sound of a WAV file, with the microphone's rate."""
    try:
        with wave.open(str(path)) as file:
            if (file.getnchannels(), file.getsampwidth()) == (1, 2) and file.getframerate() > 0:
                return resampled(file.readframes(file.getnframes()), file.getframerate())
    except (OSError, EOFError, wave.Error) as error:
        raise SystemExit(f"{path}: it cannot be read: {str(error) or 'the file ends too early'}") from None
    raise SystemExit(f"{path}: it must be mono, with 16 bits a sample")


def resampled(sound: bytes, rate: int) -> bytes:
    """Return a sound with the microphone's rate."""
    samples = np.frombuffer(sound[: len(sound) // 2 * 2], np.int16)
    if not len(samples):
        return b""
    times = np.arange(len(samples) * RATE // rate) * rate / RATE
    return np.interp(times, np.arange(len(samples)), samples).astype(np.int16).tobytes()
