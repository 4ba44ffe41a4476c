"""Maintains a model's folder of blocks: finds, writes and removes them, and evicts those that were unused longest.

All methods run on the disk's thread, except where they say otherwise. Only one process writes into a folder: it holds
the folder's lock until it ends. A second one, such as the next worker of the model while the last one still writes,
waits until the lock is free, and uses no blocks on disk until then.

Writing stops while the disk fails. A block's name never refers to a partly written file: the content goes to a
temporary file, which is synced and then renamed. Only the disk's thread waits for the sync, which has three purposes:

- After a power cut, no block is incomplete. (A reader would refuse an incomplete block, but only after reading it.)
- If the disk is full or broken, the write of that block fails, not a later one.
- The thread cannot get ahead of the disk.

A sync is not needed to survive `kill -9`. The folder itself is synced when no other write is waiting.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import BinaryIO

import psutil

from edgeagent import cache_folder
from edgeagent.cache_folder import ROOT_BYTES, BlockFile, BlockName, RootRecord
from edgeagent.cache_retention import choose_victims
from edgeagent.engine.cache.block import BlockKey, Importance
from edgeagent.engine.cache.disk.files import Buffer, Files, in_words
from edgeagent.engine.cache.disk.folder_state import LITTLE_LEFT, FolderState
from edgeagent.state_files import try_lock

# Each eviction ranks all blocks. It frees this part of the room in addition, so that the next one is not needed soon.
_EVICT_PART = 1 / 32
_LOCK_EVERY_S = 1.0
_STAMP_EVERY_S = 30.0
_RETRY_EVERY_S = 30.0
_YIELD_EVERY_S = 60.0
# Ranking 10,000 blocks takes 50 ms, and the thread that computes tokens may wait for the interpreter part of that time.
_TIDY_EVERY_S = 600.0
_SAVE_EVERY_S = 300.0
_PROBE_BYTES = 4096
# A block is written only if more than this part of the hour's allowance is left. Less important blocks need more, so
# that many prompts that are used once do not use up the allowance that a system prompt needs.
_NEEDED_LEFT = {
    Importance.NORMAL: LITTLE_LEFT,
    Importance.REUSED: 0.1,
    Importance.SYSTEM: 0.0,
    Importance.PINNED: 0.0,
}


@dataclass(frozen=True, slots=True)
class Limits:
    """The most bytes of all blocks, the bytes to leave free on the disk, the seconds until an unused block expires."""

    max_bytes: int
    min_free_bytes: int = 0
    ttl_s: float = float("inf")


@dataclass(slots=True)
class FoundBlock(BlockFile):
    """A block of the folder. `is_announced`: the engine was told of it.

    - `is_unreadable`: it is of another installation, or was twice not read by the disk. Its file stays, and a write may
      replace it.
    - `is_doomed`: it was purged, evicted or is damaged; its file is to be removed.
    """

    is_announced: bool = False
    is_unreadable: bool = False
    is_doomed: bool = False


class Outcome(Enum):
    """The outcome of an attempt to write a block."""

    WRITTEN = "the block is in the folder"
    LATER = "the disk fails, or the hour's allowance is used up"
    LOST = "there is no room for the block, or it was forgotten"


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB"


def is_worth_writing(importance: Importance, *, allowance_left: float) -> bool:
    """Whether to write a block now. `allowance_left`: the unused part of the hour's allowance, 0 to 1."""
    return importance is not Importance.VOLATILE and allowance_left > _NEEDED_LEFT[importance]


