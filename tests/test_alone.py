"""A parallel run counts what a usual run counts, and keeps tests alone that must be."""

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
# Each file has a process. One of its tests leaves a sign that it runs, and those of the others must not see it.
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

def test_beside_others(): pass

@pytest.mark.alone
def test_alone_again(): test_alone(0)
"""
CONFTEST = """
from tests.alone import FewReports

def pytest_configure(config):
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(FewReports())
"""


def run(folder: Path, processes: str, **files: str) -> str:
    """Run pytest on test files; return what it printed."""
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = alone: alone\n", encoding="utf-8")
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "-p", "xdist", "-n", processes]
    return subprocess.run(
        [*command, "--dist", "loadfile"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=patient(60),
    ).stdout


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_run_counts_every_outcome(tmp_path: Path, processes: str) -> None:
    output = run(tmp_path, processes, conftest=CONFTEST, test_a=TESTS)
    assert "1 failed, 2 passed, 1 skipped, 1 xfailed, 2 errors" in output.splitlines()[-1], output
    for said in ("in setup", "in call", "in teardown", "not today"):
        assert said in output


@pytest.mark.slow(seconds=2)
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX alone has shared locks of files")
def test_tests_that_must_be_alone_are(tmp_path: Path) -> None:
    hooks = "from tests.conftest import pytest_configure, pytest_runtest_protocol\n"
    output = run(tmp_path, "2", conftest=hooks, test_a=ALONE, test_b=ALONE)
    assert "44 passed" in output.splitlines()[-1], output
