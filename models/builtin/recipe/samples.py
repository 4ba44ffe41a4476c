"""The values of which the corpus consists, and the random source that separates training from evaluation."""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from .texts import HELD_OUT

Split = Literal["train", "eval", "test"]
Message = dict[str, Any]
Tool = dict[str, Any]

HELD_OUT_SHARE = 15  # per cent of every pool and of every open class of values


@dataclass(frozen=True, slots=True)
class Check:
    """How to judge a reply: `exact` (is one of `values`), `contains` (has all of `values`), `calls`, or `owns_up`."""

    kind: Literal["exact", "contains", "calls", "owns_up"]
    values: tuple[str, ...] = ()
    calls: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """One conversation; its last message is the expected reply of the assistant."""

    category: str
    messages: list[Message]
    check: Check
    tools: list[Tool] = field(default_factory=list)


def is_held_out(value: str) -> bool:
    """Return whether a value of an open class is reserved for evaluation."""
    return zlib.crc32(value.lower().encode()) * 2654435761 % 2**32 % 100 < HELD_OUT_SHARE


@dataclass(frozen=True, slots=True)
class Pool:
    """A closed list, divided once into a part for training and a part for evaluation.

    A pool of wordings also has sealed wordings for the test set; the pool does not hold them itself.
    """

    train: tuple[Any, ...]
    eval: tuple[Any, ...]
    is_wording: bool = False


def pool(items: Sequence[Any]) -> Pool:
    """Divide `items` by their hash.

    An item written `=item` is so common that training must have it; one written `~item` is only for evaluation.
    """
    pinned = {item[1:] for item in items if str(item).startswith("=")}
    kept_back = tuple(item[1:].strip() for item in items if str(item).startswith("~"))
    plain = [item[1:] if str(item).startswith("=") else item for item in items if not str(item).startswith("~")]
    unique = list(dict.fromkeys(plain))
    ranked = sorted(unique, key=lambda item: zlib.crc32(repr(item).encode()) * 2654435761 % 2**32)
    count = max(1, round(len(ranked) * HELD_OUT_SHARE / 100))
    held = set(ranked[:count]) - pinned
    train = tuple(i for i in unique if i not in held)
    trained = {normal(str(i)) for i in train}
    return Pool(
        train,
        tuple(i for i in (*unique, *kept_back) if (i in held or i in kept_back) and normal(str(i)) not in trained),
    )


def normal(text: str) -> str:
    """Return what makes a text a different question: its words, without case and closing punctuation."""
    return text.lower().strip(" .?!")


def shape(wording: str) -> str:
    """Return what makes a template a different wording: `normal`, with all slots equal."""
    return re.sub(r"\{\w+\}", "{}", normal(wording))


_SEALED = frozenset(shape(wording) for wordings in HELD_OUT.values() for wording in wordings)


def is_sealed(wording: str) -> bool:
    """Return whether a template is in the test set, and so must not be in training or development."""
    return shape(wording) in _SEALED


def lines(text: str) -> Pool:
    """Make a pool of wordings from the lines of a text; sealed ones are left out."""
    cut = pool([line.strip() for line in text.strip().splitlines() if line.strip()])
    train, development = (tuple(w for w in part if not is_sealed(w)) for part in (cut.train, cut.eval))
    return Pool(train, development, is_wording=True)


def words(text: str) -> Pool:
    """Make a pool from a comma-separated text."""
    return pool([item.strip() for item in text.replace("\n", " ").split(",") if item.strip()])


class Draw:
    """A seeded random source that draws only from its own split's part of every pool.

    The split "test" draws wordings from `sealed`, each once before any repeats, and all other values from the
    evaluation part.
    """

    def __init__(self, seed: int | str, split: Split, sealed: Mapping[Pool, Sequence[str]] | None = None) -> None:
        self.random = random.Random(f"{split}:{seed}")
        self.split: Split = split
        self.sealed = sealed or {}
        self._decks: dict[Pool, list[str]] = {}

    def pick(self, source: Pool) -> Any:
        """Draw from this split's part of a pool."""
        part = self._part(source)
        if part is source.train or part is source.eval:
            return self.random.choice(part)
        deck = self._decks.get(source) or self.shuffled(part)
        self._decks[source] = deck
        return deck.pop()

    def _part(self, source: Pool) -> Sequence[Any]:
        if self.split == "train":
            return source.train
        if self.split == "eval" or not source.is_wording:
            return source.eval
        if source not in self.sealed:
            raise LookupError(
                f"no sealed wordings for the pool of {source.train[0]!r}; give only training draws from it"
            )
        return self.sealed[source]

    def offers(self, source: Pool) -> bool:
        """Return whether a pool has items for this split."""
        return self.split != "test" or not source.is_wording or source in self.sealed

    def any(self, items: Sequence[Any]) -> Any:
        """Draw from a closed class that both splits share."""
        return self.random.choice(items)

    def chance(self, share: float) -> bool:
        """Return True with the probability `share`."""
        return self.random.random() < share

    def whole(self, low: int, high: int) -> int:
        """Draw a whole number between two bounds, both included."""
        return self.random.randint(low, high)

    def open(self, make: Callable[[random.Random], str]) -> str:
        """Make a value of an open class that belongs to this split."""
        while True:
            value = make(self.random)
            if self.belongs(value):
                return value

    def belongs(self, value: str) -> bool:
        """Return whether a value of an open class belongs to this split. Development and test share one part."""
        return is_held_out(value) == (self.split != "train")

    def sample(self, source: Pool, count: int) -> list[Any]:
        """Draw up to `count` different items of this split's part of a pool."""
        items = self._part(source)
        return self.random.sample(items, min(count, len(items)))

    def shuffled(self, items: Sequence[Any]) -> list[Any]:
        """Return a copy of `items` in random order."""
        copy = list(items)
        self.random.shuffle(copy)
        return copy


def user(text: str) -> Message:
    """Make a user's message."""
    return {"role": "user", "content": text}


def reply(text: str) -> Message:
    """Make an assistant's message."""
    return {"role": "assistant", "content": text}


def system(text: str) -> Message:
    """Make a system message."""
    return {"role": "system", "content": text}


def restyle(draw: Draw, text: str) -> str:
    """Vary the case and the closing punctuation of a user's text; its words do not change."""
    roll = draw.random.random()
    if roll < 0.15:
        text = text.rstrip("?.!")
    if roll < 0.10 or roll > 0.92:
        text = text[:1].lower() + text[1:]
    elif roll < 0.5:
        text = text[:1].upper() + text[1:]
    return text
