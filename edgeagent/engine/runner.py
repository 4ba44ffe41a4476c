"""The protocol of runners, which compute logits for the engine: llama.cpp (`engine.llama`) or a fake in tests.

A runner has memory cells, which `num_sequences` sequences share. It only computes batches. The engine records which
tokens are in which cells. Positions count from 0 in each sequence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from edgeagent.engine.cache.block import Payload
from edgeagent.types import MemoryKind

Logits = NDArray[np.float32]
Rows = NDArray[np.float32]
"""Embeddings, shape (number, width of the model)."""
Positions = NDArray[np.int32]
"""Positions of embeddings in time, height and width, relative to the first one; shape (3, number)."""

# The kinds of memory whose last cells can be removed. Attention writes each cell once. A recurrent state is overwritten
# layer by layer: this cannot be undone, and an interrupted step leaves it half updated.
CUTTABLE = (MemoryKind.FULL_ATTENTION, MemoryKind.SLIDING_WINDOW)


class Place(NamedTuple):
    """Where a token of a tree is: `depth` positions behind the tree's start, in the branches first ≤ number < end."""

    depth: int
    first: int
    end: int


class Slice(NamedTuple):
    """Consecutive tokens of one sequence in a batch: tokens[i] goes to position start + i.

    The last `num_logits` tokens give logits. The last `num_drafts` tokens are drafts: `Runner.rewind` can remove them.

    If there are `places`, one for each token, the tokens are a tree instead, whose branches follow the sequence. A
    token comes after the tokens before it in its branches. The sequence itself does not change, and the branches are
    forgotten after the batch. The branches of all slices of a batch are at most `Runner.max_branches`.

    If there are `rows`, these embeddings are computed instead of tokens, and nothing gives logits. Such a slice is
    alone in its batch, or beside tokens if the runner `can_mix` and the slice `is_causal`. Without `is_causal`, each of
    the embeddings attends to all others too, and one micro-batch must hold them. With `positions`, they take other
    positions than their own; see `Runner.place_media`. Then a slice that is alone may be longer than `max_batch`, or
    several slices in a row may compute the chunk, all with its `start`. Until the last of them is computed, the
    sequence can only be cut to `start` or before it.
    """

    seq_id: int
    start: int
    tokens: Sequence[int]
    num_logits: int
    num_drafts: int = 0
    places: Sequence[Place] = ()
    rows: Rows | None = None
    is_causal: bool = True
    positions: Positions | None = None


class Stretch(NamedTuple):
    """Tokens from `start` to `end` of a sequence that stand for embeddings and together take `num_positions`."""

    start: int
    end: int
    num_positions: int


class DecodeCancelled(Exception):
    """The batch was interrupted. Any part of it may have been computed."""


class OutOfCells(Exception):
    """The memory has no room for this batch. Nothing was computed."""


