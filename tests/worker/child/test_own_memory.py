"""A long prompt's own context does not count as memory of the prompt that is prepared beside it."""

from __future__ import annotations

from edgeagent.worker.child.own_memory import OwnMemory

MB = 1 << 20


def test_without_a_context_all_is_told() -> None:
    memory = OwnMemory()
    assert [memory.without_side(each * MB, 0) for each in (100, 1500, 90)] == [100 * MB, 1500 * MB, 90 * MB]


def test_what_a_context_takes_and_gives_back_is_left_out() -> None:
    memory = OwnMemory()
    memory.without_side(100 * MB, 0)
    assert [memory.without_side(each * MB, 4000 * MB) for each in (100, 2000, 4100)] == [100 * MB] * 3
    assert [memory.without_side(each * MB, 0) for each in (4100, 900, 100, 140)] == [100 * MB] * 3 + [140 * MB]


def test_what_comes_beyond_it_is_told() -> None:
    memory = OwnMemory()
    memory.without_side(100 * MB, 0)
    assert memory.without_side(3200 * MB, 2000 * MB) == 1200 * MB
    assert memory.without_side(3200 * MB, 0) == 1200 * MB
