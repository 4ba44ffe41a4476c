"""The batch boundaries of a sequence's output, for recomputing it with the same bits."""

from __future__ import annotations

from edgeagent.engine.replay import BatchEnds


def test_delivered_steps_end_where_their_batches_did() -> None:
    ends = BatchEnds.of_steps(10, (1, 1, 3))  # the first token comes from the prompt's batch
    assert [ends.after(position) for position in (9, 10, 11, 13, 14)] == [10, 11, 14, 14, None]


def test_a_position_is_within_a_batch_only_if_both_its_ends_are_known() -> None:
    ends = BatchEnds([10, 11, 14])
    assert [ends.around(position) for position in (9, 10, 12, 14)] == [None, (10, 11), (11, 14), None]


def test_what_would_take_seconds_is_computed_in_chunks() -> None:
    ends = BatchEnds()
    ends.note(10)
    ends.forget_if_many(512)
    assert ends.after(9) == 10
    ends.forget_if_many(513)
    assert ends.after(9) is None
