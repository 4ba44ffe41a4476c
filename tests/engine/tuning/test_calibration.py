"""The calibration keeps its budget, treats all candidates alike, and ignores samples that other programs disturbed."""

from __future__ import annotations

import pytest

from edgeagent.engine.tuning.attention import Attention
from edgeagent.engine.tuning.calibration import most_probes
from edgeagent.engine.tuning.choices import decide
from edgeagent.engine.tuning.workload import Workload, tokens_of
from tests.engine.tuning.machines import CANDIDATES, CONTEXT_SIZE, NUM_LAYERS, Machine, cheap


@pytest.mark.parametrize("token_s", [1e-7, 1e-5, 1e-3, 0.1, 10.0])
def test_whatever_the_model_it_ends_in_time(token_s: float) -> None:
    machine = Machine(lambda _, __: token_s, open_s=0.01)
    found = machine.calibrate(budget_s=2.0)
    assert machine.clock.now_s <= 2.0 + 0.01
    assert machine.num_open == 0
    assert found is None or found.took_s <= 2.0 + 0.01
    decide(CANDIDATES, found, CONTEXT_SIZE, num_layers=NUM_LAYERS)


def test_a_quick_model_is_measured_whole_and_a_slow_one_by_one_layer() -> None:
    quick, slow = Machine(lambda _, __: 1e-7).calibrate(), Machine(lambda _, __: 1e-4).calibrate()
    assert quick is not None
    assert slow is not None
    assert (quick.num_layers, slow.num_layers) == (NUM_LAYERS, 1)
    assert quick.is_whole


def test_what_not_all_candidates_did_is_not_counted() -> None:
    """If the budget ends within a round, one candidate has measured one work more than the others."""
    for hundredths in range(1, 100):
        found = Machine(cheap("off", 128)).calibrate(budget_s=hundredths / 400)
        if found is None:
            continue
        by_phase: dict[bool, list[set[str]]] = {True: [], False: []}
        for each in found.candidates:
            by_phase["batch behind" in each.seconds].append(set(each.seconds))
        for works in by_phase.values():
            assert all(each == works[0] for each in works)


def test_candidates_are_measured_in_turn() -> None:
    machine = Machine(lambda _, __: 1e-5)
    machine.calibrate()
    forms = [flash for flash, _, work in machine.asked if work is Workload.PROMPT_AFTER_TEXT]
    assert forms[:4] == ["on", "off", "on", "off"]


def test_a_disturbed_time_is_not_counted() -> None:
    """Another program uses a core during a fifth of the samples, which then take twice as long."""
    disturbed = Machine(cheap("off", 128))
    disturbed.shares = [1.0, 1.0, 1.0, 1.0, 0.5] * 2000
    cost, numbers = disturbed.cost, iter(range(10_000))
    disturbed.cost = lambda attention, work: cost(attention, work) * (2 if next(numbers) % 5 == 4 else 1) * 50
    found = disturbed.calibrate(budget_s=100.0)
    assert found is not None
    assert found.is_whole
    for each in found.candidates:
        attention = Attention("on" if each.is_flash else "off", each.micro_batch)
        for work, seconds in each.seconds.items():
            undisturbed_s = cost(attention, Workload(work)) * 50 * tokens_of(Workload(work)) * found.num_layers
            assert seconds == pytest.approx(undisturbed_s) or seconds < 0.02


def test_a_clock_that_stands_still_measures_no_zero() -> None:
    found = Machine(lambda _, __: 0.0).calibrate()
    assert found is not None
    assert all(seconds > 0 for each in found.candidates for seconds in each.seconds.values())


def test_nothing_is_measured_where_nothing_is_to_be_chosen() -> None:
    machine = Machine(lambda _, __: 1e-5)
    assert machine.calibrate(CANDIDATES[:1]) is None
    assert machine.asked == []


def test_of_one_form_the_size_alone_is_measured() -> None:
    machine = Machine(cheap("on", 64))
    found = machine.calibrate(CANDIDATES[:3])
    assert {work.partition(" ")[0] for _, _, work in machine.asked} == {"batch", "turn"}
    assert (
        decide(CANDIDATES[:3], found, CONTEXT_SIZE, num_layers=NUM_LAYERS, option_value="on").attention.micro_batch
        == 64
    )


def test_the_most_probes_are_all_forms_or_all_sizes_of_a_form() -> None:
    sizes = (512, 128, 64)
    assert most_probes([Attention("on", 512)]) == 1
    assert most_probes([Attention("on", 64), Attention("off", 64)]) == 2
    assert most_probes([*(Attention("on", size) for size in (2048, *sizes)), Attention("off", 64)]) == 4
