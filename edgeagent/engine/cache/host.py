"""Keeps blocks in host memory, within a limit of bytes that partitions share fairly. Decides which to evict first.

A block is offered to the tier below before it is evicted. This module knows neither cells nor files.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from edgeagent.engine.cache.backlog import Backlog
from edgeagent.engine.cache.block import Block, BlockKey, Importance, LowerTier, value_of
from edgeagent.engine.cache.pins import Pins
from edgeagent.engine.costs.cost_model import CostModel
from edgeagent.types import CacheStatus

# The factor on the value of a block that the tier below also holds, since the block can be read again.
_KEPT_BELOW = 0.5
# Blocks that wait for the tier below are evicted if they exceed this part of the limit, or if that tier cannot write.
PENDING_SHARE = 0.5
# A partition that was unused for this long has no claim to a share.
_STALE_S = 600.0
# Blocks that are pinned for lanes take at most this part of the limit.
_HELD_SHARE = 0.5

_Item = tuple[float, int, BlockKey]


@dataclass(slots=True)
class _Entry:
    block: Block
    importance: Importance
    priority: float = 0.0
    item: _Item | None = None  # in its partition's heap; None if the block must stay
    is_offered: bool = False  # the tier below accepted it
    is_below: bool = False  # the tier below held it when last checked


@dataclass(slots=True)
class _Partition:
    """A partition's blocks that may be evicted, as a heap by priority. Items other than `_Entry.item` are outdated."""

    heap: list[_Item]
    num_bytes: int = 0
    used_s: float = 0.0


