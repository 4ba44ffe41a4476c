"""Replaces the words that a tool call copies from the request with made-up words, everywhere in the conversation.

The tokenizer splits a word differently after a space and after a quote. A made-up word's tokens appear together nowhere
else in the corpus. So the model must learn to spell a value as it was said, instead of recognising it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from . import pools
from .samples import Pool, Sample, is_held_out
from .structured import leaves

SHARE = 0.85  # share of a value's words that are replaced
TWO_WORDS = 0.2  # share of replaced words that become two words
_WORD = re.compile(r"[^\W\d_]{3,}")
_KEPT = frozenset({"the", "and", "room", "for", "call", "meet", "write", "visit", "buy", "get", "pick"})


def _held_out_words() -> frozenset[str]:
    values = [str(value) for held in vars(pools).values() if isinstance(held, Pool) for value in held.eval]
    return frozenset(word for value in values for word in value.lower().split())


def _fixed(sample: Sample) -> set[str]:
    """Return the values that must not change: those that a schema lists, and weekdays."""
    schemas = [tool["function"]["parameters"]["properties"] for tool in sample.tools]
    schemas += [sample.format["properties"]] if sample.format and "properties" in sample.format else []
    return {value for each in schemas for spec in each.values() for value in spec.get("enum", ())} | set(pools.WEEKDAYS)


def _values(sample: Sample) -> set[str]:
    calls = [call["function"] for message in sample.messages for call in message.get("tool_calls", ())]
    values = {v for call in calls for v in call["arguments"].values() if isinstance(v, str)}
    if sample.format is not None:
        said = " ".join(message["content"] for message in sample.messages[:-1]).lower()
        values |= {v for v in leaves(json.loads(sample.messages[-1]["content"])) if str(v).lower() in said}
    return {v for v in values if isinstance(v, str)} - _fixed(sample)


# Parts of spelling lessons: words as a user says them, then in quotes as in a tool call.
_SAID = (
    "put {x} on the list",
    "add {x} please",
    "we need {x}",
    "turn on the light in the {x}",
    "{x} light off",
    "make the lamp {x}",
    "set the {x} to 20",
    "play {x}",
    "what is the weather in {x}",
    "call {x} now",
    "and also {x}",
    "{x}",
)
_KEYS = ("item", "product", "entry", "room", "location", "area", "color", "query", "city", "name", "text")


def _lettered(rng: np.random.Generator) -> str:
    """Make a word that the tokenizer splits into many short tokens, as it would split an unknown word."""
    word, is_vowel = "", rng.random() < 0.25
    for _ in range(int(rng.integers(3, 9))):
        letters = "aeiouaeiouy" if is_vowel else "bcdfghjklmnpqrstvwxzbcdfglmnprst"
        word += letters[int(rng.integers(len(letters)))]
        is_vowel = not is_vowel if rng.random() < 0.8 else is_vowel
    return word


class Respelling:
    """Makes words from tokens of the vocabulary or from letters. Held-out words are left out."""

    def __init__(self, pieces: list[str]) -> None:
        self.pieces = [piece for piece in pieces if piece.isascii() and piece.isalpha() and piece.islower()]
        self.held_out = _held_out_words()

    def _word(self, rng: np.random.Generator) -> str:
        while True:
            word = self._joined(rng) if rng.random() < 0.5 else _lettered(rng)
            if 3 <= len(word) <= 12 and word not in self.held_out and not is_held_out(word):
                return word

    def _joined(self, rng: np.random.Generator) -> str:
        count = int(rng.choice((1, 2, 2, 2, 3)))
        return "".join(self.pieces[int(i)] for i in rng.integers(len(self.pieces), size=count))

    def drill(self, rng: np.random.Generator) -> tuple[str, str, str]:
        """Return a spelling lesson in three parts: words as the user says them, the same words in quotes, and the end.

        Only the quoted words are trained.
        """
        words = " ".join(self._word(rng) for _ in range(int(rng.choice((1, 1, 1, 2, 2, 3)))))
        wording = _SAID[int(rng.integers(len(_SAID)))]
        key = _KEYS[int(rng.integers(len(_KEYS)))]
        begins_large = rng.random() < 0.3
        if rng.random() < 0.1:
            words = words.title()
        said = wording.format(x=words)
        if begins_large:
            said = said[:1].upper() + said[1:]
        return f'user\n{said}\n{{"{key}": "', f'{words}"', "}\n"

    def apply(self, sample: Sample, rng: np.random.Generator) -> Sample:
        """Replace the words that a sample's calls copy by made-up words. Without such words, return it unchanged."""
        words = {word.lower() for value in _values(sample) for word in _WORD.findall(value)} - _KEPT
        fresh: dict[str, str] = {}
        for word in sorted(words):
            if rng.random() < SHARE:
                fresh[word] = self._word(rng) + (f" {self._word(rng)}" if rng.random() < TWO_WORDS else "")
        if not fresh:
            return sample
        found = re.compile(rf"\b({'|'.join(map(re.escape, fresh))})\b", re.IGNORECASE)

        def other(match: re.Match[str]) -> str:
            new = fresh[match[0].lower()]
            return new.title() if match[0].istitle() else new

        messages = [_changed(message, lambda text: found.sub(other, text)) for message in sample.messages]
        return replace(sample, messages=messages)


def _changed(message: dict[str, Any], respell: Callable[[str], str]) -> dict[str, Any]:
    """Return a message with its content and the string values of its calls respelled. Tool and parameter names stay."""
    changed = message | {"content": respell(message["content"])}
    if "tool_calls" in message:
        changed["tool_calls"] = [_changed_call(call, respell) for call in message["tool_calls"]]
    return changed


def _changed_call(call: dict[str, Any], respell: Callable[[str], str]) -> dict[str, Any]:
    function = call["function"]
    arguments = {k: respell(v) if isinstance(v, str) else v for k, v in function["arguments"].items()}
    return call | {"function": function | {"arguments": arguments}}
