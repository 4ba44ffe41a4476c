"""A small cache that is divided among the clients."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class PartitionCache(Generic[K, V]):
    """The latest values by partition and key, at most `max_values` in all.

    A partition never finds another one's values. Otherwise the time of an answer would tell a client what others have
    sent. If there are too many values, the partition with the most loses its least recently used one. So no client can
    evict the values of all others.
    """

    def __init__(self, max_values: int) -> None:
        self._max_values = max_values
        self._num_values = 0
        # The least recently used comes first, among the partitions and within each.
        self._partitions: OrderedDict[str, OrderedDict[K, V]] = OrderedDict()

    def get(self, partition: str, key: K) -> V | None:
        """Return a value, which then counts as used; None if there is none."""
        values = self._partitions.get(partition)
        if values is None or key not in values:
            return None
        self._partitions.move_to_end(partition)
        values.move_to_end(key)
        return values[key]

    def put(self, partition: str, key: K, value: V) -> None:
        """Add or replace a value."""
        values = self._partitions.setdefault(partition, OrderedDict())
        self._partitions.move_to_end(partition)
        self._num_values += key not in values
        values[key] = value
        values.move_to_end(key)
        if self._num_values > self._max_values:
            self._evict()

    def _evict(self) -> None:
        partition = max(self._partitions, key=lambda name: len(self._partitions[name]))  # the first of equals
        self._partitions[partition].popitem(last=False)
        self._num_values -= 1
        if not self._partitions[partition]:
            del self._partitions[partition]
