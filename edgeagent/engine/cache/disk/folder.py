"""Maintains a folder of blocks: writes blocks, and removes evicted, expired and purged ones.

All methods run on the disk's thread. Writing stops while the disk fails. A block's name never refers to a partly
written file: the content goes to a temporary file, which is synced and then renamed. Only that thread waits for the
sync, which has three purposes:

- After a power cut, no block is incomplete. (A reader would refuse an incomplete block, but only after reading it.)
- If the disk is full or broken, the write of that block fails, not a later one.
- The thread cannot get ahead of the disk.

A sync is not needed to survive `kill -9`. The folder itself is synced when no other write is waiting.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

import psutil

from edgeagent import cache_folder
from edgeagent.cache_folder import ROOT_BYTES, BlockName, RootRecord
from edgeagent.engine.cache.block import BlockKey, Importance
from edgeagent.engine.cache.disk.files import Buffer, Files, in_words
from edgeagent.engine.cache.disk.index import Index
from edgeagent.engine.cache.disk.retention import IndexEntry, choose_victims, is_worth_writing
from edgeagent.engine.cache.disk.write_budget import WriteBudget

# Each eviction ranks all blocks. It frees this part of the room in addition, so that the next one is not needed soon.
_EVICT_PART = 1 / 32
_SCAN_EVERY_S = 10.0
_STAMP_EVERY_S = 30.0
_RETRY_EVERY_S = 30.0
_YIELD_EVERY_S = 60.0
# Ranking 10,000 blocks takes 50 ms, and the thread that computes tokens may wait for the interpreter part of that time.
_TIDY_EVERY_S = 600.0
_SAVE_EVERY_S = 300.0
_PROBE_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Limits:
    """The most bytes of all blocks, the bytes to leave free on the disk, the seconds until an unused block expires."""

    max_bytes: int
    min_free_bytes: int = 0
    ttl_s: float = float("inf")


class Outcome(Enum):
    """The outcome of an attempt to write a block."""

    WRITTEN = "the block is in the folder"
    LATER = "the disk fails, or the hour's allowance is used up"
    LOST = "there is no room for the block, or it was forgotten"


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB"


class Folder:
    """A folder of blocks. Only this object writes to it in this process; other processes may write to it too."""

    def __init__(
        self,
        files: Files,
        index: Index,
        budget: WriteBudget,
        limits: Limits,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files = files
        self._index = index
        self._budget = budget
        self._limits = limits
        self._clock = clock
        self._root_records: dict[bytes, RootRecord] = {}
        self._labelled: set[bytes] = set()
        self._used: set[bytes] = set()  # keys of blocks whose time of use is not in the folder yet
        self._seen_ns = 0  # time of the folder's last change that the index contains
        self._is_unsynced = False
        self._due: dict[Callable[[], None], float] = {}
        self.trouble: str | None = None
        """An error message while nothing can be written; else None. If the disk failed, a retry may reset it."""
        self.room_trouble: str | None = None
        """An error message if there was no room for the last block to write; else None."""
        self._missing_bytes = 0  # the size of the block that found no room
        self._name_trouble: str | None = None
        self._is_gone = False  # whether the folder was missing at the last failure
        self.num_evicted = 0
        self.has_found = False
        """Whether a scan may have found blocks of other processes. The disk looks for them and resets the flag."""
        self.gone: list[IndexEntry] = []
        """Blocks that no longer can be read. The disk reports them, and clears the list."""

    @property
    def name_trouble(self) -> str | None:
        """An error message if a file cannot be written because a folder has its name; else None.

        Other files are still written.
        """
        return self._budget.name_trouble or self._name_trouble

    def open(self) -> None:
        """Read the folder, or create it. Remove expired blocks, and temporary files of ended processes."""
        with self._guarded("use"):
            self._files.prepare()
            self._remove_left_over()
            is_time_known = self._budget.open()
            self._scan()
            self._set_ages(is_time_known=is_time_known)
            self._tidy()
            self._budget.save()
            self._seen_ns = self._files.changed_ns()

    def may_write(self, importance: Importance) -> bool:
        """Whether blocks of this importance may use what remains of the hour's write allowance."""
        return is_worth_writing(importance, allowance_left=self._budget.left_now)

    def write(self, name: BlockName, parts: Iterable[Buffer], num_bytes: int, *, is_draft: bool = False) -> Outcome:
        """Write a block's file from its `parts`, `num_bytes` in total, and add the block to the index."""
        if self.trouble is not None:
            return Outcome.LATER
        with self._guarded("write to"):
            self._look_around()
            if not self._make_room(num_bytes) or not self._budget.is_possible(num_bytes):
                return Outcome.LOST
            with self._changing():
                if not self._budget.take(num_bytes):
                    return Outcome.LATER
                self._label(name.root)
            temporary = cache_folder.temporary_name()
            used_s = self._budget.now_s
            try:
                with contextlib.ExitStack() as stack:
                    with self._changing():
                        file = stack.enter_context(self._files.create(temporary))
                    self._files.write(file, parts)
                    self._files.sync(file)
                self._files.stamp(temporary, used_s)
                with self._changing():
                    self._files.rename(temporary, name.file_name)
            except OSError as error:
                with contextlib.suppress(OSError):
                    self._files.remove(temporary)
                if not isinstance(error, IsADirectoryError):
                    raise
                self._name_trouble = self._files.in_the_way(name.file_name)
                return Outcome.LOST
            former = self._index.file_of(name.key)
            self._index.add(IndexEntry(name, num_bytes, used_s, is_draft=is_draft, is_announced=True))
            if former is not None and former.name != name:
                self._files.remove(former.name.file_name)
            self._is_unsynced = True
            return Outcome.WRITTEN
        return Outcome.LATER

    def touch(self, keys: Iterable[BlockKey]) -> None:
        """Note that blocks were used just now. `_stamp` later writes this to the folder."""
        now_s = self._budget.now_s
        for key in keys:
            entry = self._index.find(key)
            if entry is not None:
                entry.used_s = now_s
                self._used.add(entry.name.key)

    def set_importance(self, key: BlockKey, importance: Importance) -> None:
        """Raise a block's importance; a lower one is ignored."""
        entry = self._index.find(key)
        if entry is None or entry.importance >= importance:
            return
        with self._guarded("rename in"):
            raised = replace(entry, name=replace(entry.name, importance=int(importance)))
            try:
                with self._changing():
                    self._files.rename(entry.name.file_name, raised.name.file_name)
            except FileNotFoundError:
                self.drop([entry])
                return
            except IsADirectoryError:
                self._name_trouble = self._files.in_the_way(raised.name.file_name)
                return
            except BlockingIOError:  # it is being read, and keeps its importance
                return
            self._index.add(raised)

    def discard(self, key: BlockKey) -> None:
        """Remove a block, if it is there."""
        entry = self._index.find(key)
        if entry is not None:
            with self._guarded("remove from"):
                self.remove([entry])

    def describe_partition(self, root: BlockKey, record: RootRecord) -> None:
        """Remember a partition's description. If the folder lacks it, `write` adds it before the next block."""
        self._root_records[root[:ROOT_BYTES]] = record

    def purge(self, root: BlockKey | None) -> None:
        """Remove all blocks of a partition (None: of all partitions). Files that cannot be removed now go later."""
        self._labelled.clear()
        with self._guarded("remove from"):
            self.remove([entry for entry in self._index.all() if root is None or entry.name.root == root[:ROOT_BYTES]])

    def remove(self, blocks: Collection[IndexEntry]) -> None:
        """Remove blocks and their files. A file that cannot be removed now is removed later."""
        for entry in blocks:
            if not entry.is_doomed:
                entry.is_doomed = True
                self.gone.append(entry)
        for entry in blocks:
            with contextlib.suppress(BlockingIOError):  # another process is reading it (Windows)
                self._files.remove(entry.name.file_name)
                self._index.remove(entry.name.key)

    def drop(self, blocks: Iterable[IndexEntry]) -> None:
        """Drop blocks whose files are gone."""
        for entry in blocks:
            self._index.remove(entry.name.key)
            self.gone.append(entry)

    def give_up(self, entry: IndexEntry) -> None:
        """Leave a file that cannot be read where it is, for the disk may recover. A write may replace it."""
        entry.is_unreadable = True
        self.gone.append(entry)

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
                self._look_around()
                self.remove([entry for entry in self._index.all() if entry.is_doomed])
            self._when_due(self._stamp, _STAMP_EVERY_S)
            self._when_due(self._yield_room, _YIELD_EVERY_S)
            self._when_due(self._tidy, _TIDY_EVERY_S)
            self._when_due(self._budget.save, _SAVE_EVERY_S)

    def close(self) -> None:
        """Save the times of use and the write budget."""
        with self._guarded("keep"):
            self._stamp()
            self._budget.save()
            self._files.sync_folder()

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
                self.drop(self._index.all())
                self._labelled.clear()
                self._due[self._retry] = self._clock()
            else:
                self._due[self._retry] = self._clock() + _RETRY_EVERY_S
            self._is_gone = is_gone

    def _retry(self) -> None:
        """Read the folder again and write a test file. If both succeed, writing continues."""
        self.trouble = None
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

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Wrap a change of file names by this process, so that the change causes no scan of the folder."""
        is_seen = self._files.changed_ns() == self._seen_ns
        yield
        if is_seen:
            self._seen_ns = self._files.changed_ns()

    def _look_around(self) -> None:
        """Scan the folder if another process changed it, but not more often than every _SCAN_EVERY_S."""
        if self._files.changed_ns() != self._seen_ns:
            self._when_due(self._scan, _SCAN_EVERY_S)

    def _scan(self) -> None:
        seen_ns = self._files.changed_ns()
        gone, doubles = self._index.replace(self._files.scan())
        self.gone += gone
        for name in doubles:
            self._files.remove(name.file_name)
        self._seen_ns = seen_ns
        self.has_found = True
        self._labelled = set(cache_folder.read_root_records(self._files.folder))
        self._name_trouble = None

    def _set_ages(self, *, is_time_known: bool) -> None:
        """Set future times of use to about now, but keep their order. If the store's time is unknown, set all times."""
        now_s = self._budget.now_s
        wrong = [entry for entry in self._index.all() if not is_time_known or entry.used_s > now_s]
        for place, entry in enumerate(sorted(wrong, key=lambda entry: -entry.used_s)):
            entry.used_s = now_s - place * 1e-3
            with contextlib.suppress(FileNotFoundError):
                self._files.stamp(entry.name.file_name, entry.used_s)

    def _stamp(self) -> None:
        """Write changed times of use to the folder."""
        used, self._used = self._used, set()
        for key in used:
            entry = self._index.find(key)
            if entry is not None:
                with contextlib.suppress(FileNotFoundError):
                    self._files.stamp(entry.name.file_name, entry.used_s)

    def _yield_room(self) -> None:
        """Evict blocks if the disk is short of space.

        If the last block found no room, check whether it would fit now, and update `room_trouble`.
        """
        self._make_room(0 if self.room_trouble is None else self._missing_bytes)

    def _tidy(self) -> None:
        """Remove expired or unreachable blocks. Remove descriptions of empty partitions that others have set."""
        self._evict(0)
        roots = {entry.name.root for entry in self._index.all()}
        for root in self._labelled - roots - set(self._root_records):
            self._files.remove(cache_folder.root_record_name(root))

    def _make_room(self, num_bytes: int) -> bool:
        """Evict blocks until `num_bytes` fit; return False if they do not fit."""
        limit = self._limit_bytes()
        needed = self._index.num_bytes + num_bytes - limit
        if needed > 0 and num_bytes <= max(0, limit):
            self._evict(needed + int(max(0, limit) * _EVICT_PART))
        if self._index.num_bytes + num_bytes <= self._limit_bytes():
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
        return min(self._limits.max_bytes, self._index.num_bytes + spare)

    def _evict(self, num_bytes: int) -> None:
        victims = choose_victims(
            [entry for entry in self._index.all() if not entry.is_doomed],
            num_bytes=num_bytes,
            max_bytes=self._limits.max_bytes,
            now_s=self._budget.now_s,
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
