"""The table of stages."""

from __future__ import annotations

from edgeagent.cli.conversation import STAGES, stage_table
from edgeagent.cli.display import aligned
from edgeagent.client import Answer


def _answer(**timings: float) -> Answer:
    return Answer(
        usage={"input_tokens": 30, "input_tokens_details": {"cached_tokens": 20}, "output_tokens": 8},
        timings={"predicted_per_second": 98.76, **timings},
        edgeagent={"stages_ms": {stage: index + 0.25 for index, stage in enumerate(STAGES)}},
    )


def test_a_row_for_each_stage_and_a_column_for_each_answer() -> None:
    lines = stage_table({"first": _answer(), "second": Answer()}).splitlines()
    assert lines[0].split() == ["milliseconds", "first", "second"]
    for index, meaning in enumerate(STAGES.values()):
        assert lines[1 + index].startswith(meaning)
        assert lines[1 + index].split()[-2:] == [f"{index + 0.25:.1f}", "-"]
    assert lines[-2].endswith("30 (20) + 8  0 (0) + 0")
    assert lines[-1].split() == ["tokens", "per", "second", "98.8", "0.0"]


def test_drafts_are_told_where_there_were_some() -> None:
    table = stage_table({"a": _answer(draft_n=12, draft_n_accepted=9), "b": _answer()})
    assert table.splitlines()[-1].split() == ["draft", "tokens", "accepted", "9", "of", "12", "-"]


def test_columns_line_up() -> None:
    assert aligned([["a", "bb"], ["ccc", "d"]]) == "a    bb\nccc   d"
