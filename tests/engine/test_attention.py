"""Which forms of attention a context may use, how they are measured, and which one is chosen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from edgeagent.config import EngineConfig
from edgeagent.engine.attention import Attention, Sample, choose_form, measure_forms, possible_attention
from edgeagent.types import replace
from edgeagent.types.choices import FormTimes, Measurements
from tests.fakes import FakeClock

FLASH, PLAIN = Attention("on", 512), Attention("off", 512)
NUM_LAYERS = 24

Costs = Callable[[str, int], float]
"""Seconds of a layer, by form and number of tokens."""


@dataclass
class Machine:
    """A machine with scripted costs. `shares`: the shares of the cores that successive samples have."""

    cost: Costs
    shares: list[float] = field(default_factory=list)
    clock: FakeClock = field(default_factory=FakeClock)
    num_open: int = 0

    def measure(self, budget_s: float = 2.0, *, has_tiles: bool = True) -> Measurements | None:
        found = measure_forms(
            lambda attention: FakeProbe(self, attention.flash),
            (FLASH, PLAIN),
            depth=1024,
            min_layers=1,
            max_layers=NUM_LAYERS,
            budget_s=budget_s,
            has_tiles=has_tiles,
            clock=self.clock,
        )
        assert self.num_open == 0
        return found


class FakeProbe:
    """Takes as long as its machine says, and stops at the deadline, as llama.cpp's probe does."""

    def __init__(self, machine: Machine, form: str) -> None:
        self._machine, self._form = machine, form
        machine.num_open += 1

    def measure(self, num_tokens: int, num_layers: int, deadline_s: float) -> Sample | None:
        machine = self._machine
        took_s, left_s = num_layers * machine.cost(self._form, num_tokens), deadline_s - machine.clock.now_s
        machine.clock.advance(max(0.0, min(took_s, left_s)))
        if took_s > left_s:
            return None
        share = machine.shares.pop(0) if machine.shares else 1.0
        return Sample(took_s / share, share)

    def close(self) -> None:
        self._machine.num_open -= 1


def proportional(on: float, off: float) -> Costs:
    return lambda form, num_tokens: num_tokens * (on if form == "on" else off)


def chosen_by(measurements: Measurements | None, *, kept: str | None = None, is_fixed: bool = False) -> str:
    candidates = (FLASH, PLAIN)
    choice = choose_form(candidates, measurements, num_layers=NUM_LAYERS, kept=kept, is_fixed=is_fixed)
    assert (choice.by == "measurement") == (len(choice.alternatives) == 2)
    return choice.value


@pytest.mark.parametrize(
    ("on", "off", "kept", "expected"),
    [
        (1e-5, 2e-5, None, "on"),
        (2e-5, 1e-5, None, "off"),
        (1.00e-5, 0.97e-5, None, "on"),
        (1.00e-5, 0.90e-5, None, "off"),
        (1.00e-5, 0.90e-5, "on", "on"),
        (0.90e-5, 1.00e-5, "off", "off"),
        (1.00e-5, 0.80e-5, "on", "off"),
        (0.80e-5, 1.00e-5, "off", "on"),
    ],
)
def test_the_faster_form_is_chosen_if_it_is_clearly_faster(
    on: float, off: float, kept: str | None, expected: str
) -> None:
    assert chosen_by(Machine(proportional(on, off)).measure(), kept=kept) == expected


def test_a_turn_behind_a_text_decides_although_a_prompt_alone_would_not() -> None:
    """Plain attention is slower for the chunk of a prompt, and faster for turns and tokens."""
    times = {("on", 128): 0.04, ("off", 128): 0.05, ("on", 64): 0.03, ("off", 64): 0.03}
    times |= {("on", 40): 0.05, ("off", 40): 0.02, ("on", 1): 0.0012, ("off", 1): 0.0009}
    assert chosen_by(Machine(lambda form, num_tokens: times[form, num_tokens]).measure(60.0)) == "off"


