"""Removes refused drafts from a recurrent memory, by going back to an earlier state.

If n_rs_seq is set, llama.cpp keeps the states before the last tokens of each sequence. It does so only for some
architectures (llm_arch_supports_rs_rollback). llama_memory_seq_rm can then go back to one of these states. But it does
not know which of them are valid:

- Only states from a sequence's latest micro-batch are valid. There is no valid state before the first token of that
  micro-batch.
- A later micro-batch with several sequences may move a sequence's present state without moving its earlier states.
- After going back, the sequence's state is stored elsewhere until the next decode. llama_memory_seq_cp ignores this.

In all three cases llama.cpp reports no error, and later logits are wrong. So this module tracks how far each sequence
can go back.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from edgeagent.engine.llama.bindings import lib
from edgeagent.engine.runner import Slice
from edgeagent.errors import InternalError

# llama.cpp asserts, when it splits a batch, that a micro-batch has more tokens than the number of kept states plus one.
_MIN_SPARE = 2


def possible_rewind(wanted: int, micro_batch: int) -> int:
    """Return how many earlier states llama.cpp can keep for each sequence, at most `wanted`."""
    return max(0, min(wanted, micro_batch - _MIN_SPARE))


class PastStates:
    """Tracks the earlier states that the sequences of one context can go back to."""

    def __init__(self, context: Any, memory: Any) -> None:
        self._context, self._memory = context, memory
        self.max_rewind = int(lib.llama_n_rs_seq(context))
        """The most tokens that a sequence can go back; 0 if llama.cpp keeps no earlier states in this context."""
        self._micro_batch = int(lib.llama_n_ubatch(context))
        self._valid: dict[int, int] = {}  # tokens that may be taken back, by sequence
        self._moved: set[int] = set()  # sequences that went back and were not decoded since

    def calls(self, slices: Sequence[Slice]) -> list[Sequence[Slice]]:
        """Split a batch into calls of llama_decode, so that all its drafts can be taken back afterwards.

        Slices with drafts come last. They share one call if they are equally long and fit one micro-batch. Otherwise
        each of them has its own call, since a micro-batch of one sequence does not change other sequences' states.
        """
        drafting = [part for part in slices if part.num_drafts] if self.max_rewind else []
        if not drafting:
            return [slices]
        num_tokens = {len(part.tokens) for part in drafting}
        is_one = len(num_tokens) == 1 and num_tokens.pop() * len(drafting) <= self._micro_batch
        others = [part for part in slices if not part.num_drafts]
        return [*([others] if others else []), *([drafting] if is_one else [[part] for part in drafting])]

    def begin(self) -> None:
        """Record that a batch is about to be computed, so that the states of the previous batch are no longer valid."""
        self._valid.clear()

    def record(self, slices: Iterable[Slice]) -> None:
        """Record that all slices of a batch were computed, so that their drafts can be taken back."""
        if self.max_rewind == 0:
            return
        for part in slices:
            self._moved.discard(part.seq_id)
            if part.num_drafts:
                self._valid[part.seq_id] = min(part.num_drafts, self.max_rewind)

    def go_back(self, seq_id: int, position: int, num_tokens: int) -> bool:
        """Remove a sequence's last `num_tokens`, which are all from llama.cpp's `position` on.

        Return False, and remove nothing, if the state before `position` is not kept. Call this at most once for each
        sequence after a batch.
        """
        if not 0 < num_tokens <= self._valid.pop(seq_id, 0):
            return False
        if not lib.llama_memory_seq_rm(self._memory, seq_id, position, -1):
            return False
        self._moved.add(seq_id)
        return True

    def put_in_place(self, seq_id: int) -> bool:
        """Put a sequence's state where llama.cpp's other functions expect it. Call it before a copy, save or restore.

        The sequence cannot go back afterwards. Return False if llama.cpp cannot read the state. The state is then
        unchanged. Raise InternalError if the state was lost.
        """
        self._valid.pop(seq_id, None)
        if seq_id not in self._moved:
            return True
        flags = lib.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
        size = int(lib.llama_state_seq_get_size_ext(self._context, seq_id, flags))
        state = np.empty(size, np.uint8)
        pointer = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        written = lib.llama_state_seq_get_data_ext(self._context, pointer, size, seq_id, flags)
        if not written:
            return False
        if lib.llama_state_seq_set_data_ext(self._context, pointer, written, seq_id, flags) != written:
            raise InternalError("llama.cpp lost the state of a sequence when it put it back in its place")
        self._moved.discard(seq_id)
        return True

    def forget(self, seq_id: int) -> None:
        self._valid.pop(seq_id, None)
        self._moved.discard(seq_id)
