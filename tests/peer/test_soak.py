"""The soak's arithmetic, and a minute of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.integration.conftest import start_daemon, stop_daemon
from tests.peer.soak import FLAGS, LIMITS, complaints, drift, percentile, run, slope


def test_slope() -> None:
    assert slope([(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]) == pytest.approx(2.0)
    assert slope([]) == slope([(1.0, 1.0)]) == slope([(1.0, 1.0), (1.0, 2.0)]) == 0.0


def test_percentile() -> None:
    assert percentile([float(value) for value in range(100)], 0.99) == 99.0
    assert percentile([3.0], 0.5) == 3.0
    assert percentile([], 0.5) == 0.0


def test_drift() -> None:
    assert drift([1.0] * 10 + [5.0] * 10 + [2.0] * 10) == 2.0
    assert drift([1.0, 2.0]) == 1.0


def test_what_grows_is_complained_about() -> None:
    assert complaints(dict.fromkeys(LIMITS, 0.0)) == []
    assert complaints(dict.fromkeys(LIMITS, 0.0) | {"daemon_growth_mib": 11.0, "daemon_descriptors_more": 1.0}) == [
        "daemon_growth_mib is 11, more than 10",
        "daemon_descriptors_more is 1, more than 0",
    ]


@pytest.mark.slow
def test_a_minute_is_flat(tmp_path: Path) -> None:
    daemon = start_daemon(tmp_path / "state", "builtin", *FLAGS)
    try:
        came = asyncio.run(run(daemon, 1.0, seed=1))
    finally:
        stop_daemon(daemon)
    assert came["against"] == []
