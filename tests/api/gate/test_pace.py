"""How often a client may do something: bursts, and a rate."""

from __future__ import annotations

import pytest

from edgeagent.daemon.transport import Pace
from tests.fakes import FakeClock


def test_a_pace_lets_a_burst_through_and_then_so_many_a_second() -> None:
    clock = FakeClock()
    pace = Pace(10.0, 5, clock)
    waits: list[float] = []
    for _ in range(8):
        waits.append(pace.take())
        clock.advance(waits[-1])
    assert waits == pytest.approx([0, 0, 0, 0, 0, 0.1, 0.1, 0.1])
    clock.advance(0.25)
    waits = [pace.take() for _ in range(3)]
    assert waits == pytest.approx([0, 0, 0.05]), "a quarter of a second's rest is worth two and a half"
    clock.advance(60.0)
    assert [pace.take() for _ in range(6)] == pytest.approx([0, 0, 0, 0, 0, 0.1]), "and no rest more than a burst"
