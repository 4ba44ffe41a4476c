"""A model's own work, predicted from the measured times of a calibration."""

from __future__ import annotations

import pytest

from edgeagent.engine.costs.step_shape import StepShape
from edgeagent.engine.costs.work_done import WorkDone
from edgeagent.engine.tuning.own_work import predict_own_work
from edgeagent.engine.tuning.work import Work, tokens_of

DEPTH, NUM_STREAMS = 512, 8


def step_s(shape: StepShape, *, is_flash: bool) -> float:
    """Return the seconds of a step on a machine whose attention takes 1 µs a pair."""
    pairs = shape.num_pairs if is_flash else shape.num_tokens * shape.num_cells
    return 0.01 + 0.001 * shape.num_tokens + 1e-6 * pairs


def calibrated(*, is_flash: bool) -> dict[str, float]:
    """Return the seconds that a calibration of this machine measures."""
    found: dict[str, float] = {}
    for work in Work:
        num_tokens = tokens_of(work)
        match work.partition(" ")[2]:
            case "alone":
                shape = StepShape.alone(num_tokens, 0)
            case "beside":
                shape = StepShape(num_tokens, DEPTH, 0.0)
            case "deep":
                shape = StepShape(num_tokens, DEPTH, num_tokens * DEPTH / NUM_STREAMS)
            case _:
                shape = StepShape.alone(num_tokens, DEPTH)
        found[work] = step_s(shape, is_flash=is_flash)
    return found


@pytest.mark.parametrize("is_flash", [True, False])
@pytest.mark.parametrize(
    "shape",
    [
        StepShape.alone(1, 0),
        StepShape.alone(1, 5000),
        StepShape(1, 4000, 1000.0),
        StepShape(8, 4000, 4000.0),
        StepShape(4, 4000, 2000.0),
        StepShape.alone(16, 3000),
        StepShape(16, 4000, 16 * 1000.0),
        StepShape.alone(64, 100),
        StepShape(128, 2000, 128 * 500.0),
    ],
)
def test_each_kind_of_step_takes_as_long_as_predicted(shape: StepShape, *, is_flash: bool) -> None:
    work = WorkDone()
    for _ in range(3):
        work.note(shape, 1.0)
    predicted = predict_own_work(calibrated(is_flash=is_flash), work.sums(), depth=DEPTH, parallel=NUM_STREAMS)
    assert sum(predicted.values()) == pytest.approx(3 * step_s(shape, is_flash=is_flash), rel=0.02)


def test_a_longer_prompt_takes_proportionally_longer() -> None:
    work, times = WorkDone(), calibrated(is_flash=True)
    work.note(StepShape.alone(512, 0), 1.0)
    predicted = predict_own_work(times, work.sums(), depth=DEPTH, parallel=NUM_STREAMS)
    assert predicted == {"prompt": pytest.approx(4 * times[Work.PROMPT_ALONE])}


def test_one_sequence_has_no_streams_but_drafts() -> None:
    work, times = WorkDone(), calibrated(is_flash=True)
    work.note(StepShape.alone(4, 100), 1.0)
    for parallel in (1, NUM_STREAMS):
        predicted = predict_own_work(times, work.sums(), depth=DEPTH, parallel=parallel)
        assert 0.5 < predicted["streams"] / step_s(StepShape.alone(4, 100), is_flash=True) < 1.5


def test_nothing_is_predicted_if_a_kind_was_not_measured() -> None:
    work, times = WorkDone(), calibrated(is_flash=True)
    work.note(StepShape.alone(1, 100), 1.0)
    del times[Work.TURN_ALONE]
    assert predict_own_work(times, work.sums(), depth=DEPTH, parallel=NUM_STREAMS) == {}
