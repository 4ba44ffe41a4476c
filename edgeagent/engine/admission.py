"""Finds the cached prefix of a waiting sequence and restores it, so that the sequence can start.

The prefix can come from KV cells, from blocks in memory or on disk, or from the prefill of a running sequence. This
module handles one sequence at a time. The engine decides which sequence is next and what a step computes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection

from edgeagent.engine.cache.block import common_length
from edgeagent.engine.cache.cached_prefix import MIN_LOST, CachedPrefix, Divergence
from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.runner import CUTTABLE, Runner
from edgeagent.engine.sequence import Sequence
from edgeagent.types import MemoryKind

# A sequence waits for another one's prefill only if that saves at least this many tokens. The ends of chunks at regular
# intervals are also at least this many tokens away from all other chunk ends.
_MIN_SHARED = 32


class Admission:
    """Starts the sequences of one runner with their cached prefixes, and ends them.

    It also makes a sequence wait if a running one is about to compute the same prefix.
    """

    def __init__(self, runner: Runner, prefixes: PrefixStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._runner = runner
        self._prefixes = prefixes
        self._clock = clock

    def must_wait(self, sequence: Sequence, running: Collection[Sequence]) -> bool:
        """Whether `sequence` must wait for the prefill of a running sequence with the same prefix.

        It must wait if this prefill will compute at least _MIN_SHARED more tokens of the shared prefix than are cached
        now. The method then sets `sequence.awaited_prefill`, and makes the running sequence at least as urgent as
        `sequence`. If the memory is not full attention, it also adds a chunk end where the shared prefix ends, so that
        a state can be saved there.
        """
        awaited = sequence.awaited_sequence(running)
        if awaited is not None:
            return True
        sequence.awaited_prefill = None
        if self.is_refused(sequence):
            return False
        best: tuple[int, Sequence] | None = None
        wanted = sequence.tokens[: sequence.num_usable]
        for other in running:
            if other.is_apart or other.shifts:
                continue
            if other.spec.cache_partition == sequence.spec.cache_partition and other.num_computed < other.prompt_end:
                shared = common_length(other.tokens[: other.prompt_end], wanted)
                if shared > max(other.num_computed, best[0] if best else 0):
                    best = shared, other
        if best is None:
            return False
        length, awaited = best
        if length < self._find(sequence).end + _MIN_SHARED:
            return False
        sequence.awaited_prefill = awaited, length
        awaited.inherit_urgency(sequence)
        if self._runner.memory_kind is not MemoryKind.FULL_ATTENTION:
            awaited.add_chunk_end(length)
        return True

    def claim(self, sequence: Sequence, *, is_alone: bool) -> bool:
        """Give a sequence a seq_id and the part of its prompt that is in cells. `advance` then restores the blocks.

        Return False if the sequence must wait, because there are too few cells or no seq_id for it (see `is_refused`).
        `is_alone`: no other sequence runs, so there are enough cells.
        """
        # An idle prefix may be longer, and hold cells or the last id that the sequence needs.
        for only_live in (False, True):
            started_s = self._clock()
            found = self._find(sequence, only_live=only_live)
            if is_alone or self._prefixes.slots.fits(sequence.num_needed, found.cell_prefix):
                sequence.restoring = self._prefixes.claim(sequence.tokens, found)
                if sequence.restoring is not None:
                    sequence.is_apart, sequence.shifts = False, []  # a preempted sequence is computed as a whole
                    sequence.seq_id = sequence.restoring.seq_id
                    self._runner.place_media(sequence.seq_id, sequence.stretches)
                    sequence.num_computed = self._prefixes.slots.length(sequence.seq_id)
                    sequence.restore_started_s = started_s
                    return True
        self.refuse(sequence)
        return False

    def fits_without(self, sequence: Sequence, others: Collection[Sequence]) -> bool:
        """Whether a waiting sequence would fit into the cells if the running `others` gave up theirs."""
        ids = {other.seq_id for other in others}
        return any(
            self._prefixes.slots.fits(sequence.num_needed, found.cell_prefix, without=ids)
            for found in (self._find(sequence, only_live=only_live) for only_live in (False, True))
        )

    def refuse(self, sequence: Sequence) -> None:
        """Let a sequence wait until a live sequence ends or loses cells."""
        sequence.refused_at = self._prefixes.slots.num_releases

    def make_way(self, sequence: Sequence, *, is_alone: bool) -> None:
        """Evict idle prefixes from the cells before the prefix of a newly claimed sequence is restored.

        Only prefixes that are also stored in blocks are evicted, and on a GPU none that costs little. If no other
        sequence runs (`is_alone`), more prefixes are first copied from the cells into blocks, as far as the saver's
        rule allows.
        """
        if is_alone:
            restored = (
                sequence.restoring.references[-1].end if sequence.restoring and sequence.restoring.references else 0
            )
            depth = max(sequence.num_computed, restored)
            self._prefixes.saver.read_out_for_prompt(len(sequence.tokens) - depth)
        self._prefixes.saver.free_saved_cells(0)

    def advance(self, sequence: Sequence, budget_s: float) -> bool:
        """Restore blocks for about `budget_s` seconds. Return True if none remain, so that steps may begin.

        A restore ends early if a block is no longer available. Steps then compute the missing tokens. The first call
        that returns True for a sequence sets its `num_cached`, `marks.claimed_s` and `marks.cache_s`.
        """
        assert sequence.seq_id is not None
        if sequence.is_apart and not self._shift(sequence):
            return False
        if sequence.restoring is not None:
            if not self._prefixes.restorer.advance(sequence.restoring, budget_s):
                return False
            sequence.num_restored = dict(sequence.restoring.num_restored)
            sequence.restoring = None
        length = self._prefixes.slots.length(sequence.seq_id)
        sequence.batch_ends.forget_if_many(len(sequence.tokens) - max(length, sequence.num_prompt))
        if sequence.leaves_one(length) and self._runner.can_trim(sequence.seq_id, length - 1):
            length = self._prefixes.slots.cut(sequence.seq_id, length - 1)
        sequence.num_computed = length
        if sequence.marks.claimed_s == 0.0:  # a preempted sequence keeps the values of its first admission
            sequence.num_cached = min(sequence.num_computed, sequence.num_prompt)
            sequence.divergence = self._divergence(sequence)
            self._plan_shift(sequence)
            sequence.marks.claimed_s = self._clock()
            sequence.marks.cache_s = sequence.marks.claimed_s - sequence.restore_started_s
        self._add_chunk_ends(sequence)
        return not self.begin_shift(sequence)

    def begin_shift(self, sequence: Sequence) -> bool:
        """Begin to move the cells of an earlier prompt, if they follow the sequence's end. `advance` does the rest.

        Return whether it was begun.
        """
        if not sequence.shifts or sequence.num_computed < sequence.shifts[0].new or sequence.restoring is not None:
            return False
        run, found = sequence.shifts.pop(0), sequence.divergence
        assert sequence.seq_id is not None and found is not None
        if sequence.num_computed != run.new:
            return False
        tokens, partition = sequence.tokens, sequence.spec.cache_partition
        sequence.restoring = self._prefixes.shift(sequence.seq_id, tokens, partition, found.earlier, run)
        sequence.is_apart = sequence.is_apart or sequence.restoring is not None
        return sequence.restoring is not None

    def _shift(self, sequence: Sequence) -> bool:
        """Move cells that are in memory; return True if none remain.

        All are moved at once: llama.cpp then turns the keys of all cells, which would take time after each part.
        """
        assert sequence.seq_id is not None
        if sequence.restoring is None:
            return True
        is_over = self._prefixes.restorer.advance(sequence.restoring, math.inf)
        num_moved = self._prefixes.slots.length(sequence.seq_id) - sequence.num_computed
        if num_moved:
            self._runner.apply_shift()
            sequence.num_shifted += num_moved
            sequence.num_computed += num_moved
        if is_over:
            sequence.restoring = None
        return is_over

    def _plan_shift(self, sequence: Sequence) -> None:
        """Choose the cells of the earlier prompt that are moved, if any may be."""
        found, spec = sequence.divergence, sequence.spec
        is_exact = spec.is_exact or spec.prefill_only or spec.pin  # a pinned prefix is kept
        if found is None or is_exact or spec.delivered or spec.choices is not None or not self._runner.can_shift:
            return
        sequence.shifts = self._prefixes.shifts(found, sequence.num_prompt)
        for run in sequence.shifts:
            sequence.add_chunk_end(run.new)

    def checkpoint(self, sequence: Sequence, start: int) -> None:
        """Save the tokens of the latest step in the cache, or mark them to be saved later; see PrefixStore.save.

        Do nothing if `keeps_prefix` is False. `start`: how many tokens of the sequence were computed before that step.
        """
        if sequence.keeps_prefix:
            assert sequence.seq_id is not None
            is_boundary = sequence.num_computed in sequence.chunk_ends
            self._prefixes.save(sequence.seq_id, start, sequence.cache_priority, is_boundary=is_boundary)

    def release(self, sequence: Sequence) -> None:
        """End a sequence. If `keeps_prefix`, its computed tokens stay in the cells as an idle prefix."""
        assert sequence.seq_id is not None
        self._prefixes.release(
            sequence.seq_id,
            sequence.restoring,
            keep=sequence.keeps_prefix,
            priority=sequence.cache_priority,
            is_open=sequence.is_open,
        )
        sequence.restoring = None

    def is_refused(self, sequence: Sequence) -> bool:
        """Whether `claim` returned False for a sequence, and would do so again."""
        return sequence.refused_at == self._prefixes.slots.num_releases

    def _find(self, sequence: Sequence, *, only_live: bool = False) -> CachedPrefix:
        spec = sequence.spec
        return self._prefixes.match(spec.cache_partition, sequence.tokens, sequence.num_usable, only_live=only_live)

    def _divergence(self, sequence: Sequence) -> Divergence | None:
        """Return where the prompt differs from an earlier one, if most of it is computed because of that."""
        num_computed = sequence.num_prompt - sequence.num_cached
        if not sequence.spec.read_cache or num_computed < max(MIN_LOST, sequence.num_prompt // 2):
            return None
        return self._prefixes.divergence(sequence.spec.cache_partition, sequence.tokens[: sequence.num_prompt])

    def _add_chunk_ends(self, sequence: Sequence) -> None:
        """Choose positions where a chunk of the prompt must end.

        Choose none if the prompt may not stay in the cache. For full attention, choose only the boundary of a prompt
        that is computed ahead: what follows is lost if the prompt grows, so a later step computes it. Other memory can
        save its state only at the end of a chunk. So a chunk should end where a later prompt may diverge:

        1. At the `boundaries` of the spec, such as the end of the system prompt.
        2. Before the last token if there are no boundaries, for a request that repeats the prompt.
        3. Where the prompt diverges from an earlier prompt with the same prefix.
        4. At regular intervals, but behind a medium instead of within it: to divide it takes an extra step.

        Sliding-window memory can be cut near its end, so only rule 1 applies to it.
        """
        kind, spec = self._runner.memory_kind, sequence.spec
        if not spec.write_cache:
            return
        if spec.is_ahead and spec.boundaries:
            sequence.add_chunk_end(spec.boundaries[-1])
        if kind is MemoryKind.FULL_ATTENTION:
            return
        # A boundary near the end needs no extra step if the cells can be cut there later.
        last = sequence.num_prompt - (_MIN_SHARED if kind in CUTTABLE else 1)
        for boundary in spec.boundaries:
            # A chunk ends at a medium anyway, and the medium is worth more than a step.
            is_behind_medium = any(span.end <= boundary < span.end + _MIN_SHARED for span in spec.media)
            if boundary >= _MIN_SHARED and (boundary <= last or is_behind_medium):
                sequence.add_chunk_end(boundary)
        if kind in CUTTABLE:
            return
        if not spec.boundaries:
            sequence.add_chunk_end(sequence.num_prompt - 1)
        usable = sequence.tokens[: min(sequence.num_prompt, sequence.num_usable)]
        sequence.add_chunk_end(self._prefixes.num_shared(spec.cache_partition, usable))
        interval = self._prefixes.saver.checkpoint_interval
        for each in range(interval, sequence.num_prompt, interval):
            position = sequence.behind_medium(each)
            if all(abs(position - end) >= _MIN_SHARED for end in sequence.chunk_ends):
                sequence.add_chunk_end(position)
