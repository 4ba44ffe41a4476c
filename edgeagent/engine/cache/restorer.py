"""Restores blocks into the cells of a live sequence.

Restoring happens on the engine's thread between two steps, a block at a time, within the caller's time budget. The
disk's thread reads blocks ahead, so that no token waits for a disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from edgeagent.engine.cache.block import Block, BlockKey, Importance, Loaded, TransferRate
from edgeagent.engine.cache.block_table import BlockTable
from edgeagent.engine.cache.cached_prefix import BlockReference, Restoring
from edgeagent.engine.cache.slots import Slots
from edgeagent.engine.runner import Runner
from edgeagent.errors import InternalError

# Limit of the bytes that are read ahead for all sequences together. Each sequence may exceed it by one block.
_MAX_AHEAD_BYTES = 64 << 20


class _Reads:
    """The reads of blocks from disk that sequences wait for. Sequences that want the same block share its read."""

    def __init__(self, blocks: BlockTable) -> None:
        self._blocks = blocks
        self._num_wanted: dict[BlockKey, int] = {}
        self._sizes: dict[BlockKey, int] = {}
        self._loaded: dict[BlockKey, Block | None] = {}
        self.num_bytes = 0
        """Bytes of all blocks that were requested and not yet taken or forgotten."""
        blocks.on_loaded.append(self._on_loaded)

    def request(self, key: BlockKey, num_bytes: int) -> None:
        """Start to read a block, which has `num_bytes`. End each request by one call of `take` or `forget`."""
        self._num_wanted[key] = self._num_wanted.get(key, 0) + 1
        if self._num_wanted[key] == 1:
            self._sizes[key] = num_bytes
            self.num_bytes += num_bytes
            self._blocks.fetch(key)

    def is_loaded(self, key: BlockKey) -> bool:
        """Whether the read of a requested block has ended, successfully or not."""
        self.wait(0.0)
        return key in self._loaded

    def take(self, key: BlockKey) -> Block | None:
        """End a request and return its block; None if the read failed. The read must have ended (`is_loaded`)."""
        block = self._loaded[key]
        self.forget(key)
        return block

    def forget(self, key: BlockKey) -> None:
        """End a request without taking its block."""
        self._num_wanted[key] -= 1
        if self._num_wanted[key] == 0:
            del self._num_wanted[key]
            self.num_bytes -= self._sizes.pop(key)
            self._loaded.pop(key, None)

    def wait(self, timeout_s: float) -> None:
        """Take what was read. If the disk has no result at all, wait up to `timeout_s` for one."""
        self._blocks.poll(timeout_s=timeout_s)

    def _on_loaded(self, result: Loaded) -> None:
        """Keep a block until it is taken. If no sequence waits for it any more, drop it."""
        if result.key in self._num_wanted:
            self._loaded[result.key] = result.block


class Restorer:
    """Restores blocks into one runner's cells."""

    def __init__(
        self,
        runner: Runner,
        slots: Slots,
        blocks: BlockTable,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = runner
        self._slots = slots
        self._blocks = blocks
        self._clock = clock
        self._reads = _Reads(blocks)
        self._rate = TransferRate()

    def begin(self, restoring: Restoring) -> None:
        """Begin a restore: start to read its first blocks from disk."""
        restoring.unasked.extend(each for each in restoring.references if not each.is_in_memory)
        self._read_ahead(restoring)

    def advance(self, restoring: Restoring, budget_s: float) -> bool:
        """Restore blocks for about `budget_s` seconds; return True when no block remains.

        If the next block is loaded, at least that block is restored. Otherwise return False without waiting. If a block
        is gone or cannot be restored, the restore ends early. The restored part is correct, and the engine computes the
        rest.
        """
        started_s = self._clock()
        while restoring.references:
            self._read_ahead(restoring)
            reference = restoring.references[0]
            if not self._is_loaded(restoring, reference):
                return False
            block = self._take(restoring, reference)
            if block is not None and self._restore(restoring, reference, block):
                restoring.references.popleft()
            else:
                self.stop(restoring)
            if self._clock() - started_s >= budget_s:
                break
        return not restoring.references

    def stop(self, restoring: Restoring) -> None:
        """Cancel the rest of a restore. The part that was restored stays."""
        restoring.references.clear()
        restoring.unasked.clear()
        for key in restoring.requested:
            self._reads.forget(key)
        restoring.requested.clear()

    def wait(self, restorings: Sequence[Restoring], timeout_s: float) -> None:
        """Wait up to `timeout_s` until another block is read. Return at once if one restore can continue now."""
        heads = [(each, each.references[0]) for each in restorings if each.references]
        if heads and not any(self._is_loaded(*head) for head in heads):
            self._reads.wait(timeout_s)

    def expected_s(self, references: Sequence[BlockReference]) -> float:
        """Return the expected seconds to restore these blocks, including reads from disk."""
        seconds = self._rate.seconds(sum(reference.num_bytes for reference in references))
        if self._blocks.disk is not None:
            num_read = sum(reference.num_bytes for reference in references if not reference.is_in_memory)
            rate = self._blocks.disk.read_bytes_per_s
            seconds += num_read / rate if num_read and rate else 0.0
        return seconds

    def _is_loaded(self, restoring: Restoring, reference: BlockReference) -> bool:
        return reference.key not in restoring.requested or self._reads.is_loaded(reference.key)

    def _take(self, restoring: Restoring, reference: BlockReference) -> Block | None:
        """Return the block of a reference; None if it is gone.

        A block that was read from disk is also kept in memory, unless it was purged since. Then only this sequence uses
        it.
        """
        if reference.key not in restoring.requested:
            return self._blocks.read(reference.key)
        restoring.requested.remove(reference.key)
        restoring.read.add(reference.key)
        block = self._reads.take(reference.key)
        self._read_ahead(restoring)
        if block is not None and self._blocks.is_held(block.key):
            self._blocks.add(block, Importance.NORMAL)
        return block

    def _read_ahead(self, restoring: Restoring) -> None:
        """Start to read a sequence's next blocks: at least one, and more within the limit for all sequences."""
        while restoring.unasked:
            reference = restoring.unasked[0]
            if restoring.requested and self._reads.num_bytes + reference.num_bytes > _MAX_AHEAD_BYTES:
                return
            restoring.unasked.popleft()
            if reference.key not in restoring.requested:
                self._reads.request(reference.key, reference.num_bytes)
                restoring.requested.add(reference.key)

    def _restore(self, restoring: Restoring, reference: BlockReference, block: Block) -> bool:
        seq_id, length = restoring.seq_id, len(block.tokens)
        begin, end = reference.start + reference.skip + reference.shift, reference.end + reference.shift
        wanted = block.tokens[reference.skip : reference.num_tokens]
        if wanted != restoring.tokens[begin:end] or length != reference.length:
            return False  # the key was not made from these tokens: the block is forged
        if not self._slots.reserve(length):
            return False
        started_s = self._clock()
        try:
            payload = self._blocks.unpack(block)
        except (InternalError, MemoryError):
            return False
        if reference.is_shifted:
            positions = range(begin - reference.shift, reference.end)
            if not self._runner.restore_shifted(seq_id, payload, reference.start + length, positions, reference.shift):
                return False
            self._slots.append(seq_id, wanted)
            return True
        if not self._runner.restore(seq_id, payload, reference.start + length):
            return False
        self._slots.append(seq_id, block.tokens)
        num_there = self._slots.cut(seq_id, reference.end) if reference.num_tokens < length else reference.end
        self._rate.observe(block.num_bytes, self._clock() - started_s)
        name = "disk" if reference.key in restoring.read else "host"
        restoring.num_restored[name] = restoring.num_restored.get(name, 0) + reference.num_tokens
        if num_there != reference.end:
            restoring.num_restored.clear()
        return num_there == reference.end
