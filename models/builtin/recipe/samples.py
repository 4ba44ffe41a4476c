"""The values that the corpus consists of, and the random source that keeps training and evaluation apart."""

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
    """How a reply is judged: `exact` (one of `values`), `contains` (all of `values`), `calls`, or `owns_up`."""

    kind: Literal["exact", "contains", "calls", "owns_up"]
    values: tuple[str, ...] = ()
    calls: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """One conversation; its last message is the assistant's expected reply."""

    category: str
    messages: list[Message]
    check: Check
    tools: list[Tool] = field(default_factory=list)


def is_held_out(value: str) -> bool:
    """Tell whether a value of an open class belongs to the evaluation alone."""
    return zlib.crc32(value.lower().encode()) * 2654435761 % 2**32 % 100 < HELD_OUT_SHARE


@dataclass(frozen=True, slots=True)
class Pool:
    """A closed list cut once into a part for training and a part for evaluation.

    What is a wording, not a word, has sealed wordings for the test set, which the pool itself does not hold.
    """

    train: tuple[Any, ...]
    eval: tuple[Any, ...]
    is_wording: bool = False


def pool(items: Sequence[Any]) -> Pool:
    """Cut `items` by their hash.

    An item written `=item` is so usual that training must hold it; one written `~item` is for the evaluation alone.
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
    """Reduce a text to what makes it a different question: its words, without case and closing punctuation."""
    return text.lower().strip(" .?!")


def shape(wording: str) -> str:
    """Reduce a template to what makes it a different wording: `normal`, with every slot alike."""
    return re.sub(r"\{\w+\}", "{}", normal(wording))


_SEALED = frozenset(shape(wording) for wordings in HELD_OUT.values() for wording in wordings)


def is_sealed(wording: str) -> bool:
    """Tell whether a template is one of the test set's, which neither training nor development may hold."""
    return shape(wording) in _SEALED


def lines(text: str) -> Pool:
    """Cut a block of text into a pool of its lines, which are wordings; sealed ones drop out."""
    cut = pool([line.strip() for line in text.strip().splitlines() if line.strip()])
    train, development = (tuple(w for w in part if not is_sealed(w)) for part in (cut.train, cut.eval))
    return Pool(train, development, is_wording=True)


def words(text: str) -> Pool:
    """Cut a comma-separated block of text into a pool."""
    return pool([item.strip() for item in text.replace("\n", " ").split(",") if item.strip()])


class Draw:
    """A seeded random source that sees only its own split's part of every pool.

    The split "test" takes wordings from `sealed`, each once before any comes again, and all else from the
    evaluation's part.
    """

    def __init__(self, seed: int | str, split: Split, sealed: Mapping[Pool, Sequence[str]] | None = None) -> None:
        self.random = random.Random(f"{split}:{seed}")
        self.split: Split = split
        self.sealed = sealed or {}
        self._decks: dict[Pool, list[str]] = {}

    def pick(self, source: Pool) -> Any:
        """Pick from this split's part of a pool."""
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
        """Tell whether this split has anything to pick from a pool."""
        return self.split != "test" or not source.is_wording or source in self.sealed

    def any(self, items: Sequence[Any]) -> Any:
        """Pick from a closed class that both splits share."""
        return self.random.choice(items)

    def chance(self, share: float) -> bool:
        """Answer true with the probability `share`."""
        return self.random.random() < share

    def whole(self, low: int, high: int) -> int:
        """Pick a whole number between both ends, ends included."""
        return self.random.randint(low, high)

    def open(self, make: Callable[[random.Random], str]) -> str:
        """Make a value of an open class that belongs to this split."""
        while True:
            value = make(self.random)
            if self.belongs(value):
                return value

    def belongs(self, value: str) -> bool:
        """Tell whether a value of an open class belongs to this split; both evaluation sets share their part."""
        return is_held_out(value) == (self.split != "train")

    def sample(self, source: Pool, count: int) -> list[Any]:
        """Pick up to `count` different items of this split's part of a pool."""
        items = self._part(source)
        return self.random.sample(items, min(count, len(items)))

    def shuffled(self, items: Sequence[Any]) -> list[Any]:
        """Copy `items` in a random order."""
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
    """Vary the case and the closing punctuation of what a user types; the words stay."""
    roll = draw.random.random()
    if roll < 0.15:
        text = text.rstrip("?.!")
    if roll < 0.10 or roll > 0.92:
        text = text[:1].lower() + text[1:]
    elif roll < 0.5:
        text = text[:1].upper() + text[1:]
    return text
