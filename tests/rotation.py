"""A share of the long tests beside the others, chosen by a seed. Continuous integration uses the date as its seed.

Of a test with many cases on one path, the mark `daily` runs some in each run and makes the others slow ones: the first
so many, or those that it names by their ids.

Without a seed a run is the same every day. `ROTATING_TESTS=2026-11-22` selects the share of that day, and gives a share
of the property tests other examples. The end of a run prints the seed and the selected tests.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import hypothesis
import pytest

VARIABLE = "ROTATING_TESTS"
NAME = "rotated"
# The slow tests of a share take this many seconds together on two quiet cores, by their marks: each has had its day
# within about five weeks. A test that takes more than SHORT_S does not fit beside others: each share has one of them,
# of at most MAX_TEST_S.
BUDGET_S = 60.0
SHORT_S = 15.0
MAX_TEST_S = 120.0
# One in this many property tests tries other examples than usual.
PART = 4


def current_seed() -> str | None:
    """Return the seed; None if the run includes no share."""
    return os.environ.get(VARIABLE) or None


def examples_seed(name: str) -> int | None:
    """Return the seed for a property test's examples; None if the test is not in the share."""
    seed = current_seed()
    rank = 0 if seed is None else _rank(seed, name)
    return None if seed is None or rank % PART else rank


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Select the share of slow tests before the others are deselected, and seed the share of property tests."""
    _mark_rest(items)
    seed = current_seed()
    if seed is None:
        return
    for item in choose(items, seed):
        item.own_markers = [mark for mark in item.own_markers if mark.name != "slow"]
        item.user_properties.append((NAME, "slow"))
    for item in items:
        test: Any = getattr(item, "obj", None)
        number = examples_seed(item.nodeid.partition("[")[0])
        if number is not None and getattr(test, "is_hypothesis_test", False):
            hypothesis.seed(number)(getattr(test, "__func__", test))
            item.user_properties.append((NAME, "examples"))


def choose(items: Sequence[pytest.Item], seed: str) -> list[pytest.Item]:
    """Return slow tests in the day's order: short ones within the time budget, and one long one.

    Tests without a stated time are left out.
    """
    timed = [(item, seconds) for item in items if (seconds := _seconds(item)) is not None and seconds <= MAX_TEST_S]
    timed.sort(key=lambda each: _rank(seed, each[0].nodeid))
    chosen = [item for item, seconds in timed if seconds > SHORT_S][:1]
    left_s = BUDGET_S
    for item, seconds in timed:
        if seconds <= min(left_s, SHORT_S):
            chosen.append(item)
            left_s -= seconds
    return chosen


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was selected, and how to select it again."""
    taken: dict[str, str] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport) and report.when == "call":
                taken.update((report.nodeid, str(kind)) for name, kind in report.user_properties if name == NAME)
    if taken:
        terminalreporter.section(f"taken along; again: {VARIABLE}={current_seed()}")
        for nodeid, kind in sorted(taken.items()):
            terminalreporter.line(f"{kind:8} {nodeid}")


def _mark_rest(items: Sequence[pytest.Item]) -> None:
    """Mark as slow all cases of a test but those that its mark `daily` counts or names.

    If it names a case that is not there, none is marked: a case that gets another name is not lost.
    """
    marks: dict[str, pytest.Mark] = {}
    cases: defaultdict[str, dict[str, pytest.Item]] = defaultdict(dict)
    for item in items:
        mark = item.get_closest_marker("daily")
        if mark is not None and item.get_closest_marker("slow") is None:
            name, _, case = item.nodeid.removesuffix("]").partition("[")
            marks[name] = mark
            cases[name][case] = item
    for name, mark in marks.items():
        found = cases[name]
        num_first = sum(each for each in mark.args if isinstance(each, int))
        daily = {*list(found)[:num_first], *(each for each in mark.args if isinstance(each, str))}
        for case in found.keys() - daily if daily <= found.keys() else ():
            found[case].add_marker(pytest.mark.slow(**mark.kwargs))


def _seconds(item: pytest.Item) -> float | None:
    mark = next((mark for mark in item.own_markers if mark.name == "slow"), None)
    return None if mark is None else mark.kwargs.get("seconds")


def _rank(seed: str, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8])