class Runner(Protocol):
    """Computes batches and holds the memory of sequences. It has one owner, which calls it from one thread."""

    memory_kind: MemoryKind
    num_vocab: int
    num_cells: int
    num_sequences: int
    max_batch: int
    max_whole: int  # the most tokens that are computed at once (llama.cpp's micro-batch); see Slice
    max_outputs: int  # the most tokens of a batch that may give logits
    max_branches: int  # the most branches of trees in a batch; see Slice
    row_cost: float  # what a row of logits costs in addition to its token, as a multiple of a token's cost
    max_rewind: int  # the most tokens of a sequence that `rewind` can take back; 0: no drafts are possible
    attention_tile: int  # how many tokens of one sequence attention computes at once; 0: no batch is padded
    min_prompt_chunk: int  # prompt chunks of fewer tokens give slightly different logits (see engine.sequence)

    can_shift: bool  # whether `restore_shifted` may be used: cells of an earlier prompt are moved to other positions
    can_mix: bool  # whether a batch may have embeddings beside tokens; see Slice
    is_blocking: bool  # `submit` returns when the batch is computed, as on a CPU

    def submit(self, slices: Sequence[Slice], min_tokens: int = 0) -> None:
        """Begin to compute a batch. Call `wait` next; until then, only idle sequences may be read or changed.

        A batch of fewer than `min_tokens` is padded to that many, if enough cells are free. Raise DecodeCancelled,
        OutOfCells or InternalError. There is nothing to wait for then.
        """
        ...

    def wait(self) -> None:
        """Wait until the submitted batch is computed. Then `logits` returns its outputs. Raise the same errors."""
        ...

    def decode(self, slices: Sequence[Slice], min_tokens: int = 0) -> None:
        """Compute a batch: `submit`, then `wait`."""
        ...

    def use_adapter(self, adapter: str) -> None:
        """Use this adapter ("" for none) for later batches. Cells that are already computed do not change."""
        ...

    def logits(self, index: int) -> Logits:
        """Return row `index` of the last batch's logits, shape (num_vocab,).

        The rows are numbered from 0, in the order of the slices. The result is a view that must not be changed. It is
        valid until the next decode.
        """
        ...

    def all_logits(self) -> Logits:
        """Return all rows of the last batch's logits, shape (num_rows, num_vocab), as `logits` does."""
        ...

    def place_media(self, seq_id: int, stretches: Sequence[Stretch]) -> None:
        """Say where a live sequence has fewer positions than tokens, in order. It cannot be cut within such a stretch.

        All lengths and ends of this protocol count tokens. The stretches stay known until the sequence is cleared.
        """
        ...

    def can_trim(self, seq_id: int, length: int) -> bool:
        """Whether a sequence may be cut to `length` and continue there with correct logits. No side effect."""
        ...

    def trim(self, seq_id: int, length: int) -> bool:
        """Forget a sequence's positions from `length` on. Return False, and change nothing, if this memory cannot."""
        ...

    def rewind(self, seq_id: int, length: int) -> bool:
        """Forget refused drafts of the latest batch, from position `length` on. Return False if this memory cannot.

        Call it before the next decode, at most once for each sequence.
        """
        ...

    def clear(self, seq_id: int) -> None:
        """Forget a whole sequence. Every memory can do this."""
        ...

    def copy(self, source: int, target: int, length: int) -> bool:
        """Let the empty sequence `target` share the first `length` positions of `source`.

        Return False if this memory cannot do that.
        """
        ...

    def can_save(self, seq_id: int, start: int, end: int) -> bool:
        """Whether `save` can read positions [start, end) and a later restore of them will be exact. No side effect."""
        ...

    def save(self, seq_id: int, start: int, end: int) -> memoryview:
        """Return the bytes of positions [start, end). They include the state at `end` if the memory has states.

        Raise InternalError if the memory cannot be read, or MemoryError if there is no room for the bytes.
        """
        ...

    def prepare(self, num_bytes: int, max_bytes: int) -> bool:
        """Prepare a buffer for a later `save` of `num_bytes`. Return False if no buffer was made.

        No buffer is made if the prepared buffers would exceed `max_bytes`, if there is no memory for another one, or if
        a save needs no prepared buffer.
        """
        ...

    def state_bytes(self, seq_id: int) -> int:
        """Return how many bytes of a saved range are the state; 0 if the memory has only cells.

        The number is the same for all ranges.
        """
        ...

    def restore(self, seq_id: int, payload: Payload, end: int) -> bool:
        """Append a saved range that ends at `end`. The sequence must hold exactly the positions before the range.

        Return False, and leave the sequence unchanged, if the memory refuses the range.
        """
        ...

    def restore_shifted(self, seq_id: int, payload: Payload, end: int, wanted: range, shift: int) -> bool:
        """Append the positions `wanted` of a saved range that ends at `end`, moved by `shift` positions.

        Moved there, they must begin at the sequence's end. The range was computed behind other tokens, so logits are
        then not exact. Call `apply_shift` before the next decode. Return False, and leave the sequence unchanged, if
        the memory refuses the range. Only a runner with `can_shift` has this method.
        """
        ...

    def apply_shift(self) -> None:
        """Complete earlier calls of `restore_shifted`."""
        ...

    def length(self, seq_id: int) -> int:
        """Return a sequence's length in tokens: its highest position + 1. A sliding window may lack early cells."""
        ...

    def is_end(self, token: int) -> bool:
        """Whether a token ends generation (EOS, EOT …)."""
        ...


@dataclass(frozen=True, slots=True)
class Chunk:
    """The saved cells of `num_tokens` consecutive tokens of a prompt. They end at position `end`."""

    num_tokens: int
    end: int
    payload: Payload


@dataclass(frozen=True, slots=True, eq=False)
class ChunkRows:
    """Embeddings that a side context computes instead of tokens; for `is_causal` and `positions`, see Slice.

    `stretches`: see `Runner.place_media`.
    """

    rows: Rows
    is_causal: bool
    positions: Positions | None
    stretches: Sequence[Stretch]

    @property
    def is_one(self) -> bool:
        """Whether their cells can only be copied all at once."""
        return not self.is_causal or self.positions is not None


class SideContext(Protocol):
    """A context that computes one prompt on a thread of its own. It starts paused.

    Only the engine's thread calls its methods.
    """

    is_over: bool
    """Whether the computation has ended, because the prompt is complete or because of an error."""
    num_bytes: int
    """The most bytes of memory that the context may take."""

    def give(self, chunk: Chunk) -> None:
        """Give this context the next cells of its prompt, which another context has computed."""
        ...

    def resume(self, until_s: float = math.inf) -> None:
        """Start or continue the computation, until `pause` is called.

        The computation also pauses by itself before a part that would end after `until_s` (monotonic clock). The first
        part always runs.
        """
        ...

    def wait_paused(self, timeout_s: float) -> bool:
        """Wait until the computation has paused or ended. Return False if it has not after `timeout_s`."""
        ...

    def pause(self) -> None:
        """Pause the computation and wait until it has stopped, at most about a second."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Wait until a chunk can be taken or the computation has ended, at most `timeout_s`."""
        ...

    def take(self) -> list[Chunk]:
        """Return the chunks that were computed since the last call, in the order of the prompt."""
        ...

    def close(self) -> None:
        """End the computation and free the context."""
        ...


class OpenSideContext(Protocol):
    """Opens a context that computes `tokens` in chunks of at most `chunk` tokens.

    The cells of the first `num_known` tokens are not computed: they come through `SideContext.give`. The others stand
    for `media`, if there are any. Returns None if there is not enough memory, or if this memory cannot be copied.
    """

    def __call__(
        self, tokens: Sequence[int], num_known: int, chunk: int, media: ChunkRows | None = None
    ) -> SideContext | None: ...
