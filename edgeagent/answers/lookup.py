"""The place for a lookup by similarity: what `Answers` asks of one, and when.

It is asked only if there is no exact answer, and the model begins after it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Protocol

from edgeagent.answers.answer import Answer
from edgeagent.answers.key import Question


@dataclass(frozen=True, slots=True)
class Found:
    """A kept answer to a similar question: its key, the answer, and the similarity of both questions, 0 to 1."""

    key: bytes
    answer: Answer
    similarity: float


class Similar(Protocol):
    """Finds kept answers to similar questions. All methods are called in the event loop and raise nothing."""

    async def start(self) -> None:
        """Read what was learned before."""

    async def find(self, question: Question) -> Found | None:
        """Return an answer that may be given; None if there is none that is sure enough, or none in a short time."""

    def give(self, question: Question, found: Found) -> bool:
        """Book the answer that `find` returned, and return whether it may still be given; then it must be."""

    def learn(self, question: Question, key: bytes | None, answer: Answer) -> None:
        """Take note that the model has answered a question itself. Return at once.

        The answer is kept under `key`; None: neither answer nor question may be kept.
        """

    def forget(self, keys: Collection[str] | None) -> None:
        """Forget the answers with these ids; None: all."""

    def status(self) -> dict[str, Any]:
        """Return what the owner is to know, for `edgeagent cache answers stats`."""

    async def close(self) -> None:
        """Release everything."""
