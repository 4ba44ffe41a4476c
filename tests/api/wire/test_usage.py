"""The timings that an answer reports."""

from __future__ import annotations

import pytest

from edgeagent.api.wire.generation import edgeagent_body
from edgeagent.types import Handover, Timings

BEFORE = {"queue": 1.0, "load": 0.0, "render": 2.0, "cache": 3.0, "prefill": 4.0}
REST = {"first_token": 10.0, "decode": 20.0, "delivery": 0.5}


@pytest.mark.parametrize(("num_delivered", "stages"), [(None, BEFORE | REST), (0, BEFORE | REST), (2, REST)])
def test_stages_of_a_worker_that_is_gone_are_left_out(num_delivered: int | None, stages: dict[str, float]) -> None:
    moves = () if num_delivered is None else (Handover("local", "local", num_delivered, "worker_killed"),)
    timings = Timings(
        queue_ms=1.0, render_ms=2.0, cache_ms=3.0, prefill_ms=4.0, first_token_ms=10.0, decode_ms=20.0, handovers=moves
    )
    assert edgeagent_body(timings, 0.5)["stages_ms"] == stages
