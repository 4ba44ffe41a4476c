"""The padding is chosen by measured times: machines with opposite costs get opposite paddings."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from edgeagent.engine.tuning.attention import Attention
from edgeagent.engine.tuning.choices import decide
from edgeagent.engine.tuning.padding import PADDING_WORKS, WeightPadding, choose_padding
from edgeagent.engine.tuning.workload import Workload, tokens_of
from edgeagent.types.choices import SavedTuning
from tests.engine.tuning.machines import CANDIDATES, CONTEXT_SIZE, NUM_LAYERS, Machine

USUAL = WeightPadding(8, 3)


def in_tiles(tile: int) -> Callable[[int], float]:
    """A machine that multiplies whole tiles as quickly as a single one of the remaining tokens."""
    return lambda number: 0.01 + 0.002 * (number // tile + number % tile)


def times(step_s: Callable[[int], float]) -> dict[str, float]:
    return {str(work): step_s(tokens_of(work)) for work in PADDING_WORKS}


@pytest.mark.parametrize(
    ("step_s", "expected"),
    [
        pytest.param(in_tiles(4), WeightPadding(4, 1), id="tiles of 4"),
        pytest.param(in_tiles(8), WeightPadding(8, 3), id="tiles of 8"),
        pytest.param(in_tiles(16), WeightPadding(16, 3), id="tiles of 16"),
        pytest.param(in_tiles(1), WeightPadding(), id="no tiles"),
        pytest.param(lambda number: 0.01 if number != 15 else 0.011, WeightPadding(16, 1), id="only one token more"),
        pytest.param(lambda number: 0.01 - 0.001 * (number == 4), WeightPadding(), id="four tokens only, as by chance"),
    ],
)
def test_batches_are_padded_to_the_tiles_of_the_machine(
    step_s: Callable[[int], float], expected: WeightPadding
) -> None:
    padding, choice = choose_padding(times(step_s), USUAL)
    assert padding == expected
    assert (choice.by, choice.value) == ("measurement", str(expected))


@pytest.mark.parametrize("missing", PADDING_WORKS)
def test_the_usual_padding_is_used_if_a_time_is_missing(missing: Workload) -> None:
    seconds = times(in_tiles(1))
    del seconds[str(missing)]
    padding, choice = choose_padding(seconds, USUAL)
    assert (padding, choice.by) == (USUAL, "default")


@pytest.mark.parametrize(("tile", "expected"), [(1, WeightPadding()), (4, WeightPadding(4, 1))])
@pytest.mark.parametrize("candidates", [CANDIDATES, CANDIDATES[:3]])
def test_a_calibration_measures_it_beside_the_other_choices(
    tile: int, expected: WeightPadding, candidates: tuple[Attention, ...]
) -> None:
    machine = Machine(lambda _, work: 1e-3 * in_tiles(tile)(tokens_of(work)) / tokens_of(work))
    found = machine.calibrate(candidates, has_padding=True)
    assert found is not None and found.is_whole and machine.clock.now_s <= 2.0
    decision = decide(candidates, found, CONTEXT_SIZE, num_layers=NUM_LAYERS, usual_padding=USUAL)
    assert decision.weight_padding == expected
    assert [choice.name for choice in decision.choices] == ["flash attention", "micro-batch", "padding for weights"]


@pytest.mark.parametrize("token_s", [1e-6, 1e-5, 3e-5, 1e-4, 2e-4, 3e-4, 1e-3])
@pytest.mark.parametrize("budget_s", [0.8, 2.0])
def test_it_takes_little_from_the_other_choices(token_s: float, budget_s: float) -> None:
    """What is measured without it in nine tenths of the time is measured with it too."""
    without = Machine(lambda _, __: token_s).calibrate(budget_s=0.9 * budget_s)
    with_padding = Machine(lambda _, __: token_s).calibrate(budget_s=budget_s, has_padding=True)
    if without is not None and without.is_whole:
        assert with_padding is not None and with_padding.is_whole


@pytest.mark.parametrize("is_flash", [True, False])
def test_the_measured_padding_is_used_with_any_form_of_attention(*, is_flash: bool) -> None:
    machine = Machine(lambda _, work: 1e-3 * in_tiles(1)(tokens_of(work)) / tokens_of(work))
    found = machine.calibrate(has_padding=True)
    former = SavedTuning({}, None, is_flash, 512, 1)
    decision = decide(
        CANDIDATES,
        found,
        CONTEXT_SIZE,
        num_layers=NUM_LAYERS,
        former=former,
        keep_former_form=True,
        usual_padding=USUAL,
    )
    assert (decision.attention.flash == "on", decision.weight_padding) == (is_flash, WeightPadding())


def test_a_model_that_cannot_be_padded_has_no_such_choice() -> None:
    machine = Machine(lambda _, __: 1e-5)
    found = machine.calibrate()
    assert not {work for _, _, work in machine.asked} & {*PADDING_WORKS}
    decision = decide(CANDIDATES, found, CONTEXT_SIZE, num_layers=NUM_LAYERS)
    assert decision.weight_padding is None and len(decision.choices) == 2


@pytest.mark.parametrize(
    ("padding", "text"),
    [
        (WeightPadding(), "none"),
        (WeightPadding(4, 3), "1 token to a multiple of 4, and up to 3 tokens to a multiple of 16"),
        (WeightPadding(4, 1), "1 token to a multiple of 4"),
        (WeightPadding(16, 3), "up to 3 tokens to a multiple of 16"),
    ],
)
def test_it_is_shown_in_words(padding: WeightPadding, text: str) -> None:
    assert str(padding) == text
