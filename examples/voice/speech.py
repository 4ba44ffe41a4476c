"""Speech to text with pocketsphinx, whose package has its English model, and text to speech with espeak-ng."""

from __future__ import annotations

import ctypes
import tempfile
from pathlib import Path
from typing import Literal

import espeakng_loader
import pocketsphinx
from pocketsphinx.lm import ArpaBoLM

from examples.voice.audio import FRAME_S, RATE

PAUSE_S = 0.3  # after this much silence, the words before it are final
TURN_FRAMES = 15  # after this many more frames of silence, the turn has ended

Heard = tuple[Literal["began", "partial", "final", "end"], str]
"""The user speaks; the words since then, which may change; the words that stay; the turn has ended."""


class Recogniser:
    """Tells what is said, frame by frame. `sentences` has examples of it, a line each, in small letters."""

    def __init__(self, sentences: str) -> None:
        self._endpointer = pocketsphinx.Endpointer(window=PAUSE_S, sample_rate=RATE, frame_length=FRAME_S)
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder, "sentences.lm"))
            expected = ArpaBoLM(text=sentences, add_start=True)
            expected.compute()
            expected.write_file(path)
            # Without the second and third pass, the final words are those of the last partial transcript.
            self._decoder = pocketsphinx.Decoder(lm=path, fwdflat=False, bestpath=False, loglevel="FATAL")
        self._words = ""
        self._num_silent = TURN_FRAMES

    def hear(self, frame: bytes) -> list[Heard]:
        """Return what a frame tells. Of silence, that is only the end of a turn."""
        was_speech = self._endpointer.in_speech
        speech = self._endpointer.process(frame)
        if speech is None:
            self._num_silent += 1
            return [("end", "")] if self._num_silent == TURN_FRAMES else []
        if not was_speech:
            self._decoder.start_utt()
        self._decoder.process_raw(speech)
        is_final = not self._endpointer.in_speech
        if is_final:
            self._decoder.end_utt()
            self._num_silent = 0
        found, before = self._decoder.hyp(), self._words
        self._words = "" if found is None or not was_speech else found.hypstr
        began: list[Heard] = [] if was_speech else [("began", "")]
        if is_final:
            return [*began, ("final", self._words)]
        return began if self._words == before or not self._words else [("partial", self._words)]


_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
_SYNCHRONOUS, _DO_NOT_EXIT, _UTF8 = 2, 0x8000, 1  # speak_lib.h


class Voice:
    """espeak-ng's library. It takes milliseconds for a sentence; a slower one needs a thread or process of its own."""

    def __init__(self, language: str = "en-us") -> None:
        self._parts: list[bytes] = []
        self._callback = _CALLBACK(self._take)
        self._library = ctypes.CDLL(espeakng_loader.get_library_path())
        data = espeakng_loader.get_data_path().encode()
        self.rate: int = self._library.espeak_Initialize(_SYNCHRONOUS, 0, data, _DO_NOT_EXIT)
        self._library.espeak_SetVoiceByName(language.encode())

    def speak(self, sentence: str) -> bytes:
        """Return the sound of a sentence."""
        self._parts.clear()
        # The library has one for the whole process.
        self._library.espeak_SetSynthCallback(self._callback)
        text = sentence.encode()
        self._library.espeak_Synth(text, len(text) + 1, 0, 1, 0, _UTF8, None, None)
        return b"".join(self._parts)

    def _take(self, samples: int | None, num_samples: int, _: int | None) -> int:
        if samples and num_samples > 0:
            self._parts.append(ctypes.string_at(samples, 2 * num_samples))
        return 0
