"""A run in several processes counts and reports what a usual run does, and keeps tests alone that must be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import patient

TESTS = """
import pytest

@pytest.fixture
def broken():
    raise ValueError("in setup")

@pytest.fixture
def leaking():
    yield
    raise ValueError("in teardown")

def test_good(): pass

def test_bad(): assert False, "in call"

def test_without_setup(broken): pass

def test_without_teardown(leaking): pass

@pytest.mark.skip(reason="not today")
def test_skipped(): pass

@pytest.mark.xfail(reason="known")
def test_known(): assert False
"""
# Each of two files has a process. One of its tests leaves a sign that it runs, and the other one must not see it.
ALONE = """
import time
from pathlib import Path
import pytest

@pytest.mark.alone
@pytest.mark.parametrize("number", range(20))
def test_alone(number):
    running = Path(__file__).parent / "running"
    running.touch(exist_ok=False)
    time.sleep(0.01)
    running.unlink()
"""
DEATH = """
import os, signal

def test_first(): pass

def test_killed(): os.kill(os.getpid(), signal.SIGKILL)

def test_left_out(): pass
"""
GOOD = "import os, pathlib\n\ndef test_good(tmp_path): (pathlib.Path(__file__).parent / tmp_path.parent.name).touch()\n"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only there are processes forked")


def run(folder: Path, *arguments: str, **files: str) -> str:
    """Run pytest on test files; return what it printed."""
    (folder / "conftest.py").write_text("from tests.side_by_side import pytest_addoption, pytest_runtestloop\n")
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = alone: alone\n", encoding="utf-8")
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=patient(60)
    ).stdout


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_run_counts_every_outcome(tmp_path: Path, processes: str) -> None:
    output = run(tmp_path, "--processes", processes, test_a=TESTS)
    assert "1 failed, 2 passed, 1 skipped, 1 xfailed, 2 errors" in output.splitlines()[-1], output
    for said in ("in setup", "in call", "in teardown", "not today"):
        assert said in output


def test_a_process_that_dies_is_a_failure_of_its_test_and_the_others_go_on(tmp_path: Path) -> None:
    good = {f"test_{number}": GOOD for number in range(9)}
    output = run(tmp_path, "--processes", "2", test_death=DEATH, **good)
    assert "1 failed, 10 passed" in output.splitlines()[-1], output
    assert "FAILED test_death.py::test_killed - the process ended with status -9" in output
    assert {path.name for path in tmp_path.glob("p?")} <= {"p0", "p1"}


def test_a_run_that_is_to_end_at_the_first_failure_does(tmp_path: Path) -> None:
    later = {f"test_{number}": GOOD for number in range(200)}
    output = run(tmp_path, "--processes", "2", "-x", test_0_first=TESTS, **later)
    assert "stopping after " in output
    assert " 200 passed" not in output.splitlines()[-1]


def test_tests_that_must_be_alone_are(tmp_path: Path) -> None:
    output = run(tmp_path, "--processes", "3", test_a=ALONE, test_b=ALONE, test_c=ALONE)
    assert "60 passed" in output.splitlines()[-1], output


def test_the_end_of_a_process_is_that_of_its_fixtures(tmp_path: Path) -> None:
    """A fixture of the session ends once in each process that has used it."""
    text = """
import os, pathlib, pytest
folder = pathlib.Path(__file__).parent

@pytest.fixture(scope="session")
def shared():
    yield
    (folder / f"ended-{os.getpid()}").touch(exist_ok=False)

@pytest.mark.parametrize("number", range(9))
def test_used(shared, number): (folder / f"used-{os.getpid()}").touch()
"""
    run(tmp_path, "--processes", "2", test_a=text, test_b=text)
    used = {path.name.partition("-")[2] for path in tmp_path.glob("used-*")}
    assert used == {path.name.partition("-")[2] for path in tmp_path.glob("ended-*")} != set()
