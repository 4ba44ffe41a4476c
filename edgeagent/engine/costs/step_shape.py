"""The properties of a step that decide how long it takes."""

from __future__ import annotations

from typing import NamedTuple


class StepShape(NamedTuple):
    """The tokens that a step computes, the cells of the cache in use before it, and the pairs that attention forms.

    A pair is a token and an earlier step's token of its sequence. Plain attention on a CPU multiplies each token with
    all cells in use, of all sequences. Flash attention skips the cells of other sequences.
    """

    num_tokens: int = 0
    num_cells: int = 0
    num_pairs: float = 0.0

    @classmethod
    def alone(cls, num_tokens: int, depth: int) -> StepShape:
        """Return the shape of a step with `num_tokens` of one sequence, which has `depth` earlier tokens."""
        return cls(0, depth, 0.0).plus(num_tokens, depth)

    def plus(self, num_tokens: int, depth: float) -> StepShape:
        """Return this shape with `num_tokens` more of one sequence, which has `depth` earlier tokens."""
        return StepShape(self.num_tokens + num_tokens, self.num_cells, self.num_pairs + num_tokens * depth)
