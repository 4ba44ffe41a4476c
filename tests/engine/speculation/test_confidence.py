"""How much the draft model's probabilities mean, and where they end a draft."""

from __future__ import annotations

import math

import numpy as np
import pytest

from edgeagent.engine.speculation.acceptance import Confidence, Ending, min_chances


def logits(*probabilities: float) -> np.ndarray:
    return np.log(np.array(probabilities, np.float32)) + 7


def test_the_probability_of_the_likeliest_token() -> None:
    confidence = Confidence()
    assert confidence.probability(logits(0.2, 0.5, 0.3), 1) == pytest.approx(0.5)
    assert confidence.probability(np.zeros(1000, np.float32), 3) == pytest.approx(0.001)
    assert confidence.probability(np.array([-math.inf, 0.0], np.float32), 1) == 1.0


def test_at_first_a_probability_is_believed_and_then_what_it_showed() -> None:
    confidence = Confidence()
    assert confidence.chance(0.97) == 0.97
    for _ in range(200):
        confidence.observe([0.97, 0.96], 1)
    assert confidence.chance(0.97) == pytest.approx(0.5, abs=0.05), "half of the tokens at such a probability accepted"
    assert confidence.chance(0.55) == 0.55, "nothing was seen of it"


def test_tokens_behind_a_refused_one_tell_nothing() -> None:
    confidence = Confidence()
    confidence.observe([0.5, 0.97, 0.97], 0)
    assert confidence.chance(0.97) == 0.97
    assert confidence.chance(0.5) < 0.5


def test_it_ends_where_all_of_it_is_too_unlikely_to_stand() -> None:
    ending = Ending(Confidence(), [0.6, 0.6, 0.6], count=4)
    assert ending.record_and_decide(logits(0.9, 0.1), 0)
    assert ending.record_and_decide(logits(0.8, 0.2), 0)
    assert not ending.record_and_decide(logits(0.7, 0.3), 0), "0.9 x 0.8 x 0.7 = 0.5"
    assert ending.is_early
    assert ending.probabilities == pytest.approx([0.9, 0.8, 0.7])
    whole = Ending(Confidence(), [0.6], count=2)
    assert whole.record_and_decide(logits(0.9, 0.1), 0) and whole.record_and_decide(logits(0.1, 0.9), 0), (
        "it has its full length"
    )
    assert not whole.is_early


def test_what_costs_little_needs_little() -> None:
    # A step of 10 ms gives 100 tokens per second; the 4 tokens of a tile cost as much as one.
    flat, dear = [0.010] * 5, [0.010 * count for count in range(1, 6)]
    assert min_chances(100, 0.9, flat) == [0.0, 0.0, 0.0]
    assert min(min_chances(100, 0.9, [step_s + 0.001 * n for n, step_s in enumerate(dear)])) > 1, "never worth it"
    cheap, dearer = (min_chances(100, 0.9, [0.010 + step_s * n for n in range(5)]) for step_s in (0.001, 0.002))
    assert all(0 < less < more for less, more in zip(cheap, dearer, strict=True))


def test_a_dear_token_is_worth_it_for_those_behind_it() -> None:
    found = min_chances(150, 0.95, [0.010] * 4 + [0.016] * 4)  # 0 to 3 tokens of a draft, and 4 to 7
    assert found[2] == pytest.approx(150 * 0.006 / (0.95 + 0.95**2 + 0.95**3 + 0.95**4))
    assert found[3:] == [0.0, 0.0, 0.0]


def test_a_draft_of_its_planned_length_that_does_not_grow_has_not_ended_early() -> None:
    ending = Ending(Confidence(), [0.6, 0.6, 0.6], count=2)
    assert ending.record_and_decide(logits(0.9, 0.1), 0)
    assert not ending.record_and_decide(logits(0.6, 0.4), 0)
    assert not ending.is_early, "nothing is known of a third token"


def test_what_is_cut_off_tells_nothing() -> None:
    ending = Ending(Confidence(), [0.6, 0.6], count=3)
    assert ending.record_and_decide(logits(0.9, 0.1), 0)
    assert not ending.record_and_decide(logits(0.6, 0.4), 0)
    ending.cut(2)
    assert ending.is_early, "nothing was cut off"
    ending.cut(1)
    assert not ending.is_early
    assert ending.probabilities == pytest.approx([0.9])
