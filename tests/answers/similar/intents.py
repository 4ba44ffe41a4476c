"""What may be asked in a domain: intents with several wordings and slots, and what people say around a question."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product


@dataclass(frozen=True, slots=True)
class Intent:
    """One thing that may be asked, in several wordings with the same slots."""

    wordings: tuple[str, ...]
    slots: tuple[tuple[str, tuple[str, ...]], ...] = ()

    def values(self) -> Iterator[dict[str, str]]:
        """Yield each assignment of values to the slots."""
        names = [name for name, _ in self.slots]
        for chosen in product(*(values for _, values in self.slots)):
            yield dict(zip(names, chosen, strict=True))


def intent(*wordings: str, **slots: Sequence[str]) -> Intent:
    """Return an intent. Each slot has the values that it may take."""
    return Intent(wordings, tuple((name, tuple(values)) for name, values in slots.items()))


@dataclass(frozen=True, slots=True)
class Domain:
    """The intents of a domain; similar ones stand beside each other.

    `before` and `after`: what people say around a question. `facts`: the system prompt for a model that answers.
    """

    intents: tuple[Intent, ...]
    before: tuple[str, ...]
    after: tuple[str, ...]
    facts: str = ""
