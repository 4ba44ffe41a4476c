"""The sums of a model's steps, by their size."""

from __future__ import annotations

import pytest

from edgeagent.engine.costs.step_shape import StepShape
from edgeagent.engine.costs.work_done import WorkDone
from edgeagent.types.choices import StepSums


@pytest.mark.parametrize(
    ("num_tokens", "kind"), [(1, "token"), (2, "streams"), (8, "streams"), (9, "turn"), (63, "turn"), (64, "prompt")]
)
def test_the_size_of_a_step_tells_its_kind(num_tokens: int, kind: str) -> None:
    work = WorkDone()
    work.record(StepShape.alone(num_tokens, 100), 0.5)
    work.record(StepShape.alone(num_tokens, 300), 1.0)
    num_pairs = 400.0 * num_tokens
    assert work.sums() == (StepSums(kind, 2.0, 2.0 * num_tokens, num_pairs, num_pairs, 1.5),)


def test_cells_of_other_sequences_count_apart() -> None:
    work = WorkDone()
    work.record(StepShape(4, 1000, 600.0), 0.1)
    [sums] = work.sums()
    assert (sums.num_pairs, sums.num_products) == (600.0, 4000.0)


def test_a_later_process_goes_on() -> None:
    earlier, later = WorkDone(), WorkDone()
    earlier.record(StepShape.alone(1, 10), 1.0)
    earlier.record(StepShape.alone(100, 0), 2.0)
    later.record(StepShape.alone(1, 30), 3.0)
    later.learn(earlier.sums())
    assert later.sums() == (StepSums("token", 2.0, 2.0, 40.0, 40.0, 4.0), StepSums("prompt", 1.0, 100.0, 0.0, 0.0, 2.0))


def test_unknown_kinds_are_ignored() -> None:
    work = WorkDone()
    work.learn([StepSums("dance", 1.0, 1.0, 0.0, 0.0, 9.0)])
    assert work.sums() == ()


def test_recent_work_counts_more() -> None:
    """A model that was used for prompts, and then for tokens, has tokens for the most part."""
    work = WorkDone()
    for _ in range(100):
        work.record(StepShape.alone(512, 0), 3600.0)
    for _ in range(8):
        work.record(StepShape.alone(1, 0), 3600.0)
    seconds = {each.kind: each.seconds for each in work.sums()}
    assert seconds["token"] > 2 * seconds["prompt"]
    assert sum(seconds.values()) <= 4 * 3600
