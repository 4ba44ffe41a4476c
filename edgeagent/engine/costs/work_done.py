"""Sums up the steps that a model has computed, by the number of their tokens.

The sums show what a model is used for: long or short prompts, one stream or several, and how many earlier tokens they
attend to. `engine.tuning.own_work` compares forms of attention by these sums.
"""

from __future__ import annotations

from collections.abc import Iterable

from edgeagent.engine.costs.step_shape import FLASH_TILE, StepShape
from edgeagent.types.choices import StepSums

# The largest number of tokens in a step of each kind. Larger steps use flash attention's other kernel.
_KINDS = ((1, "token"), (8, "streams"), (FLASH_TILE - 1, "turn"))
_LARGEST_KIND = "prompt"
# If the sums cover more time than this, all are halved, so that recent work counts more.
_MOST_S = 4 * 3600.0


class WorkDone:
    """Sums of the steps that requests took, in this process and in earlier ones. Older steps count less.

    There is one StepSums for each kind of step. The kind depends on the number of tokens.
    """

    def __init__(self) -> None:
        self._sums: dict[str, StepSums] = {}

    def record(self, shape: StepShape, seconds: float) -> None:
        """Add a step of this shape that took `seconds`."""
        kind = next((kind for most, kind in _KINDS if shape.num_tokens <= most), _LARGEST_KIND)
        num_products = float(shape.num_tokens * shape.num_cells)
        self._add(StepSums(kind, 1.0, float(shape.num_tokens), shape.num_pairs, num_products, seconds))

    def learn(self, sums: Iterable[StepSums]) -> None:
        """Add the sums of earlier processes. Ignore kinds of steps that this version does not know."""
        for each in sums:
            if each.kind in (_LARGEST_KIND, *(kind for _, kind in _KINDS)):
                self._add(each)

    def sums(self) -> tuple[StepSums, ...]:
        """Return the sums, for `learn` in a later process."""
        return tuple(self._sums.values())

    def _add(self, more: StepSums) -> None:
        known = self._sums.get(more.kind)
        self._sums[more.kind] = more if known is None else _combined(known, more)
        if sum(each.seconds for each in self._sums.values()) > _MOST_S:
            self._sums = {kind: _combined(each, each, 0.25) for kind, each in self._sums.items()}


def _combined(one: StepSums, other: StepSums, factor: float = 1.0) -> StepSums:
    """Return the sums of `one` and `other`, multiplied by `factor`. Their kind is that of `one`."""
    return StepSums(
        one.kind,
        factor * (one.num_steps + other.num_steps),
        factor * (one.num_tokens + other.num_tokens),
        factor * (one.num_pairs + other.num_pairs),
        factor * (one.num_products + other.num_products),
        factor * (one.seconds + other.seconds),
    )
