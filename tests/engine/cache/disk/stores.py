"""Stores in temporary folders, blocks for them, clocks that tests set, and a disk that fails on request."""

from __future__ import annotations

import errno
import math
import os
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from edgeagent.engine.cache.block import (
    MAX_BLOCK_TOKENS,
    Block,
    BlockKey,
    Dropped,
    Found,
    Gone,
    Head,
    Importance,
    Keyring,
    Loaded,
    Purged,
    Written,
)
from edgeagent.engine.cache.disk.file_format import Seal
from edgeagent.engine.cache.disk.files import Buffer, Files
from edgeagent.engine.cache.disk.folder import Limits, Outcome
from edgeagent.engine.cache.disk.folder_state import FolderState
from edgeagent.engine.cache.disk.store import BlockStore

SECRET = b"s" * 32
FINGERPRINT = b"model, settings, build"
HOUR_S, DAY_S = 3600.0, 86400.0
BLOCK_TOKENS = MAX_BLOCK_TOKENS


@dataclass(slots=True)
class Clock:
    """A clock that moves only when a test moves it."""

    at_s: float = 1_000_000.0

    def __call__(self) -> float:
        return self.at_s


@dataclass(slots=True)
class Times:
    """A machine's clocks: a monotonic one, and the wall clock."""

    clock: Clock = field(default_factory=Clock)
    wall: Clock = field(default_factory=lambda: Clock(1_700_000_000.0))

    def pass_s(self, seconds: float) -> None:
        self.clock.at_s += seconds
        self.wall.at_s += seconds


class Crash(BaseException):
    """The process died here: no operation after this one happened."""


class FaultyFiles(Files):
    """Counts operations; before each one, `fault` decides whether it fails (OSError) or never happens (Crash)."""

    def __init__(self, folder: Path, fault: Callable[[int, str], None] = lambda number, name: None) -> None:
        super().__init__(folder)
        self.fault = fault
        self.num_operations = 0

    def _count(self, name: str) -> None:
        self.num_operations += 1
        self.fault(self.num_operations, name)

    def sync(self, file: BinaryIO) -> None:
        self._count("sync")  # these tests cut no power, so only a failure of the sync matters

    def sync_folder(self) -> None:
        self._count("sync_folder")

    def write(self, file: BinaryIO, parts: Iterable[Buffer]) -> None:
        """Write in parts, so that a fault leaves the file half written."""
        for part in parts:
            half = len(part) // 2
            self._count("write")
            super().write(file, [part[:half]])
            self._count("write")
            super().write(file, [part[half:]])


def _counted(name: str) -> Any:
    def method(self: FaultyFiles, *args: Any) -> Any:
        self._count(name)
        return getattr(Files, name)(self, *args)

    return method


for _name in (
    "prepare",
    "list_names",
    "scan",
    "create",
    "rename",
    "remove",
    "stamp",
    "read",
    "read_head",
    "open_lock",
    "free_bytes",
):
    setattr(FaultyFiles, _name, _counted(_name))


def failing(code: int, first: int = 1, last: int = 1 << 60) -> Callable[[int, str], None]:
    """Return a fault that makes operations `first` to `last` fail with this errno."""

    def fault(number: int, name: str) -> None:
        if first <= number <= last:
            raise OSError(code, os.strerror(code))

    return fault


def crashing(at: int) -> Callable[[int, str], None]:
    """Return a fault that ends the process at this operation."""

    def fault(number: int, name: str) -> None:
        if number >= at:
            raise Crash

    return fault


class SteppedStore(BlockStore):
    """A store whose work is done on the caller's thread."""

    num_written = 0

    def open(self) -> None:
        """Read the folder and the heads of its blocks."""
        while not self._is_open:
            self._turn(0.0)

    def work(self) -> None:
        """Carry out the commands queued so far, and write the blocks that may be written now."""
        while self._turn(0.0):
            if self._commands.empty() and not self._can_write and not self._to_announce:
                return

    @property
    def trouble(self) -> str | None:
        """An error message while nothing can be written; None if there is no error."""
        return self._folder.trouble

    def _publish(self, block: Block) -> Outcome:
        outcome = super()._publish(block)
        self.num_written += outcome is Outcome.WRITTEN
        return outcome


