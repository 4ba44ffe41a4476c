"""The parts of the figures that need no cluster: the table, the check of an answer, and the histogram."""

from __future__ import annotations

import pytest

from tests.cluster.client import Answer
from tests.cluster.figures import PARTS, Part, table
from tests.cluster.measures import BROKEN_TOKENS, Figure, judged, quantile


def test_the_table_has_the_parts_in_their_order_and_says_what_is_missed() -> None:
    figure = Figure("a kill: errors", "3", {"errors": 3}, "0", False)
    gap = Figure("a kill: gap", "2 s", {"s": 2})
    plain = Figure("alone", "1 s", {"s": 1})
    first, second = list(PARTS)[:2]
    kept = {second: Part([figure, gap], "b", "2 cores", 1.0), first: Part([plain], "a", "2 cores", 1.0)}
    assert list(table(kept)) == [
        "2 cores; at commit a, b.",
        "",
        "| | measured | bar | |",
        "|---|---|---|---|",
        "| alone | 1 s | – |  |",
        "| a kill: errors | 3 | 0 | **missed** |",
        "| gap | 2 s | – |  |",
    ]


def test_a_quantile_lies_between_the_bounds_of_its_bucket() -> None:
    counts = {1.0: 50.0, 2.0: 100.0, float("inf"): 100.0}
    assert quantile(counts, 0.25) == 0.5
    assert quantile(counts, 0.75) == 1.5
    assert quantile(counts | {float("inf"): 200.0}, 0.99) == 2.0, "of the last bucket only its beginning is known"


def test_an_answer_that_lacks_a_token_is_not_right(capsys: pytest.CaptureFixture[str]) -> None:
    right = Answer(text="one two", num_tokens=BROKEN_TOKENS, finish_reason="length", handovers=[])
    short = Answer(text="one", num_tokens=BROKEN_TOKENS - 1, finish_reason="length")
    ends, gap, text = judged("broken", [right, short], [0.1, 2.0], [right, right], 1, has_bar=True)
    assert (ends.values["num_right"], ends.is_met) == (1, False)
    assert (gap.values["p95_s"], gap.is_met) == (2.0, False)
    assert (text.values["num_same"], text.is_met) == (1, False)
    assert f"{BROKEN_TOKENS - 1} tokens" in capsys.readouterr().out
