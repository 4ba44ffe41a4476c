"""Gives a waiting sequence its cached prefix: from another sequence's prefill, from cells, from blocks.

It decides for one sequence at a time; the engine decides which one is next and what a step computes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from edgeagent.engine.cache.block import common_length
from edgeagent.engine.cache.cached_prefix import CachedPrefix
from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.runner import CUTTABLE, Runner
from edgeagent.engine.sequence import Sequence
from edgeagent.types import MemoryKind

# Fewer tokens than this are computed again rather than waited for, and no state is saved for them.
_MIN_SHARED = 32


class Admission:
    """Claims and restores cached prefixes for one runner's sequences, and finds prefills that they can wait for."""

    def __init__(self, runner: Runner, prefixes: PrefixStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._runner = runner
        self._prefixes = prefixes
        self._clock = clock

    def must_wait(self, sequence: Sequence, running: Iterable[Sequence]) -> bool:
        """Whether to wait for a running sequence that will compute more of this one's prompt than is cached now.

        If so, the running sequence takes over this one's tier if that is more urgent. Unless memory is attention alone,
        it also ends a chunk where the shared prefix ends, so that a state can be saved there.
        """
        if sequence.follows is not None:
            leader, length = sequence.follows
            if leader.seq_id is not None and leader.num_computed < length and leader in running:
                leader.is_raised = leader.is_raised or sequence.is_raised
                return True
            sequence.follows = None
        best: tuple[int, Sequence] | None = None
        wanted = sequence.tokens[: sequence.num_usable]
        for other in running:
            if other.spec.cache_partition == sequence.spec.cache_partition and other.num_computed < other.num_prompt:
                shared = common_length(other.tokens[: other.num_prompt], wanted)
                if shared > max(other.num_computed, best[0] if best else 0):
                    best = shared, other
        if best is None:
            return False
        length, leader = best
        if length < self._find(sequence).end + _MIN_SHARED:
            return False
        sequence.follows = leader, length
        leader.tier = min(leader.tier, sequence.tier, key=list(type(leader.tier)).index)
        if self._runner.memory_kind is not MemoryKind.FULL_ATTENTION:
            leader.add_chunk_end(length)
        return True

    def claim(self, sequence: Sequence, *, is_alone: bool) -> bool:
        """Give a sequence a seq_id with the cached part of its prompt, and begin to restore its blocks.

        Return False if it must wait. `is_alone`: no other sequence runs, so there is room for it.
        """
        started_s = self._clock()
        found = self._find(sequence)
        if not is_alone and not self._prefixes.can_hold(len(sequence.tokens) - found.source.length + 1):
            return False
        sequence.restoring = self._prefixes.claim(sequence.tokens, found)
        if sequence.restoring is None:
            return False
        sequence.seq_id = sequence.restoring.seq_id
        sequence.num_computed = self._prefixes.length(sequence.seq_id)
        sequence.restore_started_s = started_s
        return True

    def make_way(self, sequence: Sequence, *, is_alone: bool) -> None:
        """Evict idle prefixes from the cells for a sequence that was just claimed, before its prefix is restored.

        Only prefixes that are in blocks are evicted. If no stream runs (`is_alone`), others are first read out into
        blocks, for as long as ReadOutPolicy allows.
        """
        if is_alone:
            restored = (
                sequence.restoring.references[-1].end if sequence.restoring and sequence.restoring.references else 0
            )
            depth = max(sequence.num_computed, restored)
            self._prefixes.make_way(len(sequence.tokens) - depth)
        self._prefixes.shed()

    def advance(self, sequence: Sequence, budget_s: float) -> bool:
        """Restore blocks for about `budget_s` seconds; return True when the sequence may be computed.

        A sequence's cached tokens and cache time are recorded when this first returns True for it.
        """
        assert sequence.seq_id is not None
        if sequence.restoring is not None:
            if not self._prefixes.reload(sequence.restoring, budget_s):
                return False
            sequence.num_restored = dict(sequence.restoring.num_restored)
            sequence.restoring = None
        length = self._prefixes.length(sequence.seq_id)
        sequence.batch_ends.forget_if_many(len(sequence.tokens) - max(length, sequence.num_prompt))
        if sequence.leaves_one(length) and self._runner.can_trim(sequence.seq_id, length - 1):
            length = self._prefixes.cut(sequence.seq_id, length - 1)
        sequence.num_computed = length
        if sequence.marks.claimed_s == 0.0:  # the usage of a preempted sequence was recorded before
            sequence.num_cached = min(sequence.num_computed, sequence.num_prompt)
            sequence.marks.claimed_s = self._clock()
            sequence.marks.cache_s = sequence.marks.claimed_s - sequence.restore_started_s
        self._add_stops(sequence)
        return True

    def checkpoint(self, sequence: Sequence, start: int) -> None:
        """Save the state that cannot be read out later, after the tokens from `start` on were computed."""
        if sequence.keeps_prefix:
            assert sequence.seq_id is not None
            is_boundary = sequence.num_computed in sequence.chunk_ends
            self._prefixes.save(sequence.seq_id, start, sequence.spec.cache_priority, is_boundary=is_boundary)

    def release(self, sequence: Sequence) -> None:
        """End a sequence. Its tokens stay as a cached prefix if the request allows it."""
        assert sequence.seq_id is not None
        self._prefixes.release(
            sequence.seq_id, sequence.restoring, keep=sequence.keeps_prefix, priority=sequence.spec.cache_priority
        )
        sequence.restoring = None

    def _find(self, sequence: Sequence) -> CachedPrefix:
        return self._prefixes.match(sequence.spec.cache_partition, sequence.tokens, sequence.num_usable)

    def _add_stops(self, sequence: Sequence) -> None:
        """Choose where a prompt's chunks end, for a memory whose state can only be saved at its current position.

        1. At boundaries that the text names: the end of the system prompt, the end of the last message.
        2. Before the last token if there are no boundaries, for a request that repeats the prompt.
        3. Where the prompt differs from an earlier prompt that begins in the same way.
        4. At regular intervals.

        Rules 2 to 4 are not for memory that can be cut near its end.
        """
        kind, spec = self._runner.memory_kind, sequence.spec
        if kind is MemoryKind.FULL_ATTENTION or not spec.write_cache:
            return
        # Cells that can be cut near their end need no step of their own for a boundary there.
        last = sequence.num_prompt - (_MIN_SHARED if kind in CUTTABLE else 1)
        for boundary in spec.boundaries:
            if _MIN_SHARED <= boundary <= last:
                sequence.add_chunk_end(boundary)
        if kind in CUTTABLE:
            return
        if not spec.boundaries:
            sequence.add_chunk_end(sequence.num_prompt - 1)
        usable = sequence.tokens[: min(sequence.num_prompt, sequence.num_usable)]
        sequence.add_chunk_end(self._prefixes.num_shared(spec.cache_partition, usable))
        interval = self._prefixes.checkpoint_interval
        for position in range(interval, sequence.num_prompt, interval):
            if all(abs(position - end) >= _MIN_SHARED for end in sequence.chunk_ends):
                sequence.add_chunk_end(position)
