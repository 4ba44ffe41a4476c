"""The table of one model's cached blocks, which the engine's thread owns: where each block is, and what it is worth.

The tree finds blocks by their tokens. The table keeps payloads in memory, within a limit of bytes that partitions share
fairly, and hands blocks to the disk. It moves no block into or out of the cells, and knows no files.
"""

from __future__ import annotations

import itertools
import os
import time
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from edgeagent.config import EngineConfig
from edgeagent.engine.cache.block import (
    MAX_BLOCK_TOKENS,
    MIN_PART,
    Block,
    BlockDisk,
    BlockKey,
    Importance,
    Keyring,
    Payload,
    PayloadCodec,
    choose_block_tokens,
)
from edgeagent.engine.cache.cached_prefix import BlockReference
from edgeagent.engine.cache.radix_tree import Place, RadixTree, Walk
from edgeagent.engine.costs.cost_model import CostModel
from edgeagent.types import CacheStatus, MemoryKind
from edgeagent.usable import usable_memory

_MAX_HOST_BYTES = 2 << 30
# At most this many blocks of the disk are added to the tree before one lookup; each takes 10 µs.
_MAX_HEADS = 200
# Once the tree has more blocks than this, blocks that are gone from memory and disk are removed from it.
_MIN_SWEEP = 256
# The factor on a block's cost, compared with a block that was used once.
_FACTORS = {
    Importance.VOLATILE: 1.0,
    Importance.ONCE: 1.0,
    Importance.NORMAL: 1.5,
    Importance.REUSED: 2.0,
    Importance.SYSTEM: 4.0,
    Importance.PINNED: 1.0,  # is not evicted at all
}
# The factor on the value of a block that is on disk too, since it can be read again.
_KEPT_ON_DISK = 0.5
PENDING_SHARE = 0.5
"""Blocks that wait to be written are evicted if they exceed this part of the limit, or if the disk cannot write."""
# A partition that was unused for this long has no claim to a share.
_STALE_S = 600.0
# Blocks that are pinned for lanes take at most this part of the limit.
_PINNED_SHARE = 0.5
MAX_LANES = 256  # the choice of a lane to unpin visits all of them


class _OnDisk(Enum):
    NO = "not offered, not accepted, or lost"
    PENDING = "accepted, and not written when last checked"
    YES = "written when last checked"


@dataclass(slots=True)
class _Entry:
    """A block in memory. `age` orders the uses of blocks; `num_lanes` have it pinned."""

    block: Block
    importance: Importance
    priority: float = 0.0
    age: int = 0
    num_lanes: int = 0
    on_disk: _OnDisk = _OnDisk.NO


@dataclass(slots=True)
class _Partition:
    num_bytes: int = 0  # in memory
    used_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Continuation:
    """The blocks that follow a chain of blocks. Each is None if there is no such block.

    `extendable`: the next block of the chain, which other blocks may follow. `complete`: a block that has all tokens
    that were looked up.
    """

    extendable: BlockReference | None
    complete: BlockReference | None


