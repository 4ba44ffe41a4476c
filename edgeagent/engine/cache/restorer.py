"""Brings blocks back into the cells of a live sequence.

Restoring happens on the engine's thread between two steps, a block at a time, within what the caller grants; blocks of
the tier below are read meanwhile. It decides which blocks are worth restoring, not which sequence is next.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from edgeagent.engine.cache.block import MIN_PART, Block, BlockKey, Importance
from edgeagent.engine.cache.loader import BlockLoader
from edgeagent.engine.cache.lookup import BlockReference
from edgeagent.engine.cache.saver import MAX_GAP, Saver
from edgeagent.engine.cache.slots import Source
from edgeagent.engine.cache.transfer_rate import TransferRate
from edgeagent.engine.runner import CUTTABLE, Runner

# Bytes that are read ahead of being restored, for all sequences together; each may have one block beyond that.
_MAX_AHEAD_BYTES = 64 << 20


@dataclass(slots=True)
class Restoring:
    """A live sequence that is being restored, with its remaining blocks."""

    seq_id: int
    tokens: array[int]
    references: deque[BlockReference]
    epoch: int  # of its partition when it began
    unasked: deque[BlockReference] = field(default_factory=deque)  # to be asked of the loader, in order
    requested: set[BlockKey] = field(default_factory=set)  # of the loader, and not taken yet
    read: set[BlockKey] = field(default_factory=set)  # came from the tier below
    num_restored: dict[str, int] = field(default_factory=dict)  # tokens by tier

    @property
    def num_tokens(self) -> int:
        """Restored tokens."""
        return sum(self.num_restored.values())


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """The cached part of a prompt: `source` in cells, then blocks `to_restore`; `known` are all its blocks."""

    root: BlockKey
    source: Source
    to_restore: list[BlockReference]
    known: list[BlockReference]

    @property
    def end(self) -> int:
        """Tokens that need not be computed."""
        return self.to_restore[-1].end if self.to_restore else self.source.length


class Restorer:
    """Restores a saver's blocks into its cells."""

    def __init__(self, runner: Runner, saver: Saver, clock: Callable[[], float] = time.monotonic) -> None:
        self._runner = runner
        self._saver = saver
        self._cells = saver.cells
        self._blocks = saver.blocks
        self._clock = clock
        self._loader = None if saver.blocks.below is None else BlockLoader(saver.blocks.below)
        self._rate = TransferRate()

    def find(
        self, partition: str, tokens: Sequence[int], max_length: int, prefill_s: Callable[[int, int], float | None]
    ) -> CachedPrefix:
        """Return how much of a prompt to take from cells, and the blocks to restore after that.

        `prefill_s` predicts the seconds of computing tokens from a depth on; blocks that would take longer are not
        restored.
        """
        root = self._blocks.root(partition)
        walk = self._blocks.walk(root, tokens[:max_length])
        source, references = self._cells.match(walk, max_length), self._blocks.find(walk)
        if self._is_better_lower(source, references):
            return CachedPrefix(root, Source(), references, references)
        if not references or references[-1].end < source.length + MIN_PART:
            return CachedPrefix(root, source, [], references)
        beyond = [reference for reference in references if reference.end > source.length]
        before = self._cells.match(walk, beyond[0].start)
        if before.length != beyond[0].start:
            before, beyond = Source(), references
        expected_s = prefill_s(references[-1].end - source.length, source.length)
        if expected_s is not None and self._restore_s(beyond) > expected_s:
            return CachedPrefix(root, source, [], references)
        return CachedPrefix(root, before, beyond, references)

    def num_shared(self, partition: str, tokens: Sequence[int]) -> int:
        """Return how many of the leading tokens were seen before, whether or not a restore can end there."""
        return self._blocks.walk(self._blocks.root(partition), tokens).depth

    def claim(self, tokens: array[int], found: CachedPrefix) -> Restoring | None:
        """Make a live sequence with the prefix that was just found; None if every sequence id is live.

        Call `advance` until it returns True.
        """
        seq_id = self._saver.claim(found.root, found.source, found.known)
        if seq_id is None:
            return None
        references = found.to_restore if self._cells.length(seq_id) == found.source.length else []
        self._blocks.use(references)
        self._saver.read_out_policy.observe_prompt(len(tokens), found.end)
        restoring = Restoring(seq_id, tokens, deque(references), self._blocks.epoch(found.root))
        restoring.unasked.extend(reference for reference in references if reference.tier is self._blocks.below)
        self._read_ahead(restoring)
        return restoring

    def advance(self, restoring: Restoring, budget_s: float) -> bool:
        """Restore blocks for about this long, at least one; True when nothing is left to restore.

        A block that is gone, or does not fit, ends it early: the restored part is correct, and the rest is computed.
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
        """Drop the blocks that are not restored yet."""
        restoring.references.clear()
        restoring.unasked.clear()
        for key in restoring.requested:
            assert self._loader is not None
            self._loader.forget(key)
        restoring.requested.clear()

    def wait(self, restorings: Sequence[Restoring], timeout_s: float) -> None:
        """Wait, at most `timeout_s`, if none of these can continue before another block is read."""
        heads = [(each, each.references[0]) for each in restorings if each.references]
        if self._loader is not None and heads and not any(self._is_loaded(*head) for head in heads):
            self._loader.wait(timeout_s)

    def close(self) -> None:
        """End the reading; the tier below stays open."""
        if self._loader is not None:
            self._loader.close()

    def _is_better_lower(self, source: Source, references: Sequence[BlockReference]) -> bool:
        """Whether to restore a prefix that the cells hold too, since it would keep the used cells far apart.

        Every token pays for a gap, and a restore is paid once: a gap as long as the prefix is worth a restore.
        """
        if source.seq_id is None or not self._saver.is_saved(source.seq_id):
            return False
        if self._runner.memory_kind not in CUTTABLE or not references or references[-1].end < source.length:
            return False
        if any(reference.tier is not self._blocks.host for reference in references):
            return False
        return self._cells.gap_below(source.seq_id, source.length) > max(MAX_GAP, source.length)

    def _is_loaded(self, restoring: Restoring, reference: BlockReference) -> bool:
        return reference.key not in restoring.requested or (
            self._loader is not None and self._loader.is_loaded(reference.key)
        )

    def _take(self, restoring: Restoring, reference: BlockReference) -> Block | None:
        """Return a reference's block; one from the tier below is in host memory from here on."""
        if reference.key not in restoring.requested:
            return reference.tier.read(reference.key)
        assert self._loader is not None
        restoring.requested.remove(reference.key)
        restoring.read.add(reference.key)
        block = self._loader.take(reference.key)
        self._read_ahead(restoring)
        # A block that was purged meanwhile serves the sequence that began with it, and is not kept for others.
        if block is not None and restoring.epoch == self._blocks.epoch(self._cells.root(restoring.seq_id)):
            self._blocks.add(block, Importance.IDLE)
        return block

    def _read_ahead(self, restoring: Restoring) -> None:
        """Ask the loader for the next blocks of a sequence: for one at least, for more within the bytes for all."""
        while restoring.unasked and self._loader is not None:
            reference = restoring.unasked[0]
            if restoring.requested and self._loader.num_bytes + reference.num_bytes > _MAX_AHEAD_BYTES:
                return
            restoring.unasked.popleft()
            if reference.key not in restoring.requested:
                self._loader.request(reference.key, reference.num_bytes)
                restoring.requested.add(reference.key)

    def _restore(self, restoring: Restoring, reference: BlockReference, block: Block) -> bool:
        seq_id, length = restoring.seq_id, len(block.tokens)
        if (
            block.tokens[: reference.num_tokens] != restoring.tokens[reference.start : reference.end]
            or length != reference.length
        ):
            return False  # another prefix under the same key: a forged block
        if not self._cells.reserve(length):
            return False
        started_s = self._clock()
        if not self._runner.restore(seq_id, block.payload, reference.start + length):
            return False
        self._cells.append(seq_id, block.tokens)
        num_there = self._cells.cut(seq_id, reference.end) if reference.num_tokens < length else reference.end
        self._rate.observe(block.num_bytes, self._clock() - started_s)
        name = "disk" if reference.key in restoring.read else "host"
        restoring.num_restored[name] = restoring.num_restored.get(name, 0) + reference.num_tokens
        if num_there != reference.end:
            restoring.num_restored.clear()
        return num_there == reference.end

    def _restore_s(self, references: Sequence[BlockReference]) -> float:
        seconds = self._rate.seconds(sum(reference.num_bytes for reference in references))
        if self._blocks.below is not None:
            num_read = sum(reference.num_bytes for reference in references if reference.tier is self._blocks.below)
            rate = self._blocks.below.stats().read_bytes_per_s
            seconds += num_read / rate if num_read and rate else 0.0
        return seconds
