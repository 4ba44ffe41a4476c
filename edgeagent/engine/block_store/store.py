"""The block store: a BlockTier on disk that outlives the process, and may be shared by several.

One file for each block, named by its keys: writing is one rename, eviction one unlink, and no file has to be rewritten
or compacted. Packing whole conversations would save opens (30 µs a block, against 2 ms and more for reading and
checking one of 3 MB), and cost what makes the store safe and shared prefixes cheap.

Three threads use it, none of which it starts: the engine's asks and offers, a loader's reads, and the writer's runs
`run`, which alone changes files and index. They talk through a queue and through values that are replaced at once.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from edgeagent.cache_folder import PARENT_BYTES, ROOT_BYTES, About, BlockName
from edgeagent.engine.block_store.files import Files
from edgeagent.engine.block_store.format import BadBlock, Seal, file_bytes
from edgeagent.engine.block_store.index import Index
from edgeagent.engine.block_store.keeper import Keeper, Limits
from edgeagent.engine.block_store.ledger import Ledger
from edgeagent.engine.block_store.policy import ReadRate, is_worth_writing
from edgeagent.engine.blocks import Block, BlockKey, Importance, TierStats

_MAX_QUEUED_BYTES = 256 << 20
_TICK_S = 1.0
_CLOSE_S = 1.0
# Of a busy machine's time the writer takes a hundredth.
_REST_FOR_WORK = 100.0
_REST_STEP_S = 0.05


@dataclass(frozen=True, slots=True)
class _Write:
    block: Block
    importance: Importance
    epoch: int


@dataclass(frozen=True, slots=True)
class _Touch:
    keys: tuple[BlockKey, ...]


@dataclass(frozen=True, slots=True)
class _Raise:
    """A block that is held matters more than it did."""

    key: BlockKey
    importance: Importance


@dataclass(frozen=True, slots=True)
class _Introduce:
    root: BlockKey
    about: About


@dataclass(frozen=True, slots=True)
class _Sweep:
    """Remove the files of what is forgotten."""


@dataclass(frozen=True, slots=True)
class _Close:
    """Write down what is known, and end."""


_Command = _Write | _Touch | _Raise | _Introduce | _Sweep | _Close


class BlockStore:
    """Blocks on disk. See BlockTier for who may call what; `run` is the writer's thread's."""

    def __init__(
        self,
        files: Files,
        seal: Seal,
        ledger: Ledger,
        limits: Limits,
        *,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files = files
        self._seal = seal
        self._ledger = ledger
        self._index = Index()
        self._keeper = Keeper(files, self._index, ledger, limits, ticks=ticks)
        self._limits = limits
        self._is_busy: Callable[[], bool] = lambda: False
        self._ticks = ticks
        self._commands: SimpleQueue[_Command] = SimpleQueue()
        self._closed: SimpleQueue[None] = SimpleQueue()
        self._close_by_s: float | None = None  # when what still waits is dropped
        self._is_open = False
        self._opened: SimpleQueue[None] = SimpleQueue()
        self._rate = ReadRate()
        # Written by the engine's thread.
        self._pending: dict[BlockKey, Importance] = {}
        self._num_offered = self._num_refused = self._queued_bytes = 0
        # Written by the loader's.
        self._num_hits = self._num_misses = self._num_bad = 0
        # Written by the writer's.
        self._taken_bytes = self._num_written = self._num_lost = 0

    def yield_to(self, is_busy: Callable[[], bool]) -> None:
        """Leave the processor free while `is_busy`: while tokens are computed."""
        self._is_busy = is_busy

    def wait_until_open(self, timeout_s: float) -> None:
        """Wait until what is there is known, for so long; once, before the first lookup."""
        with contextlib.suppress(Empty):
            self._opened.get(timeout=timeout_s)

    # The engine's thread

    def lengths(self, parent: BlockKey) -> Collection[int]:
        """See BlockTier."""
        return self._index.lengths(parent)

    def children(self, parent: BlockKey) -> Collection[BlockKey]:
        """See BlockTier; the newest first."""
        return self._index.children(parent)

    def num_bytes(self, key: BlockKey) -> int | None:
        """See BlockTier."""
        held = self._index.find(key)
        return None if held is None else held.num_bytes

    def touch(self, keys: Iterable[BlockKey]) -> None:
        """See BlockTier."""
        self._commands.put(_Touch(tuple(keys)))

    def offer(self, block: Block, importance: Importance) -> None:
        """See BlockTier."""
        self._num_offered += 1
        held, pending = self._index.find(block.key), self._pending.get(block.key)
        known = held.importance if held is not None else pending
        if known is not None:
            if importance > known:
                self._commands.put(_Raise(block.key, importance))
            return
        if not self._is_wanted(block, importance):
            self._num_refused += 1
            return
        self._pending[block.key] = importance
        self._queued_bytes += block.num_bytes
        self._commands.put(_Write(block, importance, self._index.epoch(block.root)))

    def _is_wanted(self, block: Block, importance: Importance) -> bool:
        if self._close_by_s is not None or self.trouble is not None:
            return False
        is_first = block.parent == block.root
        if not is_first and self._index.find(block.parent) is None and block.parent not in self._pending:
            return False
        queue_left = 1 - (self._queued_bytes - self._taken_bytes + block.num_bytes) / _MAX_QUEUED_BYTES
        return is_worth_writing(importance, allowance_left=self._ledger.allowance_left, queue_left=queue_left)

    def introduce(self, root: BlockKey, about: About) -> None:
        """Say in words what a root stands for, before its first block; any thread may."""
        self._commands.put(_Introduce(root, about))

    def purge(self, root: BlockKey | None = None) -> int:
        """See BlockTier."""
        num_found = self._index.forget(root)
        self._commands.put(_Sweep())
        return num_found

    def stats(self) -> TierStats:
        """See BlockTier."""
        return TierStats(
            num_blocks=len(self._index),
            num_bytes=self._index.num_bytes,
            max_bytes=self._limits.max_bytes,
            num_hits=self._num_hits,
            num_misses=self._num_misses,
            num_offered=self._num_offered,
            num_dropped=self._num_refused + self._num_lost,
            num_evicted=self._keeper.num_evicted,
            read_bytes_per_s=self._rate.bytes_per_s,
        )

    @property
    def trouble(self) -> str | None:
        """Why nothing is written at the moment, in words; None if all is well."""
        return self._keeper.trouble

    @property
    def num_written(self) -> int:
        """Blocks written so far."""
        return self._num_written

    @property
    def num_bad(self) -> int:
        """Files that were not as they were written."""
        return self._num_bad

    def close(self) -> None:
        """See BlockTier; waits for the writer's thread, which ends."""
        self._close_by_s = self._ticks() + _CLOSE_S
        self._commands.put(_Close())
        try:
            self._closed.get(timeout=_CLOSE_S + 1.0)
        except Empty:
            return  # a disk that hangs; the process ends, and a temporary file is all it leaves

    # The loader's thread

    def read(self, key: BlockKey) -> Block | None:
        """See BlockTier."""
        held = self._index.find(key)
        if held is None:
            self._num_misses += 1
            return None
        started_s = self._ticks()
        try:
            block = self._seal.decode(self._files.read(held.name.file_name, held.num_bytes), key)
        except FileNotFoundError:
            block = None  # evicted by another process, or given another name; the next look at the folder tells
        except (OSError, ValueError, BadBlock):
            block = None
            self._num_bad += 1
        if block is None or held.epoch != self._index.epoch(held.name.root):
            held.epoch = -1  # never found again
            self._commands.put(_Sweep())
            self._num_misses += 1
            return None
        self._rate.observe(held.num_bytes, self._ticks() - started_s)
        self._ledger.read_bytes_per_s = self._rate.bytes_per_s
        self._num_hits += 1
        return block

    # The writer's thread

    def run(self) -> None:
        """Serve until `close`."""
        try:
            self.open()
            while self._turn(_TICK_S):
                pass
        except Exception as error:  # the thread's edge: a cache that broke must not take the model with it
            traceback.print_exc()
            self._keeper.trouble = f"the block store broke: {error!r}"
            self._closed.put(None)

    def open(self) -> None:
        """Look at what is there; afterwards blocks are found. No block is read."""
        self._keeper.open()
        if self._ledger.read_bytes_per_s > 0:
            self._rate = ReadRate(self._ledger.read_bytes_per_s)
        self._is_open = True
        self._opened.put(None)

    def close_now(self) -> None:
        """Close a store that no thread runs; for tests."""
        self.work()
        self._keeper.close()

    def work(self) -> None:
        """Carry out what has been asked for so far; for tests."""
        if not self._is_open:
            self.open()
        while self._turn(0.0):
            if self._commands.empty():
                return

    def _turn(self, timeout_s: float) -> bool:
        """Carry out one command and what else is due; False when closed."""
        command: _Command | None = None
        with contextlib.suppress(Empty):
            command = self._commands.get(timeout=timeout_s) if timeout_s else self._commands.get_nowait()
        match command:
            case _Write():
                self._write(command)
            case _Touch(keys):
                self._keeper.touch(keys)
            case _Raise(key, importance):
                self._keeper.set_importance(key, importance)
            case _Introduce(root, about):
                self._keeper.introduce(root, about)
            case _Sweep():
                self._keeper.sweep()
            case _Close():
                self._keeper.close()
                self._closed.put(None)
                return False
        self._keeper.tick(is_idle=self._commands.empty())
        return True

    def _write(self, command: _Write) -> None:
        block, started_s = command.block, time.thread_time()
        is_late = self._close_by_s is not None and self._ticks() > self._close_by_s
        if is_late or not self._is_writable(command) or not self._publish(command):
            self._num_lost += 1
        self._pending.pop(block.key, None)
        self._taken_bytes += block.num_bytes
        self._rest(time.thread_time() - started_s)

    def _is_writable(self, command: _Write) -> bool:
        """Whether a block is still wanted: not forgotten, not there, its parent written."""
        block = command.block
        if command.epoch != self._index.epoch(block.root) or self._index.find(block.key) is not None:
            return False
        return block.parent == block.root or self._index.find(block.parent) is not None

    def _publish(self, command: _Write) -> bool:
        block, num_bytes = command.block, file_bytes(command.block)
        name = BlockName(
            block.root[:ROOT_BYTES],
            block.parent[:PARENT_BYTES],
            block.key,
            block.start,
            len(block.tokens),
            int(command.importance),
        )
        is_written = self._keeper.write(name, self._seal.encode(block), num_bytes, command.epoch)
        self._num_written += is_written
        return is_written

    def _rest(self, worked_s: float) -> None:
        """Leave the processor to those who compute tokens: its threads wait for each other at every layer."""
        until_s = self._ticks() + worked_s * _REST_FOR_WORK
        while self._close_by_s is None and self._is_busy() and (left_s := until_s - self._ticks()) > 0:
            time.sleep(min(left_s, _REST_STEP_S))
