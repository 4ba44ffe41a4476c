"""The protocol of runners, which compute logits for the engine: llama.cpp (`engine.llama`) or a test's fake.

A runner has cells of memory shared by `num_sequences` sequence slots. It computes batches; only the engine records
which tokens are in which cells. Positions count from 0 in each sequence.
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

# Attention's cells are written once and can be removed. A recurrent state is overwritten layer by layer: it cannot be
# undone, and an interrupted step leaves it half updated.
CUTTABLE = (MemoryKind.FULL_ATTENTION, MemoryKind.SLIDING_WINDOW)


@dataclass(frozen=True, slots=True)
class Slice:
    """Consecutive tokens of one sequence in a batch: tokens[i] goes to position start + i.

    The last `num_logits` tokens give logits (0: none). The last `num_drafts` may be taken back by `Runner.rewind`.
    """

    seq_id: int
    start: int
    tokens: Sequence[int]
    num_logits: int
    num_drafts: int = 0


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
    row_cost: float  # cost of a row of logits in addition to its token, in tokens
    max_drafts: int  # tokens of a sequence's part of a batch that `rewind` can take back; 0: no drafts are possible
    min_prompt_chunk: int  # smaller chunks of a prompt give different bits than larger ones (engine.replay)

    def decode(self, slices: Sequence[Slice]) -> None:
        """Compute a batch. Raise DecodeCancelled, OutOfCells, or InternalError; afterwards logits() is valid."""
        ...

    def use_adapter(self, adapter: str) -> None:
        """Use this adapter ("" for none) for later batches. Cells that are already computed do not change."""
        ...

    def logits(self, index: int) -> Logits:
        """Return the index-th output of the last batch, shape (num_vocab,): a view, valid until the next decode."""
        ...

    def can_trim(self, seq_id: int, length: int) -> bool:
        """Whether a sequence may be cut to `length` and continue there with correct logits. No side effect."""
        ...

    def trim(self, seq_id: int, length: int) -> bool:
        """Forget a sequence's positions from `length` on; False if this memory cannot (then nothing changed)."""
        ...

    def rewind(self, seq_id: int, length: int) -> bool:
        """Forget refused drafts of the latest batch: positions from `length` on; False if this memory cannot.

        Call it before the next decode, at most once for each sequence.
        """
        ...

    def clear(self, seq_id: int) -> None:
        """Forget a whole sequence. Every memory can do this."""
        ...

    def copy(self, source: int, target: int, length: int) -> bool:
        """Let an empty target share the source's first `length` positions; False if this memory cannot."""
        ...

    def can_save(self, seq_id: int, start: int, end: int) -> bool:
        """Whether `save` can read this range, and a restore of it will be exact. No side effect."""
        ...

    def save(self, seq_id: int, start: int, end: int) -> memoryview:
        """Return the bytes of positions [start, end). They include the state at `end` if the memory has states."""
        ...

    def prepare(self, num_bytes: int, max_bytes: int) -> bool:
        """Prepare memory for a later `save` of `num_bytes`; False if `max_bytes` are ready or no memory is needed."""
        ...

    def state_bytes(self, seq_id: int) -> int:
        """Return how many bytes of a saved range are a state, which is the same for all ranges; 0 if all are cells."""
        ...

    def restore(self, seq_id: int, payload: Payload, end: int) -> bool:
        """Append a saved range, which ends at `end`, to a sequence that holds exactly the positions before it.

        Return False if the memory refuses it; then the sequence is unchanged.
        """
        ...

    def length(self, seq_id: int) -> int:
        """Return the number of positions held: highest position + 1."""
        ...

    def is_end(self, token: int) -> bool:
        """Whether a token ends generation (EOS, EOT …)."""
        ...


@dataclass(frozen=True, slots=True)
class Chunk:
    """Cells of consecutive tokens of the prompt, up to `end`."""

    num_tokens: int
    end: int
    payload: Payload


class SideContext(Protocol):
    """A context that computes one prompt on a separate thread. The engine's thread calls it. It starts paused."""

    is_over: bool
    """Whether it has ended: the prompt is complete, or the computation failed."""
    num_bytes: int
    """How much memory it may take."""

    def give(self, chunk: Chunk) -> None:
        """Give it the next cells of the prompt that were computed elsewhere."""
        ...

    def resume(self) -> None:
        """Start to compute, until `pause`."""
        ...

    def pause(self) -> None:
        """Stop computing, and wait until it has stopped."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Wait until a chunk was computed since the last `take`, or the thread is over."""
        ...

    def take(self) -> list[Chunk]:
        """Return the chunks that were computed since the last call, in order."""
        ...

    def close(self) -> None:
        """End the computation and free the context."""
        ...


class OpenSideContext(Protocol):
    """Makes a context that computes `tokens` in chunks of `chunk` tokens; the first `num_known` will be given to it.

    Returns None if there is not enough memory.
    """

    def __call__(self, tokens: Sequence[int], num_known: int, chunk: int) -> SideContext | None: ...
