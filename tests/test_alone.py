"""A parallel run with fewer reports counts what a usual run counts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
CONFTEST = """
from tests.alone import FewReports

def pytest_configure(config):
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(FewReports())
"""


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_run_counts_every_outcome(tmp_path: Path, processes: str) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (tmp_path / "test_a.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "-p", "xdist", "-n", processes]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert "1 failed, 2 passed, 1 skipped, 1 xfailed, 2 errors" in done.stdout.splitlines()[-1], done.stdout
    for said in ("in setup", "in call", "in teardown", "not today"):
        assert said in done.stdout
