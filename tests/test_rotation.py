"""The share of long tests that a seed selects: the same each time, within its time budget, and reported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import rotation
from tests.patience import patient

TESTS = """
import pytest
from hypothesis import given, settings, strategies

@pytest.mark.slow(seconds=2)
@pytest.mark.parametrize("number", range(40))
def test_short(number): pass

@pytest.mark.slow(seconds=100)
@pytest.mark.parametrize("number", range(5))
def test_long(number): pass

@pytest.mark.slow(seconds=900)
def test_longest(): pass

@pytest.mark.slow
def test_unknown(): pass

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
markers = slow: long
testpaths = share
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "share").mkdir()
    (tmp_path / "share" / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (tmp_path / "share" / "test_a.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text(INI, encoding="utf-8")
    return tmp_path


def run(project: Path, seed: str | None, *arguments: str) -> str:
    """Return the output of a run."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment.pop(rotation.VARIABLE, None)
    if seed is not None:
        environment[rotation.VARIABLE] = seed
    command = [sys.executable, "-m", "pytest", *arguments]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=patient(60))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def taken(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("slow ")]


def test_a_seed_takes_its_share_and_says_so(project: Path) -> None:
    output = run(project, "2026-11-28")
    (headline,) = [line for line in output.splitlines() if "taken along" in line]
    assert f"{rotation.VARIABLE}=2026-11-28" in headline
    assert len(taken(output)) == rotation.BUDGET_S / 2 + 1
    assert sum("test_long[" in line for line in taken(output)) == 1, (
        "a test that is too long for the budget has its day"
    )
    assert sum("test_short" in line for line in taken(output)) == rotation.BUDGET_S / 2
    assert taken(run(project, "2026-11-28", "-p", "xdist", "-n", "2")) == taken(output)
    assert taken(run(project, "another day")) != taken(output)
    assert f" passed, {47 - len(taken(output))} deselected in " in output.splitlines()[-1]


def test_a_run_without_a_seed_is_the_same_every_day(project: Path) -> None:
    output = run(project, None)
    assert not taken(output)
    assert "taken along" not in output


def test_a_share_of_the_property_tests_has_other_examples(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_share: list[str] = []
    without: list[str] = []
    for day in map(str, range(40)):
        monkeypatch.setenv(rotation.VARIABLE, day)
        is_taken = rotation.examples_seed("share/test_a.py::test_property") is not None
        (with_share if is_taken else without).append(day)
    assert 4 <= len(with_share) <= 20
    examples = {day: examples_on(project, day) for day in (with_share[0], *without[:2])}
    usual, also_usual = (examples[day] for day in without[:2])
    assert usual == also_usual != examples[with_share[0]]


def test_a_run_says_which_property_tests_had_other_examples(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    days = iter(map(str, range(40)))
    monkeypatch.setenv(rotation.VARIABLE, next(days))
    while rotation.examples_seed("share/test_a.py::test_property") is None:
        monkeypatch.setenv(rotation.VARIABLE, next(days))
    output = run(project, os.environ[rotation.VARIABLE], "share/test_a.py", "-k", "property or seen")
    assert "examples share/test_a.py::test_property" in output.partition("taken along")[2]


def examples_on(project: Path, day: str) -> str:
    """Return the examples that the property test got on a day."""
    output = run(project, day, "share/test_a.py", "-k", "property or seen")
    (line,) = [line for line in output.splitlines() if line.startswith("seen")]
    return line