class HostTier:
    """A BlockTier in memory.

    It evicts only blocks that have no children or are also in the tier below, so all ancestors of a block can be read.
    It never evicts PINNED blocks or blocks pinned for lanes; lanes pin at most half of the limit. It evicts blocks that
    wait to be written only if they take more than half of the limit, or if the tier below cannot write.

    Partitions that are unused for 10 minutes, or above an equal share, lose blocks first. As in GreedyDual-Size (Cao
    and Irani 1997), a block's priority is its value per byte, plus the highest priority evicted before its last use.

    `can_cut`: a prefix of this model can be cut at any token. Then a block is dropped when a longer sibling is added
    that begins with the block's tokens (see `_drop_beginnings`).
    """

    def __init__(
        self,
        max_bytes: int,
        *,
        can_cut: bool = True,
        below: LowerTier | None = None,
        clock: Callable[[], float] = time.monotonic,
        costs: CostModel | None = None,
    ) -> None:
        self.max_bytes = max_bytes
        self._costs = costs or CostModel(1)
        self._can_cut = can_cut
        self._below = below
        self._clock = clock
        self._entries: dict[BlockKey, _Entry] = {}
        self._children: defaultdict[BlockKey, list[BlockKey]] = defaultdict(list)
        self._partitions: dict[BlockKey, _Partition] = {}
        self._backlog = Backlog(below)
        self._needs_writes_below = False
        self._pins = Pins(int(max_bytes * _HELD_SHARE))
        self._order = itertools.count()
        self._floor = 0.0  # the highest priority of a block evicted so far
        self._num_bytes = 0
        self._num_hits = self._num_misses = self._num_offered = self._num_dropped = self._num_evicted = 0

    def num_bytes(self, key: BlockKey) -> int | None:
        """Return a block's size in bytes; None if this tier does not hold the block. See BlockTier."""
        entry = self._entries.get(key)
        return None if entry is None else entry.block.num_bytes

    def read(self, key: BlockKey) -> Block | None:
        """Return a block without waiting; None if this tier does not hold it. See BlockTier."""
        entry = self._entries.get(key)
        if entry is None:
            self._num_misses += 1
            return None
        self._num_hits += 1
        return entry.block

    def touch(self, keys: Iterable[BlockKey]) -> None:
        """Note that these blocks were used just now. See BlockTier."""
        for entry in self._known(keys):
            self._rank(entry)

    def offer(self, block: Block, importance: Importance) -> bool:
        """Keep a block, and evict others to make room. Return False if it is not accepted. See BlockTier."""
        self._num_offered += 1
        if block.key in self._entries:
            self.raise_importance((block.key,), importance)
            return True
        is_orphan = block.parent != block.root and not self._is_held(block.parent)
        if is_orphan or not self._make_room(block):
            self._num_dropped += 1
            return False
        entry = _Entry(block, importance)
        self._entries[block.key] = entry
        self._children[block.parent].append(block.key)
        if block.parent in self._entries:
            self._queue(self._entries[block.parent])  # it is no longer a leaf
        self._num_bytes += block.num_bytes
        self._partition(block.root).num_bytes += block.num_bytes
        self._rank(entry)
        if importance >= Importance.NORMAL:
            self._hand_down(entry)
        if self._can_cut:
            self._drop_beginnings(block)
        return True

    @property
    def needs_writes_below(self) -> bool:
        """Whether the last block found no room, but will once the tier below has written others."""
        if self._needs_writes_below:
            self._look_below()
        return self._needs_writes_below

    @property
    def needed_writes_below(self) -> bool:
        """The last known value of `needs_writes_below`. The tier below is not asked again."""
        return self._needs_writes_below

    def discard(self, key: BlockKey) -> None:
        """Drop a block that has no children, also from the tier below. See BlockTier."""
        entry = self._entries.get(key)
        if entry is not None and key not in self._children:
            self._remove(entry)
        if self._below is not None:
            self._below.discard(key)

    def promote(self, keys: Iterable[BlockKey], importance: Importance) -> None:
        """Raise these blocks to at least this importance, because a request used them. Unknown keys are ignored.

        Pass parents before children. Blocks more important than ONCE are offered to the tier below. A VOLATILE block
        stays VOLATILE, even if the request may be written to disk: some of its tokens may not belong to the request.
        """
        for entry in self._known(keys):
            self._raise(entry, entry.importance if entry.importance is Importance.VOLATILE else importance)

    def raise_importance(self, keys: Iterable[BlockKey], importance: Importance) -> None:
        """Like `promote`, but raise VOLATILE blocks too.

        All tokens of these blocks must belong to a sequence that may be written to disk.
        """
        for entry in self._known(keys):
            self._raise(entry, importance)

    def _known(self, keys: Iterable[BlockKey]) -> list[_Entry]:
        return [self._entries[key] for key in keys if key in self._entries]

    def pin_for_lane(self, lane: str, keys: Iterable[BlockKey]) -> None:
        """Pin these blocks for a lane, until it pins others or other lanes need room. Ignore unknown keys."""
        blocks = [entry.block for entry in self._known(keys)]
        if blocks:
            freed = self._pins.pin(lane, blocks[0].root, {block.key: block.num_bytes for block in blocks})
            for key in (*freed, *(block.key for block in blocks)):
                self._queue(self._entries[key])

    def _raise(self, entry: _Entry, importance: Importance) -> None:
        if importance > entry.importance:
            entry.importance, entry.is_offered = importance, False
        self._rank(entry)
        if entry.importance >= Importance.NORMAL:
            self._hand_down(entry)

    def flush(self) -> None:
        """Offer blocks to the tier below, parents first. Skip accepted ones, VOLATILE ones and descendants of these."""
        for entry in sorted(self._entries.values(), key=lambda entry: entry.block.start):
            self._hand_down(entry)

    def purge(self, root: BlockKey | None = None) -> int:
        """Forget all blocks of a partition (None: of all partitions); return how many. See BlockTier."""
        for key in self._pins.release(root):
            self._queue(self._entries[key])
        gone = [entry for entry in self._entries.values() if root is None or entry.block.root == root]
        for entry in sorted(gone, key=lambda entry: -entry.block.start):
            self._remove(entry)
        return len(gone)

    def stats(self) -> CacheStatus:
        """Return counts for status reports. See BlockTier."""
        return CacheStatus(
            num_blocks=len(self._entries),
            num_bytes=self._num_bytes,
            max_bytes=self.max_bytes,
            num_hits=self._num_hits,
            num_misses=self._num_misses,
            num_offered=self._num_offered,
            num_dropped=self._num_dropped,
            num_evicted=self._num_evicted,
        )

    def close(self) -> None:
        """Offer the remaining blocks to the tier below. See BlockTier."""
        self.flush()

    def _is_held(self, key: BlockKey) -> bool:
        return key in self._entries or (self._below is not None and self._below.num_bytes(key) is not None)

    def _partition(self, root: BlockKey) -> _Partition:
        partition = self._partitions.get(root)
        if partition is None:
            partition = self._partitions[root] = _Partition([])
        return partition

    def _rank(self, entry: _Entry) -> None:
        """Set the priority of a block that was used just now."""
        block, partition = entry.block, self._partition(entry.block.root)
        value = value_of(block, entry.importance, self._costs.doubling_depth)
        entry.priority = self._floor + value * (_KEPT_BELOW if entry.is_below else 1.0)
        partition.used_s = self._clock()
        self._queue(entry)

    def _queue(self, entry: _Entry) -> None:
        """Put a block into its partition's heap if it may be evicted; else mark its heap item as outdated."""
        entry.item = None
        if not self._may_go(entry):
            return
        entry.item = (entry.priority, next(self._order), entry.block.key)
        heap = self._partitions[entry.block.root].heap
        heapq.heappush(heap, entry.item)
        if len(heap) > 64 + 4 * len(self._entries):
            heap[:] = sorted(item for item in heap if self._is_current(item))

    def _may_go(self, entry: _Entry) -> bool:
        key = entry.block.key
        if key in self._pins or key in self._backlog or entry.importance is Importance.PINNED:
            return False
        return key not in self._children or entry.is_below

    def _is_current(self, item: _Item) -> bool:
        entry = self._entries.get(item[2])
        return entry is not None and entry.item == item

    def _make_room(self, block: Block) -> bool:
        """Evict other blocks until this one fits; return False if it does not fit now."""
        if block.num_bytes > self.max_bytes:
            return False
        self._needs_writes_below = False
        while self._num_bytes + block.num_bytes > self.max_bytes:
            self._look_below()
            victim = self._choose_victim(block) or self._choose_pending(block)
            if victim is None:
                self._needs_writes_below = self._backlog.num_bytes > 0 and not self._backlog.is_stalled
                return False
            if self._is_needed(victim):
                continue
            self._floor = max(self._floor, victim.priority)
            self._num_evicted += 1
            self._remove(victim)
        return True

    def _is_needed(self, victim: _Entry) -> bool:
        """Return whether a block chosen for eviction must stay. If not, cancel its write.

        A block that the tier below has lost stays if it has children. Any other is first offered to that tier, and
        stays while its write is pending and waiting blocks may stay (see `_has_to_give_way`).
        """
        key = victim.block.key
        if victim.is_below and not self._backlog.is_below(key):
            victim.is_below = victim.is_offered = False
            self._queue(victim)
            return key in self._children
        self._hand_down(victim)
        if self._backlog.is_pending(key) and not self._has_to_give_way:
            self._queue(victim)
            return True
        self._backlog.withdraw(key)
        return False

    def _look_below(self) -> None:
        """Note which blocks the tier below has written or dropped since the last call."""
        for key in self._backlog.forget_finished():
            self._needs_writes_below = False
            entry = self._entries[key]
            entry.is_offered = entry.is_below = self._backlog.is_below(key)
            self._queue(entry)

    @property
    def _has_to_give_way(self) -> bool:
        """Whether pending blocks may be evicted: the tier below cannot write, or they take too many bytes."""
        return self._backlog.is_stalled or self._backlog.num_bytes > self.max_bytes * PENDING_SHARE

    def _choose_pending(self, block: Block) -> _Entry | None:
        """Return the pending block to evict: the one of the lowest priority without children. None if all must stay."""
        if not self._has_to_give_way:
            return None
        kept = {block.parent, *self._children}
        leaves = [self._entries[key] for key in self._backlog if key not in kept and key not in self._pins]
        leaves = [entry for entry in leaves if entry.importance is not Importance.PINNED]
        return min(leaves, key=lambda entry: entry.priority, default=None)

    def _choose_victim(self, block: Block) -> _Entry | None:
        """Return the block of the lowest priority that may be evicted for `block`; None if there is none.

        Partitions that are stale, or with `block` above their share, lose blocks first. The parent of `block` stays.
        """
        now_s = self._clock()
        stale = {root for root, partition in self._partitions.items() if now_s - partition.used_s >= _STALE_S}
        share = self.max_bytes / len({*self._partitions, block.root} - stale | {block.root})
        over = [
            partition
            for root, partition in self._partitions.items()
            if root in stale or partition.num_bytes + (block.num_bytes if root == block.root else 0) > share
        ]
        for group in (over, self._partitions.values()):
            leaves = [leaf for partition in group if (leaf := self._first_leaf(partition, block.parent)) is not None]
            if leaves:
                return min(leaves, key=lambda entry: entry.priority)
        return None

    def _first_leaf(self, partition: _Partition, keep: BlockKey) -> _Entry | None:
        """Return the block of the lowest priority in a partition's heap, except `keep`. Drop outdated heap items."""
        heap, kept, found = partition.heap, None, None
        while heap and found is None:
            if not self._is_current(heap[0]):
                heapq.heappop(heap)
            elif heap[0][2] == keep:
                kept = heapq.heappop(heap)
            else:
                found = self._entries[heap[0][2]]
        if kept is not None:
            heapq.heappush(heap, kept)
        return found

    def _hand_down(self, entry: _Entry) -> None:
        """Offer a block to the tier below, after its missing ancestors. If any is VOLATILE, do nothing."""
        if self._below is None:
            return
        chain = []
        walk: _Entry | None = entry
        while (
            walk is not None
            and walk.importance is not Importance.VOLATILE
            and not (walk.is_offered and self._backlog.is_below_or_pending(walk.block.key))
        ):
            chain.append(walk)
            walk = self._entries.get(walk.block.parent)
        if walk is not None and walk.importance is Importance.VOLATILE:
            return  # the children of a block that must not be written are useless without it
        for each in reversed(chain):
            if not self._backlog.offer(each.block, each.importance):
                return  # its children would not be accepted either
            each.is_offered = True
            self._queue(each)

    def _drop_beginnings(self, block: Block) -> None:
        """Remove siblings whose tokens `block` begins with. Keep those with children, and SYSTEM and PINNED ones."""
        is_volatile = self._entries[block.key].importance is Importance.VOLATILE
        for key in tuple(self._children[block.parent]):
            sibling = self._entries[key]
            tokens = sibling.block.tokens
            is_beginning = len(tokens) < len(block.tokens) and block.tokens[: len(tokens)] == tokens
            if not is_beginning or key in self._children or sibling.importance >= Importance.SYSTEM:
                continue
            # If the longer block must not be written, the disk keeps the shorter one.
            if is_volatile:
                self._remove(sibling)
            else:
                self.discard(key)

    def _remove(self, entry: _Entry) -> None:
        block = entry.block
        self._pins.forget(block.key)
        self._backlog.forget(block.key)
        del self._entries[block.key]
        siblings = self._children[block.parent]
        siblings.remove(block.key)
        if not siblings:
            del self._children[block.parent]
            if block.parent in self._entries:
                self._queue(self._entries[block.parent])
        self._num_bytes -= block.num_bytes
        partition = self._partitions[block.root]
        partition.num_bytes -= block.num_bytes
        if partition.num_bytes == 0:
            del self._partitions[block.root]
