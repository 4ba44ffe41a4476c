"""The list of the folder's blocks, in memory. A lookup takes a microsecond.

Only the writer's thread adds and removes blocks. Any thread may look blocks up. Any thread may also forget a partition:
this raises the partition's epoch, and blocks of an earlier epoch are no longer found. No lock is needed: a lookup is
one access to a dictionary, and the fields of a block are changed one at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from edgeagent.cache_folder import ROOT_BYTES, BlockFile, BlockName
from edgeagent.engine.cache.block import BlockKey
from edgeagent.engine.cache.disk.retention import IndexEntry


@dataclass(frozen=True, slots=True)
class Epochs:
    """A copy of all epochs. An epoch counts purges.

    `of_all`: purges of all partitions together. `of_root`: purges of single partitions, by the first ROOT_BYTES of the
    root key.
    """

    of_all: int
    of_root: Mapping[bytes, int]

    def of(self, root: bytes) -> int:
        """Return a partition's epoch, the sum of both counts. Lookups find only blocks with this epoch."""
        return self.of_all + self.of_root.get(root, 0)


class Index:
    """The blocks of the folder by key, and the epochs of partitions."""

    def __init__(self) -> None:
        self._blocks: dict[BlockKey, IndexEntry] = {}
        self._epochs: dict[bytes, int] = {}
        self._epoch = 0  # of all partitions
        self.num_bytes = 0
        """Bytes of all blocks. Forgotten blocks count until their files are removed."""

    def __len__(self) -> int:
        return len(self._blocks)

    def find(self, key: BlockKey) -> IndexEntry | None:
        """Return a block; None if it is missing, forgotten, damaged or unreadable."""
        entry = self._blocks.get(key)
        if entry is None or entry.is_unreadable:
            return None
        return entry if entry.epoch == self.epoch(entry.name.root) else None

    def find_unreadable(self, key: BlockKey) -> IndexEntry | None:
        """Return a block if its file cannot be read; else return None."""
        entry = self._blocks.get(key)
        return entry if entry is not None and entry.is_unreadable else None

    def all(self) -> list[IndexEntry]:
        """Return all blocks, forgotten ones included."""
        return list(self._blocks.values())

    def epoch(self, root: bytes) -> int:
        """Return the current epoch of a partition. Lookups find only blocks with this epoch."""
        return self._epoch + self._epochs.get(root[:ROOT_BYTES], 0)

    def epochs(self) -> Epochs:
        """Return a copy of the epochs.

        Take it before a scan and pass it to `replace`. Then blocks that are forgotten during the scan stay hidden.
        """
        return Epochs(self._epoch, dict(self._epochs))

    def forget(self, root: BlockKey | None) -> int:
        """Hide the present blocks of a partition (None: of all partitions) from lookups; return how many."""
        num_found = sum(
            1
            for entry in self.all()
            if (root is None or entry.name.root == root[:ROOT_BYTES]) and entry.epoch == self.epoch(entry.name.root)
        )
        if root is None:
            self._epoch += 1
        else:
            self._epochs[root[:ROOT_BYTES]] = self._epochs.get(root[:ROOT_BYTES], 0) + 1
        return num_found

    def forgotten(self) -> list[IndexEntry]:
        """Return the blocks that were forgotten, or that a read found damaged or gone. Their files must be removed."""
        return [entry for entry in self.all() if entry.epoch != self.epoch(entry.name.root)]

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

    def replace(self, found: Iterable[BlockFile], epochs: Epochs) -> list[BlockName]:
        """Replace the index by the result of a scan. Return the names of duplicate files, which should be removed.

        `epochs` is a copy from before the scan. A block that was already in the index keeps its epoch and its flags.
        Its time of use is the later of the two known times. A file that could not be read, and was replaced since, will
        be read again.
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
            # A negative epoch: a reader missed the file under its old name.
            is_new = known is None or (known.epoch < 0 and known.name != each.name)
            epoch = epochs.of(each.name.root) if known is None or is_new else known.epoch
            entry = IndexEntry(each.name, each.num_bytes, used_s, epoch)
            entry.is_draft = known is not None and known.is_draft
            # A file that could not be read may have been replaced since.
            if known is not None and not (known.is_unreadable and each.used_s > known.used_s):
                entry.is_announced, entry.is_unreadable = known.is_announced, known.is_unreadable
            blocks[key] = entry
        self._blocks = blocks
        self.num_bytes = sum(entry.num_bytes for entry in blocks.values())
        return doubles
