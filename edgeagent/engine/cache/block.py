"""Blocks: pieces of computed prefixes outside the KV cells, their keys, and the interface of the disk.

The engine makes and restores blocks. `engine.cache.block_table` keeps them in memory, `engine.cache.disk` in files.
This module knows neither llama.cpp nor files.

A prefix is a chain of blocks, which are restored in order. Each block covers consecutive tokens. For models with
attention only, a block has at most the number of tokens that `choose_block_tokens` returns. For models with a recurrent
state, a block also holds the state after its last token. Such a block may have any number of tokens, even all tokens of
the prefix.

A block's key is a keyed hash of its parent's key and its own tokens. So one key stands for the whole prefix that ends
with the block. The first block's parent is the root key of a cache partition. Blocks are found by their tokens, in one
tree that they share with the sequences in the cells (`engine.cache.radix_tree`).
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from edgeagent.cache_folder import Importance as Importance

BlockKey = bytes
"""32 bytes that stand for a prefix. Equal keys mean the same prefix, partition, model and settings."""

Payload = bytes | memoryview
"""Bytes that only llama.cpp understands. Read-only; a memoryview is contiguous and of format "B"."""

KEY_BYTES = 32
MIN_BLOCK_TOKENS = 32
"""The fewest tokens that `choose_block_tokens` returns; a power of two."""
MAX_BLOCK_TOKENS = 256
"""The most tokens that `choose_block_tokens` returns; a power of two."""
BLOCK_BYTES = 4 << 20  # limit of a full block that has more than MIN_BLOCK_TOKENS tokens; docs/decisions.md, 6
MIN_PART = 16
"""The fewest tokens of a block without a recurrent state, and of a restore.

