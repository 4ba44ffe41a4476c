"""The results of drafts, counted for the status and the metrics."""

from __future__ import annotations

import pytest

from edgeagent.engine.speculation.proposals import Tally
from edgeagent.types import DraftCounts


def test_drafts_are_counted_by_length_and_tokens_by_position() -> None:
    tally = Tally()
    tally.add_draft("draft model", 3, 3)
    tally.add_draft("draft model", 3, 1)
    tally.add_draft("draft model", 1, 0)
    tally.add_draft("ngram", 2, 2)
    assert tally.counts() == (
        DraftCounts("draft model", (0, 1, 0, 2), (3, 2, 1), (2, 1, 1)),
        DraftCounts("ngram", (0, 0, 1), (1, 1), (1, 1)),
    )


def test_the_gain_is_against_steps_without_drafts() -> None:
    tally = Tally()
    assert tally.gain == 0.0
    tally.add_step(1, 3, taken_s=0.2, plain_s=0.1)  # without drafts, four tokens would have taken 0.4 s
    assert tally.gain == pytest.approx(2.0)
    tally.add_step(2, 0, taken_s=0.4, plain_s=0.2)  # no draft was accepted: two tokens in twice the time
    assert tally.gain == pytest.approx((0.4 + 0.2) / (0.2 + 0.4))
