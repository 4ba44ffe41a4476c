"""Finds the blocks that restore a prefix, in all tiers. It moves no block into or out of the cells."""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from edgeagent.config import EngineConfig
from edgeagent.engine.cache.block import (
    MAX_BLOCK_TOKENS,
    MIN_PART,
    Block,
    BlockKey,
    BlockTier,
    Importance,
    Keyring,
    LowerTier,
    Payload,
    PayloadCodec,
    choose_block_tokens,
)
from edgeagent.engine.cache.cached_prefix import BlockReference
from edgeagent.engine.cache.host import HostTier
from edgeagent.engine.cache.radix_tree import Place, RadixTree, Walk
from edgeagent.engine.costs.cost_model import CostModel
from edgeagent.types import MemoryKind
from edgeagent.usable import usable_memory

_MAX_HOST_BYTES = 2 << 30
# At most this many blocks of the tier below are added to the tree before one lookup; each takes 10 µs.
_MAX_HEADS = 200
# Once the tree has more blocks than this, blocks that no tier holds are removed from it.
_MIN_SWEEP = 256


@dataclass(frozen=True, slots=True)
class Continuation:
    """The blocks that follow a chain of blocks. Each is None if there is no such block.

    `extendable`: the next block of the chain, which other blocks may follow. `complete`: a block that has all tokens
    that were looked up.
    """

    extendable: BlockReference | None
    complete: BlockReference | None


class BlockCache:
    """Finds one model's blocks by their tokens, in host memory and in the tier below, if there is one."""

    def __init__(
        self,
        keyring: Keyring,
        host: HostTier,
        below: LowerTier | None = None,
        *,
        can_cut: bool,
        block_tokens: int = MAX_BLOCK_TOKENS,
        token_bytes: float = 0.0,
        is_draft: bool = False,
        codec: PayloadCodec | None = None,
    ) -> None:
        """`can_cut`: a restored prefix can be cut at any token. `block_tokens`: tokens of a full block.

        `token_bytes`: bytes per token in a block; 0 if unknown, or if a block is only a state. `is_draft`: the blocks
        belong to a draft model. Its target model then uses the same tier below. `codec` packs payloads; if None, they
        are kept as they are.
        """
        self.block_tokens = block_tokens
        self.token_bytes = token_bytes
        self.host = host
        self.below = below
        self.tree = RadixTree()
        """The tree of these blocks, and of the sequences in the runner's cells."""
        self._keyring = keyring
        self._can_cut = can_cut
        self._is_draft = is_draft
        self._codec = codec
        self._tiers: tuple[BlockTier, ...] = (host,) if below is None else (host, below)
        self._sweep_at = _MIN_SWEEP
        self._num_purges: Counter[BlockKey | None] = Counter()  # by root; None: purges of all partitions
        self._roots: dict[str, BlockKey] = {}

    @property
    def is_enabled(self) -> bool:
        """Whether any blocks are kept: the limit of host memory is above 0."""
        return self.host.max_bytes > 0

    @property
    def has_codec(self) -> bool:
        """Whether a codec packs payloads. A block is then usually a copy of the payload that was read out."""
        return self._codec is not None

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

        Blocks that no tier holds may be removed from the tree.
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
        """Whether a block is in the tree and a tier holds it.

        If a block was lost and another process has written it again, the result is False until `refresh` adds it to the
        tree.
        """
        return key in self.tree.blocks and any(tier.num_bytes(key) is not None for tier in self._tiers)

    def make(self, root: BlockKey, parent: BlockKey | None, start: int, own: array[int], payload: Payload) -> Block:
        """Return a new block with the tokens `own` from position `start` on, and with the packed payload.

        If `parent` is None, the parent is `root`. The block is not added to a tier; see `add`.
        """
        parent = parent or root
        key = self._keyring.key(parent, own)
        if self._codec is not None:
            payload = self._codec.pack(payload)
        return Block(root, parent, key, start, own, payload, is_draft=self._is_draft)

    def unpack(self, block: Block) -> Payload:
        """Return a block's unpacked payload, valid until the next call. Raise InternalError if it is damaged."""
        return block.payload if self._codec is None else self._codec.unpack(block.payload)

    def add(self, block: Block, importance: Importance) -> bool:
        """Add a block to host memory; return False if it is not accepted."""
        if not self.host.offer(block, importance):
            return False
        self.tree.add(block)
        return True

    def wait_for_room(self) -> bool:
        """Wait until the tier below has written a block; return whether host memory may have room now."""
        # `wait_written` also returns False if all pending blocks were written before the call.
        return self.below is not None and (self.below.wait_written() or not self.host.needs_writes_below)

    def refresh(self, max_heads: int = 1 << 60) -> None:
        """Add to the tree up to `max_heads` blocks that other or earlier processes wrote to the tier below.

        If the tree has grown enough since the last removal, remove blocks from it that no tier holds.
        """
        if self.below is not None:
            for head in self.below.take_found(max_heads, is_draft=self._is_draft):
                self.tree.add(head)
        if len(self.tree.blocks) > self._sweep_at:
            for key in tuple(self.tree.blocks):
                if not self.is_held(key):
                    self.tree.discard(key)
            self._sweep_at = _MIN_SWEEP + 2 * len(self.tree.blocks)

    def purge(self, root: BlockKey | None) -> int:
        """Forget the blocks of a partition (None: of all partitions) in all tiers; return how many.

        A block that two tiers hold counts twice.
        """
        self._num_purges[root] += 1
        self.refresh()
        self.tree.purge(root)
        return sum(tier.purge(root) for tier in self._tiers)

    def epoch(self, root: BlockKey) -> int:
        """Return a number that rises with each purge of a partition.

        If it has risen since a request looked up its blocks, the request must not add them to a tier.
        """
        return self._num_purges[None] + self._num_purges[root]

    def use(self, references: Sequence[BlockReference]) -> None:
        """Note that a request uses these blocks, so that they stay longer."""
        keys = [reference.key for reference in references]
        self.host.promote(keys, Importance.REUSED)
        if self.below is not None:
            self.below.touch(keys)

    def _part(self, walk: Walk, num_blocks: dict[int, int], end: int) -> BlockReference | None:
        """Return the block that follows a walk furthest, cut where it leaves the walk; None if there is none.

        At least MIN_PART of its tokens must be on the walk, up to a position beyond `end`. It must begin at one of the
        positions in `num_blocks`, which maps positions to the number of blocks before.

        Among blocks that reach equally far, prefer one in host memory, then one with the fewest blocks before it, then
        the shortest one. Blocks that no tier holds are removed from the tree.
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
            rank = (reference.tier is self.host, -num_blocks[reference.start], -reference.length)
            if best_rank is None or rank > best_rank:
                best, best_rank = reference, rank
        for key in gone:
            self.tree.discard(key)
        return best

    def _reference(self, place: Place, end: int) -> BlockReference | None:
        """Return a reference to a block's tokens up to position `end`; None if no tier holds the block."""
        for tier in self._tiers:
            num_bytes = tier.num_bytes(place.key)
            if num_bytes is not None:
                return BlockReference(
                    tier, place.key, place.start, end - place.start, place.end - place.start, num_bytes
                )
        return None


