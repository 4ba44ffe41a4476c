"""Pins blocks for lanes. A lane is a conversation; its latest response stays cached until the next one.

All pinned blocks together are limited in bytes. This module evicts nothing. It knows only the keys and sizes of blocks.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from edgeagent.engine.cache.block import BlockKey

MAX_LANES = 256  # the choice of a lane to unpin visits all of them


@dataclass(frozen=True, slots=True)
class _Pin:
    root: BlockKey
    sizes: dict[BlockKey, int]  # bytes by key


class Pins:
    """Pinned blocks of at most MAX_LANES lanes, at most `max_bytes` together.

    If a limit is exceeded, lanes are unpinned. The first is the least recently used lane of the partition with the most
    pinned bytes. The lane that was just pinned stays.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._pins: OrderedDict[str, _Pin] = OrderedDict()  # the least recently used one first
        self._num_pins: Counter[BlockKey] = Counter()
        self._num_bytes = 0

    def __contains__(self, key: BlockKey) -> bool:
        return key in self._num_pins

    def pin(self, lane: str, root: BlockKey, sizes: Mapping[BlockKey, int]) -> set[BlockKey]:
        """Pin blocks of one partition for a lane, instead of its earlier ones. Return the keys that lost their pins.

        `sizes`: the bytes of each block, by key. If all together are more than `max_bytes`, no block is pinned.
        """
        freed = self._unpin(lane)
        if sizes and sum(sizes.values()) <= self._max_bytes:
            self._pins[lane] = _Pin(root, dict(sizes))
            for key, size in sizes.items():
                self._num_bytes += 0 if key in self._num_pins else size
                self._num_pins[key] += 1
            while self._num_bytes > self._max_bytes or len(self._pins) > MAX_LANES:
                freed |= self._unpin(self._choose_lane(lane))
        return freed - self._num_pins.keys()

    def release(self, root: BlockKey | None) -> set[BlockKey]:
        """Unpin all blocks of a partition (None: of all partitions); return their keys."""
        lanes = [lane for lane, pin in self._pins.items() if root in (None, pin.root)]
        freed: set[BlockKey] = set()
        return freed.union(*[self._unpin(lane) for lane in lanes])

    def forget(self, key: BlockKey) -> None:
        """Forget a block that was removed. Blocks that are not pinned are ignored."""
        if key in self._num_pins:
            del self._num_pins[key]
            sizes = [pin.sizes.pop(key) for pin in self._pins.values() if key in pin.sizes]
            self._num_bytes -= sizes[0]

    def _choose_lane(self, latest: str) -> str:
        """Return the least recently used lane, except `latest`, of the partition with the most pinned bytes.

        If that partition has no other lane, return the least recently used lane of all partitions.
        """
        num_bytes: Counter[BlockKey] = Counter()
        for pin in self._pins.values():
            num_bytes[pin.root] += sum(pin.sizes.values())
        ((largest, _),) = num_bytes.most_common(1)
        others = [lane for lane in self._pins if lane != latest]
        return next((lane for lane in others if self._pins[lane].root == largest), others[0])

    def _unpin(self, lane: str) -> set[BlockKey]:
        pin = self._pins.pop(lane, None)
        freed: set[BlockKey] = set()
        for key, size in pin.sizes.items() if pin is not None else ():
            self._num_pins[key] -= 1
            if self._num_pins[key] == 0:
                del self._num_pins[key]
                self._num_bytes -= size
                freed.add(key)
        return freed
