"""The share of long tests that a seed selects: the same each time, within its time budget, and reported."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests import rotation
from tests.patience import patient

TESTS = """
import pytest
from hypothesis import given, settings, strategies

@pytest.mark.slow(seconds=2)
@pytest.mark.parametrize("number", range(80))
def test_short(number): pass

@pytest.mark.slow(seconds=100)
@pytest.mark.parametrize("number", range(5))
def test_long(number): pass

@pytest.mark.slow(seconds=900)
def test_longest(): pass

@pytest.mark.slow
def test_unknown(): pass

@pytest.mark.daily(2)
@pytest.mark.parametrize("number", range(5))
def test_first_cases(number): pass

@pytest.mark.daily(1, "3")
@pytest.mark.parametrize("number", range(5))
def test_named_cases(number): pass

@pytest.mark.daily("three")
@pytest.mark.parametrize("number", range(5))
def test_lost_name(number): pass

SEEN = []

@settings(derandomize=True, max_examples=5, database=None)
@given(strategies.integers())
def test_property(number):
    SEEN.append(number)

def test_seen():
    print("seen", SEEN)
"""
CONFTEST = """
from tests.rotation import pytest_collection_modifyitems, pytest_terminal_summary
"""
INI = """
[pytest]
addopts = -q -rA -m "not slow" -p no:cacheprovider
markers =
    slow: long
    daily: first or named cases
testpaths = share
"""


Run = Callable[..., str]
DAYS = tuple(map(str, range(40)))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a function from a seed and arguments to the output of a run, which runs once."""
    project = tmp_path_factory.mktemp("project")
    (project / "share").mkdir()
    (project / "share" / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (project / "share" / "test_a.py").write_text(TESTS, encoding="utf-8")
    (project / "pytest.ini").write_text(INI, encoding="utf-8")

    @cache
    def once(seed: str | None, *arguments: str) -> str:
        environment = {
            **os.environ,
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        environment.pop(rotation.VARIABLE, None)
        if seed is not None:
            environment[rotation.VARIABLE] = seed
        command = [sys.executable, "-m", "pytest", *arguments]
        done = subprocess.run(
            command, cwd=project, env=environment, capture_output=True, text=True, timeout=patient(60)
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return once


@pytest.fixture
def days(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[str]]:
    """Return the days on which the property test is in the share, and the others."""
    with_share: list[str] = []
    without: list[str] = []
    for day in DAYS:
        monkeypatch.setenv(rotation.VARIABLE, day)
        is_taken = rotation.examples_seed("share/test_a.py::test_property") is not None
        (with_share if is_taken else without).append(day)
    return with_share, without


def taken(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("slow ")]


def test_a_seed_takes_its_share_and_says_so(run: Run, days: tuple[list[str], list[str]]) -> None:
    (day, *_), (another_day, *_) = days
    output = run(day)
    (headline,) = [line for line in output.splitlines() if "taken along" in line]
    assert f"{rotation.VARIABLE}={day}" in headline
    assert len(taken(output)) == rotation.BUDGET_S / 2 + 1
    assert sum("test_long[" in line for line in taken(output)) == 1, (
        "a test that is too long for the budget has its day"
    )
    assert sum("test_short" in line for line in taken(output)) == rotation.BUDGET_S / 2
    assert taken(run(day, "-p", "xdist", "-n", "2")) == taken(output)
    assert taken(run(another_day)) != taken(output)
    assert f" passed, {93 - len(taken(output))} deselected in " in output.splitlines()[-1]


def test_a_run_without_a_seed_is_the_same_every_day(run: Run) -> None:
    output = run(None)
    assert not taken(output)
    assert "taken along" not in output


@pytest.mark.parametrize(
    ("name", "daily"), [("test_first_cases", "01"), ("test_named_cases", "03"), ("test_lost_name", "01234")]
)
def test_a_test_s_first_or_named_cases_run_each_day_and_the_others_are_slow(run: Run, name: str, daily: str) -> None:
    def cases(output: str) -> str:
        return "".join(line.partition(f"{name}[")[2][0] for line in output.splitlines() if f"{name}[" in line)

    assert cases(run(None)) == daily
    assert cases(run(None, "-m", "slow")) == "".join(each for each in "01234" if each not in daily)


def test_a_share_of_the_property_tests_has_other_examples(run: Run, days: tuple[list[str], list[str]]) -> None:
    with_share, without = days
    assert 4 <= len(with_share) <= 20
    usual, also_usual, others = (examples(run(day)) for day in (*without[:2], with_share[0]))
    assert usual == also_usual != others


def test_a_run_says_which_property_tests_had_other_examples(run: Run, days: tuple[list[str], list[str]]) -> None:
    with_share, without = days
    said = "examples share/test_a.py::test_property"
    assert said in run(with_share[0]).partition("taken along")[2]
    assert said not in run(without[0])


def examples(output: str) -> str:
    """Return the examples that the property test got in a run."""
    (line,) = [line for line in output.splitlines() if line.startswith("seen")]
    return line
