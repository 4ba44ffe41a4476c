"""Remembers in which batches a sequence's output was computed, so that computing it again gives the same logits.

Output tokens may have to be computed again after a preemption, or when another worker process continues the answer.
Results depend on the batch size. Measured on the CPU with plain attention: chunks of two or more tokens give
bit-identical results for any size, but single tokens give slightly different ones. So if the sampler is deterministic,
output tokens are computed again in their original batches, most of which had one token.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Sequence

# If there are more output tokens than this, they are computed again in large chunks: one by one would take seconds.
_MAX_STEPWISE = 512


class BatchEnds:
    """The positions where a sequence's output batches ended, ascending. An output batch is one that gave output."""

    def __init__(self, ends: Iterable[int] = ()) -> None:
        self._ends = list(ends)

    @classmethod
    def of_steps(cls, num_prompt: int, lengths: Sequence[int]) -> BatchEnds:
        """Return the ends of past output batches. `lengths`: how many output tokens each batch gave.

        For example, a prompt of 10 tokens and the lengths (1, 1) give the ends 10 and 11: the first output token came
        from the batch that computed the end of the prompt.
        """
        return cls(end for end in itertools.accumulate(lengths, initial=num_prompt - 1) if end >= num_prompt)

    def record(self, end: int) -> None:
        """Record the position where the latest batch ended."""
        self._ends.append(end)

    def forget(self) -> None:
        """Forget all ends, so that output is computed again in chunks of any size."""
        self._ends.clear()

    def forget_if_many(self, num_tokens: int) -> None:
        """Forget all ends if `num_tokens`, the output tokens to compute again, are too many to do one by one."""
        if num_tokens > _MAX_STEPWISE:
            self._ends.clear()

    def after(self, position: int) -> int | None:
        """Return the first recorded batch end after `position`; None if there is none."""
        index = bisect.bisect_right(self._ends, position)
        return self._ends[index] if index < len(self._ends) else None

    def around(self, position: int) -> tuple[int, int] | None:
        """Return the start and end of the batch that computed the token at `position`; None if unknown."""
        index = bisect.bisect_right(self._ends, position)
        return (self._ends[index - 1], self._ends[index]) if 0 < index < len(self._ends) else None
