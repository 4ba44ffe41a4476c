"""Blocks: pieces of computed prefixes outside the KV cells, their keys, and the interface of tiers.

This is the interface between the engine, which makes and restores blocks, host memory (`engine.cache.host`) and disk
(`engine.cache.disk`). It knows neither llama.cpp nor files.

A prefix is a chain of blocks, which are restored in order. Each block covers consecutive tokens. Where memory is
attention alone, a block has at most the number of tokens that `choose_block_tokens` returns. Where a state belongs to
the block, it has any number of tokens, and may reach back to the beginning. A block's key is a keyed hash of its
parent's key and its own tokens, so one key stands for the whole prefix that ends with the block. A chain begins at the
root key of a cache partition. Blocks are found by their tokens, in one tree that the cells and all tiers share
(`engine.cache.radix_tree`).
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

import numpy as np

from edgeagent.types import CacheStatus

BlockKey = bytes
"""32 bytes; equal keys mean equal prefixes of one partition of one model under one set of settings."""

Payload = bytes | memoryview
"""Bytes that only llama.cpp understands. Read-only; a memoryview is contiguous and of format "B"."""

KEY_BYTES = 32
MIN_BLOCK_TOKENS = 32
MAX_BLOCK_TOKENS = 256
_BLOCK_BYTES = 4 << 20
MIN_PART = 16
"""No block is shorter: fewer tokens than this are computed in the step that the rest of the prompt needs anyway."""


def choose_block_tokens(token_bytes: float) -> int:
    """Return how many tokens a full block has if each takes `token_bytes`: a power of two, of 4 MiB at most.

    Large enough that the costs of a file, a hash and a call of llama.cpp are small; small enough for fine-grained
    queues, read-ahead and cuts. A block of MIN_BLOCK_TOKENS may be larger than 4 MiB.
    """
    num_tokens = MAX_BLOCK_TOKENS
    while num_tokens > MIN_BLOCK_TOKENS and num_tokens * token_bytes > _BLOCK_BYTES:
        num_tokens //= 2
    return num_tokens


class Importance(IntEnum):
    """Why a block is kept; a more important one is written sooner and kept longer."""

    VOLATILE = -1
    """For memory only; never offered to a tier that outlives the process."""
    ONCE = 0
    """Used once, and about to be evicted from memory."""
    IDLE = 1
    """Part of a conversation that went idle."""
    REUSED = 2
    """Used by a second request."""
    SYSTEM = 3
    """A system prompt or tool definitions."""
    PINNED = 4
    """Must stay until it is purged."""


@dataclass(frozen=True, slots=True)
class CachePriority:
    """The importance of a sequence's blocks. The blocks of its instructions are more important than the others.

    `num_system`: tokens of the system prompt and the tool definitions; 0 if there are none or the number is unknown.
    `lane`: the conversation whose latest response the sequence is. Its blocks stay until the conversation's next
    response. "" if it belongs to no lane.
    """

    importance: Importance = Importance.IDLE
    num_system: int = 0
    lane: str = ""

    def cut(self, block_tokens: int) -> int:
        """Return where to end a block early, so that other prompts with these instructions share it; 0 if nowhere."""
        return self.num_system if self.num_system % block_tokens >= MIN_PART else 0

    def at(self, end: int) -> Importance:
        """Return the importance of a block that ends at a position."""
        is_system = end <= self.num_system and self.importance is not Importance.VOLATILE
        return max(self.importance, Importance.SYSTEM) if is_system else self.importance

    def block_end(self, start: int, block_tokens: int) -> int:
        """Return where a full block that begins at `start` ends, for memory that is attention alone."""
        cut = self.cut(block_tokens)
        is_near = start + MIN_PART <= cut < start + block_tokens
        return cut if is_near else start + block_tokens

    def has_block_end(self, before: int, now: int, block_tokens: int) -> bool:
        """Whether a block ends in (before, now], for memory that is attention alone."""
        cut = self.cut(block_tokens)
        first = cut if now > cut else 0
        return before < cut <= now or (now - first) // block_tokens > (before - first) // block_tokens


@dataclass(frozen=True, slots=True)
class Head:
    """A block without its payload: the fields that lookups need.

    `root` is the root key of its partition. It distinguishes partitions (for quota and purge) without naming a client.
    `start` is the position of `tokens[0]` in the prefix. `is_draft`: the block belongs to a draft model. Such blocks
    also have their own roots; the flag only selects which of a worker's two caches is told of the block.
    """

    root: BlockKey
    parent: BlockKey
    key: BlockKey
    start: int
    tokens: array[int]
    is_draft: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Block(Head):
    """One piece of a prefix; useless without all its ancestors."""

    payload: Payload

    @property
    def num_bytes(self) -> int:
        """Bytes it takes, tokens included."""
        return len(self.payload) + self.tokens.itemsize * len(self.tokens)


# The factor on a block's cost, compared with a block that was used once.
_FACTORS = {
    Importance.VOLATILE: 1.0,
    Importance.ONCE: 1.0,
    Importance.IDLE: 1.5,
    Importance.REUSED: 2.0,
    Importance.SYSTEM: 4.0,
    Importance.PINNED: 1.0,  # is not evicted at all
}
# The depth at which attention to earlier tokens costs about as much as all else in a step.
_DEPTH_THAT_DOUBLES = 4096


def value_of(block: Block, importance: Importance) -> float:
    """Return a block's value per byte: the cost to compute it again, in tokens at depth 0, times its importance."""
    cost = len(block.tokens) * (1 + block.start / _DEPTH_THAT_DOUBLES)
    return _FACTORS[importance] * cost / max(1, block.num_bytes)


