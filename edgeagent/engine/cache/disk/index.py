"""The list of the folder's blocks, in memory. Only the disk's thread uses it."""

from __future__ import annotations

from collections.abc import Iterable

from edgeagent.cache_folder import BlockFile, BlockName
from edgeagent.engine.cache.block import BlockKey
from edgeagent.engine.cache.disk.retention import IndexEntry


class Index:
    """The blocks of the folder by key."""

    def __init__(self) -> None:
        self._blocks: dict[BlockKey, IndexEntry] = {}
        self.num_bytes = 0
        """Bytes of all files, also of those that are still to be removed."""

    def __len__(self) -> int:
        return len(self._blocks)

    def find(self, key: BlockKey) -> IndexEntry | None:
        """Return a block; None if it is missing, to be removed, damaged or unreadable."""
        entry = self._blocks.get(key)
        return None if entry is None or entry.is_doomed or entry.is_unreadable else entry

    def file_of(self, key: BlockKey) -> IndexEntry | None:
        """Return the entry of a block's file, in whatever state it is; None if there is no file."""
        return self._blocks.get(key)

    def all(self) -> list[IndexEntry]:
        """Return all files."""
        return list(self._blocks.values())

    def add(self, entry: IndexEntry) -> None:
        """Add a block, or replace the one with the same key."""
        former = self._blocks.get(entry.name.key)
        self._blocks[entry.name.key] = entry
        self.num_bytes += entry.num_bytes - (former.num_bytes if former else 0)

    def remove(self, key: BlockKey) -> None:
        """Remove a block, if it is there."""
        entry = self._blocks.pop(key, None)
        if entry is not None:
            self.num_bytes -= entry.num_bytes

    def replace(self, found: Iterable[BlockFile]) -> tuple[list[IndexEntry], list[BlockName]]:
        """Replace the index by the result of a scan. Return the blocks that are gone, and the names of duplicate files.

        Duplicates should be removed. A known block keeps its flags. Its time of use is the later of the two known
        times. A file that could not be read, and was replaced since, will be read again.
        """
        former, doubles = self._blocks, []
        blocks: dict[BlockKey, IndexEntry] = {}
        for each in found:
            key, known, twin = each.name.key, former.get(each.name.key), blocks.get(each.name.key)
            if twin is not None:
                low, high = sorted((twin.name, each.name), key=lambda name: name.importance)
                doubles.append(low)
                if high is twin.name:
                    continue
            used_s = each.used_s if known is None else max(each.used_s, known.used_s)
            entry = blocks[key] = IndexEntry(each.name, each.num_bytes, used_s)
            if known is not None:
                entry.is_draft, entry.is_doomed = known.is_draft, known.is_doomed
                if not (known.is_unreadable and each.used_s > known.used_s):
                    entry.is_announced, entry.is_unreadable = known.is_announced, known.is_unreadable
        self._blocks = blocks
        self.num_bytes = sum(entry.num_bytes for entry in blocks.values())
        return [entry for key, entry in former.items() if key not in blocks], doubles
