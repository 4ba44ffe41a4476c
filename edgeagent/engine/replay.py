"""Repeats the batches that gave a sequence's output, so that a repeated computation gives the same answer.

Results depend on the batch size: measured on the CPU with plain attention, chunks of two or more tokens give the same
bits for any size, single tokens give others. So if the sampler is deterministic, generated tokens are computed again in
their original batches, mostly of one token: by the next worker, after a preemption, or without their cached prefix.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Sequence

# More output tokens than this are computed again in chunks: one by one would take seconds.
_MAX_STEPWISE = 512


class BatchEnds:
    """Where the batches ended that gave a sequence's output, rising."""

    def __init__(self, ends: Iterable[int] = ()) -> None:
        self._ends = list(ends)

    @classmethod
    def of_steps(cls, num_prompt: int, lengths: Sequence[int]) -> BatchEnds:
        """Return those of steps that gave this many tokens each; the first token follows from the prompt."""
        return cls(end for end in itertools.accumulate(lengths, initial=num_prompt - 1) if end >= num_prompt)

    def note(self, end: int) -> None:
        """Note the end of the latest batch."""
        self._ends.append(end)

    def forget(self) -> None:
        """Compute all output again in chunks of any size."""
        self._ends.clear()

    def forget_if_many(self, num_tokens: int) -> None:
        """Do so if this many output tokens are to be computed again, and one by one would take too long."""
        if num_tokens > _MAX_STEPWISE:
            self._ends.clear()

    def after(self, position: int) -> int | None:
        """Return where the batch ended that computed the token at a position; None where that is not known."""
        index = bisect.bisect_right(self._ends, position)
        return self._ends[index] if index < len(self._ends) else None

    def around(self, position: int) -> tuple[int, int] | None:
        """Return the ends before and after a position; None where one of them is not known."""
        index = bisect.bisect_right(self._ends, position)
        return (self._ends[index - 1], self._ends[index]) if 0 < index < len(self._ends) else None
