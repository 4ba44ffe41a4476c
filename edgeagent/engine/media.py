"""The images and sounds of a sequence: which of its tokens stand for embeddings, and where the embeddings come from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from edgeagent.engine.runner import Positions, Rows


class Embeddings(Protocol):
    """The embeddings of one chunk. They are computed when they are first needed, on a thread of their own."""

    def take(self) -> Rows | None:
        """Return them, shape (num_tokens, width). If they are not there yet, begin to compute them and return None.

        Raise InternalError if they cannot be computed.
        """
        ...

    def wait(self, timeout_s: float) -> None:
        """Wait until they are there or cannot be computed, at most `timeout_s`."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class MediaSpan:
    """A chunk of an image or a sound: the tokens from `start` to `end` of a prompt stand for its embeddings.

    `is_causal`: each embedding attends only to those before it, as text does. `positions`: if not None, they have these
    positions in several dimensions (M-RoPE), and take `num_positions` of the sequence.
    """

    start: int
    end: int
    embeddings: Embeddings
    is_causal: bool = True
    positions: Positions | None = None
    num_positions: int = 0

    @property
    def is_one(self) -> bool:
        """Whether no cached prefix ends within the chunk, since its cells have one position.

        Several steps may compute it. The engine records it when all of it is computed.
        """
        return self.positions is not None

    def moved(self, distance: int) -> MediaSpan:
        """Return the same chunk, `distance` tokens later in a prompt."""
        return replace(self, start=self.start + distance, end=self.end + distance)
