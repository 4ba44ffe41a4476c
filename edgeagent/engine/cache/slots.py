"""Owns the runner's sequence ids, and finds prefixes in its cells that can be used again.

A sequence id is free, live or idle. A live id belongs to a running sequence. An idle id belongs to a finished sequence
whose tokens are still in the cells. The radix tree contains the live and idle sequences, and also the blocks. A new
prompt takes over or shares the longest prefix of these sequences. When ids or cells run out, idle prefixes are evicted,
least recently used first. Before each eviction, `on_evict` is called and can save the prefix.

Invariants: there are runner.num_sequences ids in total. The tree contains exactly the live and idle sequences. Each
sequence has as many cells as tokens.
"""

from __future__ import annotations

import heapq
from array import array
from collections import OrderedDict
from collections.abc import Callable, Container, Mapping, Sequence

import numpy as np

from edgeagent.engine.cache.block import BlockKey
from edgeagent.engine.cache.cached_prefix import CellPrefix
from edgeagent.engine.cache.radix_tree import RadixTree, Walk
from edgeagent.engine.runner import Runner

# The most tokens that the next revision of a message takes from an earlier one: its last word, and what the template
# writes behind it.
_MAX_REVISED = 64


class Slots:
    """Sequence ids, cells and prefixes of a runner. Only this class copies, cuts and clears the runner's sequences."""

    def __init__(self, runner: Runner, tree: RadixTree, on_evict: Callable[[int], None] | None = None) -> None:
        """`on_evict` is called with the id of each idle sequence before its eviction."""
        self._runner = runner
        self._on_evict = on_evict
        self._tree = tree
        self._cells = KvCells(runner.num_cells)
        self._free = list(range(runner.num_sequences - 1, -1, -1))
        self._live: set[int] = set()
        self._idle: OrderedDict[int, bool] = OrderedDict()  # whether it is open; least recently used first
        self.num_releases = 0
        """How often a live sequence ended or lost cells. While it stays the same, what does not fit (see `fits`) will
        not fit later: live sequences only take more cells, and idle prefixes make no difference."""

    @property
    def num_cells_used(self) -> int:
        return self._cells.num_used

    @property
    def num_available(self) -> int:
        """Cells that no live sequence holds. Idle prefixes in them can be evicted."""
        return self._cells.num_cells - self._cells.num_held(dict.fromkeys(self._live))

    @property
    def idle_ids(self) -> tuple[int, ...]:
        """Ids of the idle sequences, least recently used first."""
        return tuple(self._idle)

    def length(self, seq_id: int) -> int:
        return self._tree.length(seq_id)

    def num_unshared(self, seq_id: int) -> int:
        return self._cells.num_unshared(seq_id)

    def gap_below(self, seq_id: int, length: int) -> int:
        """Return about how many unused cells lie below the highest cell of an idle sequence's first `length` tokens.

        Cells of other idle sequences count as unused. Return 0 if a live sequence has an equally high cell or a higher
        one: steps then attend to these cells in any case.
        """
        top = self._cells.highest(seq_id, length)
        if any(self._cells.highest(live) >= top for live in self._live):
            return 0
        return max(0, top + 1 - length - sum(self._cells.length(live) for live in self._live))

    def tokens(self, seq_id: int, start: int = 0, end: int | None = None) -> array[int]:
        """Return a sequence's tokens from `start` to `end`; None means to the sequence's end."""
        return self._tree.tokens(seq_id, start, end)

    def root(self, seq_id: int) -> BlockKey:
        return self._tree.partition(seq_id)

    def match(self, walk: Walk, max_length: int, *, only_live: bool = False) -> CellPrefix:
        """Return the longest prefix of the looked-up tokens that a new sequence can begin with; CellPrefix() if none.

        The runner must be able to cut the prefix's sequence at the prefix's end. Among equally long prefixes, prefer an
        idle sequence that ends there, since it needs no copy. Second, prefer other idle sequences. `only_live`: ignore
        idle sequences. Nothing is changed.
        """
        best, best_rank = CellPrefix(), -1
        for length, seq_id in walk.sequences(max_length):
            if length < best.length:
                break
            if only_live and seq_id in self._idle:
                continue
            rank = (2 if self._tree.length(seq_id) == length else 1) if seq_id in self._idle else 0
            if rank > best_rank and self._runner.can_trim(seq_id, length):
                best, best_rank = CellPrefix(length, seq_id), rank
                if rank == 2:
                    break
        return best

    def is_idle(self, seq_id: int) -> bool:
        """Whether a sequence has ended and its prefix is still in the cells."""
        return seq_id in self._idle

    def fits(self, num_tokens: int, cell_prefix: CellPrefix, without: Container[int | None] = ()) -> bool:
        """Whether a new sequence of `num_tokens` that begins with `cell_prefix` fits beside the live sequences.

        All cells that neither the live sequences nor the prefix hold count as free: idle prefixes can be evicted.
        `without`: ids of live sequences that are taken to be idle.
        """
        held: dict[int, int | None] = {} if cell_prefix.seq_id is None else {cell_prefix.seq_id: cell_prefix.length}
        held |= dict.fromkeys(seq_id for seq_id in self._live if seq_id not in without)
        return num_tokens - cell_prefix.length <= self._cells.num_cells - self._cells.num_held(held)

    def claim(self, root: BlockKey, cell_prefix: CellPrefix) -> int | None:
        """Make a sequence live for a new prompt, and return its id; None if no id is available.

        If the prefix is the whole of an idle sequence, or nearly the whole of an open one, that sequence becomes live.
        Otherwise a sequence with a free id gets a copy of the prefix, or stays empty if the prefix cannot be copied. If
        no id is free, another idle prefix is evicted. Call this method right after `match`.
        """
        former = cell_prefix.seq_id
        if former is not None and former in self._idle:
            num_behind = self._tree.length(former) - cell_prefix.length
            if num_behind == 0 or (self._idle[former] and num_behind <= _MAX_REVISED):
                del self._idle[former]
                self._live.add(former)
                if num_behind:
                    self.cut(former, cell_prefix.length)
                return former
            self._idle.move_to_end(former)
        seq_id = self._take_id(keep=former)
        if seq_id is None:
            return None
        if former is not None:
            if self._runner.copy(former, seq_id, cell_prefix.length):
                self._cells.share(former, seq_id, cell_prefix.length)
                self._tree.fork(seq_id, former, cell_prefix.length)
                return seq_id
            self._runner.clear(seq_id)
        self._tree.insert(seq_id, root)
        return seq_id

    def reserve(self, num_cells: int) -> bool:
        """Evict idle prefixes until `num_cells` are free. Return False if live sequences hold too many cells."""
        while self._cells.num_free < num_cells:
            if not self._idle:
                return False
            self._evict(next(iter(self._idle)))
        return True

    def evict_one(self) -> bool:
        """Evict the least recently used idle prefix; return False if there is none."""
        if self._idle:
            self._evict(next(iter(self._idle)))
            return True
        return False

    def drop(self, seq_id: int) -> None:
        """Forget an idle sequence without calling `on_evict`."""
        del self._idle[seq_id]
        self._forget(seq_id)

    def cut(self, seq_id: int, length: int) -> int:
        """Cut a live sequence to `length` tokens, or to 0 if its memory cannot be cut there; return the new length."""
        self._tree.truncate(seq_id, length)
        self._cells.trim(seq_id, length)
        self.num_releases += 1
        return self.rewind(seq_id)

    def append(self, seq_id: int, tokens: Sequence[int]) -> None:
        """Record tokens that the runner has computed for a live sequence. Call `reserve` before the computation."""
        self._cells.take(seq_id, len(tokens))
        self._tree.extend(seq_id, tokens)

    def set_apart(self, seq_id: int, root: BlockKey) -> None:
        """Move a live sequence to the partition with this root, so that no prompt of its former one finds it."""
        tokens = self._tree.tokens(seq_id)
        self._tree.remove(seq_id)
        self._tree.insert(seq_id, root)
        self._tree.extend(seq_id, tokens)

    def rewind(self, seq_id: int) -> int:
        """Cut the runner's memory of a live sequence to the recorded length. Return the sequence's new length.

        This is needed after refused drafts or an interrupted step. The new length is 0 if the memory cannot be cut.
        """
        length = self._tree.length(seq_id)
        if self._runner.length(seq_id) == length or self._runner.rewind(seq_id, length):
            return length
        self.reset(seq_id)
        return 0

    def reset(self, seq_id: int) -> None:
        """Remove all tokens of a live sequence."""
        self._runner.clear(seq_id)
        self._tree.truncate(seq_id, 0)
        self._cells.trim(seq_id, 0)
        self.num_releases += 1

    def release(self, seq_id: int, *, keep: bool, is_open: bool = False) -> None:
        """End a live sequence. If `keep`, its prefix stays in the cells as an idle prefix.

        `is_open`: its last message may grow, so another prompt that shares most of it replaces its end.
        """
        self._live.remove(seq_id)
        self.num_releases += 1
        if keep and self._tree.length(seq_id) > 0:
            self._idle[seq_id] = is_open
        else:
            self._forget(seq_id)

    def _take_id(self, keep: int | None) -> int | None:
        if self._free:
            seq_id = self._free.pop()
        else:
            victim = next((idle for idle in self._idle if idle != keep), None)
            if victim is None:
                return None
            self._evict(victim)
            seq_id = self._free.pop()
        self._live.add(seq_id)
        return seq_id

    def _evict(self, victim: int) -> None:
        if self._on_evict is not None:
            self._on_evict(victim)
        self.drop(victim)

    def _forget(self, seq_id: int) -> None:
        self._runner.clear(seq_id)
        self._tree.remove(seq_id)
        self._cells.trim(seq_id, 0)
        self._free.append(seq_id)


