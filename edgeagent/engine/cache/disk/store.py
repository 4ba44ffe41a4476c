"""The block store: a BlockTier on disk. It outlives the process, and several processes may share it.

Each block is one file, whose name contains the keys. A write ends with one rename, and an eviction is one unlink. No
file is ever rewritten or compacted. One file for a whole conversation would save little: opening a file takes 30 µs,
while reading and checking a block of 3 MB takes 2 ms or more. Conversations could then not share prefixes cheaply, and
writes would not be atomic.

Several threads use the store; the store itself starts no thread. The engine's thread looks blocks up and offers them.
Loader threads read blocks: one for the target model, and one for the draft model if there is one. The writer's thread
calls `run`. Only the writer's thread changes the files, and adds blocks to the index or removes them. If a bug has
ended that thread, `purge` removes files itself. The other threads only hide blocks from lookups, by their epochs or as
unreadable. The threads share a queue, and values that are replaced atomically.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable, Iterable, Iterator
from queue import Empty

from edgeagent.cache_folder import RootRecord
from edgeagent.engine.cache.block import Block, BlockKey, Head, Importance
from edgeagent.engine.cache.disk.file_format import BadBlock, Seal
from edgeagent.engine.cache.disk.files import Files
from edgeagent.engine.cache.disk.folder import Folder, Limits
from edgeagent.engine.cache.disk.index import Index
from edgeagent.engine.cache.disk.retention import IndexEntry, ReadRate
from edgeagent.engine.cache.disk.write_budget import WriteBudget
from edgeagent.engine.cache.disk.writer import Close, DescribePartition, Discard, DiskWriter, Raise, Sweep, Touch, Write
from edgeagent.types import CacheStatus

_POLL_S = 0.005
# Errors of a read that say nothing about the file: too few file descriptors or too little memory, or another program
# has opened the file for itself (Windows).
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES)
# The file is gone, or its name belongs to a link or a socket.
_NOT_THERE = (errno.ENOENT, errno.ELOOP, errno.ENXIO)


class BlockStore:
    """The blocks on disk. BlockTier says which thread may call which method. The writer's thread calls `run`."""

    def __init__(
        self,
        files: Files,
        seal: Seal,
        budget: WriteBudget,
        limits: Limits,
        *,
        close_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`close_s`: how long `close` may wait for pending writes, in seconds."""
        self._close_s = close_s
        self._files = files
        self._seal = seal
        self._budget = budget
        self._limits = limits
        self._clock = clock
        self._index = Index()
        self._folder = Folder(files, self._index, budget, limits, clock=clock)
        self._writer = DiskWriter(files, seal, self._index, self._folder, clock=clock)
        self._rate = ReadRate()
        self._end_by_s = float("inf")
        self._is_closed = False
        # Written by the engine's thread.
        self._num_offered = self._num_refused = 0
        # Written by the loader threads.
        self._num_hits = self._num_misses = 0
        self._failed: set[BlockKey] = set()  # blocks whose last read failed, though their file is there

    def yield_to(self, is_busy: Callable[[], bool]) -> None:
        """Let the writer pause between writes while `is_busy()` is true, that is, while tokens are computed."""
        self._writer.is_busy = is_busy

    def configure_writer(self, block_tokens: int, max_pending_bytes: int) -> None:
        """Set how many tokens a full block has, and from how many pending bytes on the writer makes no pauses."""
        self._writer.block_tokens, self._writer.max_pending_bytes = block_tokens, max_pending_bytes

    def wait_until_open(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` until the folder is read. Call it once, before the first lookup."""
        with contextlib.suppress(Empty):
            self._writer.opened.get(timeout=timeout_s)

    def describe_partition(self, root: BlockKey, record: RootRecord) -> None:
        """Set the description of a partition. Call it before the partition's first block is offered.

        Any thread may call it.
        """
        self._command(DescribePartition(root, record))

    # The engine's thread

    def take_found(self, max_heads: int, *, is_draft: bool = False) -> Iterator[Head]:
        """Yield heads of blocks that other or earlier processes wrote, each head once. See LowerTier."""
        with contextlib.suppress(Empty):
            for _ in range(max_heads):
                yield self._writer.found[is_draft].get_nowait()

    def num_bytes(self, key: BlockKey) -> int | None:
        """Return the size of a block's file; None if the block is not on disk. See BlockTier."""
        entry = self._index.find(key)
        return None if entry is None else entry.num_bytes

    def touch(self, keys: Iterable[BlockKey]) -> None:
        """Note that these blocks were used just now. See BlockTier."""
        self._command(Touch(tuple(keys)))

    def offer(self, block: Block, importance: Importance) -> bool:
        """Queue a block to be written; return False if it is not accepted now. See BlockTier.

        Until a block is written, the caller must keep it in memory, and limit the bytes of such blocks.
        """
        self._num_offered += 1
        if self.is_pending(block.key) or self._index.find(block.key) is not None:
            self._command(Raise(block.key, importance))
            return True
        if not self._is_wanted(block, importance):
            self._num_refused += 1
            return False
        self._writer.pending[block.key] = block
        self._writer.commands.put(Write(block.key, importance, self._index.epoch(block.root)))
        return True

    def _command(self, command: DescribePartition | Touch | Raise | Discard | Sweep) -> None:
        """Queue a command for the writer. If a bug has ended the writer, drop the command."""
        if not self._writer.is_broken:
            self._writer.commands.put(command)

    def _is_wanted(self, block: Block, importance: Importance) -> bool:
        if self._is_closed or self._writer.is_broken or importance is Importance.VOLATILE:
            return False
        has_parent = block.parent == block.root or self._index.find(block.parent) is not None
        return has_parent or self.is_pending(block.parent)

    def is_pending(self, key: BlockKey) -> bool:
        """Whether a block was accepted and is not written yet. See LowerTier."""
        return key in self._writer.pending

    def withdraw(self, key: BlockKey) -> None:
        """Cancel the write of a pending block. See LowerTier."""
        self._writer.pending.pop(key, None)

    @property
    def is_stalled(self) -> bool:
        """Whether pending blocks cannot be written at the moment. See LowerTier."""
        return self._writer.is_stalled

    def wait_written(self) -> bool:
        """Wait until fewer blocks are pending; return False if that does not happen. See LowerTier."""
        self._hurry()
        num_before = len(self._writer.pending)
        while num_before and not self.is_stalled and not self._is_over:
            if len(self._writer.pending) < num_before:
                return True
            time.sleep(_POLL_S)
        return False

    def discard(self, key: BlockKey) -> None:
        """Remove a block that has no children. See BlockTier."""
        if key in self._writer.pending or self._index.find(key) is not None:
            self._command(Discard(key))

    def purge(self, root: BlockKey | None = None) -> int:
        """Forget all blocks of a partition (None: of all partitions); return how many were on disk. See BlockTier."""
        num_found = self._index.forget(root)
        for block in tuple(self._writer.pending.values()):
            if root is None or block.root == root:
                self.withdraw(block.key)
        self._command(Sweep())
        if self._writer.is_broken:  # no other thread changes the files now, and a restart would find the blocks again
            self._writer.sweep_broken()
        return num_found

    def stats(self) -> CacheStatus:
        """Return counts for status reports. See BlockTier."""
        return CacheStatus(
            num_blocks=len(self._index),
            num_bytes=self._index.num_bytes,
            max_bytes=self._limits.max_bytes,
            num_hits=self._num_hits,
            num_misses=self._num_misses,
            num_offered=self._num_offered,
            num_dropped=self._num_refused + self._writer.num_lost,
            num_evicted=self._folder.num_evicted,
            read_bytes_per_s=self._rate.bytes_per_s or self._budget.read_bytes_per_s,
            trouble=self.trouble
            or self._folder.room_trouble
            or self._folder.name_trouble
            or self._budget.allowance_trouble,
        )

    @property
    def trouble(self) -> str | None:
        """The error message of the disk or the writer while nothing can be written; None if there is no error."""
        return self._folder.trouble

    @property
    def num_written(self) -> int:
        """Blocks written so far."""
        return self._writer.num_written

    def close(self) -> None:
        """Write pending blocks for some time, then close the folder. See BlockTier.

        Blocks are written for at most `close_s` seconds (see the constructor). The time counts from the first call of
        `wait_written` or `close`. `close` waits for the writer's thread at most 0.5 s longer.
        """
        self._hurry()
        self._is_closed = True
        self._writer.commands.put(Close(self._end_by_s))
        # Do not wait for a disk that hangs. The process then ends and leaves only a temporary file.
        with contextlib.suppress(Empty):
            self._writer.closed.get(timeout=max(0.0, self._end_by_s - self._clock()) + 0.5)

    @property
    def left_out_bytes(self) -> int:
        """Bytes of the blocks that were still pending when `close` returned."""
        return self._writer.pending_bytes()

    def _hurry(self) -> None:
        """Write without pauses from now on. At the first call, start the time limit `close_s`."""
        if not self._writer.is_hurried:
            self._end_by_s = self._clock() + self._close_s
            self._writer.is_hurried = True

    @property
    def _is_over(self) -> bool:
        return self._clock() > self._end_by_s

    # The loader threads

    def read(self, key: BlockKey) -> Block | None:
        """Read and check a block's file; return None if it is gone, damaged or unreadable. See BlockTier."""
        entry = self._index.find(key)
        if entry is None:
            self._num_misses += 1
            return None
        started_s = self._clock()
        try:
            block = self._seal.decode(self._files.read(entry.name.file_name, entry.num_bytes), key)
            is_bad = entry.epoch != self._index.epoch(entry.name.root)
        except OSError as error:
            block, is_bad = None, error.errno in _NOT_THERE  # evicted or renamed; the next scan shows which
            if not is_bad and error.errno not in _PASSING:
                self._note_failure(entry)
        except (ValueError, BadBlock):
            block, is_bad = None, True
        if is_bad:
            entry.epoch = -1  # no epoch of a partition is negative, so the block is never found again
            self._command(Sweep())
        if block is None or is_bad:
            self._num_misses += 1
            return None
        self._failed.discard(key)
        self._rate.observe(entry.num_bytes, self._clock() - started_s)
        self._budget.read_bytes_per_s = self._rate.bytes_per_s
        self._num_hits += 1
        return block

    def _note_failure(self, entry: IndexEntry) -> None:
        """Note that the disk failed to read a block. After two failures in a row, hide it, so that it is written again.

        Its file stays until then, since the disk may recover.
        """
        if entry.name.key in self._failed:
            entry.is_unreadable = True
            self._failed.discard(entry.name.key)
        else:
            self._failed.add(entry.name.key)

    # The writer's thread

    def run(self) -> None:
        """Run the writer until `close`. Called by the writer's thread."""
        self._writer.run()

    def open(self) -> None:
        """Read the folder on the caller's thread. Payloads are not read."""
        self._writer.open()

    def work(self) -> None:
        """Carry out the commands queued so far, on the caller's thread; for tests."""
        self._writer.work()