class Store(SteppedStore):
    """A store and what the table of blocks knows of it: the blocks on disk. It reads on the caller's thread."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.max_pending_bytes = 256 << 20
        self._held: dict[BlockKey, tuple[BlockKey, int]] = {}  # (root, bytes of the file)
        self._found: dict[bool, list[Head]] = {False: [], True: []}
        self._loaded: list[Block | None] = []
        self._purging: list[BlockKey | None] = []

    def look(self) -> None:
        """Take the results so far."""
        for is_draft in (False, True):
            for result in self.take_results(1 << 60, is_draft=is_draft):
                match result:
                    case Found(head, num_bytes) | Written(head, num_bytes):
                        if not {None, head.root} & {*self._purging}:
                            self._held[head.key] = head.root, num_bytes
                        if isinstance(result, Found):
                            self._found[is_draft].append(head)
                    case Gone(key):
                        self._held.pop(key, None)
                    case Loaded(_, block):
                        self._loaded.append(block)
                    case Purged(root):
                        self._purging.remove(root)
                    case Dropped():
                        pass

    def offer(self, block: Block, importance: Importance) -> None:
        """Write a block, or raise its importance."""
        self.look()
        if block.key in self._held or block.key in self._pending:
            self.raise_importance(block.key, importance)
        else:
            self.write(block, importance, is_full=len(block.tokens) >= BLOCK_TOKENS)

    def num_bytes(self, key: BlockKey) -> int | None:
        self.look()
        return self._held[key][1] if key in self._held else None

    def is_pending(self, key: BlockKey) -> bool:
        self.look()
        return key in self._pending

    def take_found(self, max_heads: int, *, is_draft: bool = False) -> list[Head]:
        self.look()
        heads = self._found[is_draft][:max_heads]
        del self._found[is_draft][:max_heads]
        return heads

    def read(self, key: BlockKey, *, is_draft: bool = False) -> Block | None:  # type: ignore[override]
        self._load(key, is_draft=is_draft)
        self._report_gone()
        self.look()
        return self._loaded.pop()

    def purge(self, root: BlockKey | None = None, *, is_draft: bool = False) -> int:  # type: ignore[override]
        """Purge, and return how many blocks were on disk."""
        self.look()
        self._purging.append(root)
        super().purge(root, is_draft=is_draft)
        gone = [key for key, (owner, _) in self._held.items() if root in (None, owner)]
        for key in gone:
            del self._held[key]
        return len(gone)


def make_disk(folder: Path, **options: Any) -> SteppedStore:
    """Return a store as the worker uses it."""
    return make_store(folder, kind=SteppedStore, **options)


def make_store(
    folder: Path,
    times: Times | None = None,
    *,
    files: Files | None = None,
    secret: bytes = SECRET,
    max_bytes: int = 1 << 30,
    min_free_bytes: int = 0,
    ttl_s: float = 7 * DAY_S,
    bytes_per_hour: int = 0,
    close_s: float = 1.0,
    kind: Any = Store,
    is_beside: bool = False,
) -> Store:
    """Return a store on a folder. The processes of all earlier stores have ended, unless it runs beside them."""
    if not is_beside:
        for earlier in _earlier:
            earlier._folder.unlock()
        _earlier.clear()
    times = times or Times()
    files = files or Files(folder)
    state = FolderState(files, bytes_per_hour=bytes_per_hour, max_gap_s=ttl_s / 2, clock=times.clock, wall=times.wall)
    limits = Limits(max_bytes=max_bytes, min_free_bytes=min_free_bytes, ttl_s=ttl_s)
    store: Store = kind(files, Seal(secret), state, limits, close_s=close_s, clock=times.clock)
    _earlier.append(store)
    return store


_earlier: list[Store] = []


def close_now(store: SteppedStore) -> None:
    """Close a store that has no thread."""
    store._end_by_s = math.inf
    store._commands.put(None)
    store.work()


def keyring(secret: bytes = SECRET, fingerprint: bytes = FINGERPRINT) -> Keyring:
    return Keyring(fingerprint, secret)


def make_chain(
    num_blocks: int,
    *,
    partition: str = "",
    seed: int = 0,
    payload_bytes: int = 1000,
    draft: bool = False,
    num_tokens: int = BLOCK_TOKENS,
    keys: Keyring | None = None,
) -> list[Block]:
    """Return a prefix in full blocks (or of `num_tokens` each); each payload is made from its block's key."""
    keys = keys or keyring()
    root = keys.root(partition)
    blocks: list[Block] = []
    for number in range(num_blocks):
        parent: BlockKey = blocks[-1].key if blocks else root
        tokens = array("i", [seed, number, *range(num_tokens - 2)])
        key = keys.key(parent, tokens)
        payload = (key * (payload_bytes // 32 + 1))[:payload_bytes]
        blocks.append(Block(root, parent, key, num_tokens * number, tokens, payload, is_draft=draft))
    return blocks


def is_same(found: Block | None, block: Block) -> bool:
    """Return whether a block was read back unchanged."""
    return (
        found is not None
        and (found.root, found.parent, found.key, found.start) == (block.root, block.parent, block.key, block.start)
        and found.tokens == block.tokens
        and bytes(found.payload) == bytes(block.payload)
        and found.is_draft == block.is_draft
    )


NO_SPACE = errno.ENOSPC
