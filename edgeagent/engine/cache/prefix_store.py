"""The interface of the prefix cache for the engine and the drafters. It covers one runner's KV cells and the blocks.

The life of a prefix: `match` finds it, and `claim` makes it a live sequence. `restorer` restores its blocks into the
cells. `save` copies what a later step would overwrite, such as a recurrent state, into a block. `release` leaves the
prefix in the cells as an idle prefix. `saver` copies idle prefixes from the cells into blocks when there is time. Such
a copy is called a read-out. `cells` keeps the prefixes in the cells; `blocks` keeps the blocks.
"""

from __future__ import annotations

import bisect
import math
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from edgeagent.engine.cache.block import (
    MIN_PART,
    CachePriority,
    common_length,
)
from edgeagent.engine.cache.block_table import BlockTable, empty_table
from edgeagent.engine.cache.block_table import make_table as make_table
from edgeagent.engine.cache.cached_prefix import (
    MIN_LOST,
    BlockReference,
    CachedPrefix,
    CellPrefix,
    Divergence,
    Restoring,
    Run,
)
from edgeagent.engine.cache.media_cache import MediaCache
from edgeagent.engine.cache.radix_tree import Walk
from edgeagent.engine.cache.restorer import Restorer
from edgeagent.engine.cache.saver import Saver
from edgeagent.engine.cache.slots import Slots
from edgeagent.engine.costs.cost_model import CostModel, Retrials
from edgeagent.engine.media_tokens import cut_before_media
from edgeagent.engine.runner import CUTTABLE, Runner

# Tokens that both prompts have count only in runs of at least this many: shorter ones are common phrases.
MIN_RUN = 32
# A step attends to all cells up to the last used one. A restore pays if it avoids more unused cells than this.
_MAX_GAP = 512
# Cells behind a longer changed text are not moved.
MAX_SPAN = 64
# The last tokens of a prompt are computed: they are the question, and give the logits.
_NUM_LAST = 32
# The least share of the tokens behind the difference whose cells are moved.
_LEAST_SHIFTED = 0.75
_SIMILAR = 0.9  # no further prompt is compared if one has this share of the tokens behind the difference
# How many tokens behind a difference are searched for runs. Live streams wait for the search: 32,000 tokens took 160 ms
# for each earlier prompt, and 8,192 take 20.
_MAX_SEARCHED = 8192
_MAX_COMPARED = 4  # earlier prompts; those that share the most tokens, and of those the latest, come first


def diverge(earlier: array[int], tokens: array[int]) -> Divergence:
    at = common_length(earlier, tokens)
    return Divergence(at, earlier, tuple(_runs(earlier, tokens, at)))


def find_divergence(walk: Walk, tokens: array[int]) -> Divergence | None:
    """Compare a prompt with the cached prompts that share its first tokens. Return the one that shares the most.

    None if both have fewer than MIN_LOST tokens behind the difference. `walk`: the path of `tokens` through the tree.
    """
    best: Divergence | None = None
    for earlier in walk.branches(MIN_LOST, _MAX_COMPARED):
        found = diverge(earlier, tokens)
        if best is None or found.num_lost > best.num_lost:
            best = found
        if best.num_lost >= _SIMILAR * (len(tokens) - best.at):
            break
    return best if best is not None and best.num_lost >= MIN_LOST else None


def shifts_of(found: Divergence, num_tokens: int) -> list[Run]:
    """Return the runs whose cells a prompt of `num_tokens` can use at other positions.

    Return none if too much would have to be computed all the same: then the prompt is computed as a whole, and is the
    earlier prompt of later ones.
    """
    runs: list[Run] = []
    old = new = found.at
    for run in found.runs:
        length = min(run.length, num_tokens - _NUM_LAST - run.new)
        if max(run.old - old, run.new - new) > MAX_SPAN or length < MIN_RUN:
            break
        runs.append(Run(run.old, run.new, length))
        old, new = run.old + length, run.new + length
    num_behind = num_tokens - found.at
    return runs if sum(run.length for run in runs) >= _LEAST_SHIFTED * num_behind else []


