"""Where a prompt differs from an earlier one, and which tokens both have behind the difference."""

from __future__ import annotations

import random
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.engine.cache.cached_prefix import MIN_LOST, Run
from edgeagent.engine.cache.prefix_store import _MAX_SEARCHED, MIN_RUN, diverge, find_divergence
from edgeagent.engine.cache.radix_tree import RadixTree

TEXT = array("i", random.Random(7).choices(range(1000), k=900))


def changed(at: int, num_old: int, num_new: int) -> array[int]:
    """Return TEXT with `num_new` other tokens instead of the `num_old` ones at position `at`."""
    return TEXT[:at] + array("i", range(5000, 5000 + num_new)) + TEXT[at + num_old :]


@pytest.mark.parametrize(("num_old", "num_new"), [(3, 3), (2, 9), (5, 0), (0, 4)])
def test_a_changed_span_leaves_one_run_behind_it(num_old: int, num_new: int) -> None:
    found = diverge(TEXT, changed(40, num_old, num_new))
    assert (found.at, found.runs) == (40, (Run(40 + num_old, 40 + num_new, len(TEXT) - 40 - num_old),))


def test_a_clock_and_a_room_leave_two_runs() -> None:
    both = changed(40, 2, 3)
    both[300] = 7000
    assert diverge(TEXT, both).runs == (Run(42, 43, 257), Run(300, 301, 600))


def test_what_was_dropped_from_the_beginning_of_a_conversation_is_skipped() -> None:
    assert diverge(TEXT, TEXT[:50] + TEXT[350:]).runs == (Run(350, 50, 550),)


def test_of_long_prompts_only_the_first_tokens_are_searched() -> None:
    old = array("i", random.Random(9).choices(range(1000), k=4 * _MAX_SEARCHED))
    new, far = array("i", old), _MAX_SEARCHED + 500
    new[40] = new[far] = 7000
    assert diverge(old, new).runs == (Run(41, 41, far - 41),), "a run is found as a whole, and none that begins later"


def test_other_prompts_share_nothing_behind_their_beginning() -> None:
    other = TEXT[:50] + array("i", random.Random(8).choices(range(1000), k=900))
    assert diverge(TEXT, other).runs == ()


@given(old=st.lists(st.integers(0, 1), max_size=120), new=st.lists(st.integers(0, 1), max_size=120))
def test_runs_are_equal_ordered_and_long(old: list[int], new: list[int]) -> None:
    found = diverge(array("i", old), array("i", new))
    assert old[: found.at] == new[: found.at]
    before = Run(found.at, found.at, 0)
    for run in found.runs:
        assert run.length >= MIN_RUN
        assert old[run.old : run.old + run.length] == new[run.new : run.new + run.length]
        assert run.old >= before.old + before.length
        assert run.new >= before.new + before.length
        before = run


def test_of_the_prompts_that_share_the_beginning_the_most_similar_is_compared() -> None:
    tree = RadixTree()
    other = TEXT[:41] + array("i", range(2000, 2000 + 2 * MIN_LOST))
    for seq_id, tokens in enumerate((TEXT, other, TEXT[:60])):
        tree.insert(seq_id, b"client")
        tree.extend(seq_id, tokens)
    prompt = changed(40, 3, 3)
    found = find_divergence(tree.walk(b"client", prompt), prompt)
    assert found is not None
    assert (found.at, found.num_lost, found.earlier) == (40, len(TEXT) - 43, TEXT)
    assert find_divergence(tree.walk(b"another client", prompt), prompt) is None
    assert find_divergence(tree.walk(b"client", TEXT), TEXT) is None
