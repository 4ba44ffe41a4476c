"""A model's own work, predicted from the measured times of a calibration."""

from __future__ import annotations

import pytest

from edgeagent.engine.costs.step_shape import FLASH_TILE, StepShape
from edgeagent.engine.costs.work_done import WorkDone
from edgeagent.engine.tuning.own_work import expected_work
from edgeagent.engine.tuning.workload import TILE_TOKENS, Workload, tokens_of

DEPTH, NUM_STREAMS = 512, 8


def step_s(shape: StepShape, *, is_flash: bool) -> float:
    """Return the seconds of a step on a machine whose attention takes 1 µs a pair."""
    pairs = shape.num_pairs if is_flash else shape.num_tokens * shape.num_cells
    return 0.01 + 0.001 * shape.num_tokens + 1e-6 * pairs


def calibrated(*, is_flash: bool, num_streams: int = NUM_STREAMS) -> dict[str, float]:
    """Return the seconds that a calibration of this machine measures."""
    found: dict[str, float] = {}
    for work in Workload:
        num_tokens = num_streams if work.startswith("streams") else tokens_of(work)
        match work.partition(" ")[2]:
            case "alone":
                shape = StepShape.alone(num_tokens, 0)
            case "beside":
                shape = StepShape(num_tokens, DEPTH, 0.0)
            case "deep":
                shape = StepShape(num_tokens, DEPTH, num_tokens * DEPTH / num_streams)
            case _:
                shape = StepShape.alone(num_tokens, DEPTH)
        found[work] = step_s(shape, is_flash=is_flash)
    return found


def expected(shape: StepShape, *, is_flash: bool, other_s: float = 0.0, parallel: int = NUM_STREAMS) -> list[float]:
    """Return the seconds of three steps expected with flash and with plain attention.

    They were recorded with `is_flash`, and took `other_s` more than the calibration measures.
    """
    work = WorkDone()
    for _ in range(3):
        work.record(shape, step_s(shape, is_flash=is_flash) + other_s)
    seconds = {form: calibrated(is_flash=form == "on", num_streams=parallel) for form in ("on", "off")}
    with_form = "on" if is_flash else "off"
    found = expected_work(seconds, work.sums(), with_form, depth=DEPTH, parallel=parallel, scale=1.0)
    return [sum(each.seconds for each in found[form]) for form in ("on", "off")]


SHAPES = [
    StepShape.alone(1, 0),
    StepShape.alone(1, 5000),
    StepShape(1, 4000, 1000.0),
    StepShape(8, 4000, 4000.0),
    StepShape(4, 4000, 2000.0),
    StepShape.alone(16, 3000),
    StepShape(16, 4000, 16 * 1000.0),
    StepShape.alone(64, 100),
    StepShape(128, 2000, 128 * 500.0),
    StepShape.alone(512, 1000),
]


@pytest.mark.parametrize("is_flash", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_each_form_takes_as_long_as_expected(shape: StepShape, *, is_flash: bool) -> None:
    for other_s in (0.0, 0.05):
        found = expected(shape, is_flash=is_flash, other_s=other_s)
        true = [3 * (step_s(shape, is_flash=each) + other_s) for each in (True, False)]
        assert found == pytest.approx(true, rel=0.02)


def test_the_tile_is_the_one_that_steps_are_padded_to() -> None:
    assert TILE_TOKENS == FLASH_TILE


@pytest.mark.parametrize("num_tokens", [20, 48])
def test_a_turn_is_padded_to_a_tile_where_that_is_faster(num_tokens: int) -> None:
    """Each pair takes ten times as long in a step of fewer tokens than a tile."""
    times = calibrated(is_flash=True)
    times[Workload.TURN_AFTER_TEXT] = times[Workload.TURN_ALONE] + 10 * (
        times[Workload.TURN_AFTER_TEXT] - times[Workload.TURN_ALONE]
    )
    turn, padded = StepShape.alone(num_tokens, 4000), step_s(StepShape.alone(64, 4000), is_flash=True)
    work = WorkDone()
    work.record(turn, padded)
    seconds = {"on": times, "off": calibrated(is_flash=False)}
    found = expected_work(seconds, work.sums(), "on", depth=DEPTH, parallel=NUM_STREAMS, scale=1.0)
    assert found["on"][0].seconds == padded
    assert found["off"][0].seconds == pytest.approx(step_s(turn, is_flash=False), rel=0.02)


def test_without_streams_there_are_still_drafts() -> None:
    drafted = StepShape.alone(4, 1000)
    assert expected(drafted, is_flash=True, parallel=1) == pytest.approx([3 * step_s(drafted, is_flash=True)] * 2)


def test_no_form_takes_less_than_nothing() -> None:
    work = WorkDone()
    work.record(StepShape(1, 8000, 0.0), 1e-4)
    seconds = {"on": calibrated(is_flash=True), "off": calibrated(is_flash=False)}
    found = expected_work(seconds, work.sums(), "off", depth=DEPTH, parallel=4, scale=1.0)
    assert 0 < found["on"][0].seconds < found["off"][0].seconds


def test_nothing_is_known_if_a_kind_was_not_measured_or_nothing_was_recorded() -> None:
    work, times = WorkDone(), calibrated(is_flash=True)
    work.record(StepShape.alone(1, 100), 1.0)
    partly = {each: took_s for each, took_s in times.items() if each != Workload.TURN_ALONE}
    for seconds, sums in (({"on": times, "off": partly}, work.sums()), ({"on": times, "off": times}, ())):
        assert expected_work(seconds, sums, "on", depth=DEPTH, parallel=4, scale=1.0) == {}
