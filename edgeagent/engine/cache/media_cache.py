"""Keeps the embeddings of images and sounds as blocks, in memory and on disk, within the limits of all blocks.

A chunk of a medium is one block. Its tokens are the numbers that stand for the chunk in prompts, so its key depends on
the file, the projector and the chunk, and on the client. Its payload is the embeddings. The KV blocks of a prompt are
found only behind the same text; this block is found behind any text.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from weakref import WeakSet, WeakValueDictionary

import numpy as np

from edgeagent.engine.cache.block import Block, BlockKey, Importance, Loaded
from edgeagent.engine.cache.block_table import BlockTable
from edgeagent.engine.media import Embeddings
from edgeagent.engine.media_tokens import following
from edgeagent.engine.runner import Rows
from edgeagent.errors import InternalError


class MediaCache:
    """The embeddings among the blocks of one table. Only the engine's thread uses it, except for `is_held`."""

    def __init__(self, blocks: BlockTable) -> None:
        self.blocks = blocks
        self.num_purges = 0
        """How many purges there were. What was asked for before a purge is not kept after it."""
        self._encoding: WeakValueDictionary[BlockKey, Embeddings] = WeakValueDictionary()
        self._readers: dict[BlockKey, WeakSet[CachedEmbeddings]] = {}
        blocks.on_loaded.append(self._on_loaded)

    def cached(
        self,
        encoded: Embeddings,
        tokens: Sequence[int],
        partition: str,
        importance: Importance,
        *,
        reads: bool,
        writes: bool,
    ) -> Embeddings:
        """Return the embeddings of a chunk, from the cache if they are there. `encoded` has them computed.

        `tokens`: the numbers that stand for the chunk. `reads`: the cache may be read, `writes`: it may keep them.
        """
        root, own, key = self._name(tokens, partition)
        if reads:
            encoded = self._encoding.setdefault(key, encoded)
        return CachedEmbeddings(self, encoded, root, key, own, importance, reads=reads, writes=writes)

    def purge(self) -> None:
        """Keep nothing of what was asked for until now, and give it to no later request."""
        self.num_purges += 1
        self._encoding.clear()

    def is_held(self, tokens: Sequence[int], partition: str) -> bool:
        """Whether the embeddings of a chunk are in memory or on disk. Any thread may call it."""
        return self.blocks.is_held(self._name(tokens, partition)[2])

    def _name(self, tokens: Sequence[int], partition: str) -> tuple[BlockKey, array[int], BlockKey]:
        """Return the root, the tokens and the key of the block of a chunk."""
        # No prompt begins so, and no KV block: the first number of a chunk follows no other.
        own, root = array("i", (following(tokens[0]), *tokens[1:])), self.blocks.root(partition)
        return root, own, self.blocks.key(root, own)

    def read(self, key: BlockKey, reader: CachedEmbeddings) -> None:
        """Read a block from disk. `reader` gets it, if it still exists then."""
        readers = self._readers.get(key)
        if readers is None:
            readers = self._readers[key] = WeakSet()
            self.blocks.fetch(key)
        readers.add(reader)

    def _on_loaded(self, result: Loaded) -> None:
        for reader in self._readers.pop(result.key, ()):
            reader.loaded(result.block)


class CachedEmbeddings:
    """The embeddings of one chunk of a request; see engine.media.Embeddings."""

    def __init__(
        self,
        cache: MediaCache,
        encoded: Embeddings,
        root: BlockKey,
        key: BlockKey,
        tokens: array[int],
        importance: Importance,
        *,
        reads: bool,
        writes: bool,
    ) -> None:
        self._cache = cache
        self._encoded = encoded
        self._root = root
        self._key = key
        self._tokens = tokens
        self._importance = importance
        self._is_sought = not reads
        self._writes = writes
        self._num_purges = cache.num_purges
        self._is_reading = False
        self._block: Block | None = None
        self._rows: Rows | None = None

    def take(self) -> Rows | None:
        if self._rows is None:
            self._rows = self._find()
        return self._rows

    def wait(self, timeout_s: float) -> None:
        if self._is_reading:
            self._cache.blocks.poll(timeout_s=timeout_s)
        else:
            self._encoded.wait(timeout_s)

    def loaded(self, block: Block | None) -> None:
        """Take the block that was read from disk; None if it is gone."""
        self._is_reading, self._block = False, block
        self._importance = max(self._importance, Importance.NORMAL)  # it is on disk

    def _find(self) -> Rows | None:
        blocks = self._cache.blocks
        if not self._is_sought:
            self._is_sought = True
            if blocks.is_held(self._key):
                self._block = blocks.read(self._key)
                self._is_reading = self._block is None
                if self._is_reading:
                    self._cache.read(self._key, self)
        if self._is_reading:
            blocks.poll()
            if self._is_reading:
                return None
        block, self._block = self._block, None
        rows = None if block is None else self._rows_of(block)
        if rows is None:
            rows = self._encoded.take()
            if rows is not None:
                self._keep(rows)
        return rows

    def _rows_of(self, block: Block) -> Rows | None:
        blocks = self._cache.blocks
        if block.tokens != self._tokens:
            return None  # the key was not made from these tokens: the block is forged
        try:
            rows: Rows = np.frombuffer(blocks.unpack(block), np.float32).reshape(len(self._tokens), -1)
        except (InternalError, MemoryError, ValueError):
            return None
        if blocks.is_held(self._key):
            blocks.add(block, self._importance)
            blocks.use((self._key,))
        return rows

    def _keep(self, rows: Rows) -> None:
        if self._writes and self._num_purges == self._cache.num_purges:
            payload = np.ascontiguousarray(rows, np.float32).data.cast("B").toreadonly()
            blocks = self._cache.blocks
            blocks.add(blocks.make(self._root, None, 0, self._tokens, payload), self._importance)
