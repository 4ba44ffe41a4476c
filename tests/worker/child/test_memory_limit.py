"""A worker may take what it plans to take, and a limited number of bytes beyond that."""

from __future__ import annotations

from edgeagent.worker.child.process import MAX_UNPLANNED_BYTES, MemoryLimit

MB = 1 << 20
MOST = MAX_UNPLANNED_BYTES


def test_what_a_worker_takes_beyond_its_load_is_limited() -> None:
    limit = MemoryLimit(900 * MB)
    own = (900 * MB, 90 * MB, 900 * MB + MOST, 901 * MB + MOST)
    assert [limit.excess(each, 0) for each in own] == [0, 0, 0, MOST + MB]


def test_what_is_planned_counts_for_nothing_even_after_its_end() -> None:
    limit = MemoryLimit(100 * MB)
    assert limit.excess(4100 * MB, 4000 * MB) == 0
    assert limit.excess(4100 * MB + MOST, 0) == 0, "freed memory may stay with the process"
    assert limit.excess(4101 * MB + MOST, 2000 * MB) == MOST + MB


def test_nothing_is_limited_where_the_system_does_not_tell() -> None:
    limit = MemoryLimit(0)
    assert [limit.excess(0, planned * MB) for planned in (0, 100, 0)] == [0, 0, 0]
