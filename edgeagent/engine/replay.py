"""Repeats the batches that gave a sequence's output, so that a repeated computation gives the same answer.

Results depend on the batch size. Measured on the CPU with plain attention: chunks of two or more tokens give the same
bits for any size, and single tokens give others. So if the sampler is deterministic, generated tokens are computed
again in their original batches, mostly of one token. This happens in the next worker, after a preemption, or if their
cached prefix is gone.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Sequence

# More output tokens than this are computed again in chunks: one by one would take seconds.
_MAX_STEPWISE = 512


class BatchEnds:
    """The positions, ascending, where the batches that gave a sequence's output ended."""

    def __init__(self, ends: Iterable[int] = ()) -> None:
        self._ends = list(ends)

    @classmethod
    def of_steps(cls, num_prompt: int, lengths: Sequence[int]) -> BatchEnds:
        """Return the ends of steps that gave these numbers of tokens. The prompt's last token gave the first one."""
        return cls(end for end in itertools.accumulate(lengths, initial=num_prompt - 1) if end >= num_prompt)

    def note(self, end: int) -> None:
        """Note the end of the latest batch."""
        self._ends.append(end)

    def forget(self) -> None:
        """Forget all ends, so that output is computed again in chunks of any size."""
        self._ends.clear()

    def forget_if_many(self, num_tokens: int) -> None:
        """Forget all ends if it would take too long to compute this many output tokens again one by one."""
        if num_tokens > _MAX_STEPWISE:
            self._ends.clear()

    def after(self, position: int) -> int | None:
        """Return where the batch that computed the token at a position ended; None if unknown."""
        index = bisect.bisect_right(self._ends, position)
        return self._ends[index] if index < len(self._ends) else None

    def around(self, position: int) -> tuple[int, int] | None:
        """Return the ends before and after a position; None if one of them is unknown."""
        index = bisect.bisect_right(self._ends, position)
        return (self._ends[index - 1], self._ends[index]) if 0 < index < len(self._ends) else None