def _runs(old: array[int], new: array[int], at: int) -> Iterator[Run]:
    """Yield the runs that begin within _MAX_SEARCHED tokens behind position `at`, in the order of both prompts."""
    size, until = old.itemsize, at + _MAX_SEARCHED + MIN_RUN
    width = MIN_RUN * size
    places: dict[bytes, list[int]] = {}
    texts = [tokens[at:until].tobytes() for tokens in (old, new)]
    for start in range(0, len(texts[0]) - width + 1, size):
        places.setdefault(texts[0][start : start + width], []).append(at + start // size)
    after, position = at, at
    while (start := (position - at) * size) <= len(texts[1]) - width:
        found = places.get(texts[1][start : start + width], [])
        index = bisect.bisect_left(found, after)
        if index == len(found):
            position += 1
            continue
        run = Run(found[index], position, common_length(old[found[index] :], new[position:]))
        yield run
        after, position = run.old + run.length, run.new + run.length


_APART = "\n\nshifted"  # behind a partition: that of its sequences with moved cells


class PrefixStore:
    """The prefixes of one runner: live and idle sequences in its cells, and blocks."""

    def __init__(
        self,
        runner: Runner,
        blocks: BlockTable | None = None,
        costs: CostModel | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`blocks` keeps prefixes that are evicted from the cells. If None, evicted prefixes are lost.

        `costs`: the measured costs of the runner's steps. If None, a new cost model is made.
        """
        self._runner = runner
        self.costs = costs or CostModel(runner.max_batch, runner.attention_tile)
        """The measured costs of the runner's steps."""
        self.blocks = blocks or empty_table()
        """The blocks, in memory and on disk."""
        self.slots = Slots(runner, self.blocks.tree, self._save_evicted)
        """The sequences in the runner's cells."""
        self.saver = Saver(runner, self.slots, self.blocks, self.costs, clock)
        """Saves idle prefixes in blocks. The engine says when there is time."""
        self.restorer = Restorer(runner, self.slots, self.blocks, clock)
        """Restores the blocks of a sequence that was claimed."""
        self.media = MediaCache(self.blocks)
        """Keeps the embeddings of images and sounds."""
        self._restore_retrials = Retrials()

    # A prefix, from the lookup to the end of its sequence.

    def match(self, partition: str, tokens: Sequence[int], max_length: int, *, only_live: bool = False) -> CachedPrefix:
        """Return the cached part of a prompt, at most `max_length` tokens: a part in cells, then blocks to restore.

        Blocks are left out if computing their tokens would be faster than the restore, except for retrials, or if they
        add fewer than MIN_PART tokens. `only_live`: ignore the cells of idle prefixes. No prefix is changed. The part
        ends where a prefix may end beside media; see `cut_before_media`.
        """
        found = self._match(partition, tokens, max_length, only_live=only_live)
        end = cut_before_media(tokens, found.end)
        return found if end == found.end else self.match(partition, tokens, end, only_live=only_live)

    def _match(
        self, partition: str, tokens: Sequence[int], max_length: int, *, only_live: bool = False
    ) -> CachedPrefix:
        root = self.blocks.root(partition)
        walk = self.blocks.walk(root, tokens[:max_length])
        cell_prefix = self.slots.match(walk, max_length, only_live=only_live)
        references = self.blocks.find(walk)
        if self._should_restore_into_lower_cells(cell_prefix, references):
            return CachedPrefix(root, CellPrefix(), references, references)
        if not references or references[-1].end < cell_prefix.length + MIN_PART:
            return CachedPrefix(root, cell_prefix, [], references)
        beyond = [reference for reference in references if reference.end > cell_prefix.length]
        before = self.slots.match(walk, beyond[0].start, only_live=only_live)
        if before.length != beyond[0].start:
            before, beyond = CellPrefix(), references
        computed_s = self._computed_s(references, cell_prefix)
        extra_s = self.restorer.expected_s(beyond) - computed_s
        if extra_s > 0 and not self._restore_retrials.is_due(extra_s):
            return CachedPrefix(root, cell_prefix, [], references)
        return CachedPrefix(root, before, beyond, references)

    def _computed_s(self, references: Sequence[BlockReference], cell_prefix: CellPrefix) -> float:
        """Return the expected seconds to compute what blocks have beyond a prefix in cells; infinite if unknown."""
        num_tokens = references[-1].end - cell_prefix.length
        expected_s = self.costs.prefill_s(num_tokens, cell_prefix.length) if num_tokens > 0 else 0.0
        return math.inf if expected_s is None else expected_s

    def num_shared(self, partition: str, tokens: Sequence[int]) -> int:
        """Return how many leading tokens are the same as those of a prefix in the tree.

        Some of them may be impossible to restore.
        """
        return self.blocks.walk(self.blocks.root(partition), tokens).depth

    def divergence(self, partition: str, tokens: array[int]) -> Divergence | None:
        """Return where a prompt differs from an earlier one, if both have MIN_LOST tokens behind the difference."""
        return find_divergence(self.blocks.walk(self.blocks.root(partition), tokens), tokens)

    def shifts(self, found: Divergence, num_tokens: int) -> list[Run]:
        """Return the runs of the earlier prompt that `shift` should move for a prompt of `num_tokens`."""
        return shifts_of(found, num_tokens) if self.blocks.is_enabled else []

    def claim(self, tokens: array[int], found: CachedPrefix) -> Restoring | None:
        """Make a live sequence that begins with the prefix `found`. Return its id and the blocks to restore.

        If the prefix in cells cannot be copied, the sequence is empty and there is nothing to restore. Return None if
        no sequence id is available. An id is available if it is free, or if it is idle and its prefix is not the one to
        copy.

        `tokens`: the whole prompt. Call this method right after `match`. Then call
        `restorer.advance` until it returns True.
        """
        seq_id = self.slots.claim(found.root, found.cell_prefix)
        if seq_id is None:
            return None
        self.saver.begin(seq_id, found.known)
        if found.to_restore:
            self._restore_retrials.reset()
        elif found.known and found.known[-1].end >= found.end + MIN_PART:
            self._restore_retrials.record(self._computed_s(found.known, found.cell_prefix))
        references = found.to_restore if self.slots.length(seq_id) == found.cell_prefix.length else []
        self.blocks.use([reference.key for reference in references])
        restoring = Restoring(seq_id, tokens, deque(references))
        self.restorer.begin(restoring)
        return restoring

    def shift(self, seq_id: int, tokens: array[int], partition: str, earlier: array[int], run: Run) -> Restoring | None:
        """Begin to restore a run of the earlier prompt behind a live sequence's end. Return None if it is not cached.

        The cells are not exact behind other tokens. So the sequence is set apart: no other prompt finds it, and nothing
        is read out of it. `tokens`: the whole prompt of the sequence. Then call `restorer.advance` until it returns
        True, and `Runner.apply_shift` before the next decode.
        """
        wanted = earlier[: run.old + run.length]
        walk = self.blocks.walk(self.blocks.root(partition), wanted)
        source = self.slots.match(walk, len(wanted)).seq_id
        if source is not None and self.slots.is_idle(source):
            self.saver.save_idle(source)
            walk = self.blocks.walk(self.blocks.root(partition), wanted)
        references = [each.shifted(run) for each in self.blocks.find(walk) if each.end > run.old]
        if not references:
            return None
        self.slots.set_apart(seq_id, self.blocks.root(partition + _APART))
        self.saver.forget_live(seq_id)
        self.blocks.use([reference.key for reference in references])
        restoring = Restoring(seq_id, tokens, deque(references))
        self.restorer.begin(restoring)
        return restoring

    def save(self, seq_id: int, since: int, priority: CachePriority, *, is_boundary: bool = False) -> None:
        """Save what a later step would overwrite: a state, or the cells of a sliding window.

        With full attention, only mark full blocks for `run_after_step`. `since`: how many tokens the sequence had
        before its last step. `is_boundary`: other prompts may diverge at the sequence's present end, so a block that is
        not full is saved too. If this is False and no full block ends after `since`, do nothing. `Saver.save_live`
        describes what is read out of each kind of memory.
        """
        now = self.slots.length(seq_id)
        if is_boundary or priority.has_block_end(since, now, self.blocks.block_tokens):
            self.saver.save_live(seq_id, priority, is_boundary=is_boundary)

    def release(
        self,
        seq_id: int,
        restoring: Restoring | None,
        *,
        keep: bool,
        priority: CachePriority,
        is_open: bool = False,
    ) -> None:
        """End a live sequence; see Slots.release.

        `restoring`: the sequence's restore, which ends early if it is unfinished; None if it has none.
        """
        if restoring is not None:
            self.restorer.stop(restoring)
        # The runner may hold tokens that are not recorded: drafts after an end token, or tokens of an interrupted step.
        self.slots.rewind(seq_id)
        self.slots.release(seq_id, keep=keep, is_open=is_open)
        self.saver.end(seq_id, priority)

    # All prefixes.

    def purge(self, partition: str | None) -> int:
        """Forget the idle prefixes and blocks of a partition (None: of all partitions); return the number of blocks.

        A block that is in host memory and on disk counts twice. Files are removed later; see `after_purge`.
        """
        root = None if partition is None else self.blocks.root(partition)
        self.media.purge()
        self.saver.forget_growing()
        self.saver.forget_partition(root)
        return self.blocks.purge(root)

    def after_purge(self, done: Callable[[], None]) -> None:
        """Call `done`: on the disk's thread once it has removed the files that it can; at once if there is no disk."""
        if self.blocks.disk is None:
            done()
        else:
            self.blocks.disk.call_back(done)

    def close(self) -> None:
        """Save all idle prefixes to the disk, if there is one, except VOLATILE ones.

        This may wait for the disk to write blocks, within its time limit for closing. The disk stays open until
        `close_disk`.
        """
        if self.blocks.disk is not None:
            self.saver.close()

    def close_disk(self) -> None:
        """Close the disk. First close all prefix stores that use it."""
        if self.blocks.disk is not None:
            self.blocks.disk.close()

    def _save_evicted(self, seq_id: int) -> None:
        self.saver.save_evicted(seq_id)

    def _should_restore_into_lower_cells(self, cell_prefix: CellPrefix, references: Sequence[BlockReference]) -> bool:
        """Whether to restore a prefix into lower cells instead of using it where it is, above a gap of unused cells.

        Each step attends to the unused cells of the gap too, while a restore happens once. So a restore is worth its
        time if the gap has more cells than the prefix, and more than _MAX_GAP. All the prefix's blocks must be in host
        memory.
        """
        if cell_prefix.seq_id is None or not self.saver.is_saved(cell_prefix.seq_id):
            return False
        if self._runner.memory_kind not in CUTTABLE or not references or references[-1].end < cell_prefix.length:
            return False
        if not all(reference.is_in_memory for reference in references):
            return False
        return self.slots.gap_below(cell_prefix.seq_id, cell_prefix.length) > max(_MAX_GAP, cell_prefix.length)