def make_blocks(
    memory_kind: MemoryKind,
    config: EngineConfig,
    keyring: Keyring | None = None,
    below: LowerTier | None = None,
    share: float = 1.0,
    token_bytes: float = 0.0,
    *,
    is_draft: bool = False,
    codec: PayloadCodec | None = None,
    costs: CostModel | None = None,
) -> BlockCache:
    """Return a model's BlockCache as configured.

    `share`: the model's part of the host memory for blocks, 0 to 1. A tier `below` needs a keyring that outlives the
    process. BlockCache describes `token_bytes`, `is_draft` and `codec`. `costs` says how much more it costs to compute
    a token late in a prompt than an early one.
    """
    # A block of windowed layers has only the cells in the window at its end, so it cannot be cut.
    can_cut = memory_kind is MemoryKind.FULL_ATTENTION
    host = HostTier(
        int(_host_bytes(config) * share),
        can_cut=can_cut,
        below=below,
        costs=costs,
    )
    keyring = keyring or Keyring(b"", os.urandom(32))
    block_tokens = choose_block_tokens(token_bytes)
    return BlockCache(
        keyring,
        host,
        below,
        can_cut=can_cut,
        block_tokens=block_tokens,
        token_bytes=token_bytes,
        is_draft=is_draft,
        codec=codec,
    )


def no_blocks() -> BlockCache:
    """Return a cache that keeps nothing."""
    return BlockCache(Keyring(b"", bytes(16)), HostTier(0), can_cut=False)


def _host_bytes(config: EngineConfig) -> int:
    if config.cache_memory_bytes >= 0:
        return config.cache_memory_bytes
    return min(usable_memory().total // 8, _MAX_HOST_BYTES)
