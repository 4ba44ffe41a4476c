"""The table of one model's cached blocks, which the engine's thread owns: where each block is, and what it is worth.

The tree finds blocks by their tokens. The table keeps payloads in memory, within a limit of bytes that partitions share
fairly, hands blocks to the disk, and takes the disk's results. It moves no block into or out of the cells, and knows no
files.
"""

from __future__ import annotations

import heapq
import itertools
import os
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from edgeagent.config import EngineConfig
from edgeagent.engine.cache.block import (
    MAX_BLOCK_TOKENS,
    MIN_CUT,
    Block,
    BlockDisk,
    BlockKey,
    DiskResult,
    Dropped,
    Found,
    Gone,
    Head,
    Importance,
    Keyring,
    Loaded,
    Payload,
    PayloadCodec,
    Purged,
    Written,
)
from edgeagent.engine.cache.cached_prefix import BlockReference
from edgeagent.engine.cache.radix_tree import BlockPlace, RadixTree, Walk
from edgeagent.fit.need import MAX_HOST_BYTES
from edgeagent.types import CacheStatus, MemoryKind
from edgeagent.usable import usable_memory

# At most this many results of the disk are taken before one lookup; a block that was found there takes 10 µs.
_MAX_RESULTS = 200
_CLOSE_POLL_S = 0.05  # when the process ends
# The factor on a block's value, compared with a block of importance VOLATILE.
_FACTORS = {
    Importance.VOLATILE: 1.0,
    Importance.NORMAL: 1.5,
    Importance.REUSED: 2.0,
    Importance.SYSTEM: 4.0,
    Importance.PINNED: 1.0,  # is not evicted at all
}
# The factor on the value of a block that is on disk too, since it can be read again.
_KEPT_ON_DISK = 0.5
# Blocks that wait to be written are evicted if they exceed this part of the limit, or if the disk cannot write.
_PENDING_SHARE = 0.5
# A partition that was unused for this long has no claim to a share.
_STALE_S = 600.0
# A heap of candidates for eviction has this many for each block in memory before the stale ones are removed.
_MAX_STALE = 4


class _OnDisk(Enum):
    NO = "never offered, or lost"
    PENDING = "to be written"
    YES = "written"
    REFUSED = "the disk had no room; not offered again before its next use"


@dataclass(slots=True)
class _Entry:
    """A block in memory (`block`), on disk, or both. `age` orders its uses in memory."""

    root: BlockKey
    block: Block | None = None
    importance: Importance = Importance.VOLATILE
    priority: float = 0.0
    age: int = 0
    on_disk: _OnDisk = _OnDisk.NO
    disk_bytes: int = 0  # of its file


_Candidate = tuple[bool, float, int, BlockKey]
"""A block that may be evicted: whether it waits to be written, its priority, its age and its key. The least goes first.

It counts only as long as the table has the block with the same values.
"""


@dataclass(slots=True)
class _Partition:
    num_bytes: int = 0  # in memory
    used_s: float = 0.0
    candidates: list[_Candidate] = field(default_factory=list)  # a heap with all blocks that may be evicted


@dataclass(frozen=True, slots=True)
class NextBlocks:
    """The blocks that follow a chain of blocks. Each is None if there is no such block.

    `extendable`: the next block of the chain, which other blocks may follow. `complete`: a block that has all tokens
    that were looked up.
    """

    extendable: BlockReference | None
    complete: BlockReference | None