def test_flash_attention_has_the_time_of_a_padded_turn() -> None:
    """A tile of 64 tokens takes less time than 40 single ones."""
    times = {("on", 128): 0.04, ("on", 64): 0.02, ("on", 40): 0.2, ("on", 1): 0.0010}
    times |= {("off", 128): 0.04, ("off", 64): 0.1, ("off", 40): 0.1, ("off", 1): 0.0010}
    machine = Machine(lambda form, num_tokens: times[form, num_tokens])
    assert chosen_by(machine.measure(60.0, has_tiles=True)) == "on"
    assert chosen_by(machine.measure(60.0, has_tiles=False)) == "off"


def test_an_earlier_form_is_kept_without_measurements_and_for_requests_that_continue() -> None:
    assert chosen_by(None, kept="off") == "off"
    assert chosen_by(None) == "on"
    measured = Machine(proportional(1e-5, 3e-5)).measure()
    assert chosen_by(measured, kept="off", is_fixed=True) == "off"
    assert chosen_by(measured, kept="off") == "on"


@pytest.mark.parametrize("budget_s", [0.0, 0.001, 0.5, 2.0, 10.0])
@pytest.mark.parametrize("token_s", [1e-6, 1e-4, 1e-2])
def test_the_budget_is_kept_and_what_is_cut_off_decides_nothing(budget_s: float, token_s: float) -> None:
    machine = Machine(proportional(2 * token_s, token_s))
    measured = machine.measure(budget_s)
    assert machine.clock.now_s <= budget_s
    assert chosen_by(measured) == ("on" if measured is None else "off")
    assert measured is not None or budget_s < 1000 * token_s


def test_a_sample_without_the_cores_does_not_count() -> None:
    shares = [1.0, 1.0, 1.0] + [0.25, 1.0] * 6  # in the first round, other programs disturb one form
    machine = Machine(proportional(1e-3, 1.5e-3), shares)
    assert chosen_by(machine.measure(60.0)) == "on"


def test_only_possible_forms_are_candidates() -> None:
    def of(num_cells: int = 8192, *, is_on_gpu: bool = False, **options: object) -> tuple[Attention, ...]:
        config = replace(EngineConfig(batch=512), **options)
        return possible_attention(config, num_heads=16, num_cells=num_cells, is_on_gpu=is_on_gpu)

    assert of() == (Attention("on", 512), Attention("off", 128))
    assert of(2048) == (Attention("on", 512), Attention("off", 128))
    assert of(1 << 20) == (Attention("on", 512),)
    assert of(flash_attention="on") == (Attention("on", 512),)
    assert of(1 << 20, flash_attention="off") == (Attention("off", 64),)
    assert of(batch=32) == (Attention("on", 32), Attention("off", 32))
    assert of(32768) == (Attention("on", 512), Attention("off", 64))
    assert of(2048, batch=2048) == (Attention("on", 2048), Attention("off", 128))
    assert of(kv_type_v="q8_0") == of(is_on_gpu=True) == (Attention("auto", 512),)


def test_the_reasons_are_told() -> None:
    def why(candidates: tuple[Attention, ...], option_value: str = "auto") -> tuple[str, str]:
        choice = choose_form(candidates, None, num_layers=1, option_value=option_value)
        return choice.by, choice.why

    assert why((PLAIN,), "off") == ("option", "--flash-attention off was asked for")
    assert why((Attention("auto", 512),))[1] == "llama.cpp decides on a GPU, and for a quantized V cache"
    assert why((FLASH,))[1] == "plain attention's buffer would take too much memory for this context"
    measured = Measurements(512, 6, (FormTimes(True, 0.01, 0.01, 0.001), FormTimes(False, 0.01, 0.01, 0.00099)))
    choice = choose_form((FLASH, PLAIN), measured, num_layers=NUM_LAYERS)
    assert choice.why == (
        "time of a turn behind 512 tokens, on being 1: off 0.99; on is the default, and another must be better by 5%"
    )
    assert choice.alternatives[0].work_ms == {"128 prompt tokens": 40.0, "turn of 40 tokens": 40.0, "token": 4.0}
