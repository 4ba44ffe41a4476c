"""Types, by mypy, as a test: it computes in one process, and other tests run beside it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import patient

ROOT = Path(__file__).resolve().parent.parent
# Without a cache it takes a minute of CPU time.
TIMEOUT_S = patient(600)


@pytest.mark.timeout(TIMEOUT_S)
def test_everything_has_the_types_that_it_says() -> None:
    done = subprocess.run([sys.executable, "-m", "mypy"], cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
