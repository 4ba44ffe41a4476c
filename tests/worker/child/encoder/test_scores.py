"""A ranking model's outputs as a relevance between 0 and 1."""

from __future__ import annotations

import numpy as np
import pytest

from edgeagent.worker.child.encoder.scores import relevance


@pytest.mark.parametrize(
    ("classes", "expected"),
    [([0.0], 0.5), ([2.0], 0.880797), ([-2.0], 0.119203), ([1000.0], 1.0), ([-1000.0], 0.0), ([0.75, 0.25], 0.75)],
)
def test_relevance(classes: list[float], expected: float) -> None:
    assert relevance(np.array(classes, np.float32)) == pytest.approx(expected, abs=1e-6)
