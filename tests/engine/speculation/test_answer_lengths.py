"""How long an answer will last, by the answers before it."""

from __future__ import annotations

import pytest

from edgeagent.engine.speculation.answer_lengths import AnswerLengths


def test_an_unknown_answer_gets_as_many_tokens_again() -> None:
    lengths = AnswerLengths()
    assert [lengths.expected_more(number) for number in (0, 1, 100)] == [0, 1, 100]


def test_earlier_answers_tell_what_to_expect() -> None:
    lengths = AnswerLengths()
    for length in (0, 20, 20, 128):  # an answer without tokens tells nothing
        lengths.add(length)
    assert lengths.expected_more(0) == pytest.approx(168 / 4)
    assert lengths.expected_more(19) == pytest.approx((1 + 1 + 109 + 19) / 4)
    assert lengths.expected_more(20) == pytest.approx((108 + 20) / 2), "it lasts longer than two of the three"
    assert lengths.expected_more(128) == 128, "none was longer"


def test_old_answers_are_forgotten() -> None:
    lengths = AnswerLengths()
    lengths.add(10_000)
    for _ in range(32):
        lengths.add(10)
    assert lengths.expected_more(5) == 5
