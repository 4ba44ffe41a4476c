"""How long tests wait for what must happen: long enough for a machine that does other work too.

A wait ends as soon as what it waits for has happened, so patience costs time only where a test fails anyway.
"""

from __future__ import annotations

import os

PATIENCE = float(os.environ.get("TEST_PATIENCE", "3"))


def patient(seconds: float) -> float:
    """Return how long to wait for what takes at most `seconds` on a quiet machine."""
    return PATIENCE * seconds
