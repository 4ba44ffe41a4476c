"""The few fakes that tests share."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from edgeagent.engine.runner import DecodeCancelled, Logits, OutOfCells, Slice
from edgeagent.types import MemoryKind


def next_token(prefix: Sequence[int], num_vocab: int) -> int:
    """The token a FakeRunner predicts after a prefix: a fixed function of all of it."""
    digest = hashlib.blake2b(np.asarray(prefix, np.int32).tobytes(), digest_size=4).digest()
    return int.from_bytes(digest, "little") % num_vocab


class FakeRunner:
    """A runner whose next token is a fixed function of the prefix, and which notices misuse of its memory."""

    def __init__(
        self,
        *,
        num_vocab: int = 50,
        num_cells: int = 256,
        num_sequences: int = 8,
        max_batch: int = 64,
        max_outputs: int = 64,
        memory_kind: MemoryKind = MemoryKind.FULL_ATTENTION,
        end_token: int = 0,
    ) -> None:
        self.memory_kind = memory_kind
        self.num_vocab = num_vocab
        self.num_cells = num_cells
        self.num_sequences = num_sequences
        self.max_batch = max_batch
        self.max_outputs = max_outputs
        self._end_token = end_token
        self._sequences: dict[int, list[int]] = {seq_id: [] for seq_id in range(num_sequences)}
        self._outputs: list[Logits] = []
        self.cancel_next: int | None = None  # let this many slices of the next batch through, then cancel it
        self.refuse_next = False
        self.num_tokens_computed = 0

    def decode(self, slices: Sequence[Slice]) -> None:
        assert slices
        assert 0 < sum(len(part.tokens) for part in slices) <= self.max_batch
        assert len({part.seq_id for part in slices}) == len(slices)
        assert sum(part.num_logits for part in slices) <= self.max_outputs
        if self.refuse_next:
            self.refuse_next = False
            raise OutOfCells
        self._outputs = []
        for index, part in enumerate(slices):
            if self.cancel_next is not None and index >= self.cancel_next:
                self.cancel_next = None
                raise DecodeCancelled
            held = self._sequences[part.seq_id]
            assert part.start == len(held), f"sequence {part.seq_id} holds {len(held)} positions, got {part.start}"
            first_logits = len(part.tokens) - part.num_logits
            for offset, token in enumerate(part.tokens):
                held.append(int(token))
                self.num_tokens_computed += 1
                if offset >= first_logits:
                    self._outputs.append(self._logits_after(held))
        if self.cancel_next is not None:
            self.cancel_next = None
            raise DecodeCancelled

    def logits(self, index: int) -> Logits:
        return self._outputs[index]

    def can_trim(self, seq_id: int, length: int) -> bool:
        held = len(self._sequences[seq_id])
        if length >= held:
            return length == held
        return self.memory_kind is MemoryKind.FULL_ATTENTION or length == 0

    def trim(self, seq_id: int, length: int) -> bool:
        if not self.can_trim(seq_id, length):
            return False
        del self._sequences[seq_id][length:]
        return True

    def clear(self, seq_id: int) -> None:
        self._sequences[seq_id].clear()

    def copy(self, source: int, target: int, length: int) -> bool:
        assert not self._sequences[target], "the target of a copy must be empty"
        if not self.can_trim(source, length):
            return False
        self._sequences[target] = self._sequences[source][:length]
        return True

    def length(self, seq_id: int) -> int:
        return len(self._sequences[seq_id])

    def is_end(self, token: int) -> bool:
        return token == self._end_token

    def _logits_after(self, prefix: list[int]) -> Logits:
        logits = np.zeros(self.num_vocab, np.float32)
        logits[next_token(prefix, self.num_vocab)] = 10.0
        return logits
