"""Moves prefixes out of the cells into blocks, and back.

Every used cell slows every token of everyone, so cells are for what is live or about to be: an idle prefix is read out
while there is time, and leaves the cells when somebody else computes. Reading out and restoring happen on the engine's
thread between two steps, a block at a time, within what the caller grants. It decides where prefixes are, not whose
turn it is.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from edgeagent.engine.block_cache import BlockCache, Link
from edgeagent.engine.blocks import MAX_BLOCK_TOKENS, MIN_PART, Block, BlockKey, Importance, Worth
from edgeagent.engine.loader import BlockLoader
from edgeagent.engine.prefix_cache import PrefixCache
from edgeagent.engine.runner import CUTTABLE, Runner
from edgeagent.errors import InternalError
from edgeagent.types import MemoryKind

_WEIGHT = 0.2  # of a new measurement
# Checkpoints of one full context take at most this part of host memory.
_CHECKPOINT_SHARE = 8
# A step attends to all cells up to the last one used; so many unused ones in between are worth a restore.
_MAX_GAP = 512


@dataclass(slots=True)
class Restoring:
    """A live sequence on its way back into the cells: first `links`, then what `guesses` turn out to have."""

    seq_id: int
    tokens: array[int]
    max_length: int
    links: deque[Link]
    guesses: deque[Link]
    requested: set[BlockKey] = field(default_factory=set)  # of the loader, and not taken yet
    read: set[BlockKey] = field(default_factory=set)  # came from the tier below
    num_restored: dict[str, int] = field(default_factory=dict)  # tokens by tier


class _Saved(Enum):
    """What became of an attempt to read out a block."""

    MORE = "there may be another"
    ALL = "nothing was left to read"
    REFUSED = "it cannot be read, or is not kept"


class _Rate:
    """Measured bytes per second; optimistic until something was measured."""

    def __init__(self) -> None:
        self._seconds_per_byte = 0.0

    def observe(self, num_bytes: int, seconds: float) -> None:
        weight = _WEIGHT if self._seconds_per_byte else 1.0
        self._seconds_per_byte += weight * (seconds / max(1, num_bytes) - self._seconds_per_byte)

    def seconds(self, num_bytes: int) -> float:
        return self._seconds_per_byte * num_bytes


class Mover:
    """Between one runner's cells and the blocks below them. The engine tells it of every sequence's end."""

    def __init__(self, runner: Runner, blocks: BlockCache, clock: Callable[[], float] = time.monotonic) -> None:
        self.cells = PrefixCache(runner, self._save_evicted)
        self.blocks = blocks
        self._runner = runner
        self._clock = clock
        self._has_state = runner.memory_kind not in CUTTABLE
        self._loader = None if blocks.below is None else BlockLoader(blocks.below)
        self._worths: dict[int, Worth] = {}  # of idle sequences' prefixes
        self._unsaved: dict[int, None] = {}  # idle sequences not wholly in blocks, in the order in which they became so
        self._saved: set[int] = set()  # idle sequences that may leave the cells at no loss
        self._restore_rate = _Rate()
        self._cell_bytes = 0.0  # of a token, where the memory has a state beside its cells
        self._state_bytes = 0
        self._last_save_s = 0.0

    # Out of the cells

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
        while self._saved and self.cells.span > self.cells.num_cells_used + _MAX_GAP:
            self._drop(max(self._saved, key=self.cells.highest_cell))

    def checkpoint_interval(self) -> int:
        """Return after how many tokens of a prompt to keep a state, so that a whole context's fit host memory."""
        budget = max(1, self.blocks.host.stats().max_bytes // _CHECKPOINT_SHARE)
        num_blocks = -(-self._runner.num_cells // MAX_BLOCK_TOKENS)
        return MAX_BLOCK_TOKENS * max(1, -(-self._state_bytes * num_blocks // budget))

    def _save_evicted(self, seq_id: int) -> None:
        if seq_id in self._unsaved:
            while self._save_next(seq_id, self._worths[seq_id], is_whole=True) is _Saved.MORE:
                pass
        self._forget(seq_id)

    def forget_idle(self) -> None:
        """Drop all idle sequences unread; what blocks have of them stays."""
        for seq_id in self.cells.idle_ids:
            self._drop(seq_id)

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

    # Back into the cells

    def find(
        self, partition: str, tokens: Sequence[int], max_length: int, prefill_s: Callable[[int, int], float | None]
    ) -> tuple[int, list[Link]]:
        """Return how much of a prompt to take from cells, and the blocks to restore after that.

        `prefill_s` predicts the seconds of computing so many tokens from a depth on; blocks that would take longer are
        left alone.
        """
        known = self.cells.match(partition, tokens, max_length)
        links = self.blocks.find(partition, tokens, max_length)
        if self._is_better_lower(partition, tokens, known, links):
            return 0, links
        if not links or links[-1].end < known + MIN_PART:
            return known, []
        beyond = [link for link in links if link.end > known]
        if self.cells.match(partition, tokens, beyond[0].start) != beyond[0].start:
            beyond = links
        expected_s = prefill_s(links[-1].end - known, known)
        if expected_s is not None and self._restore_s(beyond) > expected_s:
            return known, []
        return beyond[0].start, beyond

    def _is_better_lower(self, partition: str, tokens: Sequence[int], known: int, links: Sequence[Link]) -> bool:
        """Whether to restore what the cells hold too, since it would keep everyone far up in the cells.

        Each token pays for the gap, and a restore is paid once: a gap as long as the prefix is worth it.
        """
        if self._has_state or not known or not links or links[-1].end < known:
            return False
        if any(link.tier is not self.blocks.host for link in links):
            return False
        holder = self.cells.find_idle(partition, tokens, known)
        if holder is None or holder not in self._saved:
            return False
        return self.cells.gap_below(holder, known) > max(_MAX_GAP, known)

    def begin(self, seq_id: int, tokens: array[int], max_length: int, links: Sequence[Link]) -> Restoring:
        """Begin to restore a live sequence; go on with `advance` until that says it is done."""
        self.blocks.use(links)
        guesses = []
        if max_length - self.cells.length(seq_id) >= MIN_PART:
            guesses = self.blocks.guess(self.cells.partition(seq_id), tokens, max_length)
        restoring = Restoring(seq_id, tokens, max_length, deque(links), deque(guesses))
        if self._loader is not None:
            for link in (*links, *guesses):
                if link.tier is self.blocks.below and link.key not in restoring.requested:
                    self._loader.request(link.key)
                    restoring.requested.add(link.key)
        return restoring

    def claim(self, partition: str, tokens: Sequence[int], max_length: int) -> tuple[int, int] | None:
        """Make a live sequence with what the cells hold of a prefix; see PrefixCache.claim."""
        claimed = self.cells.claim(partition, tokens, max_length)
        if claimed is not None:
            self._forget(claimed[0])
        return claimed

    def num_shared(self, partition: str, tokens: Sequence[int], max_length: int) -> int:
        """Return how many of the leading tokens were seen before, whether or not one can go on from there."""
        return max(
            self.cells.num_shared(partition, tokens, max_length), self.blocks.num_shared(partition, tokens, max_length)
        )

    def advance(self, restoring: Restoring, budget_s: float) -> bool:
        """Restore blocks for about so long, at least one; True when nothing is left to restore.

        A block that is gone, or does not fit, ends it early: what is there then is right, and the rest is computed.
        """
        started_s = self._clock()
        while restoring.links or restoring.guesses:
            link = (restoring.links or restoring.guesses)[0]
            if not self._is_loaded(restoring, link):
                return False
            block = self._take(restoring, link)
            if not restoring.links:
                restoring.guesses.popleft()
                if not restoring.guesses:
                    self._add_guessed(restoring)
            elif block is not None and self._restore(restoring, link, block):
                restoring.links.popleft()
            else:
                self.stop(restoring)
            if self._clock() - started_s >= budget_s:
                break
        return not restoring.links and not restoring.guesses

    def stop(self, restoring: Restoring) -> None:
        """Give up what is not restored yet."""
        restoring.links.clear()
        restoring.guesses.clear()
        for key in restoring.requested:
            assert self._loader is not None
            self._loader.forget(key)
        restoring.requested.clear()

    def _is_loaded(self, restoring: Restoring, link: Link) -> bool:
        return link.key not in restoring.requested or (self._loader is not None and self._loader.is_loaded(link.key))

    def _take(self, restoring: Restoring, link: Link) -> Block | None:
        """Return a link's block; one from the tier below is in host memory from here on."""
        if link.key not in restoring.requested:
            return link.tier.read(link.key)
        assert self._loader is not None
        restoring.requested.remove(link.key)
        restoring.read.add(link.key)
        block = self._loader.take(link.key)
        if block is not None:
            self.blocks.host.offer(block, Importance.IDLE)
        return block

    def _add_guessed(self, restoring: Restoring) -> None:
        """Go on with the guess that has the most of the tokens: it is in host memory, where its tokens are known."""
        seq_id = restoring.seq_id
        links = self.blocks.find(self.cells.partition(seq_id), restoring.tokens, restoring.max_length)
        beyond = [link for link in links if link.end >= self.cells.length(seq_id) + MIN_PART]
        if beyond and self.cells.cut(seq_id, beyond[0].start) == beyond[0].start:
            restoring.links.extend(link for link in beyond if link.tier is self.blocks.host)

    def wait(self, restorings: Sequence[Restoring], timeout_s: float) -> None:
        """Wait for a while, where none of these can go on before another block is read."""
        heads = [(each, (each.links or each.guesses)[0]) for each in restorings if each.links or each.guesses]
        if self._loader is not None and heads and not any(self._is_loaded(each, link) for each, link in heads):
            self._loader.wait(timeout_s)

    def purge(self, partition: str | None) -> int:
        """Forget a partition's idle prefixes and blocks (None: everyone's); return how many blocks went."""
        for seq_id in self.cells.idle_ids:
            if partition is None or self.cells.partition(seq_id) == partition:
                self._drop(seq_id)
        return self.blocks.purge(partition)

    def close(self) -> None:
        """Hand everything that is kept to the tier below."""
        for seq_id in tuple(self._unsaved):
            self._save_evicted(seq_id)
        self.blocks.host.close()
        if self._loader is not None:
            self._loader.close()
        if self.blocks.below is not None:
            self.blocks.below.close()

    def check_integrity(self) -> None:
        """Assert every invariant; for tests."""
        self.cells.check_integrity()
        self.blocks.host.check_integrity()
        idle = set(self.cells.idle_ids)
        assert self._worths.keys() == (idle if self.blocks.is_enabled else set())
        assert self._unsaved.keys() | self._saved <= idle
        assert not self._unsaved.keys() & self._saved

    def _restore(self, restoring: Restoring, link: Link, block: Block) -> bool:
        seq_id, length = restoring.seq_id, len(block.tokens)
        if block.tokens[: link.num_tokens] != restoring.tokens[link.start : link.end] or length != link.length:
            return False  # another prefix under the same key: somebody made it so
        if not self.cells.reserve(length):
            return False
        started_s = self._clock()
        if not self._runner.restore(seq_id, block.target, link.start + length):
            return False
        self.cells.append(seq_id, block.tokens)
        num_there = self.cells.cut(seq_id, link.end) if link.num_tokens < length else link.end
        self._restore_rate.observe(block.num_bytes, self._clock() - started_s)
        name = "disk" if link.key in restoring.read else "host"
        restoring.num_restored[name] = restoring.num_restored.get(name, 0) + link.num_tokens
        if num_there != link.end:
            restoring.num_restored.clear()
        return num_there == link.end

    def _restore_s(self, links: Sequence[Link]) -> float:
        seconds = self._restore_rate.seconds(sum(link.num_bytes for link in links))
        if self.blocks.below is not None:
            num_read = sum(link.num_bytes for link in links if link.tier is self.blocks.below)
            rate = self.blocks.below.stats().read_bytes_per_s
            seconds += num_read / rate if num_read and rate else 0.0
        return seconds
