"""The protocol of runners, which compute logits for the engine: llama.cpp (`engine.llama`) or a test's fake.

A runner has cells of memory shared by `num_sequences` sequence slots. It computes batches and forgets; which tokens are
where is known to the engine alone. Positions count from 0 in each sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgeagent.engine.cache.block import Payload
from edgeagent.types import MemoryKind

Logits = NDArray[np.float32]

# Attention's cells are written once and cut off again. A recurrent state is overwritten layer by layer: it takes back
# nothing, and an interrupted step leaves it half old and half new.
CUTTABLE = (MemoryKind.FULL_ATTENTION, MemoryKind.SLIDING_WINDOW)


@dataclass(frozen=True, slots=True)
class Slice:
    """Consecutive tokens of one sequence in a batch: tokens[i] goes to position start + i.

    The last `num_logits` tokens give logits (0: none).
    """

    seq_id: int
    start: int
    tokens: Sequence[int]
    num_logits: int


class DecodeCancelled(Exception):
    """The abort flag was seen. Any prefix of the batch's slices may have been computed."""


class OutOfCells(Exception):
    """No room in the memory for this batch; nothing was computed."""


class Runner(Protocol):
    """Computes batches over sequence memories. One thread, one owner."""

    memory_kind: MemoryKind
    num_vocab: int
    num_cells: int
    num_sequences: int
    max_batch: int
    max_outputs: int  # tokens of a batch that may give logits
    row_cost: float  # what a row of logits costs beside its token, in tokens
    min_prompt_chunk: int  # fewer of a prompt's tokens at once would give other bits than many (Sequence.note_batch)

    def decode(self, slices: Sequence[Slice]) -> None:
        """Compute a batch. Raise DecodeCancelled, OutOfCells, or InternalError; afterwards logits() is valid."""
        ...

    def logits(self, index: int) -> Logits:
        """Return the index-th output of the last batch, shape (num_vocab,): a view, valid until the next decode."""
        ...

    def can_trim(self, seq_id: int, length: int) -> bool:
        """Whether a sequence may be cut to `length` and go on from there with the right logits. No side effect."""
        ...

    def trim(self, seq_id: int, length: int) -> bool:
        """Forget a sequence's positions from `length` on; False if this memory cannot (then nothing changed)."""
        ...

    def clear(self, seq_id: int) -> None:
        """Forget a sequence whole; every memory can."""
        ...

    def copy(self, source: int, target: int, length: int) -> bool:
        """Let an empty target share the source's first `length` positions; False if this memory cannot."""
        ...

    def can_save(self, seq_id: int, start: int, end: int) -> bool:
        """Whether `save` can read this range and a restore of it will be exact. No side effect."""
        ...

    def save(self, seq_id: int, start: int, end: int) -> memoryview:
        """Return the bytes of positions [start, end), with the state at `end` where the memory has one."""
        ...

    def prepare(self, num_bytes: int, max_bytes: int) -> bool:
        """Get memory ready for a later `save` of so many bytes; False if it has `max_bytes` ready, or needs none."""
        ...

    def state_bytes(self, seq_id: int) -> int:
        """Return how many bytes of what `save` returns are a state, whatever the range; 0 where all are cells."""
        ...

    def restore(self, seq_id: int, payload: Payload, end: int) -> bool:
        """Append what `save` returned to a sequence that holds just what came before it, up to `end` positions.

        False if the memory does not take it; then the sequence is as it was.
        """
        ...

    def length(self, seq_id: int) -> int:
        """Return the number of positions held: highest position + 1."""
        ...

    def is_end(self, token: int) -> bool:
        """Whether a token ends generation (EOS, EOT …)."""
        ...