class BlockTable:
    """One model's blocks, in memory and on disk. Only the engine's thread uses it.

    Memory: blocks are evicted only if they have no children or are on disk too, so all ancestors of a block can be
    read. PINNED blocks, and blocks pinned for lanes, stay; lanes pin at most half of the limit. Blocks that wait to be
    written go only if they take more than half of the limit, or if the disk cannot write.

    Partitions that are unused for 10 minutes, or above an equal share, lose blocks first. As in GreedyDual-Size (Cao
    and Irani 1997), a block's priority is its value per byte, plus the highest priority evicted before its last use.
    """

    def __init__(
        self,
        keyring: Keyring,
        max_bytes: int,
        disk: BlockDisk | None = None,
        *,
        can_cut: bool = True,
        block_tokens: int = MAX_BLOCK_TOKENS,
        token_bytes: float = 0.0,
        is_draft: bool = False,
        codec: PayloadCodec | None = None,
        costs: CostModel | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`max_bytes`: the limit of blocks in memory. If it is 0, nothing is kept.

        `can_cut`: a restored prefix can be cut at any token; then a block is dropped when a longer one is added that
        begins with its tokens. `block_tokens`: tokens of a full block. `token_bytes`: bytes per token in a block; 0 if
        unknown, or if a block is only a state. `is_draft`: the blocks belong to a draft model, whose target model uses
        the same disk. `codec` packs payloads; if None, they are kept as they are. `costs`: how much more it costs to
        compute a token late in a prompt than an early one.
        """
        self.max_bytes = max_bytes
        self.block_tokens = block_tokens
        self.token_bytes = token_bytes
        self.disk = disk
        self.tree = RadixTree()
        """The tree of these blocks, and of the sequences in the runner's cells."""
        self._keyring = keyring
        self._can_cut = can_cut
        self._is_draft = is_draft
        self._codec = codec
        self._costs = costs or CostModel(1)
        self._clock = clock
        self._sweep_at = _MIN_SWEEP
        self._num_purges: Counter[BlockKey | None] = Counter()  # by root; None: purges of all partitions
        self._roots: dict[str, BlockKey] = {}
        self._entries: dict[BlockKey, _Entry] = {}  # the blocks in memory
        self._num_children: Counter[BlockKey] = Counter()  # in memory, by parent
        self._partitions: dict[BlockKey, _Partition] = {}  # those with blocks in memory
        self._pending: dict[BlockKey, _Entry] = {}  # the blocks that the disk has not written, oldest first
        self._pending_bytes = 0
        self._needs_writes = False
        self._lanes: OrderedDict[str, set[BlockKey]] = OrderedDict()  # the pinned blocks; least recently used first
        self._pinned_bytes = 0
        self._order = itertools.count()
        self._floor = 0.0  # the highest priority of a block evicted so far
        self._num_bytes = 0
        self._num_hits = self._num_misses = self._num_offered = self._num_dropped = self._num_evicted = 0

    @property
    def is_enabled(self) -> bool:
        """Whether any blocks are kept."""
        return self.max_bytes > 0

    @property
    def has_codec(self) -> bool:
        """Whether a codec packs payloads. A block is then usually a copy of the payload that was read out."""
        return self._codec is not None

    def stats(self) -> CacheStatus:
        """Return counts of the blocks in memory."""
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

    def root(self, partition: str) -> BlockKey:
        """Return the root key of a partition. The tree uses it as the partition's name."""
        root = self._roots.get(partition)
        if root is None:
            root = self._roots[partition] = self._keyring.root(partition)
        return root

    def walk(self, root: BlockKey, tokens: Sequence[int]) -> Walk:
        """Return the path of these tokens through the tree. Pass it to `find` to get the blocks.

        This calls `refresh`, which may change the tree. Walks that were returned before are then no longer valid.
        """
        self.refresh(_MAX_HEADS)
        return self.tree.walk(root, tokens)

    def find(self, walk: Walk) -> list[BlockReference]:
        """Return the chain of blocks that restores the most tokens of a walk, with as few blocks as possible.

        Blocks that are gone may be removed from the tree.
        """
        last_to: dict[int, BlockReference | None] = {0: None}  # the last block of the shortest chain that ends there
        num_blocks = {0: 0}
        for place in walk.blocks():
            if place.start in last_to and num_blocks[place.start] + 1 < num_blocks.get(place.end, 1 << 60):
                reference = self._reference(place, place.end)
                if reference is not None:
                    last_to[place.end], num_blocks[place.end] = reference, num_blocks[place.start] + 1
        end = max(last_to)
        part = self._part(walk, num_blocks, end) if self._can_cut else None
        references = [] if part is None else [part]
        at = end if part is None else part.start
        while (last := last_to[at]) is not None:
            references.append(last)
            at = last.start
        return references[::-1]

    def continuation(
        self, root: BlockKey, key: BlockKey | None, at: int, own: array[int], instructions_end: int
    ) -> Continuation:
        """Find the blocks that follow a chain and match `own`, the sequence's tokens after the chain.

        The chain ends at position `at` with the block `key`. If `key` is None, the chain is empty. A block is
        extendable if all its tokens match and one of these holds: it is full, it ends at position `instructions_end`,
        or it has children. If blocks can be cut, a complete block may have more tokens than `own`.
        """
        if key is not None and key not in self.tree.blocks:
            return Continuation(None, None)
        walk = self.tree.walk(root, own, key)
        extendable = complete = None
        for place in walk.blocks():
            if place.start != at or place.end == at or (reference := self._reference(place, place.end)) is None:
                continue
            if (
                reference.length == self.block_tokens
                or place.end == instructions_end
                or self.tree.has_children(place.key)
            ):
                extendable = reference
            if reference.length == len(own):
                complete = reference
        if complete is None and self._can_cut:
            complete = self._part(walk, {at: 0}, at + len(own) - 1)
        return Continuation(extendable, complete)

    def extendable(self, references: Sequence[BlockReference], instructions_end: int = 0) -> list[BlockReference]:
        """Return the blocks of a chain that other blocks may follow.

        Every block before the last one is returned. The last one is returned if all its tokens are wanted and one of
        these holds: it is full, it ends at position `instructions_end`, or it has children.
        """
        if not references:
            return []
        *before, last = references
        is_end = last.length == self.block_tokens or last.end == instructions_end or self.tree.has_children(last.key)
        return list(references) if last.is_whole and is_end else before

    def is_held(self, key: BlockKey) -> bool:
        """Whether a block is in the tree, and in memory or on disk.

        If a block was lost and another process has written it again, the result is False until `refresh` adds it to the
        tree.
        """
        return key in self.tree.blocks and (key in self._entries or self._is_on_disk(key))

    def make(self, root: BlockKey, parent: BlockKey | None, start: int, own: array[int], payload: Payload) -> Block:
        """Return a new block with the tokens `own` from position `start` on, and with the packed payload.

        If `parent` is None, the parent is `root`. The block is not kept; see `add`.
        """
        parent = parent or root
        key = self._keyring.key(parent, own)
        if self._codec is not None:
            payload = self._codec.pack(payload)
        return Block(root, parent, key, start, own, payload, is_draft=self._is_draft)

    def unpack(self, block: Block) -> Payload:
        """Return a block's unpacked payload, valid until the next call. Raise InternalError if it is damaged."""
        return block.payload if self._codec is None else self._codec.unpack(block.payload)

    def refresh(self, max_heads: int = 1 << 60) -> None:
        """Add to the tree up to `max_heads` blocks that other or earlier processes wrote to the disk.

        If the tree has grown enough since the last removal, remove blocks from it that are gone.
        """
        if self.disk is not None:
            for head in self.disk.take_found(max_heads, is_draft=self._is_draft):
                self.tree.add(head)
        if len(self.tree.blocks) > self._sweep_at:
            for key in tuple(self.tree.blocks):
                if not self.is_held(key):
                    self.tree.discard(key)
            self._sweep_at = _MIN_SWEEP + 2 * len(self.tree.blocks)

    def epoch(self, root: BlockKey) -> int:
        """Return a number that rises with each purge of a partition.

        If it has risen since a request looked up its blocks, the request must not add them.
        """
        return self._num_purges[None] + self._num_purges[root]

    # The life of a block in memory.

    def add(self, block: Block, importance: Importance) -> bool:
        """Keep a block in memory, and evict others to make room. Return False if it is not accepted.

        A block that was not accepted may be added again. Add parents before their children: a block whose parent is
        gone is not accepted. The block is also written to disk, unless its importance is ONCE or VOLATILE.
        """
        self._num_offered += 1
        if block.key in self._entries:
            self.raise_importance((block.key,), importance)
            return True
        is_orphan = self._is_orphan(block)
        if is_orphan or not self._make_room(block):
            self._num_dropped += 1
            return False
        entry = self._entries[block.key] = _Entry(block, importance)
        self._num_children[block.parent] += 1
        self._num_bytes += block.num_bytes
        self._partitions.setdefault(block.root, _Partition()).num_bytes += block.num_bytes
        self._rank(entry)
        is_in_tree = self.tree.add(block)
        if importance >= Importance.NORMAL:
            self._hand_down(entry)
        if self._can_cut and is_in_tree:
            self._drop_beginnings(entry)
        return True

    def read(self, key: BlockKey) -> Block | None:
        """Return a block; None if it is not in memory."""
        entry = self._entries.get(key)
        if entry is None:
            self._num_misses += 1
            return None
        self._num_hits += 1
        return entry.block

    def use(self, keys: Sequence[BlockKey]) -> None:
        """Note that a request uses these blocks, so that they stay longer. Pass parents before children.

        A VOLATILE block stays VOLATILE, even if the request may be written to disk: some of its tokens may not belong
        to the request.
        """
        for entry in self._known(keys):
            is_volatile = entry.importance is Importance.VOLATILE
            self._raise(entry, entry.importance if is_volatile else Importance.REUSED)
        if self.disk is not None:
            self.disk.touch(keys)

    def raise_importance(self, keys: Iterable[BlockKey], importance: Importance) -> None:
        """Raise these blocks to at least this importance, VOLATILE ones too. Pass parents before children.

        All tokens of these blocks must belong to a sequence that may be written to disk. Unknown keys are ignored.
        """
        for entry in self._known(keys):
            self._raise(entry, importance)

    def pin_for_lane(self, lane: str, keys: Iterable[BlockKey]) -> None:
        """Pin these blocks of one partition for a lane, instead of its earlier ones. Ignore unknown keys.

        A lane is a conversation; its latest response stays cached until the next one. If the blocks exceed the limit of
        pinned bytes, none is pinned. Other lanes are unpinned to make room, and if there are more than MAX_LANES: first
        the least recently used lane of the partition with the most pinned bytes.
        """
        entries = self._known(dict.fromkeys(keys))
        if not entries:
            return
        self._unpin(lane)
        max_bytes = int(self.max_bytes * _PINNED_SHARE)
        if sum(entry.block.num_bytes for entry in entries) > max_bytes:
            return
        self._lanes[lane] = {entry.block.key for entry in entries}
        for entry in entries:
            self._pinned_bytes += 0 if entry.num_lanes else entry.block.num_bytes
            entry.num_lanes += 1
        while self._pinned_bytes > max_bytes or len(self._lanes) > MAX_LANES:
            self._unpin(self._choose_lane(lane))

    def discard(self, key: BlockKey) -> None:
        """Drop a block that has no children, from memory and disk, since a longer block replaces it."""
        entry = self._entries.get(key)
        if entry is not None and not self._num_children[key]:
            self._remove(entry)
        if self.disk is not None:
            self.disk.discard(key)

    def purge(self, root: BlockKey | None) -> int:
        """Forget the blocks of a partition (None: of all partitions), in memory and on disk; return how many.

        A block that is in memory and on disk counts twice.
        """
        self._num_purges[root] += 1
        self.refresh()
        self.tree.purge(root)
        gone = [entry for entry in self._entries.values() if root in (None, entry.block.root)]
        for entry in gone:
            self._remove(entry)
        return len(gone) + (0 if self.disk is None else self.disk.purge(root))

    def flush(self) -> None:
        """Hand all blocks to the disk, except VOLATILE ones and their descendants. Do not wait for the writes."""
        for entry in sorted(self._entries.values(), key=lambda entry: entry.block.start):
            self._hand_down(entry)

    @property
    def needs_writes(self) -> bool:
        """Whether the last block found no room, but will once the disk has written others."""
        if self._needs_writes:
            self._look_at_writes()
        return self._needs_writes

    @property
    def needed_writes(self) -> bool:
        """The last known value of `needs_writes`. The disk is not asked again."""
        return self._needs_writes

    def wait_for_room(self) -> bool:
        """Wait until the disk has written a block; return whether memory may have room now."""
        # `wait_written` also returns False if all pending blocks were written before the call.
        return self.disk is not None and (self.disk.wait_written() or not self.needs_writes)

    def _known(self, keys: Iterable[BlockKey]) -> list[_Entry]:
        return [self._entries[key] for key in keys if key in self._entries]

    def _is_on_disk(self, key: BlockKey) -> bool:
        return self.disk is not None and self.disk.num_bytes(key) is not None

    def _is_orphan(self, block: Block) -> bool:
        is_first = block.parent == block.root
        return not is_first and block.parent not in self._entries and not self._is_on_disk(block.parent)

    def _raise(self, entry: _Entry, importance: Importance) -> None:
        is_higher = importance > entry.importance
        if is_higher:
            entry.importance = importance
        self._rank(entry)
        if entry.importance >= Importance.NORMAL:
            self._hand_down(entry, is_raised=is_higher)

    def _rank(self, entry: _Entry) -> None:
        """Set the priority of a block that was used just now."""
        block = entry.block
        # A token at position 0 costs 1, and one at `doubling_depth` costs 2: it attends to that many earlier tokens.
        cost = len(block.tokens) * (1 + block.start / self._costs.doubling_depth)
        value = _FACTORS[entry.importance] * cost / max(1, block.num_bytes)
        entry.priority = self._floor + value * (_KEPT_ON_DISK if entry.on_disk is _OnDisk.YES else 1.0)
        entry.age = next(self._order)
        self._partitions[block.root].used_s = self._clock()

    def _drop_beginnings(self, entry: _Entry) -> None:
        """Remove the blocks that `entry` begins with. Keep those with children, and SYSTEM and PINNED ones.

        If `entry` must not be written, the disk keeps the shorter ones.
        """
        block = entry.block
        for key in self.tree.beginnings(block.key):
            shorter = self._entries.get(key)
            if shorter is None or self._num_children[key] or shorter.importance >= Importance.SYSTEM:
                continue
            if entry.importance is Importance.VOLATILE:
                self._remove(shorter)
            else:
                self.discard(key)

    def _remove(self, entry: _Entry) -> None:
        block = entry.block
        self._end_pending(entry)
        if entry.num_lanes:
            self._pinned_bytes -= block.num_bytes
            for keys in self._lanes.values():
                keys.discard(block.key)
        del self._entries[block.key]
        self._num_children[block.parent] -= 1
        if not self._num_children[block.parent]:
            del self._num_children[block.parent]
        self._num_bytes -= block.num_bytes
        partition = self._partitions[block.root]
        partition.num_bytes -= block.num_bytes
        if partition.num_bytes == 0:
            del self._partitions[block.root]

    # Lanes.

    def _choose_lane(self, latest: str) -> str:
        """Return the least recently used lane, except `latest`, of the partition with the most pinned bytes.

        If that partition has no other lane, return the least recently used lane of all partitions.
        """
        num_bytes: Counter[BlockKey] = Counter()
        roots: dict[str, BlockKey] = {}
        for lane, keys in self._lanes.items():
            for entry in self._known(keys):
                roots[lane] = entry.block.root
                num_bytes[entry.block.root] += entry.block.num_bytes
        ((largest, _),) = num_bytes.most_common(1)
        others = [lane for lane in self._lanes if lane != latest]
        return next((lane for lane in others if roots.get(lane) == largest), others[0])

    def _unpin(self, lane: str) -> None:
        for entry in self._known(self._lanes.pop(lane, ())):
            entry.num_lanes -= 1
            if not entry.num_lanes:
                self._pinned_bytes -= entry.block.num_bytes

    # Room in memory.

    def _make_room(self, block: Block) -> bool:
        """Evict other blocks until this one fits; return False if it does not fit now."""
        if block.num_bytes > self.max_bytes:
            return False
        self._needs_writes = False
        while self._num_bytes + block.num_bytes > self.max_bytes:
            self._look_at_writes()
            victim = self._choose_victim(block)
            if victim is None:
                self._needs_writes = bool(self._pending) and not self._is_stalled
                return False
            if self._is_needed(victim):
                continue
            self._floor = max(self._floor, victim.priority)
            self._num_evicted += 1
            self._remove(victim)
        return True

    def _choose_victim(self, block: Block) -> _Entry | None:
        """Return the block of the lowest priority that may be evicted for `block`; None if there is none.

        Partitions that are stale, or with `block` above their share, lose blocks first. Blocks that wait to be written
        go last, if at all. The parent of `block` stays.
        """
        # One pass over all blocks takes 0.1 ms for 500 of them, which is little beside the copy of one.
        unpinned = [
            entry
            for entry in self._entries.values()
            if not entry.num_lanes and entry.importance is not Importance.PINNED and entry.block.key != block.parent
        ]
        leaves = [
            entry
            for entry in unpinned
            if entry.on_disk is _OnDisk.YES or (entry.on_disk is _OnDisk.NO and not self._num_children[entry.block.key])
        ]
        if not leaves and self._may_evict_pending:
            leaves = [entry for entry in unpinned if not self._num_children[entry.block.key]]
        over = self._partitions_over_share(block)
        fair = [entry for entry in leaves if entry.block.root in over]
        return min(fair or leaves, key=lambda entry: (entry.priority, entry.age), default=None)

    def _partitions_over_share(self, block: Block) -> set[BlockKey]:
        now_s = self._clock()
        stale = {root for root, partition in self._partitions.items() if now_s - partition.used_s >= _STALE_S}
        share = self.max_bytes / len({*self._partitions, block.root} - stale | {block.root})
        return {
            root
            for root, partition in self._partitions.items()
            if root in stale or partition.num_bytes + (block.num_bytes if root == block.root else 0) > share
        }

    def _is_needed(self, victim: _Entry) -> bool:
        """Return whether a block chosen for eviction must stay. If not, cancel its write.

        A block that the disk has lost stays if it has children. Any other is first offered to the disk, and stays while
        its write is pending and waiting blocks may stay.
        """
        key = victim.block.key
        if victim.on_disk is _OnDisk.YES and not self._is_on_disk(key):
            victim.on_disk = _OnDisk.NO
            return self._num_children[key] > 0
        self._hand_down(victim)
        if victim.on_disk is _OnDisk.PENDING and self.disk is not None and self.disk.is_pending(key):
            if not self._may_evict_pending:
                return True
            self.disk.withdraw(key)
        return False

    # The disk.

    @property
    def _is_stalled(self) -> bool:
        return self.disk is not None and self.disk.is_stalled

    @property
    def _may_evict_pending(self) -> bool:
        """Whether blocks that wait to be written may be evicted: the disk cannot write, or they take too many bytes."""
        return self._is_stalled or self._pending_bytes > self.max_bytes * PENDING_SHARE

    def _look_at_writes(self) -> None:
        """Note which blocks the disk has written or dropped since the last call."""
        for key, entry in tuple(self._pending.items()):
            if self.disk is not None and not self.disk.is_pending(key):
                self._needs_writes = False
                self._end_pending(entry)
                entry.on_disk = _OnDisk.YES if self._is_on_disk(key) else _OnDisk.NO

    def _end_pending(self, entry: _Entry) -> None:
        if self._pending.pop(entry.block.key, None) is not None:
            self._pending_bytes -= entry.block.num_bytes
            entry.on_disk = _OnDisk.NO

    def _hand_down(self, entry: _Entry, *, is_raised: bool = False) -> None:
        """Offer a block to the disk, after its missing ancestors. If any is VOLATILE, do nothing.

        `is_raised`: offer the block again, since it has become more important.
        """
        if self.disk is None:
            return
        chain: list[_Entry] = []
        for each in self._lineage(entry):
            if each.importance is Importance.VOLATILE:
                return  # the children of a block that must not be written are useless without it
            is_accepted = self.disk.is_pending(each.block.key) or self._is_on_disk(each.block.key)
            if each.on_disk is not _OnDisk.NO and is_accepted and not (is_raised and each is entry):
                break
            chain.append(each)
        for each in reversed(chain):
            if not self.disk.offer(each.block, each.importance):
                return  # its children would not be accepted either
            self._end_pending(each)
            each.on_disk = _OnDisk.PENDING
            self._pending[each.block.key] = each
            self._pending_bytes += each.block.num_bytes

    def _lineage(self, entry: _Entry) -> Iterator[_Entry]:
        """Yield a block in memory and its ancestors, up to the first that is not in memory."""
        each: _Entry | None = entry
        while each is not None:
            yield each
            each = self._entries.get(each.block.parent)

    # Parts of a lookup.

    def _part(self, walk: Walk, num_blocks: dict[int, int], end: int) -> BlockReference | None:
        """Return the block that follows a walk furthest, cut where it leaves the walk; None if there is none.

        At least MIN_PART of its tokens must be on the walk, up to a position beyond `end`. It must begin at one of the
        positions in `num_blocks`, which maps positions to the number of blocks before.

        Among blocks that reach equally far, prefer one in memory, then one with the fewest blocks before it, then
        the shortest one. Blocks that are gone are removed from the tree.
        """
        best: BlockReference | None = None
        best_rank: tuple[bool, int, int] | None = None
        gone = []
        for place, depth in walk.across(end):
            if best is not None and depth < best.end:
                break
            if place.start not in num_blocks or depth - place.start < MIN_PART:
                continue
            reference = self._reference(place, depth)
            if reference is None:
                gone.append(place.key)
                continue
            rank = (reference.is_in_memory, -num_blocks[reference.start], -reference.length)
            if best_rank is None or rank > best_rank:
                best, best_rank = reference, rank
        for key in gone:
            self.tree.discard(key)
        return best

    def _reference(self, place: Place, end: int) -> BlockReference | None:
        """Return a reference to a block's tokens up to position `end`; None if the block is gone."""
        entry, num_bytes = self._entries.get(place.key), None
        if entry is not None:
            num_bytes = entry.block.num_bytes
        elif self.disk is not None:
            num_bytes = self.disk.num_bytes(place.key)
        if num_bytes is None:
            return None
        length = place.end - place.start
        return BlockReference(entry is not None, place.key, place.start, end - place.start, length, num_bytes)


def make_table(
    memory_kind: MemoryKind,
    config: EngineConfig,
    keyring: Keyring | None = None,
    disk: BlockDisk | None = None,
    share: float = 1.0,
    token_bytes: float = 0.0,
    *,
    is_draft: bool = False,
    codec: PayloadCodec | None = None,
    costs: CostModel | None = None,
) -> BlockTable:
    """Return a model's BlockTable as configured.

    `share`: the model's part of the memory for blocks, 0 to 1. A `disk` needs a keyring that outlives the process.
    BlockTable describes the other arguments.
    """
    return BlockTable(
        keyring or Keyring(b"", os.urandom(32)),
        int(_host_bytes(config) * share),
        disk,
        # A block of windowed layers has only the cells in the window at its end, so it cannot be cut.
        can_cut=memory_kind is MemoryKind.FULL_ATTENTION,
        block_tokens=choose_block_tokens(token_bytes),
        token_bytes=token_bytes,
        is_draft=is_draft,
        codec=codec,
        costs=costs,
    )


def empty_table() -> BlockTable:
    """Return a table that keeps nothing."""
    return BlockTable(Keyring(b"", bytes(16)), 0, can_cut=False)


def _host_bytes(config: EngineConfig) -> int:
    if config.cache_memory_bytes >= 0:
        return config.cache_memory_bytes
    return min(usable_memory().total // 8, _MAX_HOST_BYTES)
