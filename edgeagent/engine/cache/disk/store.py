"""The disk of the prefix cache: one thread with three verbs. It writes, reads and removes the files of blocks.

The engine's thread sends commands and takes results; it never waits for the disk. The thread alone knows the folder,
and reports what was found, written, read, or is gone. Blocks outlive the process.

Each block is one file, whose name contains the keys. A write ends with one rename, and an eviction is one unlink. No
file is ever rewritten or compacted. One file for a whole conversation would save little: opening a file takes 30 µs,
while reading and checking a block of 3 MB takes 2 ms or more. Conversations could then not share prefixes cheaply, and
writes would not be atomic.

The most important blocks are written first. A partial block waits for a few seconds, since the conversation's next turn
would replace it with a longer block. All blocks wait while the disk fails. A block also waits if too little of the
hour's allowance is left for its importance. While tokens are computed, the thread rests after each write: the more
bytes wait to be written, the shorter. Reads and other commands go on during a rest.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from queue import Empty, Queue

from edgeagent.cache_folder import PARENT_BYTES, ROOT_BYTES, BlockName, RootRecord
from edgeagent.engine.cache.block import (
    Block,
    BlockKey,
    DiskResult,
    Dropped,
    Found,
    Gone,
    Importance,
    Loaded,
    Purged,
    TransferRate,
    Written,
)
from edgeagent.engine.cache.disk.file_format import BadBlock, Seal, file_bytes, head_bytes
from edgeagent.engine.cache.disk.files import Files
from edgeagent.engine.cache.disk.folder import Folder, FoundBlock, Limits, Outcome
from edgeagent.engine.cache.disk.folder_state import FolderState
from edgeagent.types import CacheStatus

# While nothing is asked, the thread looks after the folder so often; while it has trouble, it tries again sooner.
_TICK_S, _TICK_IN_TROUBLE_S = 2.0, 1.0
_PARTIAL_DELAY_S = 5.0  # by estimate: the next turn of a conversation, which replaces the block, may take that long
# The rest after a write while few bytes are pending, as a multiple of the write's CPU time. The thread then takes 1 %
# of a busy CPU.
_REST_FOR_WORK = 100.0
_REST_STEP_S = 0.05
# How many heads are read from the folder before the thread looks for commands.
_HEADS_AT_ONCE = 50
# Errors of a read that say nothing about the file: too few file descriptors or too little memory, or another program
# has opened the file for itself (Windows).
_PASSING = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES)
# The file is gone, or its name belongs to a link or a socket.
_NOT_THERE = (errno.ENOENT, errno.ELOOP, errno.ENXIO)


@dataclass(slots=True)
class _Waiting:
    """A queued write. `due_s`: when it may be done; 0 if at once."""

    importance: Importance
    due_s: float
    order: int


class BlockStore:
    """The blocks on disk. See BlockDisk. One thread calls `run`; methods say which other threads may call them."""

    def __init__(
        self,
        files: Files,
        seal: Seal,
        state: FolderState,
        limits: Limits,
        *,
        close_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`close_s`: how long pending writes may take at the end, in seconds."""
        self._close_s = close_s
        self._files = files
        self._seal = seal
        self._clock = clock
        self._commands: Queue[partial[None] | None] = Queue()  # None: close
        self._results: dict[bool, Queue[DiskResult]] = {False: Queue(), True: Queue()}
        self._opened: Queue[None] = Queue()
        self._closed: Queue[None] = Queue()
        # Owned by the engine's thread. The disk's thread looks a block up when its turn to be written comes.
        self._pending: dict[BlockKey, Block] = {}
        self._num_offered = 0
        self._end_by_s = float("inf")
        self._share: tuple[int, int] | None = None  # the latest, of the thread that sets it
        self.max_pending_bytes = 0
        """The thread makes no rests while at least this many bytes are pending."""
        self.is_busy: Callable[[], bool] = lambda: False
        """Whether tokens are computed, so that the thread should rest between writes."""
        # Owned by the disk's thread. Other threads read attributes, whose values are replaced atomically.
        self._folder = Folder(files, state, limits, clock=clock)
        self._waiting: dict[BlockKey, _Waiting] = {}
        self._order = itertools.count()
        self._to_announce: deque[FoundBlock] = deque()
        self._failed: set[BlockKey] = set()  # blocks whose last read failed, though their file is there
        self._rate = TransferRate()
        self._rest_until_s = 0.0
        self._is_open = self._is_hurried = self._is_broken = False
        self.is_stalled = False
        """Whether pending blocks cannot be written now: a bug, a disk that fails, or too little of the allowance."""
        self._num_lost = self._num_hits = self._num_misses = 0

    # The engine's thread.

    def write(self, block: Block, importance: Importance, *, is_full: bool) -> None:
        self._num_offered += 1
        self._pending[block.key] = block
        self._send(self._await, block.key, importance, is_full=is_full)

    def withdraw(self, key: BlockKey) -> None:
        self._pending.pop(key, None)

    def raise_importance(self, key: BlockKey, importance: Importance) -> None:
        self._send(self._raise_importance, key, importance)

    def touch(self, keys: Iterable[BlockKey]) -> None:
        self._send(self._folder.touch, tuple(keys))

    def read(self, key: BlockKey, *, is_draft: bool = False) -> None:
        self._send(self._load, key, is_draft=is_draft)

    def remove(self, key: BlockKey) -> None:
        self.withdraw(key)
        self._send(self._remove, key)

    def purge(self, root: BlockKey | None, *, is_draft: bool = False) -> None:
        for block in tuple(self._pending.values()):
            if root is None or block.root == root:
                self.withdraw(block.key)
        self._send(self._purge, root, is_draft=is_draft)

    def call_back(self, done: Callable[[], None]) -> None:
        self._send(self._call, done)

    def take_results(self, max_results: int, *, is_draft: bool = False, timeout_s: float = 0.0) -> list[DiskResult]:
        results: list[DiskResult] = []
        with contextlib.suppress(Empty):
            queue = self._results[is_draft]
            if timeout_s > 0:
                results.append(queue.get(timeout=timeout_s))
            while len(results) < max_results:
                results.append(queue.get_nowait())
        for result in results:
            if isinstance(result, Written | Dropped) and self._pending.get(result.block.key) is result.block:
                del self._pending[result.block.key]
        return results

    @property
    def read_bytes_per_s(self) -> float:
        return self._folder.state.read_bytes_per_s

    def hurry(self) -> bool:
        if not self._is_hurried:
            self._end_by_s = self._clock() + self._close_s
            self._is_hurried = True
        return self._clock() <= self._end_by_s

    def close(self) -> None:
        """Write pending blocks for some time, then close the folder. See BlockDisk.

        The time `close_s` (see the constructor) counts from the first call of `hurry` or `close`. `close` waits for the
        thread at most 0.5 s longer.
        """
        self.hurry()
        self._commands.put(None)
        # Do not wait for a disk that hangs. The process then ends and leaves only a temporary file.
        with contextlib.suppress(Empty):
            self._closed.get(timeout=max(0.0, self._end_by_s - self._clock()) + 0.5)
        for is_draft in self._results:
            self.take_results(1 << 60, is_draft=is_draft)

    @property
    def left_out_bytes(self) -> int:
        """Bytes of the blocks that were still pending when `close` returned."""
        return sum(block.num_bytes for block in self._pending.values())

    # Any thread.

    def wait_until_open(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` until all blocks in the folder are reported. Call it once, before the first lookup."""
        with contextlib.suppress(Empty):
            self._opened.get(timeout=timeout_s)

    def describe_partition(self, root: BlockKey, record: RootRecord) -> None:
        """Set the description of a partition. Call it before the partition's first block is written."""
        self._send(self._folder.describe_partition, root, record)

    def set_share(self, max_bytes: int, bytes_per_hour: int) -> None:
        """Set how many bytes the blocks may take, and how many may be written in an hour. 0 an hour means no limit."""
        if self._share != (max_bytes, bytes_per_hour):
            self._share = max_bytes, bytes_per_hour
            self._send(self._folder.set_share, max_bytes, bytes_per_hour)

    def _send(self, command: Callable[..., None], *arguments: object, **options: object) -> None:
        self._commands.put(partial(command, *arguments, **options))

    def stats(self) -> CacheStatus:
        """Return counts for status reports."""
        folder = self._folder
        return CacheStatus(
            num_blocks=folder.num_blocks,
            num_bytes=folder.num_bytes,
            max_bytes=folder.max_bytes,
            num_hits=self._num_hits,
            num_misses=self._num_misses,
            num_offered=self._num_offered,
            num_dropped=self._num_lost,
            num_evicted=folder.num_evicted,
            read_bytes_per_s=self.read_bytes_per_s,
            trouble=folder.trouble or folder.room_trouble or folder.name_trouble or folder.state.allowance_trouble,
        )

    # The disk's thread.

    def run(self) -> None:
        """Carry out commands until `close`."""
        try:
            while self._turn(_TICK_IN_TROUBLE_S if self._folder.trouble else _TICK_S):
                pass
        except Exception as error:  # a bug in the cache must not end the model's process
            traceback.print_exc()
            self._folder.trouble = f"the block store broke: {error!r}"
            self.is_stalled = self._is_broken = True
            self._opened.put(None)
            self._answer_only()

    def _answer_only(self) -> None:
        """Answer commands until `close`, but use no files any more. Only a purge is tried."""
        while (command := self._commands.get()) is not None:
            if command.func in (self._load, self._await, self._purge, self._call):
                try:
                    command()
                except Exception as error:
                    self._folder.trouble = f"the block store broke, and purged blocks are not deleted: {error!r}"
        self._closed.put(None)

    @property
    def _can_write(self) -> bool:
        return not self.is_stalled and not self._is_resting and self._next() is not None

    @property
    def _is_resting(self) -> bool:
        """Whether to leave the CPU to the threads that compute. These wait for each other at every layer."""
        return not self._is_hurried and self._clock() < self._rest_until_s and self.is_busy()

    def _turn(self, timeout_s: float) -> bool:
        """Carry out the queued commands, write one block, and do the periodic work that is due.

        Wait up to `timeout_s` for a command if there is nothing else to do. Return False after `close`.
        """
        if not self._is_open and not self._to_announce and not self._folder.has_found:
            self._folder.open()
        wait_s = 0.0 if self._can_write or self._to_announce or not self._is_open else timeout_s
        if wait_s and self._is_resting:
            wait_s = min(wait_s, _REST_STEP_S)
        with contextlib.suppress(Empty):
            while True:
                command = self._commands.get(timeout=wait_s) if wait_s else self._commands.get_nowait()
                wait_s = 0.0
                if command is None:
                    self._write_rest()
                    return False
                command()
                self._report_gone()
        if not self._is_resting:
            self._write_next()
        self._folder.tick(is_idle=self._commands.empty() and not self._can_write)
        self._announce()
        return True

    def _raise_importance(self, key: BlockKey, importance: Importance) -> None:
        waiting = self._waiting.get(key)
        if waiting is None:
            self._folder.set_importance(key, importance)
        elif importance > waiting.importance:
            waiting.importance, waiting.due_s = importance, 0.0

    def _load(self, key: BlockKey, *, is_draft: bool) -> None:
        block = None if self._is_broken else self._read(key, is_draft=is_draft)
        self._results[is_draft].put(Loaded(key, block))

    def _remove(self, key: BlockKey) -> None:
        self._waiting.pop(key, None)
        self._folder.discard(key)

    def _purge(self, root: BlockKey | None, *, is_draft: bool) -> None:
        self._folder.purge(root)
        self._report_gone()
        self._results[is_draft].put(Purged(root))

    def _call(self, done: Callable[[], None]) -> None:
        # A method, so that `_answer_only` knows the command by its name.
        done()

    def _report_gone(self) -> None:
        """Report the blocks that can no longer be read, if they were reported as found or written."""
        for entry in self._folder.gone:
            if entry.is_announced:
                self._results[entry.is_draft].put(Gone(entry.name.key))
        self._folder.gone.clear()

    def _announce(self) -> None:
        """Report the blocks that were in the folder, a few at a time. Report those that are gone first."""
        self._report_gone()
        if self._folder.has_found:
            self._folder.has_found = False
            found = [entry for entry in self._folder.all() if not entry.is_announced]
            self._to_announce = deque(sorted(found, key=lambda entry: entry.name.start))
        for _ in range(min(_HEADS_AT_ONCE, len(self._to_announce))):
            entry = self._to_announce.popleft()
            if self._folder.find(entry.name.key) is not entry or entry.is_announced:
                continue
            try:
                content = self._files.read_head(entry.name.file_name, head_bytes(entry.name.length))
                head = self._seal.decode_head(content, entry.name)
            except OSError:
                continue  # the engine does not learn of it before the next start
            except (ValueError, BadBlock):
                entry.is_unreadable = True
            else:
                entry.is_draft, entry.is_announced = head.is_draft, True
                self._results[head.is_draft].put(Found(head, entry.num_bytes))
        if not self._is_open and not self._to_announce:
            self._is_open = True
            self._opened.put(None)

    def _await(self, key: BlockKey, importance: Importance, *, is_full: bool) -> None:
        """Queue a write, except of a withdrawn block. A full or important block may be written at once.

        Any other block waits for _PARTIAL_DELAY_S, since a longer block may replace it.
        """
        block = self._pending.get(key)
        if block is None:
            return
        if self._is_broken:
            self._num_lost += 1
            self._results[block.is_draft].put(Dropped(block))
            return
        due_s = 0.0 if is_full or importance > Importance.NORMAL else self._clock() + _PARTIAL_DELAY_S
        self._waiting[key] = _Waiting(importance, due_s, next(self._order))

    def _next(self) -> BlockKey | None:
        """Return the most important block that may be written now, of equals the oldest; None if there is none."""
        # A few hundred blocks wait at most, since they are in memory.
        now_s = self._clock()
        ready = [key for key, waiting in self._waiting.items() if waiting.due_s <= now_s]
        return min(ready, key=lambda key: (-self._waiting[key].importance, self._waiting[key].order), default=None)

    def _write_next(self) -> None:
        """Write the most important block that may be written, or the first of its ancestors that waits."""
        for key in [key for key in self._waiting if key not in self._pending]:
            del self._waiting[key]  # withdrawn
        self.is_stalled = self._folder.trouble is not None
        most_important = None if self.is_stalled else self._next()
        if most_important is None:
            return
        if not self._folder.may_write(self._waiting[most_important].importance):
            self.is_stalled = True
            return
        key = most_important
        while (block := self._pending.get(key)) is not None and block.parent in self._waiting:
            key = block.parent
        started_s = time.thread_time()
        self._write(key)
        worked_s = time.thread_time() - started_s
        left = [block for each in self._waiting if (block := self._pending.get(each)) is not None]
        spare = max(0.0, 1.0 - sum(block.num_bytes for block in left) / max(1, self.max_pending_bytes))
        self._rest_until_s = self._clock() + worked_s * _REST_FOR_WORK * spare

    def _write(self, key: BlockKey) -> None:
        block = self._pending.get(key)
        if block is None:  # withdrawn just now
            return
        outcome = Outcome.LOST
        known = self._folder.find(key)
        if known is not None:  # an earlier process wrote it, and the engine did not know yet
            outcome = Outcome.WRITTEN
            known.is_draft, known.is_announced = block.is_draft, True  # so that its end is reported
        elif block.parent == block.root or self._folder.find(block.parent) is not None:
            outcome = self._publish(block)
        if outcome is Outcome.LATER:
            self.is_stalled = True
            return
        del self._waiting[key]
        if outcome is Outcome.WRITTEN:
            self._results[block.is_draft].put(Written(block, file_bytes(block)))
        else:
            self._num_lost += 1
            self._results[block.is_draft].put(Dropped(block))

    def _publish(self, block: Block) -> Outcome:
        importance = int(self._waiting[block.key].importance)
        root, parent = block.root[:ROOT_BYTES], block.parent[:PARENT_BYTES]
        name = BlockName(root, parent, block.key, block.start, len(block.tokens), importance)
        parts, num_bytes = self._seal.encode(block), file_bytes(block)
        return self._folder.write(name, parts, num_bytes, is_draft=block.is_draft)

    def _write_rest(self) -> None:
        """Write the queued blocks, but begin none after the time that `hurry` has set. Then close the folder."""
        for waiting in self._waiting.values():
            waiting.due_s = 0.0
        while self._waiting and self._clock() <= self._end_by_s:
            self._write_next()
            if self.is_stalled:
                break
        self._num_lost += len(self._waiting)
        self._folder.close()
        self._closed.put(None)

    def _read(self, key: BlockKey, *, is_draft: bool) -> Block | None:
        """Read and check a block's file; return None if it is gone, damaged or unreadable."""
        entry = self._folder.find(key)
        if entry is None:
            self._num_misses += 1
            self._results[is_draft].put(Gone(key))
            return None
        started_s = self._clock()
        try:
            block = self._seal.decode(self._files.read(entry.name.file_name, entry.num_bytes), key)
        except OSError as error:
            self._num_misses += 1
            if error.errno in _NOT_THERE:
                self._folder.drop_missing()
                self._folder.drop([entry])
            elif error.errno not in _PASSING:
                self._note_failure(entry)
            return None
        except (ValueError, BadBlock):
            self._num_misses += 1
            self._folder.discard(key)
            return None
        self._failed.discard(key)
        self._rate.observe(entry.num_bytes, max(1e-6, self._clock() - started_s))
        self._folder.state.read_bytes_per_s = 1 / self._rate.seconds(1)
        self._num_hits += 1
        return block

    def _note_failure(self, entry: FoundBlock) -> None:
        """Note that the disk failed to read a block. After two failures in a row, report the block as gone.

        It can then be written again. Until then the file stays, since the disk may recover.
        """
        if entry.name.key in self._failed:
            self._failed.discard(entry.name.key)
            self._folder.give_up(entry)
        else:
            self._failed.add(entry.name.key)