Fewer are not worth it: they are computed along with the rest of the prompt.
"""
MIN_CUT = 4
"""The fewest tokens that a restore takes of a block that is cut. The blocks before it are restored anyway."""


def choose_block_tokens(token_bytes: float) -> int:
    """Return how many tokens a full block has if each token takes `token_bytes`: a power of two.

    A full block takes at most BLOCK_BYTES. If even MIN_BLOCK_TOKENS tokens take more, it has that many tokens. Larger
    blocks would make queues, read-ahead and cuts too coarse. With smaller blocks, the fixed costs of files, hashes and
    calls of llama.cpp would weigh more.
    """
    num_tokens = MAX_BLOCK_TOKENS
    while num_tokens > MIN_BLOCK_TOKENS and num_tokens * token_bytes > BLOCK_BYTES:
        num_tokens //= 2
    return num_tokens


@dataclass(frozen=True, slots=True)
class CachePriority:
    """The importance of a sequence's blocks. The blocks of its instructions are more important than the others.

    - `num_system`: tokens of the instructions, which are the system prompt and the tool definitions; 0 if there are
      none or the number is unknown.
    - `turn_end`: the position at which the next turn, or a repeated prompt, probably diverges from the sequence; 0 if
      none is known. Only with sliding-window attention is a block made to end there, since such blocks cannot be cut.
    """

    importance: Importance = Importance.NORMAL
    num_system: int = 0
    turn_end: int = 0

    def instructions_end(self, block_tokens: int) -> int:
        """Return where the instructions end if a shorter block must end there, to be shared by other prompts; else 0.

        None is needed if a full block ends there anyway, or ends fewer than MIN_PART tokens before.
        """
        return self.num_system if self.num_system % block_tokens >= MIN_PART else 0

    def at(self, end: int) -> Importance:
        """Return the importance of a block that ends at position `end`."""
        is_system = end <= self.num_system and self.importance is not Importance.VOLATILE
        return max(self.importance, Importance.SYSTEM) if is_system else self.importance

    def block_end(self, start: int, block_tokens: int) -> int:
        """Return where the full block from `start` on ends: after `block_tokens`, or earlier at `instructions_end`.

        For models with attention only.
        """
        instructions_end = self.instructions_end(block_tokens)
        is_near = start + MIN_PART <= instructions_end < start + block_tokens
        return instructions_end if is_near else start + block_tokens

    def has_block_end(self, before: int, now: int, block_tokens: int) -> bool:
        """Whether a full block ends after position `before`, and at position `now` or earlier.

        For models with attention only.
        """
        instructions_end = self.instructions_end(block_tokens)
        first = instructions_end if now > instructions_end else 0
        return before < instructions_end <= now or (now - first) // block_tokens > (before - first) // block_tokens


@dataclass(frozen=True, slots=True)
class Head:
    """A block without its payload: the fields that lookups need.

    - `root`: the root key of the block's partition. It tells partitions apart, for quotas and purges, without naming a
      client.
    - `start`: the position of `tokens[0]` in the prefix.
    - `is_draft`: the block belongs to a draft model. Draft models also have root keys of their own. A worker has a
      cache for the target model and one for the draft model. The flag tells which of them gets a result of the disk.
      `choose_victims` also depends on it.
    """

    root: BlockKey
    parent: BlockKey
    key: BlockKey
    start: int
    tokens: array[int]
    is_draft: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Block(Head):
    """One piece of a prefix, with its payload. It can only be restored after all its ancestors."""

    payload: Payload

    @property
    def num_bytes(self) -> int:
        return len(self.payload) + self.tokens.itemsize * len(self.tokens)


_RATE_WEIGHT = 0.2  # of a new measurement


class TransferRate:
    """Predicts how many seconds it takes to move blocks. The prediction is 0 before the first measurement."""

    def __init__(self) -> None:
        self._seconds_per_byte = 0.0

    def observe(self, num_bytes: int, seconds: float) -> None:
        """Add a measurement. The latest one is a fifth of the average of the seconds per byte."""
        weight = _RATE_WEIGHT if self._seconds_per_byte else 1.0
        self._seconds_per_byte += weight * (seconds / max(1, num_bytes) - self._seconds_per_byte)

    def seconds(self, num_bytes: float) -> float:
        return self._seconds_per_byte * num_bytes


class PayloadCodec(Protocol):
    """Makes payloads smaller before they are kept. Only one thread may call it."""

    def pack(self, payload: Payload) -> Payload:
        """Return the packed form of a payload, which is kept."""
        ...

    def unpack(self, payload: Payload) -> Payload:
        """Return the payload that `pack` packed. Its values may be rounded. The result is valid until the next call.

        Raise InternalError if the packed form is damaged.
        """
        ...


@dataclass(frozen=True, slots=True)
class Found:
    """Another or an earlier process wrote this block; a read of it moves `num_bytes`. Parents are reported first."""

    head: Head
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Written:
    """A block is on disk now; a read of it moves `num_bytes`."""

    block: Block
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """A block was not written, and will not be: there is no room, or its parent is gone."""

    block: Block


@dataclass(frozen=True, slots=True)
class Gone:
    """A block is no longer on disk: it was evicted, is damaged, or cannot be read."""

    key: BlockKey


@dataclass(frozen=True, slots=True)
class Loaded:
    """The checked and authenticated block of a read; None if it is gone or damaged, or cannot be read now.

    The caller must compare the block's tokens with the wanted tokens before it passes the payload to llama.cpp.
    """

    key: BlockKey
    block: Block | None


@dataclass(frozen=True, slots=True)
class Purged:
    """A purge is done. Earlier results may concern blocks that it has removed."""

    root: BlockKey | None


DiskResult = Found | Written | Dropped | Gone | Loaded | Purged


class BlockDisk(Protocol):
    """The disk below the table of blocks: a thread that writes, reads and removes blocks, and reports what it did.

    Only the engine's thread calls these methods. Only `close`, and `take_results` with a `timeout_s`, may wait.
    """

    max_pending_bytes: int
    """How many bytes may be pending before the disk writes without rests."""

    @property
    def is_stalled(self) -> bool:
        """Whether pending blocks cannot be written at the moment."""
        ...

    @property
    def read_bytes_per_s(self) -> float:
        """The rate of reads; 0 if none is known."""
        ...

    def take_results(self, max_results: int, *, is_draft: bool = False, timeout_s: float = 0.0) -> list[DiskResult]:
        """Return at most `max_results` results in the order of their commands, each once.

        `is_draft`: the results about blocks of the draft model; if False, of the target model. If there is none, wait
        for the first up to `timeout_s`.
        """
        ...

    def write(self, block: Block, importance: Importance, *, is_full: bool) -> None:
        """Queue a block to be written, after its parent. It is pending until Written or Dropped is taken.

        The caller must keep a pending block in memory, and limit the bytes of such blocks. A block that is not full may
        be written later, since a longer one may replace it.
        """
        ...

    def withdraw(self, key: BlockKey) -> None:
        """Cancel the write of a pending block, since its memory is needed. Withdraw children before their parents.

        If it is being written, Written is reported all the same.
        """
        ...

    def raise_importance(self, key: BlockKey, importance: Importance) -> None:
        """Raise the importance of a block that is pending or on disk; ignore a lower one."""
        ...

    def read(self, key: BlockKey, *, is_draft: bool = False) -> None:
        """Read a block; the result is Loaded. If the block is damaged, Gone is reported too."""
        ...

    def touch(self, keys: Iterable[BlockKey]) -> None:
        """Note that these blocks were used just now."""
        ...

    def remove(self, key: BlockKey) -> None:
        """Remove a block that has no children, pending or on disk, since a longer block replaces it."""
        ...

    def purge(self, root: BlockKey | None, *, is_draft: bool = False) -> None:
        """Remove all blocks of a partition (None: of all partitions), pending ones too. The result is Purged."""
        ...

    def call_back(self, done: Callable[[], None]) -> None:
        """Call `done` on the disk's thread once all commands given so far are carried out, except writes."""
        ...

    def hurry(self) -> bool:
        """Write without rests from now on, since the process ends; return whether the time for closing is left."""
        ...

    def close(self) -> None:
        """Finish pending writes, within the time for closing. No method is called afterwards."""
        ...


