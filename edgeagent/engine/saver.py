"""Reads idle prefixes out of the cells into blocks, and lets them leave the cells.

Every used cell slows every token of everyone, so cells are for what is live or about to be: an idle prefix is read out
while there is time, and leaves the cells when somebody else computes. Reading out happens on the engine's thread
between two steps, a block at a time. It decides what stays in the cells, not when there is time, nor what comes back.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from enum import Enum

from edgeagent.engine.block_cache import BlockCache, Link
from edgeagent.engine.blocks import MAX_BLOCK_TOKENS, MIN_PART, Importance, Worth
from edgeagent.engine.prefix_cache import PrefixCache
from edgeagent.engine.runner import CUTTABLE, Runner
from edgeagent.errors import InternalError
from edgeagent.types import MemoryKind

# A step attends to all cells up to the last one used; so many unused ones in between are worth a restore.
MAX_GAP = 512
# Checkpoints of one full context take at most this part of host memory.
_CHECKPOINT_SHARE = 8


class _Saved(Enum):
    """What became of an attempt to read out a block."""

    MORE = "there may be another"
    ALL = "nothing was left to read"
    REFUSED = "it cannot be read, or is not kept"


class Saver:
    """Between one runner's cells and the blocks that keep what leaves them; told of every sequence's start and end."""

    def __init__(self, runner: Runner, blocks: BlockCache, clock: Callable[[], float] = time.monotonic) -> None:
        self.cells = PrefixCache(runner, self._save_evicted)
        self.blocks = blocks
        self._runner = runner
        self._clock = clock
        self._has_state = runner.memory_kind not in CUTTABLE
        self._worths: dict[int, Worth] = {}  # of idle sequences' prefixes
        self._unsaved: dict[int, None] = {}  # idle sequences not wholly in blocks, in the order in which they became so
        self._saved: set[int] = set()  # idle sequences that may leave the cells at no loss
        self._cell_bytes = 0.0  # of a token, where the memory has a state beside its cells
        self._state_bytes = 0
        self._last_save_s = 0.0

    @property
    def has_unsaved(self) -> bool:
        """Whether an idle prefix is still to be read out."""
        return bool(self._unsaved)

    @property
    def num_unsaved_tokens(self) -> int:
        """Tokens of idle prefixes that keep their cells until they are read out."""
        return sum(map(self.cells.length, self._unsaved))

    @property
    def next_save_s(self) -> float:
        """Expected seconds of reading out one block."""
        return self._last_save_s

    def is_saved(self, seq_id: int) -> bool:
        """Whether an idle sequence may leave the cells at no loss."""
        return seq_id in self._saved

    def claim(self, partition: str, tokens: Sequence[int], max_length: int) -> tuple[int, int] | None:
        """Make a live sequence with what the cells hold of a prefix; see PrefixCache.claim."""
        claimed = self.cells.claim(partition, tokens, max_length)
        if claimed is not None:
            self._forget(claimed[0])
        return claimed

    def release(self, seq_id: int, *, keep: bool, worth: Worth) -> None:
        """End a live sequence; its prefix stays for others if `keep`."""
        self.cells.release(seq_id, keep=keep)
        if self.blocks.is_enabled and self.cells.is_idle(seq_id):
            self._worths[seq_id] = worth
            self._unsaved[seq_id] = None

    def save_one(self) -> None:
        """Read one block of an idle sequence out of the cells."""
        seq_id = next(iter(self._unsaved))
        outcome = self._save_next(seq_id, self._worths[seq_id], is_whole=True)
        if outcome is not _Saved.MORE:
            del self._unsaved[seq_id]
        if outcome is _Saved.ALL:
            self._saved.add(seq_id)

    def checkpoint(self, seq_id: int, worth: Worth, *, is_boundary: bool) -> None:
        """Read out what of a live sequence cannot be read later; all that it has, if this is worth coming back to."""
        if not self.blocks.is_enabled:
            return
        match self._runner.memory_kind:
            case MemoryKind.FULL_ATTENTION if self.blocks.below is None:
                pass  # can be read at any time; only a tier that outlives the process wants it as soon as may be
            case MemoryKind.FULL_ATTENTION | MemoryKind.SLIDING_WINDOW:
                while self._save_next(seq_id, worth, is_whole=is_boundary) is _Saved.MORE:
                    pass
            case _ if is_boundary:
                self._save_next(seq_id, worth, is_whole=True)
            case _:
                pass

    def shed(self) -> None:
        """Let idle prefixes that are in blocks leave the cells."""
        for seq_id in tuple(self._saved):
            self._drop(seq_id)

    def compact(self) -> None:
        """Let idle prefixes leave the cells, the one furthest up first, until the used ones have no large gaps.

        What left comes back into the lowest free ones.
        """
        while self._saved and self.cells.span > self.cells.num_cells_used + MAX_GAP:
            self._drop(max(self._saved, key=self.cells.highest_cell))

    def checkpoint_interval(self) -> int:
        """Return after how many tokens of a prompt to keep a state, so that a whole context's fit host memory."""
        budget = max(1, self.blocks.host.stats().max_bytes // _CHECKPOINT_SHARE)
        num_blocks = -(-self._runner.num_cells // MAX_BLOCK_TOKENS)
        return MAX_BLOCK_TOKENS * max(1, -(-self._state_bytes * num_blocks // budget))

    def forget_idle(self) -> None:
        """Drop all idle sequences unread; what blocks have of them stays."""
        for seq_id in self.cells.idle_ids:
            self._drop(seq_id)

    def purge(self, partition: str | None) -> int:
        """Forget a partition's idle prefixes and blocks (None: everyone's); return how many blocks went."""
        for seq_id in self.cells.idle_ids:
            if partition is None or self.cells.partition(seq_id) == partition:
                self._drop(seq_id)
        return self.blocks.purge(partition)

    def close(self) -> None:
        """Read out what is unsaved, and hand everything that is kept to the tier below."""
        for seq_id in tuple(self._unsaved):
            self._save_evicted(seq_id)
        self.blocks.host.close()

    def check_integrity(self) -> None:
        """Assert every invariant; for tests."""
        self.cells.check_integrity()
        self.blocks.host.check_integrity()
        idle = set(self.cells.idle_ids)
        assert self._worths.keys() == (idle if self.blocks.is_enabled else set())
        assert self._unsaved.keys() | self._saved <= idle
        assert not self._unsaved.keys() & self._saved

    def _save_evicted(self, seq_id: int) -> None:
        if seq_id in self._unsaved:
            while self._save_next(seq_id, self._worths[seq_id], is_whole=True) is _Saved.MORE:
                pass
        self._forget(seq_id)

    def _drop(self, seq_id: int) -> None:
        self._forget(seq_id)
        self.cells.drop(seq_id)

    def _forget(self, seq_id: int) -> None:
        self._worths.pop(seq_id, None)
        self._unsaved.pop(seq_id, None)
        self._saved.discard(seq_id)

    def _save_next(self, seq_id: int, worth: Worth, *, is_whole: bool) -> _Saved:
        """Read the next block of a sequence out of the cells; without `is_whole` only a full one."""
        partition, tokens = self.cells.partition(seq_id), self.cells.tokens(seq_id)
        if self._has_state:
            found = self._next_stateful(partition, tokens)
        else:
            found = self._next(partition, tokens, worth, is_whole)
        if found is None:
            if is_whole and worth.importance is not Importance.VOLATILE:
                self.blocks.keep(partition, tokens, worth)
            if worth.lane and self.cells.is_idle(seq_id):
                self.blocks.hold(partition, tokens, worth.lane)
            return _Saved.ALL
        links, end = found
        start = links[-1].end if links else 0
        if not self._runner.can_save(seq_id, start, end):
            return _Saved.REFUSED
        started_s = self._clock()
        try:
            payload = self._runner.save(seq_id, start, end)
        except (InternalError, MemoryError):
            return _Saved.REFUSED  # nobody's answer needs it
        block = self.blocks.make(partition, links, tokens[:end], start, payload)
        if self._has_state:
            self._state_bytes = self._runner.state_bytes(seq_id)
            self._cell_bytes = max(0, len(block.target) - self._state_bytes) / (end - start)
        self.blocks.host.offer(block, worth.at(end))
        self._last_save_s = self._clock() - started_s
        return _Saved.REFUSED if self.blocks.host.num_bytes(block.key) is None else _Saved.MORE

    def _next(self, partition: str, tokens: array[int], worth: Worth, is_whole: bool) -> tuple[list[Link], int] | None:
        """Return where the next block of attention ends, and the chain that it hangs on."""
        links = self.blocks.find(partition, tokens, len(tokens))
        stones = self.blocks.stones(links, worth.cut)
        start = stones[-1].end if stones else 0
        full_end = worth.block_end(start)
        end = min(full_end, len(tokens))
        is_held = bool(links) and links[-1].end == len(tokens)
        if is_held or end - start < MIN_PART or (end < full_end and not is_whole):
            return None
        return stones, end

    def _next_stateful(self, partition: str, tokens: array[int]) -> tuple[list[Link], int] | None:
        """Return the chain on which a block that ends here, with the state, hangs best.

        Each block brings a state along, and a restore reads them all: so reach back until the cells weigh as much.
        """
        links = self.blocks.find(partition, tokens, len(tokens))
        if len(tokens) < MIN_PART or (links and links[-1].end == len(tokens)):
            return None
        while links and (len(tokens) - links[-1].end) * self._cell_bytes <= self._state_bytes:
            links.pop()
        return links, len(tokens)