class Folder:
    """The blocks of one model's folder, by key."""

    def __init__(
        self,
        files: Files,
        state: FolderState,
        limits: Limits,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.state = state
        self._files = files
        self._limits = limits
        self._clock = clock
        self._blocks: dict[BlockKey, FoundBlock] = {}
        self.num_bytes = 0
        """Bytes of all files, also of those that are still to be removed."""
        self._lock: BinaryIO | None = None
        self._root_records: dict[bytes, RootRecord] = {}
        self._labelled: set[bytes] = set()
        self._used: set[BlockKey] = set()  # blocks whose time of use is not in the folder yet
        self._is_unsynced = False
        self._due: dict[Callable[[], None], float] = {}
        self.trouble: str | None = None
        """An error message while nothing can be written; else None. If the disk failed, a retry may reset it."""
        self.room_trouble: str | None = None
        """An error message if there was no room for the last block to write; else None."""
        self._missing_bytes = 0  # the size of the block that found no room
        self._name_trouble: str | None = None
        self._is_read = False  # whether the blocks in the folder are known
        self._is_gone = False  # whether the folder was missing at the last failure
        self.num_evicted = 0
        self.has_found = False
        """Whether the folder was just read. The disk reports the blocks, and resets the flag."""
        self.gone: list[FoundBlock] = []
        """Blocks that no longer can be read. The disk reports them, and clears the list."""

    @property
    def num_blocks(self) -> int:
        """How many files there are. Any thread may ask."""
        return len(self._blocks)

    @property
    def max_bytes(self) -> int:
        """The limit of `num_bytes`. Any thread may ask."""
        return self._limits.max_bytes

    @property
    def name_trouble(self) -> str | None:
        """An error message if a file cannot be written because a folder has its name; else None.

        Other files are still written.
        """
        return self.state.name_trouble or self._name_trouble

    def find(self, key: BlockKey) -> FoundBlock | None:
        """Return a block; None if it is missing, to be removed, damaged or unreadable."""
        block = self._blocks.get(key)
        return None if block is None or block.is_doomed or block.is_unreadable else block

    def all(self) -> list[FoundBlock]:
        return list(self._blocks.values())

    def open(self) -> None:
        """Read the folder, or create it. Remove expired blocks, and temporary files of ended processes."""
        with self._guarded("use"):
            self._files.prepare()
            if not self._is_locked():
                self.trouble = f"another process uses {self._files.folder}; no block is read or written until it ends"
                self._due[self._retry] = self._clock() + _LOCK_EVERY_S
                return
            self._remove_left_over()
            is_time_known = self.state.open()
            self._read()
            self._set_ages(is_time_known=is_time_known)
            self._tidy()
            self.state.save()

    def _is_locked(self) -> bool:
        """Take the folder's lock, and keep it; return False if another process has it."""
        if self._lock is not None:
            return True
        try:
            lock = self._files.open_lock()
        except IsADirectoryError:  # then no process can lock; at worst, two write at once
            self._name_trouble = self._files.in_the_way(cache_folder.LOCK_FILE)
            return True
        if try_lock(lock.fileno()):
            self._lock = lock
            return True
        lock.close()
        return False

    def unlock(self) -> None:
        """Let another process use the folder. This one must not write any more."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def set_share(self, max_bytes: int, bytes_per_hour: int) -> None:
        """Set how many bytes the blocks may take, and how many may be written in an hour."""
        self._limits = replace(self._limits, max_bytes=max_bytes)
        self.state.bytes_per_hour = bytes_per_hour
        if self.num_bytes > max_bytes:
            with self._guarded("remove from"):
                self._yield_room()

    def may_write(self, importance: Importance) -> bool:
        """Whether blocks of this importance may use what remains of the hour's write allowance."""
        return is_worth_writing(importance, allowance_left=self.state.allowance_left)

    def write(self, name: BlockName, parts: Iterable[Buffer], num_bytes: int, *, is_draft: bool = False) -> Outcome:
        """Write a block's file from its `parts`, `num_bytes` in total."""
        if self.trouble is not None:
            return Outcome.LATER
        with self._guarded("write to"):
            if not self._make_room(num_bytes) or not self.state.is_possible(num_bytes):
                return Outcome.LOST
            if not self.state.take(num_bytes):
                return Outcome.LATER
            self._label(name.root)
            temporary = cache_folder.temporary_name()
            used_s = self.state.now_s
            try:
                with self._files.create(temporary) as file:
                    self._files.write(file, parts)
                    self._files.sync(file)
                self._files.stamp(temporary, used_s)
                self._files.rename(temporary, name.file_name)
            except OSError as error:
                with contextlib.suppress(OSError):
                    self._files.remove(temporary)
                if not isinstance(error, IsADirectoryError):
                    raise
                self._name_trouble = self._files.in_the_way(name.file_name)
                return Outcome.LOST
            former = self._blocks.get(name.key)
            self._add(FoundBlock(name, num_bytes, used_s, is_draft, is_announced=True))
            if former is not None and former.name != name:
                self._files.remove(former.name.file_name)
            self._is_unsynced = True
            return Outcome.WRITTEN
        return Outcome.LATER

    def _add(self, block: FoundBlock) -> None:
        former = self._blocks.get(block.name.key)
        self._blocks[block.name.key] = block
        self.num_bytes += block.num_bytes - (former.num_bytes if former else 0)

    def _forget(self, key: BlockKey) -> None:
        block = self._blocks.pop(key, None)
        if block is not None:
            self.num_bytes -= block.num_bytes

    def touch(self, keys: Iterable[BlockKey]) -> None:
        """Note that blocks were used just now. `_stamp` later writes this to the folder."""
        now_s = self.state.now_s
        for key in keys:
            block = self.find(key)
            if block is not None:
                block.used_s = now_s
                self._used.add(block.name.key)

    def set_importance(self, key: BlockKey, importance: Importance) -> None:
        """Raise a block's importance; a lower one is ignored."""
        block = self.find(key)
        if block is None or block.importance >= importance:
            return
        with self._guarded("rename in"):
            raised = replace(block, name=replace(block.name, importance=int(importance)))
            try:
                self._files.rename(block.name.file_name, raised.name.file_name)
            except FileNotFoundError:
                self.drop([block])
                return
            except IsADirectoryError:
                self._name_trouble = self._files.in_the_way(raised.name.file_name)
                return
            except BlockingIOError:  # it is being read, and keeps its importance
                return
            self._add(raised)

    def discard(self, key: BlockKey) -> None:
        block = self.find(key)
        if block is not None:
            with self._guarded("remove from"):
                self.remove([block])

    def describe_partition(self, root: BlockKey, record: RootRecord) -> None:
        """Remember a partition's description. If the folder lacks it, `write` adds it before the next block."""
        self._root_records[root[:ROOT_BYTES]] = record

    def purge(self, root: BlockKey | None) -> None:
        """Remove all blocks of a partition (None: of all partitions). Files that cannot be removed now go later."""
        self._labelled.clear()
        with self._guarded("remove from"):
            self.remove([each for each in self._blocks.values() if root is None or each.name.root == root[:ROOT_BYTES]])

    def remove(self, blocks: Collection[FoundBlock]) -> None:
        """Remove blocks and their files. A file that cannot be removed now is removed later."""
        for block in blocks:
            if not block.is_doomed:
                block.is_doomed = True
                self.gone.append(block)
        for block in blocks:
            with contextlib.suppress(BlockingIOError):  # another process is reading it (Windows)
                self._files.remove(block.name.file_name)
                self._forget(block.name.key)

    def drop(self, blocks: Iterable[FoundBlock]) -> None:
        """Drop blocks whose files are gone."""
        for block in blocks:
            self._forget(block.name.key)
            self.gone.append(block)

    def give_up(self, block: FoundBlock) -> None:
        """Leave a file that cannot be read where it is, for the disk may recover. A write may replace it."""
        block.is_unreadable = True
        self.gone.append(block)

    def tick(self, *, is_idle: bool) -> None:
        """Do the periodic work that is due. `is_idle`: no block can be written now, and no command is queued."""
        if self.trouble is not None:
            self._when_due(self._retry, _RETRY_EVERY_S)
            return
        with self._guarded("keep"):
            if is_idle and self._is_unsynced:
                self._files.sync_folder()
                self._is_unsynced = False
            if is_idle:
                if not self._files.is_there():
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self._files.folder))
                self.remove([block for block in self._blocks.values() if block.is_doomed])
            self._when_due(self._stamp, _STAMP_EVERY_S)
            self._when_due(self._yield_room, _YIELD_EVERY_S)
            self._when_due(self._tidy, _TIDY_EVERY_S)
            self._when_due(self._save, _SAVE_EVERY_S)

    def close(self) -> None:
        """Save the times of use and the state, and unlock the folder."""
        with self._guarded("keep"):
            self._stamp()
            self._save()
            self._files.sync_folder()
        self.unlock()

    def _save(self) -> None:
        """Save the state. What is in the way of a file is found again."""
        self._name_trouble = None
        if self._is_read and self._is_locked():  # else the state that is there was not read
            self.state.save()

    def _when_due(self, action: Callable[[], None], every_s: float) -> None:
        now_s = self._clock()
        due_s = self._due.setdefault(action, now_s + every_s)
        if now_s >= due_s:
            self._due[action] = now_s + every_s
            action()

    @contextlib.contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        """Catch an OSError: set `trouble` to "cannot `what` …", plan a retry, empty the index if the folder is gone."""
        try:
            yield
        except OSError as error:
            self.trouble = f"cannot {what} {self._files.folder}: {in_words(error)}"
            is_gone = not self._files.is_there()
            if is_gone and not self._is_gone:
                # The blocks are gone too. The next tick creates the folder again, if this process may.
                self.drop(self.all())
                self._labelled.clear()
                self.unlock()
                self._is_read = False
                self._due[self._retry] = self._clock()
            else:
                self._due[self._retry] = self._clock() + _RETRY_EVERY_S
            self._is_gone = is_gone

    def _retry(self) -> None:
        """Read the folder, if that failed, and write a test file. If both succeed, writing continues."""
        self.trouble = None
        if not self._is_read:
            self.open()
        if self.trouble is None:
            with self._guarded("write to"):
                self._probe()

    def _probe(self) -> None:
        temporary = cache_folder.temporary_name()
        try:
            with self._files.create(temporary) as file:
                self._files.write(file, [bytes(_PROBE_BYTES)])
                self._files.sync(file)
        finally:
            self._files.remove(temporary)

    def _remove_left_over(self) -> None:
        for name in self._files.list_names():
            owner = cache_folder.temporary_owner(name)
            if owner is not None and (owner == os.getpid() or not psutil.pid_exists(owner)):
                self._files.remove(name)

    def _read(self) -> None:
        """Find the blocks in the folder. Of two files of a block, keep the more important one."""
        for each in sorted(self._files.scan(), key=lambda each: each.name.importance):
            twin = self._blocks.get(each.name.key)
            self._add(FoundBlock(each.name, each.num_bytes, each.used_s))
            if twin is not None:
                self._files.remove(twin.name.file_name)
        self._labelled = set(cache_folder.read_root_records(self._files.folder))
        self._is_read = self.has_found = True

    def drop_missing(self) -> None:
        """Drop the blocks whose files are gone, since another program removed them."""
        with self._guarded("read"):
            names = set(self._files.list_names())
            self.drop([block for block in self.all() if block.name.file_name not in names])

    def _set_ages(self, *, is_time_known: bool) -> None:
        """Set future times of use to about now, but keep their order. If the store's time is unknown, set all times."""
        now_s = self.state.now_s
        wrong = [block for block in self._blocks.values() if not is_time_known or block.used_s > now_s]
        for place, block in enumerate(sorted(wrong, key=lambda block: -block.used_s)):
            block.used_s = now_s - place * 1e-3
            with contextlib.suppress(FileNotFoundError):
                self._files.stamp(block.name.file_name, block.used_s)

    def _stamp(self) -> None:
        """Write changed times of use to the folder."""
        used, self._used = self._used, set()
        for key in used:
            block = self.find(key)
            if block is not None:
                with contextlib.suppress(FileNotFoundError):
                    self._files.stamp(block.name.file_name, block.used_s)

    def _yield_room(self) -> None:
        """Evict blocks if the disk is short of space.

        If the last block found no room, check whether it would fit now, and update `room_trouble`.
        """
        self._make_room(0 if self.room_trouble is None else self._missing_bytes)

    def _tidy(self) -> None:
        """Remove expired or unreachable blocks. Remove descriptions of empty partitions that others have set."""
        self._evict(0)
        roots = {block.name.root for block in self._blocks.values()}
        for root in self._labelled - roots - set(self._root_records):
            self._files.remove(cache_folder.root_record_name(root))

    def _make_room(self, num_bytes: int) -> bool:
        """Evict blocks until `num_bytes` fit; return False if they do not fit."""
        limit = self._limit_bytes()
        needed = self.num_bytes + num_bytes - limit
        if needed > 0 and num_bytes <= max(0, limit):
            self._evict(needed + int(max(0, limit) * _EVICT_PART))
        if self.num_bytes + num_bytes <= self._limit_bytes():
            self.room_trouble = None
            return True
        self.room_trouble, self._missing_bytes = self._why_no_room(num_bytes), num_bytes
        return False

    def _why_no_room(self, num_bytes: int) -> str:
        limits, free_bytes = self._limits, self._files.free_bytes()
        if num_bytes > limits.max_bytes:
            return f"a block has {_mib(num_bytes)}, more than all may take ({_mib(limits.max_bytes)}): raise the bound"
        if free_bytes - num_bytes < limits.min_free_bytes:
            full = f"nothing more is written: the disk of {self._files.folder} has {_mib(free_bytes)} free"
            if limits.min_free_bytes == 0:
                return f"{full}, less than a block; free some"
            return f"{full}, and {_mib(limits.min_free_bytes)} must stay free; free some, or lower store.min_free_bytes"
        return f"nothing more is written: what is pinned fills {_mib(limits.max_bytes)}; purge some, or raise the bound"

    def _limit_bytes(self) -> int:
        """Return how many bytes all blocks may take: at most `max_bytes`, and `min_free_bytes` must stay free.

        Negative if even the removal of all blocks would not leave that much free.
        """
        spare = self._files.free_bytes() - self._limits.min_free_bytes
        return min(self._limits.max_bytes, self.num_bytes + spare)

    def _evict(self, num_bytes: int) -> None:
        victims = choose_victims(
            [block for block in self._blocks.values() if not block.is_doomed],
            num_bytes=num_bytes,
            max_bytes=self._limits.max_bytes,
            now_s=self.state.now_s,
            ttl_s=self._limits.ttl_s,
        )
        self.remove(victims)
        self.num_evicted += len(victims)

    def _label(self, root: bytes) -> None:
        """Write the description of a partition to the folder, if it is known and not written yet."""
        if root in self._labelled or root not in self._root_records:
            return
        temporary = cache_folder.temporary_name()
        with self._files.create(temporary) as file:
            self._files.write(file, [cache_folder.encode_root_record(self._root_records[root])])
        try:
            self._files.rename(temporary, cache_folder.root_record_name(root))
        except IsADirectoryError:
            self._files.remove(temporary)
            self._name_trouble = self._files.in_the_way(cache_folder.root_record_name(root))
        self._labelled.add(root)
