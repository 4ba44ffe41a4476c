"""Garbage collections after `keep_collections_short`."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from edgeagent.short_collections import keep_collections_short


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before, had_frozen = gc.get_threshold(), gc.get_freeze_count() > 0
    yield
    gc.set_threshold(*before)
    if not had_frozen:
        gc.unfreeze()


class Node:
    """An object that refers to itself, so that only a collection frees it."""

    def __init__(self) -> None:
        self.own = self


def test_what_exists_is_left_out_of_collections() -> None:
    before = gc.get_freeze_count()
    node = Node()
    keep_collections_short()
    assert gc.get_freeze_count() > before
    assert not any(each is node for each in gc.get_objects())


@pytest.mark.parametrize("is_enabled", [True, False])
def test_later_cycles_are_still_freed(is_enabled: bool) -> None:
    if not is_enabled:
        gc.disable()  # as during the start-up of a daemon
    keep_collections_short()
    seen = [id(Node()) for _ in range(3000)]
    assert seen
    alive = sum(isinstance(each, Node) for each in gc.get_objects())
    assert alive < 3000


def test_a_collection_of_the_middle_generation_sees_few_objects() -> None:
    keep_collections_short()
    new, young, _ = gc.get_threshold()
    assert new * young <= 2100