def to_array(tokens: Sequence[int]) -> array[int]:
    """Return tokens as an array of C integers. An array is returned as it is, not copied."""
    return tokens if isinstance(tokens, array) else array("i", tokens)


def common_length(a: array[int], b: array[int]) -> int:
    """Return how many leading elements of two arrays are equal."""
    length = min(len(a), len(b))
    if a[:length] == b[:length]:
        return length
    differs = np.frombuffer(a, np.int32, length) != np.frombuffer(b, np.int32, length)
    return int(differs.argmax())


def block_key(secret: bytes, parent: BlockKey, tokens: Sequence[int]) -> BlockKey:
    """Return the key of the block that has these tokens and follows the block `parent`.

    `secret`: the secret of this installation.
    """
    hasher = hashlib.blake2b(parent, digest_size=KEY_BYTES, key=secret, person=b"edgeagent block")
    hasher.update(to_array(tokens).tobytes())
    return hasher.digest()


class Keyring:
    """Makes block keys by BLAKE2b, keyed with a secret of this installation.

    `fingerprint` must cover everything that changes the meaning of a payload: the model's content, the llama.cpp build,
    KV types, RoPE, flash attention and other settings of the context. `secret` has 16 to 64 bytes. An attacker without
    the secret cannot construct two prefixes with the same key, or learn a prompt from its key.
    """

    def __init__(self, fingerprint: bytes, secret: bytes) -> None:
        assert 16 <= len(secret) <= 64, "BLAKE2b takes up to 64 bytes of key"
        self._fingerprint = fingerprint
        self._secret = secret

    def root(self, partition: str) -> BlockKey:
        """Return a partition's root key, which is the parent of the first block of each chain."""
        name = partition.encode()
        content = len(self._fingerprint).to_bytes(4, "little") + self._fingerprint + name
        return hashlib.blake2b(content, digest_size=KEY_BYTES, key=self._secret, person=b"edgeagent root").digest()

    def key(self, parent: BlockKey, tokens: Sequence[int]) -> BlockKey:
        return block_key(self._secret, parent, tokens)
