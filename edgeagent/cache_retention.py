"""Decides which cached blocks on disk are evicted first, and evicts those of models that no worker uses.

A worker evicts blocks from its own model's folder. The daemon does so in the folders of all other models.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from edgeagent.cache_folder import (
    LOCK_FILE,
    STATE_FILE,
    BlockFile,
    Importance,
    SavedState,
    encode_state,
    model_folders,
    read_state,
    remove_files,
    scan,
)
from edgeagent.errors import ConfigError
from edgeagent.runtime_file import write_private
from edgeagent.state_files import open_own, try_lock

# How much longer a block may stay unused than one of importance NORMAL. Pinned blocks are not evicted.
_KEPT_LONGER = {Importance.NORMAL: 1.0, Importance.REUSED: 2.0, Importance.SYSTEM: 5.0}
# A partition with at most this share of the space keeps its blocks longer, however much others write.
RESERVED_SHARE = 0.25
_RESERVED_KEPT_LONGER = 8.0
# An empty folder is removed if it did not change for this long. That of a model that is being loaded is empty too.
_EMPTY_S = 86400.0

File = TypeVar("File", bound=BlockFile)


def choose_victims(
    blocks: Collection[File], *, num_bytes: int, max_bytes: int, now_s: float, ttl_s: float
) -> list[File]:
    """Return the blocks to remove, in this order:

    1. All blocks that cannot be reached, since an ancestor is gone.
    2. All blocks that were unused for more than `ttl_s`.
    3. The blocks that were unused for longest, until `num_bytes` are freed in total. The unused time is divided by a
       factor if the block is important, or if its partition is small. The second factor does not apply to draft models:
       their partitions are always small, so their blocks would outlast those of the target model.

    Using a block counts as using its ancestors. A block is removed before its ancestors. Pinned blocks are removed by
    rule 1 only.
    """
    reachable, uses, importances = _weigh(blocks)
    bytes_of: dict[bytes, int] = {}
    for entry in blocks:
        bytes_of[entry.name.root] = bytes_of.get(entry.name.root, 0) + entry.num_bytes
    ranked = []
    for entry in blocks:
        name, key = entry.name, entry.name.short_key
        age_s = now_s - uses[key]
        if key not in reachable:
            ranked.append((0, -age_s, -name.start, entry))
        elif importances[key] is Importance.PINNED:
            continue
        elif age_s > ttl_s:
            ranked.append((1, -age_s, -name.start, entry))
        else:
            is_small = not entry.is_draft and bytes_of[name.root] <= RESERVED_SHARE * max_bytes
            kept_longer = _KEPT_LONGER[importances[key]] * (_RESERVED_KEPT_LONGER if is_small else 1.0)
            ranked.append((2, -age_s / kept_longer, -name.start, entry))
    ranked.sort(key=lambda item: item[:3])
    victims: list[File] = []
    num_freed = 0
    for rule, _, _, entry in ranked:
        if rule == 2 and num_freed >= num_bytes:
            break
        victims.append(entry)
        num_freed += entry.num_bytes
    return victims


def _weigh(blocks: Collection[BlockFile]) -> tuple[set[bytes], Mapping[bytes, float], Mapping[bytes, Importance]]:
    """Return the keys of the reachable blocks, and two maps by key: the latest use and the importance of each block.

    A block's descendants count too: the latest use and the highest importance among it and them.
    """
    by_depth = sorted(blocks, key=lambda entry: entry.name.start)
    reachable: set[bytes] = set()
    for entry in by_depth:
        if entry.name.is_first or entry.name.parent in reachable:
            reachable.add(entry.name.short_key)
    uses = {entry.name.short_key: entry.used_s for entry in blocks}
    importances = {entry.name.short_key: entry.importance for entry in blocks}
    for entry in reversed(by_depth):
        parent, key = entry.name.parent, entry.name.short_key
        if parent in uses:
            uses[parent] = max(uses[parent], uses[key])
            importances[parent] = max(importances[parent], importances[key])
    return reachable, uses, importances


@dataclass(slots=True)
class _UnusedFile(BlockFile):
    """A block's file in a folder that no worker uses. `used_s` is relative to the folder's present time."""

    folder: Path = Path()


def evict_unused(
    cache_dir: Path,
    *,
    max_bytes: int,
    min_free_bytes: int,
    ttl_s: float,
    wall: Callable[[], float] = time.time,
) -> int:
    """Evict blocks of models that no worker uses, until they take at most `max_bytes`; return how many they take.

    Also evict blocks until `min_free_bytes` are free on the disk, blocks that were unused for more than `ttl_s`, and
    folders that are empty. A folder whose lock is held by a worker is left alone. Raise OSError if the disk fails.
    """
    files: list[_UnusedFile] = []
    with contextlib.ExitStack() as locks:
        changed_at_s = {folder: folder.stat().st_mtime for folder in model_folders(cache_dir)}
        folders = [folder for folder in changed_at_s if _lock(folder, locks)]  # this may change the times
        for folder in folders:
            files += _files_of(folder, wall(), max_gap_s=ttl_s / 2)
        num_bytes = sum(file.num_bytes for file in files)
        missing = min_free_bytes - shutil.disk_usage(cache_dir).free if folders else 0
        wanted = max(num_bytes - max(0, max_bytes), missing, 0)
        victims = choose_victims(files, num_bytes=wanted, max_bytes=max_bytes, now_s=0.0, ttl_s=ttl_s)
        for file in victims:
            (file.folder / file.name.file_name).unlink(missing_ok=True)
        for folder in folders:
            is_old = wall() - changed_at_s[folder] > _EMPTY_S
            if is_old and not any(scan(folder)):
                remove_files(folder)
                with contextlib.suppress(OSError):  # it holds files that are not the cache's
                    folder.rmdir()
    return num_bytes - sum(file.num_bytes for file in victims)


def _lock(folder: Path, locks: contextlib.ExitStack) -> bool:
    """Lock a folder until `locks` ends; return False if a worker has locked it, or if it cannot be locked."""
    try:
        descriptor = open_own(folder / LOCK_FILE)
    except OSError:
        return False
    locks.callback(os.close, descriptor)
    return try_lock(descriptor)


def _files_of(folder: Path, wall_s: float, max_gap_s: float) -> list[_UnusedFile]:
    """Return the blocks of a folder, and let the folder's time advance to the present.

    If its time is not known, all blocks count as used just now. In a folder without blocks, nothing is changed.
    """
    state, files = read_state(folder), list(scan(folder))
    if not files:
        return []
    if state is None:
        now_s = wall_s
        for file in files:
            os.utime(folder / file.name.file_name, (now_s, now_s))
            file.used_s = now_s
        state = SavedState(now_s, wall_s, 0.0, now_s, 0.0)
    else:
        now_s = state.now_after(wall_s, max_gap_s)
    with contextlib.suppress(ConfigError):  # it cannot be written; the blocks stay a little longer
        write_private(folder / STATE_FILE, encode_state(replace(state, now_s=now_s, wall_s=wall_s)))
    return [_UnusedFile(file.name, file.num_bytes, file.used_s - now_s, folder=folder) for file in files]
