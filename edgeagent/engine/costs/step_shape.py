"""The properties of a step that decide how long it takes."""

from __future__ import annotations

from typing import NamedTuple

FLASH_TILE = 64
"""Steps of at least this many tokens are computed in whole tiles by ggml's flash attention on a CPU (GGML_FA_TILE_Q).
Each pair (see StepShape) then takes several times less time."""


class StepShape(NamedTuple):
    """The size of a step: its tokens, the KV cells in use before it, and the pairs that attention computes.

    A pair is a token of the step and an earlier token of the same sequence that was computed before the step. Plain
    attention on a CPU multiplies each token with all cells in use, including those of other sequences. Flash attention
    skips the cells of other sequences, so pairs determine its time.
    """

    num_tokens: int = 0
    num_cells: int = 0
    num_pairs: float = 0.0

    @classmethod
    def alone(cls, num_tokens: int, depth: int) -> StepShape:
        """Return the shape of a step with `num_tokens` of one sequence, which has `depth` earlier tokens.

        No other sequence has used cells.
        """
        return cls(0, depth, 0.0).plus(num_tokens, depth)

    def plus(self, num_tokens: int, depth: float) -> StepShape:
        """Return this shape with `num_tokens` more of one sequence, which has `depth` earlier tokens.

        The number of used cells stays the same.
        """
        return StepShape(self.num_tokens + num_tokens, self.num_cells, self.num_pairs + num_tokens * depth)
