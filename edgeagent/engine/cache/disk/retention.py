"""Decides which blocks are written to disk and which are evicted first. Measures the read rate. Does no I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from edgeagent.cache_folder import BlockName
from edgeagent.engine.cache.block import Importance

LITTLE_LEFT = 0.25
"""If at most this part of the hour's allowance is left, blocks of importance NORMAL or ONCE wait.

The status then says so.
"""
# A block is written only if more than this part of the hour's allowance is left. Less important blocks need more, so
# that many prompts that are used once do not use up the allowance that a system prompt needs.
_NEEDED_LEFT = {
    Importance.ONCE: 0.5,
    Importance.NORMAL: LITTLE_LEFT,
    Importance.REUSED: 0.1,
    Importance.SYSTEM: 0.0,
    Importance.PINNED: 0.0,
}
# How much longer a block may stay unused than a block that was used once. Pinned blocks are not evicted.
_KEPT_LONGER = {
    Importance.VOLATILE: 1.0,
    Importance.ONCE: 1.0,
    Importance.NORMAL: 1.5,
    Importance.REUSED: 3.0,
    Importance.SYSTEM: 8.0,
}
# A partition with at most this share of the space keeps its blocks longer, however much others write.
RESERVED_SHARE = 0.25
_RESERVED_KEPT_LONGER = 8.0


@dataclass(slots=True)
class IndexEntry:
    """What the index knows of a block. `used_s`: when it was last used, in the store's time."""

    name: BlockName
    num_bytes: int
    used_s: float
    is_draft: bool = False  # as its head says
    is_announced: bool = False  # the engine was told of it
    # Of another installation, or twice not read by the disk: its file stays, and a write may replace it.
    is_unreadable: bool = False
    is_doomed: bool = False  # purged, evicted or damaged; its file is to be removed

    @property
    def importance(self) -> Importance:
        """The block's importance. A higher value, written by a newer version of edgeagent, counts as PINNED."""
        return Importance(min(self.name.importance, Importance.PINNED))


def is_worth_writing(importance: Importance, *, allowance_left: float) -> bool:
    """Whether to write a block now. `allowance_left`: the unused part of the hour's allowance, 0 to 1."""
    return importance is not Importance.VOLATILE and allowance_left > _NEEDED_LEFT[importance]


def choose_victims(
    blocks: Collection[IndexEntry], *, num_bytes: int, max_bytes: int, now_s: float, ttl_s: float
) -> list[IndexEntry]:
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
    victims: list[IndexEntry] = []
    num_freed = 0
    for rule, _, _, entry in ranked:
        if rule == 2 and num_freed >= num_bytes:
            break
        victims.append(entry)
        num_freed += entry.num_bytes
    return victims


def _weigh(blocks: Collection[IndexEntry]) -> tuple[set[bytes], Mapping[bytes, float], Mapping[bytes, Importance]]:
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


class ReadRate:
    """The rate at which blocks are read and checked; recent reads count most."""

    def __init__(self, bytes_per_s: float = 0.0) -> None:
        # The rate of an earlier run counts as one second of reading.
        self._num_bytes, self._seconds = bytes_per_s, 1.0 if bytes_per_s > 0 else 0.0

    @property
    def bytes_per_s(self) -> float:
        """The rate; 0 before the first read if no earlier rate is known."""
        return self._num_bytes / self._seconds if self._seconds > 0 else 0.0

    def observe(self, num_bytes: int, seconds: float) -> None:
        """Add a measured read to the rate."""
        keep = 0.9 if self._seconds < 1 else 0.5
        self._num_bytes = keep * self._num_bytes + num_bytes
        self._seconds = keep * self._seconds + max(seconds, 1e-6)