class BlockTable:
    """One model's blocks, in memory and on disk. Only the engine's thread uses it.

    Memory: blocks are evicted only if they have no children or are on disk too, so all ancestors of a block can be
    read. PINNED blocks stay. Blocks that wait to be written go only if they take more than half of the limit, or if the
    disk cannot write.

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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`max_bytes`: the limit of blocks in memory. If it is 0, nothing is kept.

        `can_cut`: a restored prefix can be cut at any token; then a block is dropped when a longer one is added that
        begins with its tokens. `block_tokens`: tokens of a full block. `token_bytes`: bytes per token in a block; 0 if
        unknown, or if a block is only a state. `is_draft`: the blocks belong to a draft model, whose target model uses
        the same disk. `codec` packs payloads; if None, they are kept as they are.
        """
        self.max_bytes = max_bytes
        self.block_tokens = block_tokens
        self.token_bytes = token_bytes
        self.disk = disk
        self.tree = RadixTree()
        """The tree of these blocks, and of the sequences in the runner's cells."""
        self.on_loaded: list[Callable[[Loaded], None]] = []
        """They get each block that the disk has read. See `fetch`."""
        self._keyring = keyring
        self._can_cut = can_cut
        self._is_draft = is_draft
        self._codec = codec
        self._clock = clock
        self._roots: dict[str, BlockKey] = {}
        self._entries: dict[BlockKey, _Entry] = {}  # all blocks, which are also those of the tree
        self._in_memory: dict[BlockKey, _Entry] = {}  # those in memory
        self._num_children: Counter[BlockKey] = Counter()  # in memory, by parent
        self._partitions: dict[BlockKey, _Partition] = {}  # those with blocks in memory
        self._pending: set[BlockKey] = set()  # those that wait to be written
        self._pending_bytes = 0
        self._needs_writes = False
        self._purging: Counter[BlockKey | None] = Counter()  # purges that the disk has not done yet, by root
        self._order = itertools.count()
        self._floor = 0.0  # the highest priority of a block evicted so far
        self._num_bytes = 0
        self._num_hits = self._num_misses = self._num_offered = self._num_dropped = self._num_evicted = 0
        if disk is not None:
            disk.max_pending_bytes += int(max_bytes * _PENDING_SHARE)

    @property
    def is_enabled(self) -> bool:
        return self.max_bytes > 0

    @property
    def has_codec(self) -> bool:
        """Whether a codec packs payloads. Then the buffer of a read-out is usually free again once it is packed."""
        return self._codec is not None

    def stats(self) -> CacheStatus:
        """Return counts of the blocks in memory."""
        return CacheStatus(
            num_blocks=len(self._in_memory),
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

        This takes results of the disk, which may change the tree. Walks that were returned before are then no longer
        valid.
        """
        self.poll(_MAX_RESULTS)
        return self.tree.walk(root, tokens)

    def find(self, walk: Walk) -> list[BlockReference]:
        """Return the chain of blocks that restores the most tokens of a walk, with as few blocks as possible."""
        last_to: dict[int, BlockReference | None] = {0: None}  # the last block of the shortest chain that ends there
        num_blocks = {0: 0}
        for place in walk.blocks():
            if place.start in last_to and num_blocks[place.start] + 1 < num_blocks.get(place.end, 1 << 60):
                last_to[place.end] = self._reference(place, place.end)
                num_blocks[place.end] = num_blocks[place.start] + 1
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
    ) -> NextBlocks:
        """Find the blocks that follow a chain and match `own`, the sequence's tokens after the chain.

        The chain ends at position `at` with the block `key`. If `key` is None, the chain is empty. A block is
        extendable if all its tokens match and one of these holds: it is full, it ends at position `instructions_end`,
        or it has children. If blocks can be cut, a complete block may have more tokens than `own`.
        """
        if key is not None and key not in self.tree.blocks:
            return NextBlocks(None, None)
        walk = self.tree.walk(root, own, key)
        extendable = complete = None
        for place in walk.blocks():
            if place.start != at or place.end == at:
                continue
            reference = self._reference(place, place.end)
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
        return NextBlocks(extendable, complete)

    def extendable(self, references: Sequence[BlockReference]) -> list[BlockReference]:
        """Return the blocks of a chain that other blocks may follow.

        Every block before the last one is returned. The last one is returned if all its tokens are wanted, and it is
        full or has children.
        """
        if not references:
            return []
        *before, last = references
        is_end = last.length == self.block_tokens or self.tree.has_children(last.key)
        return list(references) if last.is_whole and is_end else before

    def is_held(self, key: BlockKey) -> bool:
        """Whether a block is in memory or on disk."""
        return key in self._entries

    def key(self, parent: BlockKey, tokens: Sequence[int]) -> BlockKey:
        return self._keyring.key(parent, tokens)

    def make(self, root: BlockKey, parent: BlockKey | None, start: int, own: array[int], payload: Payload) -> Block:
        """Return a new block with the tokens `own` from position `start` on, and with the packed payload.

        If `parent` is None, the parent is `root`. The block is not kept; see `add`.
        """
        parent = parent or root
        key = self.key(parent, own)
        if self._codec is not None:
            payload = self._codec.pack(payload)
        return Block(root, parent, key, start, own, payload, is_draft=self._is_draft)

    def unpack(self, block: Block) -> Payload:
        """Return a block's unpacked payload, valid until the next call. Raise InternalError if it is damaged."""
        return block.payload if self._codec is None else self._codec.unpack(block.payload)

    # The life of a block in memory.

    def add(self, block: Block, importance: Importance) -> bool:
        """Keep a block in memory, and evict others to make room. Return False if it is not accepted.

        A block that was not accepted may be added again. Add parents before their children: a block whose parent is
        gone is not accepted. The block is also written to disk, unless its importance is VOLATILE.
        """
        self._num_offered += 1
        if block.key in self._in_memory:
            self.raise_importance((block.key,), importance)
            return True
        is_orphan = block.parent != block.root and block.parent not in self._entries
        if is_orphan or not self._make_room(block) or not self.tree.add(block):
            self._num_dropped += 1
            return False
        entry = self._entries.setdefault(block.key, _Entry(block.root))
        entry.block, entry.importance = block, importance
        self._in_memory[block.key] = entry
        self._num_children[block.parent] += 1
        self._num_bytes += block.num_bytes
        self._partitions.setdefault(block.root, _Partition()).num_bytes += block.num_bytes
        self._rank(entry, block)
        if importance >= Importance.NORMAL:
            self._hand_down(block.key, is_raised=True)
        if self._can_cut:
            self._drop_beginnings(block, is_volatile=importance is Importance.VOLATILE)
        return True

    def read(self, key: BlockKey) -> Block | None:
        """Return a block; None if it is not in memory."""
        entry = self._in_memory.get(key)
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
        for key in keys:
            entry = self._in_memory.get(key)
            if entry is not None:
                is_volatile = entry.importance is Importance.VOLATILE
                self.raise_importance((key,), Importance.VOLATILE if is_volatile else Importance.REUSED)
        if self.disk is not None:
            self.disk.touch(keys)

    def raise_importance(self, keys: Iterable[BlockKey], importance: Importance) -> None:
        """Raise these blocks to at least this importance, VOLATILE ones too. Pass parents before children.

        All tokens of these blocks must belong to a sequence that may be written to disk. Blocks that are not in memory
        are ignored.
        """
        for key, entry, block in self._known(keys):
            is_raised = importance > entry.importance
            entry.importance = max(entry.importance, importance)
            self._rank(entry, block)
            if entry.importance >= Importance.NORMAL:
                self._hand_down(key, is_raised=is_raised)

    def purge(self, root: BlockKey | None) -> int:
        """Forget the blocks of a partition (None: of all partitions), in memory and on disk; return how many.

        A block that is in memory and on disk counts twice.
        """
        self.poll()
        gone = [(key, entry) for key, entry in self._entries.items() if root in (None, entry.root)]
        num_gone = sum((entry.block is not None) + (entry.on_disk is _OnDisk.YES) for _, entry in gone)
        if self.disk is not None:
            self._purging[root] += 1
            self.disk.purge(root, is_draft=self._is_draft)
        for key, entry in gone:
            entry.on_disk = _OnDisk.NO
            self._drop(key, entry)
        return num_gone

    def flush(self) -> None:
        """Hand all blocks to the disk, except VOLATILE ones and their descendants. Do not wait for the writes."""
        for key in self._in_memory:
            self._hand_down(key)

    @property
    def needs_writes(self) -> bool:
        """Whether the last block found no room, but will once the disk has written others."""
        if self._needs_writes:
            self.poll()
        return self._needs_writes

    @property
    def needed_writes(self) -> bool:
        """The last known value of `needs_writes`. The disk is not asked again."""
        return self._needs_writes

    def wait_for_room(self) -> bool:
        """Wait until the disk has written a block; return whether memory may have room now.

        Only for the end of the process: the disk then writes without rests.
        """
        num_before = len(self._pending)
        while self.disk is not None and self.disk.hurry() and not self.disk.is_stalled:
            self.poll(timeout_s=_CLOSE_POLL_S if self._pending else 0.0)
            if len(self._pending) < num_before or not self._pending:
                break
        return len(self._pending) < num_before or not self.needs_writes

    def _known(self, keys: Iterable[BlockKey]) -> Iterator[tuple[BlockKey, _Entry, Block]]:
        """Yield those of the blocks that are in memory."""
        for key in keys:
            entry = self._in_memory.get(key)
            if entry is not None and entry.block is not None:
                yield key, entry, entry.block

    def _rank(self, entry: _Entry, block: Block) -> None:
        """Set the priority of a block that was used just now."""
        value = _FACTORS[entry.importance] * len(block.tokens) / max(1, block.num_bytes)
        entry.priority = self._floor + value * (_KEPT_ON_DISK if entry.on_disk is _OnDisk.YES else 1.0)
        entry.age = next(self._order)
        self._partitions[entry.root].used_s = self._clock()
        self._note_candidate(block.key, entry)

    def _drop_beginnings(self, block: Block, *, is_volatile: bool) -> None:
        """Remove the blocks in memory that `block` begins with. Keep those with children, and SYSTEM and PINNED ones.

        They are removed from disk too, unless `block` must not be written (`is_volatile`).
        """
        for key, entry, _ in list(self._known(self.tree.beginnings(block.key))):
            if self.tree.has_children(key) or entry.importance >= Importance.SYSTEM:
                continue
            if not is_volatile and self.disk is not None:
                self.disk.remove(key)
                entry.on_disk = _OnDisk.NO
            self._drop(key, entry)

    def _drop(self, key: BlockKey, entry: _Entry) -> None:
        """Drop a block from memory. Forget it, unless it is on disk."""
        block = entry.block
        if block is not None:
            self._end_pending(key, entry, _OnDisk.NO)
            entry.block = None
            del self._in_memory[key]
            self._num_bytes -= block.num_bytes
            partition = self._partitions[entry.root]
            partition.num_bytes -= block.num_bytes
            if partition.num_bytes == 0:
                del self._partitions[entry.root]
            self._num_children[block.parent] -= 1
            if not self._num_children[block.parent]:
                del self._num_children[block.parent]
                self._note_candidate(block.parent, self._in_memory.get(block.parent))
        if entry.on_disk is not _OnDisk.YES:
            del self._entries[key]
            self.tree.discard(key)

    # Room in memory.

    def _make_room(self, block: Block) -> bool:
        """Evict other blocks until this one fits; return False if it does not fit now."""
        if block.num_bytes > self.max_bytes:
            return False
        self._needs_writes = False
        while self._num_bytes + block.num_bytes > self.max_bytes:
            self.poll()
            victim = self._choose_victim(block)
            if victim is None:
                self._needs_writes = bool(self._pending) and not self._is_stalled
                return False
            entry = self._entries[victim]
            if entry.on_disk is _OnDisk.PENDING and self.disk is not None:
                self.disk.withdraw(victim)
            self._floor = max(self._floor, entry.priority)
            self._num_evicted += 1
            self._drop(victim, entry)
        return True

    def _choose_victim(self, block: Block) -> BlockKey | None:
        """Return the block of the lowest priority that may be evicted for `block`; None if there is none.

        Partitions that are stale, or with `block` above their share, lose blocks first. Blocks that wait to be written
        go last, if at all. The parent of `block` stays.
        """
        firsts = {root: self._first_candidate(partition, block.parent) for root, partition in self._partitions.items()}
        found = {root: first for root, first in firsts.items() if first is not None}
        written = {root: first for root, first in found.items() if not first[0]}
        if not written and not self._may_evict_pending:
            return None
        found = written or found
        over = self._partitions_over_share(block)
        fair = [first for root, first in found.items() if root in over]
        return min(fair or found.values())[-1] if found else None

    def _first_candidate(self, partition: _Partition, stays: BlockKey) -> _Candidate | None:
        """Return the first block of a partition that may be evicted, except `stays`; None if there is none."""
        candidates = partition.candidates
        kept: list[_Candidate] = []
        while candidates and (not self._is_valid(candidates[0]) or candidates[0][-1] == stays):
            first = heapq.heappop(candidates)
            if self._is_valid(first):
                kept.append(first)
        found = candidates[0] if candidates else None
        for each in kept[:1]:  # the others are equal to it
            heapq.heappush(candidates, each)
        return found

    def _note_candidate(self, key: BlockKey, entry: _Entry | None) -> None:
        """Add a block to those that may be evicted. Call this whenever it may have become one of them."""
        if entry is None or not self._may_go(key, entry):
            return
        candidates = self._partitions[entry.root].candidates
        heapq.heappush(candidates, (entry.on_disk is _OnDisk.PENDING, entry.priority, entry.age, key))
        if len(candidates) > _MAX_STALE * len(self._in_memory):
            candidates[:] = [each for each in dict.fromkeys(candidates) if self._is_valid(each)]
            heapq.heapify(candidates)

    def _may_go(self, key: BlockKey, entry: _Entry) -> bool:
        """Whether a block may be evicted from memory. Those that wait to be written count; see `_may_evict_pending`."""
        if entry.block is None or entry.importance is Importance.PINNED:
            return False
        return entry.on_disk is _OnDisk.YES or key not in self._num_children

    def _is_valid(self, candidate: _Candidate) -> bool:
        is_pending, _, age, key = candidate
        entry = self._in_memory.get(key)
        return (
            entry is not None
            and entry.age == age
            and (entry.on_disk is _OnDisk.PENDING) is is_pending
            and self._may_go(key, entry)
        )

    def _partitions_over_share(self, block: Block) -> set[BlockKey]:
        now_s = self._clock()
        stale = {root for root, partition in self._partitions.items() if now_s - partition.used_s >= _STALE_S}
        share = self.max_bytes / len({*self._partitions, block.root} - stale | {block.root})
        return {
            root
            for root, partition in self._partitions.items()
            if root in stale or partition.num_bytes + (block.num_bytes if root == block.root else 0) > share
        }

    # The disk.

    def poll(self, max_results: int = 1 << 60, timeout_s: float = 0.0) -> None:
        """Take results of the disk: blocks that it has found, written, read or lost.

        If there is none, wait for the first up to `timeout_s`.
        """
        if self.disk is not None:
            for result in self.disk.take_results(max_results, is_draft=self._is_draft, timeout_s=timeout_s):
                self._take(result)

    def fetch(self, key: BlockKey) -> None:
        """Start to read a block from disk. A later `poll` passes it to `on_loaded`."""
        assert self.disk is not None
        self.disk.read(key, is_draft=self._is_draft)

    @property
    def _is_stalled(self) -> bool:
        return self.disk is not None and self.disk.is_stalled

    @property
    def _may_evict_pending(self) -> bool:
        """Whether blocks that wait to be written may be evicted: the disk cannot write, or they take too many bytes."""
        return self._is_stalled or self._pending_bytes > self.max_bytes * _PENDING_SHARE

    def _take(self, result: DiskResult) -> None:
        match result:
            case Loaded():
                for on_loaded in self.on_loaded:
                    on_loaded(result)
            case Purged(root):
                self._purging[root] -= 1
            case Found(head, num_bytes):
                self._note_on_disk(head, num_bytes)
            case Written(block, num_bytes):
                entry = self._entries.get(block.key)
                if entry is None or entry.on_disk is not _OnDisk.PENDING:
                    self._note_on_disk(block, num_bytes)
                elif entry.block is block:  # else it was withdrawn, and waits again
                    self._end_pending(block.key, entry, _OnDisk.YES)
                    entry.disk_bytes = num_bytes
            case Dropped(block):
                entry = self._entries.get(block.key)
                if entry is not None and entry.block is block:
                    self._end_pending(block.key, entry, _OnDisk.REFUSED)
            case Gone(key):
                entry = self._entries.get(key)
                if entry is not None and entry.on_disk is _OnDisk.YES:
                    entry.on_disk = _OnDisk.NO
                    if entry.block is None:
                        self._drop(key, entry)

    def _note_on_disk(self, head: Head, num_bytes: int) -> None:
        """Note that a block is on disk, if it can be reached and was not purged since."""
        is_purged = self._purging[None] or self._purging[head.root]
        if not is_purged and self.tree.add(head):
            entry = self._entries.setdefault(head.key, _Entry(head.root))
            if entry.on_disk is not _OnDisk.PENDING:
                entry.on_disk, entry.disk_bytes = _OnDisk.YES, num_bytes
                self._note_candidate(head.key, entry)

    def _end_pending(self, key: BlockKey, entry: _Entry, on_disk: _OnDisk) -> None:
        if key in self._pending and entry.block is not None:
            self._pending.remove(key)
            self._needs_writes = False
            self._pending_bytes -= entry.block.num_bytes
            entry.on_disk = on_disk
            self._note_candidate(key, entry)

    def _hand_down(self, key: BlockKey, *, is_raised: bool = False) -> None:
        """Let the disk write a block, after those of its ancestors that it lacks. If any is VOLATILE, do nothing.

        `is_raised`: the block has become more important. If the disk has it, it is told so.
        """
        if self.disk is None:
            return
        chain: list[tuple[BlockKey, _Entry, Block]] = []
        for each in self._lineage(key):
            _, entry, _ = each
            if entry.importance is Importance.VOLATILE:
                return  # the children of a block that must not be written are useless without it
            if entry.on_disk in (_OnDisk.PENDING, _OnDisk.YES):
                break
            chain.append(each)
        if not chain and is_raised:
            self.disk.raise_importance(key, self._entries[key].importance)
        for each_key, entry, block in reversed(chain):
            self.disk.write(block, entry.importance, is_full=len(block.tokens) >= self.block_tokens)
            entry.on_disk = _OnDisk.PENDING
            self._pending.add(each_key)
            self._pending_bytes += block.num_bytes
            self._note_candidate(each_key, entry)

    def _lineage(self, key: BlockKey) -> Iterator[tuple[BlockKey, _Entry, Block]]:
        """Yield a block in memory and its ancestors, up to the first that is not in memory."""
        entry = self._in_memory.get(key)
        while entry is not None and entry.block is not None:
            yield key, entry, entry.block
            key = entry.block.parent
            entry = self._in_memory.get(key)

    # Parts of a lookup.

    def _part(self, walk: Walk, num_blocks: dict[int, int], end: int) -> BlockReference | None:
        """Return the block that follows a walk furthest, cut where it leaves the walk; None if there is none.

        At least MIN_CUT of its tokens must be on the walk, up to a position beyond `end`. It must begin at one of the
        positions in `num_blocks`, which maps positions to the number of blocks before.

        Among blocks that reach equally far, prefer one in memory, then one with the fewest blocks before it, then the
        shortest one.
        """
        best: BlockReference | None = None
        best_rank: tuple[bool, int, int] | None = None
        for place, depth in walk.across(end):
            if best is not None and depth < best.end:
                break
            if place.start not in num_blocks or depth - place.start < MIN_CUT:
                continue
            reference = self._reference(place, depth)
            rank = (reference.is_in_memory, -num_blocks[reference.start], -reference.length)
            if best_rank is None or rank > best_rank:
                best, best_rank = reference, rank
        return best

    def _reference(self, place: BlockPlace, end: int) -> BlockReference:
        """Return a reference to a block's tokens up to position `end`."""
        entry = self._entries[place.key]
        num_bytes = entry.disk_bytes if entry.block is None else entry.block.num_bytes
        length = place.end - place.start
        return BlockReference(entry.block is not None, place.key, place.start, end - place.start, length, num_bytes)


def make_table(
    memory_kind: MemoryKind,
    config: EngineConfig,
    keyring: Keyring | None = None,
    disk: BlockDisk | None = None,
    share: float = 1.0,
    token_bytes: float = 0.0,
    block_tokens: int = MAX_BLOCK_TOKENS,
    *,
    is_draft: bool = False,
    codec: PayloadCodec | None = None,
) -> BlockTable:
    """Return a model's BlockTable as configured.

    `share`: the model's part of the memory for blocks, 0 to 1. A `disk` needs a keyring that outlives the process, and
    whose fingerprint has these `block_tokens`. BlockTable describes the other arguments.
    """
    return BlockTable(
        keyring or Keyring(b"", os.urandom(32)),
        int(_host_bytes(config) * share),
        disk,
        # A block of windowed layers has only the cells in the window at its end, so it cannot be cut.
        can_cut=memory_kind is MemoryKind.FULL_ATTENTION,
        block_tokens=block_tokens,
        token_bytes=token_bytes,
        is_draft=is_draft,
        codec=codec,
    )


def empty_table() -> BlockTable:
    return BlockTable(Keyring(b"", bytes(16)), 0, can_cut=False)


def _host_bytes(config: EngineConfig) -> int:
    if config.cache_memory_bytes >= 0:
        return config.cache_memory_bytes
    return min(usable_memory().total // 8, MAX_HOST_BYTES)
