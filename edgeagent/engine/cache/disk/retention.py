"""What is worth writing, what goes first when room is needed, and how fast reads are. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from edgeagent.cache_folder import BlockName
from edgeagent.engine.cache.block import Importance

LITTLE_LEFT = 0.25
"""With no more than this part of the hour's allowance left, idle conversations are not written; the status says so."""
# What must be left of the hour's allowance for a block to be written: what matters less yields early, so that a flood
# of prompts seen once leaves room for a system prompt.
_NEEDED_LEFT = {
    Importance.ONCE: 0.5,
    Importance.IDLE: LITTLE_LEFT,
    Importance.REUSED: 0.1,
    Importance.SYSTEM: 0.0,
    Importance.PINNED: 0.0,
}
# How many times longer than one seen once a block may lie unused before it goes; pinned ones stay.
_KEPT_LONGER = {
    Importance.VOLATILE: 1.0,
    Importance.ONCE: 1.0,
    Importance.IDLE: 1.5,
    Importance.REUSED: 3.0,
    Importance.SYSTEM: 8.0,
}
# A partition that holds less than this part of the room keeps its blocks longer, whatever others write.
RESERVED_SHARE = 0.25
_RESERVED_KEPT_LONGER = 8.0


@dataclass(slots=True)
class Held:
    """A block in the index; `used_s` in the store's seconds."""

    name: BlockName
    num_bytes: int
    used_s: float
    epoch: int = 0
    is_draft: bool = False  # as its head says
    is_announced: bool = False  # to the engine, which knows what it offered itself
    is_unreadable: bool = False  # damaged, or another installation's: no lookup finds it; ours may replace it

    @property
    def importance(self) -> Importance:
        """Why it is kept."""
        return Importance(min(self.name.importance, Importance.PINNED))


def is_worth_writing(importance: Importance, *, allowance_left: float) -> bool:
    """Whether to write a block now, by the part (0 to 1) that is left of the bytes per hour."""
    return importance is not Importance.VOLATILE and allowance_left > _NEEDED_LEFT[importance]


def choose_victims(
    blocks: Collection[Held], *, num_bytes: int, max_bytes: int, now_s: float, ttl_s: float
) -> list[Held]:
    """Return what to remove, in this order, so that what is expired goes and at least `num_bytes` are freed.

    1. Blocks that cannot be reached, since an ancestor is gone. 2. Blocks unused for `ttl_s`. 3. The longest unused,
    where time counts less for what is important and for partitions that hold little, except for a draft's: it holds
    little in any case, and its model's matters more. A block counts as used when one of its descendants is, and is
    removed after them. Pinned blocks are removed by rule 1 only.
    """
    reachable, uses, importances = _weigh(blocks)
    bytes_of: dict[bytes, int] = {}
    for held in blocks:
        bytes_of[held.name.root] = bytes_of.get(held.name.root, 0) + held.num_bytes
    ranked = []
    for held in blocks:
        name, key = held.name, held.name.short_key
        age_s = now_s - uses[key]
        if key not in reachable:
            ranked.append((0, -age_s, -name.start, held))
        elif importances[key] is Importance.PINNED:
            continue
        elif age_s > ttl_s:
            ranked.append((1, -age_s, -name.start, held))
        else:
            is_small = not held.is_draft and bytes_of[name.root] <= RESERVED_SHARE * max_bytes
            kept_longer = _KEPT_LONGER[importances[key]] * (_RESERVED_KEPT_LONGER if is_small else 1.0)
            ranked.append((2, -age_s / kept_longer, -name.start, held))
    ranked.sort(key=lambda item: item[:3])
    victims: list[Held] = []
    num_freed = 0
    for rule, _, _, held in ranked:
        if rule == 2 and num_freed >= num_bytes:
            break
        victims.append(held)
        num_freed += held.num_bytes
    return victims


def _weigh(blocks: Collection[Held]) -> tuple[set[bytes], Mapping[bytes, float], Mapping[bytes, Importance]]:
    """Return the blocks that can be reached, and by key the latest use and highest importance among descendants."""
    by_depth = sorted(blocks, key=lambda held: held.name.start)
    reachable: set[bytes] = set()
    for held in by_depth:
        if held.name.is_first or held.name.parent in reachable:
            reachable.add(held.name.short_key)
    uses = {held.name.short_key: held.used_s for held in blocks}
    importances = {held.name.short_key: held.importance for held in blocks}
    for held in reversed(by_depth):
        parent, key = held.name.parent, held.name.short_key
        if parent in uses:
            uses[parent] = max(uses[parent], uses[key])
            importances[parent] = max(importances[parent], importances[key])
    return reachable, uses, importances


class ReadRate:
    """How fast blocks come off the disk, checks included; recent reads count most."""

    def __init__(self, bytes_per_s: float = 0.0) -> None:
        # What an earlier run measured weighs as much as one second of reading.
        self._num_bytes, self._seconds = bytes_per_s, 1.0 if bytes_per_s > 0 else 0.0

    @property
    def bytes_per_s(self) -> float:
        """The rate; 0 while nothing is known."""
        return self._num_bytes / self._seconds if self._seconds > 0 else 0.0

    def observe(self, num_bytes: int, seconds: float) -> None:
        """Take a read into account."""
        keep = 0.9 if self._seconds < 1 else 0.5
        self._num_bytes = keep * self._num_bytes + num_bytes
        self._seconds = keep * self._seconds + max(seconds, 1e-6)
