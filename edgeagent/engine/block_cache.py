"""Finds the blocks that restore a prefix, whichever tier holds them. It answers; it moves nothing."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psutil

from edgeagent.config import EngineConfig
from edgeagent.engine.blocks import MAX_BLOCK_TOKENS, MIN_PART, Block, BlockKey, BlockTier, Importance, Keyring, Worth
from edgeagent.engine.host_tier import HostTier
from edgeagent.engine.radix_tree import common_length, to_array
from edgeagent.types import MemoryKind

_MAX_HOST_BYTES = 2 << 30
# The shortest beginning for which a block is read before one knows whether it begins so, and how many of them to read.
_MIN_GUESS = 64
_MAX_GUESSES = 4
# Chains of a memory with a state may fork and meet again; a search longer than this is given up.
_MAX_VISITS = 2000


@dataclass(frozen=True, slots=True)
class Link:
    """A block to restore at position `start`: its first `num_tokens` tokens are wanted, of `length` that it has."""

    tier: BlockTier
    key: BlockKey
    start: int
    num_tokens: int
    length: int
    num_bytes: int

    @property
    def end(self) -> int:
        """Positions that are there after it."""
        return self.start + self.num_tokens


def _reach(links: Sequence[Link]) -> tuple[int, int, int]:
    """Rank a chain: how far it goes, with how few blocks, of which how few tokens are cut off again."""
    return (links[-1].end, -len(links), -links[-1].length) if links else (0, 0, 0)


class BlockCache:
    """Blocks by the tokens they stand for: host memory first, then the tier below, if there is one."""

    def __init__(self, keyring: Keyring, host: HostTier, below: BlockTier | None = None, *, can_cut: bool) -> None:
        """`can_cut`: whether the memory may be cut anywhere after a restore."""
        self.host = host
        self.below = below
        self._keyring = keyring
        self._can_cut = can_cut
        self._tiers: tuple[BlockTier, ...] = (host,) if below is None else (host, below)

    @property
    def is_enabled(self) -> bool:
        """Whether anything can be kept at all."""
        return self.host.max_bytes > 0

    def find(self, partition: str, tokens: Sequence[int], max_length: int) -> list[Link]:
        """Return the chain of blocks that restores the most of tokens[:max_length]."""
        wanted = to_array(tokens)[:max_length]
        root = self._keyring.root(partition)
        return self._find_cuttable(root, wanted) if self._can_cut else self._find_exact(root, wanted)

    def guess(self, partition: str, tokens: Sequence[int], max_length: int) -> list[Link]:
        """Return blocks of the tier below that may begin with what of tokens[:max_length] no chain restores.

        Only their tokens can tell, and those must be read; where too many come into question there are none.
        """
        if self.below is None or not self._can_cut:
            return []
        links = self.find(partition, tokens, max_length)
        if max_length - (links[-1].end if links else 0) < _MIN_GUESS:
            return []
        stones = self.stones(links)
        parent, at = (stones[-1].key, stones[-1].end) if stones else (self._keyring.root(partition), 0)
        known = {link.key for link in links}
        guesses = [
            Link(self.below, key, at, 0, 0, num_bytes)
            for key in self.below.children(parent)
            if key not in known
            and self.host.num_bytes(key) is None
            and (num_bytes := self.below.num_bytes(key)) is not None
        ]
        return guesses if len(guesses) <= _MAX_GUESSES else []

    def stones(self, links: Sequence[Link], cut: int = 0) -> list[Link]:
        """Return those of a chain's links on which further blocks hang: all but a last one that is not to be gone past.

        A block is gone past if it is full, ends at `cut`, or was gone past before.
        """
        if not links:
            return []
        *before, last = links
        is_whole = last.num_tokens == last.length
        if is_whole and (last.length == MAX_BLOCK_TOKENS or last.end == cut or self._has_children(last.key)):
            return list(links)
        return before

    def num_shared(self, partition: str, tokens: Sequence[int], max_length: int) -> int:
        """Return how many of the leading tokens some block in host memory shares, restorable there or not."""
        wanted = to_array(tokens)[:max_length]
        links = self._find_exact(self._keyring.root(partition), wanted)
        at, parent = (links[-1].end, links[-1].key) if links else (0, self._keyring.root(partition))
        children = (self.host.peek(key) for key in self.host.children(parent))
        return at + max((common_length(block.tokens, wanted[at:]) for block in children), default=0)

    def make(self, partition: str, links: Sequence[Link], tokens: array[int], start: int, payload: memoryview) -> Block:
        """Return the block of tokens[start:] that hangs on the last of `links` (none: on the root)."""
        root = self._keyring.root(partition)
        parent = links[-1].key if links else root
        own = tokens[start:]
        return Block(root, parent, self._keyring.key(parent, own), start, own, payload)

    def purge(self, partition: str | None) -> int:
        """Forget a partition's blocks (None: everyone's) in all tiers; return how many."""
        root = None if partition is None else self._keyring.root(partition)
        return sum(tier.purge(root) for tier in self._tiers)

    def use(self, links: Sequence[Link]) -> None:
        """Take note that a request uses what these links stand for."""
        keys = [link.key for link in links]
        self.host.promote(keys, Importance.REUSED)
        if self.below is not None:
            self.below.touch(keys)

    def keep(self, partition: str, tokens: Sequence[int], worth: Worth) -> None:
        """Let the blocks of a whole sequence matter as it does.

        They may be written then too, which one that must not be may have left here.
        """
        for link in self.find(partition, tokens, len(tokens)):
            if link.num_tokens == link.length:
                self.host.keep((link.key,), worth.at(link.end))

    def hold(self, partition: str, tokens: Sequence[int], lane: str) -> None:
        """Let the blocks of a lane's latest response stay, and no longer those of the one before."""
        self.host.hold(lane, [link.key for link in self.find(partition, tokens, len(tokens))])

    def _has_children(self, key: BlockKey) -> bool:
        return any(tier.children(key) for tier in self._tiers)

    def _held(self, parent: BlockKey, start: int, wanted: array[int]) -> Iterator[Link]:
        """Yield the blocks behind `parent` whose tokens are the next ones, the longest first."""
        lengths = {length for tier in self._tiers for length in tier.lengths(parent)}
        for length, key in reversed(self._keyring.keys(parent, wanted[start:], lengths)):
            for tier in self._tiers:
                num_bytes = tier.num_bytes(key)
                if num_bytes is not None:
                    yield Link(tier, key, start, length, length, num_bytes)
                    break

    def _find_cuttable(self, root: BlockKey, wanted: array[int]) -> list[Link]:
        """Go down whole blocks, the longest first; the last link may be the beginning of one.

        Where a shorter one fits too (instructions end there), what hangs on it is looked at afterwards.
        """
        best: list[Link] = []
        forks: list[tuple[BlockKey, int, list[Link]]] = [(root, 0, [])]
        for _ in range(_MAX_VISITS):
            if not forks:
                break
            parent, at, links = forks.pop()
            held = list(self._held(parent, at, wanted))
            if not held or held[0].length < MAX_BLOCK_TOKENS:
                part = self._longest_part(parent, at, wanted)
                best = max(best, links if part is None else [*links, part], key=_reach)
            forks.extend((link.key, link.end, [*links, link]) for link in reversed(held))
        return best

    def _longest_part(self, parent: BlockKey, start: int, wanted: array[int]) -> Link | None:
        rest, best, longest = wanted[start:], None, MIN_PART - 1
        for key in self.host.children(parent):
            block = self.host.peek(key)
            if not rest or block.tokens[0] != rest[0]:
                continue
            shared = common_length(block.tokens, rest)
            if shared > longest:
                best, longest = block, shared
        if best is None:
            return None
        return Link(self.host, best.key, start, longest, len(best.tokens), best.num_bytes)

    def _find_exact(self, root: BlockKey, wanted: array[int]) -> list[Link]:
        """Search all chains of whole blocks for the one that reaches furthest, with the fewest blocks."""
        best: tuple[int, int, tuple[Link, ...]] = (0, 0, ())
        stack: list[tuple[BlockKey, int, tuple[Link, ...]]] = [(root, 0, ())]
        for _ in range(_MAX_VISITS):
            if not stack:
                break
            parent, at, path = stack.pop()
            best = max(best, (at, -len(path), path), key=lambda found: found[:2])
            stack.extend((link.key, link.end, (*path, link)) for link in self._held(parent, at, wanted))
        return list(best[2])


def make_blocks(
    memory_kind: MemoryKind,
    config: EngineConfig,
    keyring: Keyring | None = None,
    below: BlockTier | None = None,
    share: float = 1.0,
) -> BlockCache:
    """Return the blocks of one model as configured, with a share of the memory.

    What goes `below` needs a keyring that outlives the process.
    """
    # What a block has of windowed layers is what the window shows at its end.
    can_cut = memory_kind is MemoryKind.FULL_ATTENTION
    host = HostTier(int(_host_bytes(config) * share), can_cut=can_cut, below=below)
    return BlockCache(keyring or Keyring(b"", os.urandom(32)), host, below, can_cut=can_cut)


def no_blocks() -> BlockCache:
    """Return a cache that keeps nothing."""
    return BlockCache(Keyring(b"", bytes(16)), HostTier(0), can_cut=False)


def _host_bytes(config: EngineConfig) -> int:
    if config.cache_memory_bytes >= 0:
        return config.cache_memory_bytes
    return min(int(psutil.virtual_memory().total) // 8, _MAX_HOST_BYTES)
