"""Reads blocks from a slow tier on a thread of its own, so that no token waits for a disk."""

from __future__ import annotations

import threading
from queue import Empty, SimpleQueue

from edgeagent.engine.cache.block import Block, BlockKey, BlockTier


class BlockLoader:
    """Loads blocks by key. The engine's thread calls all methods; another thread reads."""

    def __init__(self, tier: BlockTier) -> None:
        self._tier = tier
        self._asked: SimpleQueue[BlockKey | None] = SimpleQueue()
        self._read: SimpleQueue[tuple[BlockKey, Block | None]] = SimpleQueue()
        self._loaded: dict[BlockKey, Block | None] = {}
        self._num_wanted: dict[BlockKey, int] = {}
        self._sizes: dict[BlockKey, int] = {}
        self.num_bytes = 0
        """Bytes of all blocks that are asked for and not taken yet."""
        self._thread = threading.Thread(target=self._run, name="block loader", daemon=True)
        self._thread.start()

    def request(self, key: BlockKey, num_bytes: int) -> None:
        """Request a block of `num_bytes`; each request ends with one `take` that finds it, or with `forget`."""
        self._num_wanted[key] = self._num_wanted.get(key, 0) + 1
        if self._num_wanted[key] == 1:
            self._sizes[key] = num_bytes
            self.num_bytes += num_bytes
            self._asked.put(key)

    def is_loaded(self, key: BlockKey) -> bool:
        """Whether a request is answered."""
        self._collect(timeout_s=None)
        return key in self._loaded

    def take(self, key: BlockKey) -> Block | None:
        """Return a loaded block; None if the tier could not read it."""
        block = self._loaded[key]
        self.forget(key)
        return block

    def forget(self, key: BlockKey) -> None:
        """Take back a request."""
        self._num_wanted[key] -= 1
        if self._num_wanted[key] == 0:
            del self._num_wanted[key]
            self.num_bytes -= self._sizes.pop(key)
            self._loaded.pop(key, None)

    def wait(self, timeout_s: float) -> None:
        """Wait until another block is loaded, at most `timeout_s`."""
        self._collect(timeout_s)

    def close(self) -> None:
        """End the thread, after the read that is under way."""
        self._asked.put(None)
        self._thread.join()

    def _collect(self, timeout_s: float | None) -> None:
        try:
            while True:
                key, block = self._read.get(block=timeout_s is not None, timeout=timeout_s)
                timeout_s = None
                if key in self._num_wanted:
                    self._loaded[key] = block
        except Empty:
            pass

    def _run(self) -> None:
        while (key := self._asked.get()) is not None:
            try:
                block = self._tier.read(key)
            except Exception:  # the thread's outermost call: a tier that fails counts as one without the block
                block = None
            self._read.put((key, block))
