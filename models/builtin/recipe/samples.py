"""The basic types of the corpus, and the random source that separates training from evaluation.

A wording is a template of a request or question. A closed class is a fixed list of values, divided into a part for
training and one for evaluation. The values of an open class, such as codes, are made at random; some are held out,
which means that only evaluation uses them. Sealed wordings are in the test set only.
"""

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
    """How to judge a reply.

    `exact` accepts one of `values`, `contains` needs all of `values`, and `calls` needs exactly the calls in `calls`.
    `owns_up` needs the sentence that declines an out-of-domain request. `json` needs the JSON object in `values`, up to
    case; `json_values` needs its values under any keys.
    """

    kind: Literal["exact", "contains", "calls", "owns_up", "json", "json_values"]
    values: tuple[str, ...] = ()
    calls: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """One conversation; its last message is the expected reply of the assistant.

    If `format` is a JSON schema, the reply follows it, and the prompt need not show it.
    """

    category: str
    messages: list[Message]
    check: Check
    tools: list[Tool] = field(default_factory=list)
    format: dict[str, Any] | None = None


def is_held_out(value: str) -> bool:
    """Return whether a value of an open class is held out, so that only evaluation uses it."""
    return zlib.crc32(value.lower().encode()) * 2654435761 % 2**32 % 100 < HELD_OUT_SHARE


@dataclass(frozen=True, slots=True)
class Pool:
    """A fixed list of values, divided into a part for training and a part for evaluation.

    If `is_wording`, the values are wordings. The test set has further, sealed wordings for such a pool, stored
    elsewhere.
    """

    train: tuple[Any, ...]
    eval: tuple[Any, ...]
    is_wording: bool = False


def pool(items: Sequence[Any]) -> Pool:
    """Return a pool of these items. Their hashes decide which part each is in.

    An item written `=item` is always in the training part, since it is very common. An item written `~item` is only in
    the evaluation part.
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
    """Return a text in lower case, without surrounding blanks and closing punctuation.

    Texts with equal results count as the same question.
    """
    return text.lower().strip(" .?!")


def shape(wording: str) -> str:
    """Return a wording as `normal` does, with all slots written alike.

    Wordings with equal results count as the same wording.
    """
    return re.sub(r"\{\w+\}", "{}", normal(wording))


_SEALED = frozenset(shape(wording) for wordings in HELD_OUT.values() for wording in wordings)


def is_sealed(wording: str) -> bool:
    """Return whether a wording is in the test set. Such a wording must not be in training or development."""
    return shape(wording) in _SEALED


def lines(text: str) -> Pool:
    """Return a pool of wordings from the lines of a text. Sealed wordings are left out."""
    cut = pool([line.strip() for line in text.strip().splitlines() if line.strip()])
    train, development = (tuple(w for w in part if not is_sealed(w)) for part in (cut.train, cut.eval))
    return Pool(train, development, is_wording=True)


def words(text: str) -> Pool:
    """Return a pool of the words in a comma-separated text."""
    return pool([item.strip() for item in text.replace("\n", " ").split(",") if item.strip()])


class Draw:
    """A seeded random source for one split. It draws only from that split's part of every pool.

    The split "test" draws wordings from `sealed`, and uses every wording once before any is repeated. Its other values
    come from the evaluation part of each pool.
    """

    def __init__(self, seed: int | str, split: Split, sealed: Mapping[Pool, Sequence[str]] | None = None) -> None:
        self.random = random.Random(f"{split}:{seed}")
        self.split: Split = split
        self.sealed = sealed or {}
        self._decks: dict[Pool, list[str]] = {}

    def pick(self, source: Pool) -> Any:
        """Draw from this split's part of a pool. Raise LookupError if the pool lacks the sealed wordings for a test."""
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
        """Draw from values that training and evaluation share."""
        return self.random.choice(items)

    def chance(self, share: float) -> bool:
        """Return True with the probability `share`."""
        return self.random.random() < share

    def whole(self, low: int, high: int) -> int:
        """Draw a whole number between two bounds, both included."""
        return self.random.randint(low, high)

    def open(self, make: Callable[[random.Random], str]) -> str:
        """Draw a value of an open class that belongs to this split. `make` makes values until one does."""
        while True:
            value = make(self.random)
            if self.belongs(value):
                return value

    def belongs(self, value: str) -> bool:
        """Return whether a value of an open class belongs to this split.

        The splits "eval" and "test" have the same values.
        """
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
    """Return a user's text with varied case of the first letter and closing punctuation. The words stay the same."""
    roll = draw.random.random()
    if roll < 0.15:
        text = text.rstrip("?.!")
    if roll < 0.10 or roll > 0.92:
        text = text[:1].lower() + text[1:]
    elif roll < 0.5:
        text = text[:1].upper() + text[1:]
    return text
