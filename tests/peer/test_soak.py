"""Tests of the soak's arithmetic, and a soak of one minute."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from tests.integration.conftest import start_daemon, stop_daemon
from tests.integration.leaks import Holdings
from tests.peer.soak import FLAGS, run
from tests.peer.soak_verdict import Look, drift, growth, judge, percentile

REST = Holdings(60.0, 100.0, 20, 8, 5, 8, 0, 0, 0)


def looks(daemon_mib: list[float]) -> list[Look]:
    """Return one look per second, with these values of the daemon's memory."""
    return [
        Look(float(at_s), replace(REST, daemon_mib=mib, num_cells_used=900), 12, 0.01, [0.1])
        for at_s, mib in enumerate(daemon_mib)
    ]


def test_growth() -> None:
    assert growth([2.0, 1.0, 9.0, 5.0, 5.0, 5.0, 3.0, 4.0, 99.0]) == 2.0
    assert growth([1.0]) == growth([]) == 0.0


def test_percentile() -> None:
    assert percentile([float(value) for value in range(100)], 0.99) == 99.0
    assert percentile([3.0], 0.5) == 3.0
    assert percentile([], 0.5) == 0.0


def test_drift() -> None:
    assert drift([1.0] * 10 + [5.0] * 10 + [2.0] * 10) == 2.0
    assert drift([1.0, 2.0]) == 1.0


def test_what_fills_in_the_first_half_is_flat() -> None:
    filling = [60.0 + min(second, 50) for second in range(120)]
    assert all(line.is_kept for line in judge(looks(filling), [0.01] * 100, REST, REST))


def test_what_goes_on_growing_is_not() -> None:
    lines = judge(looks([60.0 + second / 5 for second in range(120)]), [0.01], REST, REST)
    assert [line.name for line in lines if not line.is_kept] == ["daemon's memory, growth in MiB"]
    assert "NOT FLAT" in str(lines[0])


@pytest.mark.parametrize(
    "left", [{"num_cells_used": 1}, {"daemon_descriptors": 21}, {"worker_descriptors": 9}, {"num_live": 1}]
)
def test_what_is_left_is_not(left: dict[str, int]) -> None:
    lines = judge(looks([60.0] * 120), [0.01], REST, replace(REST, **left))
    assert [line.value for line in lines if not line.is_kept] == [1]


@pytest.mark.slow
def test_a_minute_is_flat(tmp_path: Path) -> None:
    daemon = start_daemon(tmp_path / "state", "builtin", *FLAGS)
    try:
        came = asyncio.run(run(daemon, 1.0, seed=1))
    finally:
        stop_daemon(daemon)
    assert came["against"] == []