class KvCells:
    """The cells of each holder, which is a sequence id. A cell is used while at least one holder has it.

    llama.cpp counts its cells too, but its API no longer reports the number. Computing a token takes one cell. When two
    sequences share a prefix, both hold the same cells. Trimming a sequence frees the cells that no other sequence
    holds. Like llama.cpp, this class takes the lowest free cells first, so it can estimate which used cell is the
    highest.
    """

    def __init__(self, num_cells: int) -> None:
        self.num_cells = num_cells
        self._num_holders = np.zeros(num_cells, np.int32)  # by cell
        self._free = list(range(num_cells))  # a heap
        self._cells: dict[int, array[int]] = {}

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_cells - len(self._free)

    def highest(self, holder: int, length: int | None = None) -> int:
        """Return the highest cell index among a holder's first `length` cells (None: all); -1 if there are none."""
        cells = self._cells.get(holder)
        return int(np.frombuffer(cells, np.int32)[:length].max()) if cells and length != 0 else -1

    def length(self, holder: int) -> int:
        return len(self._cells.get(holder, ()))

    def num_held(self, lengths: Mapping[int, int | None]) -> int:
        """Return how many cells these holders have together. `lengths`: count only that many of a holder's first ones.

        None: count all of them.
        """
        is_held = np.zeros(self.num_cells, np.bool_)
        for holder, length in lengths.items():
            if cells := self._cells.get(holder):
                is_held[np.frombuffer(cells, np.int32)[:length]] = True
        return int(is_held.sum())

    def num_unshared(self, holder: int) -> int:
        cells = self._cells.get(holder)
        return int((self._num_holders[np.frombuffer(cells, np.int32)] == 1).sum()) if cells else 0

    def take(self, holder: int, count: int) -> None:
        """Give a holder the `count` lowest free cells. At least that many must be free."""
        cells = self._cells.get(holder)
        if cells is None:
            cells = self._cells[holder] = array("i")
        for _ in range(count):
            cell = heapq.heappop(self._free)
            self._num_holders[cell] = 1
            cells.append(cell)

    def share(self, source: int, target: int, length: int) -> None:
        """Let `target`, which must be empty, hold the first `length` cells of `source` too."""
        assert not self._cells.get(target), f"holder {target} is not empty"
        cells = self._cells[source][:length]
        if cells:
            self._num_holders[np.frombuffer(cells, np.int32)] += 1
        self._cells[target] = cells

    def trim(self, holder: int, length: int) -> None:
        """Remove all cells of a holder but its first `length`. Cells without another holder become free."""
        cells = self._cells.get(holder)
        if cells is None or len(cells) <= length:
            return
        gone = np.array(cells[length:], np.int32)
        del cells[length:]
        self._num_holders[gone] -= 1
        for cell in gone[self._num_holders[gone] == 0].tolist():
            heapq.heappush(self._free, cell)
        if not cells:
            del self._cells[holder]