class PayloadCodec(Protocol):
    """Makes payloads smaller before tiers keep them. One thread calls it."""

    def pack(self, payload: Payload) -> Payload:
        """Return what to keep of a payload."""
        ...

    def unpack(self, payload: Payload) -> Payload:
        """Return a payload for the cells; valid until the next call. Raise InternalError if it is damaged."""
        ...


class BlockTier(Protocol):
    """A place that keeps blocks below the cells.

    All methods but `read` and `close` are called on the engine's thread between two tokens: they answer from an index
    in memory in microseconds, do no I/O and never wait. `read` may be slow. Unless the tier is memory, it is called on
    the loader's thread, at the same time as other methods.
    """

    def num_bytes(self, key: BlockKey) -> int | None:
        """Return how many bytes a read of this block moves; None if it is not held."""
        ...

    def touch(self, keys: Iterable[BlockKey]) -> None:
        """Note that these blocks were used just now."""
        ...

    def read(self, key: BlockKey) -> Block | None:
        """Return a checked and authenticated block; None if it is gone or damaged.

        The caller compares the block's tokens with those it wanted before any of the payload goes to llama.cpp. A block
        that fails its check is never found again.
        """
        ...

    def offer(self, block: Block, importance: Importance) -> bool:
        """Accept a block to keep; return False if it is not accepted, and may be offered again. Never waits.

        Parents are offered before their children. A block without its parent is useless and not accepted.
        """
        ...

    def discard(self, key: BlockKey) -> None:
        """Drop a block, if it is held, because a longer one replaces it. It has no children. Never waits."""
        ...

    def purge(self, root: BlockKey | None = None) -> int:
        """Forget all blocks of a partition, or of all partitions if None; return how many.

        Later lookups find none of them, not even those being read or written now. Their bytes are freed soon.
        """
        ...

    def stats(self) -> CacheStatus:
        """Return counts for observers."""
        ...

    def close(self) -> None:
        """Finish pending work, for a second or two at most. No method is called afterwards."""
        ...


class LowerTier(BlockTier, Protocol):
    """A tier that stores a block some time after it has accepted it: a disk.

    Until then the block is pending. The tier that offered it holds it in memory and counts its bytes.
    """

    def take_found(self, max_heads: int, *, is_draft: bool = False) -> Iterable[Head]:
        """Return heads of blocks that the tier holds and this process did not offer, parents first.

        They were written by earlier processes, or by others. `is_draft` selects the blocks of draft models or those of
        targets. Each head is returned once, and a call returns at most `max_heads`. A block may be gone by then.
        """
        ...

    def is_pending(self, key: BlockKey) -> bool:
        """Whether a block was accepted and is not stored yet."""
        ...

    def withdraw(self, key: BlockKey) -> None:
        """Take back the offer of a block whose memory is needed. Its children were taken back before."""
        ...

    @property
    def is_stalled(self) -> bool:
        """Whether no pending block is being written at the moment."""
        ...

    def wait_written(self) -> bool:
        """Wait until fewer blocks are pending. Only for the end of the process.

        Return False if nothing is pending, nothing is being written, or the time to close is over.
        """
        ...


def to_array(tokens: Sequence[int]) -> array[int]:
    """Return tokens as a compact array of integers. An array is returned unchanged, not copied."""
    return tokens if isinstance(tokens, array) else array("i", tokens)


def common_length(a: array[int], b: array[int]) -> int:
    """Return how many leading elements are equal."""
    length = min(len(a), len(b))
    if a[:length] == b[:length]:
        return length
    differs = np.frombuffer(a, np.int32, length) != np.frombuffer(b, np.int32, length)
    return int(differs.argmax())


def block_key(secret: bytes, parent: BlockKey, tokens: Sequence[int]) -> BlockKey:
    """Return the key of the block with these tokens behind `parent`, in the installation with this secret."""
    hasher = hashlib.blake2b(parent, digest_size=KEY_BYTES, key=secret, person=b"edgeagent block")
    hasher.update(to_array(tokens).tobytes())
    return hasher.digest()


class Keyring:
    """Makes block keys by BLAKE2b, keyed with a secret of this installation.

    `fingerprint` must differ whenever a payload would mean something else: model content, llama.cpp build, KV types,
    RoPE, flash attention and other settings of the context. Without the secret no two prefixes with the same
    key can be made, and a key does not reveal its prompt. `secret` has 16 to 64 bytes.
    """

    def __init__(self, fingerprint: bytes, secret: bytes) -> None:
        assert 16 <= len(secret) <= 64, "BLAKE2b takes up to 64 bytes of key"
        self._fingerprint = fingerprint
        self._secret = secret

    def root(self, partition: str) -> BlockKey:
        """Return the key that a partition's chains begin with."""
        name = partition.encode()
        content = len(self._fingerprint).to_bytes(4, "little") + self._fingerprint + name
        return hashlib.blake2b(content, digest_size=KEY_BYTES, key=self._secret, person=b"edgeagent root").digest()

    def key(self, parent: BlockKey, tokens: Sequence[int]) -> BlockKey:
        """Return the key of the block with these tokens behind `parent`."""
        return block_key(self._secret, parent, tokens)
