"""Choices follow from the measurements, and change only if another candidate is clearly better."""

from __future__ import annotations

import itertools

import pytest

from edgeagent.engine.tuning.attention import Attention
from edgeagent.engine.tuning.choices import ContextSize, Decision, decide
from edgeagent.engine.tuning.workload import Workload
from edgeagent.types.choices import CandidateTimes, Measurements, SavedTuning, StepSums
from tests.engine.tuning.machines import CANDIDATES, CONTEXT_SIZE, DEPTH, NUM_LAYERS, Machine, cheap

ALL = list(itertools.product(("on", "off"), (512, 128, 64)))


@pytest.mark.parametrize(("form", "size"), ALL)
def test_no_choice_is_a_constant(form: str, size: int) -> None:
    found = Machine(cheap(form, size)).calibrate()
    decision = decide(CANDIDATES, found, CONTEXT_SIZE, num_layers=NUM_LAYERS)
    assert decision.attention == Attention(form, size)  # type: ignore[arg-type]
    assert [choice.by for choice in decision.choices] == ["measurement", "measurement"]


def measured(on: dict[Workload, float], off: dict[Workload, float]) -> Measurements:
    candidates = tuple(
        CandidateTimes(is_flash, 128, {str(work): seconds for work, seconds in times.items()})
        for is_flash, times in ((True, on), (False, off))
    )
    return Measurements(DEPTH, NUM_LAYERS, 1.0, True, candidates)


def chosen(
    found: Measurements | None, former: SavedTuning | None = None, context_size: ContextSize = CONTEXT_SIZE
) -> str:
    return decide(CANDIDATES, found, context_size, num_layers=NUM_LAYERS, former=former).attention.flash


def kept(*, is_flash: bool) -> SavedTuning:
    return SavedTuning({}, None, is_flash, 128, 1)


# Half of the kinds of work that decide the form.
HALF = (
    Workload.PROMPT_ALONE,
    Workload.TURN_ALONE,
    Workload.TURN_AFTER_TEXT,
    Workload.TOKEN_ALONE,
    Workload.TOKEN_AFTER_TEXT,
    Workload.TOKEN_BESIDE_IDLE,
)


def alike(seconds: float) -> dict[Workload, float]:
    return dict.fromkeys(HALF, seconds)


def test_a_former_choice_stands_until_another_is_clearly_better() -> None:
    def found(off_s: float) -> Measurements:
        return measured(alike(1.0), alike(off_s))

    assert chosen(found(0.97)) == "on"
    assert chosen(found(0.9)) == "off"
    assert chosen(found(0.9), kept(is_flash=True)) == "on"
    assert chosen(found(0.8), kept(is_flash=True)) == "off"
    assert chosen(found(1.1), kept(is_flash=False)) == "off"
    assert chosen(found(1.3), kept(is_flash=False)) == "on"


@pytest.mark.parametrize(
    "work", [Workload.PROMPT_ALONE, Workload.PROMPT_AFTER_TEXT, Workload.TOKEN_ALONE, Workload.STREAMS_ALONE]
)
def test_a_better_form_is_not_taken_where_it_is_slower_for_short_texts(work: Workload) -> None:
    on, off = alike(1.0) | {work: 1.0}, alike(0.5)
    assert chosen(measured(on, off | {work: 1.02})) == "off"
    [form, _] = decide(CANDIDATES, measured(on, off | {work: 1.1}), CONTEXT_SIZE, num_layers=NUM_LAYERS).choices
    assert form.value == "on"
    assert form.why.endswith(f"on is the default, and another must not be slower: off takes 1.10 of the time ({work})")


def test_the_way_back_to_the_default_is_not_limited() -> None:
    slow, quick = alike(1.0), alike(0.5) | {Workload.TOKEN_ALONE: 1.1}
    assert chosen(measured(quick, slow), kept(is_flash=False)) == "on"


# Plain attention computes a token behind others in less time, and a prompt in more.
EVERY: dict[Workload, float] = dict.fromkeys((work for work in Workload if not work.startswith("batch")), 1.0)
ON = EVERY | {Workload.TOKEN_AFTER_TEXT: 3.0}
OFF = EVERY | {
    Workload.PROMPT_ALONE: 1.2,
    Workload.PROMPT_AFTER_TEXT: 1.2,
    Workload.PROMPT_BESIDE_IDLE: 1.2,
    Workload.TOKEN_AFTER_TEXT: 1.5,
}


def used_for(num_tokens: int, depth: int, seconds: float) -> tuple[StepSums, ...]:
    """Return the sums of 1,000 steps of `num_tokens` behind `depth` others, which took `seconds` in all."""
    kind, pairs = "token" if num_tokens == 1 else "prompt", 1000.0 * num_tokens * depth
    return (StepSums(kind, 1000.0, 1000.0 * num_tokens, pairs, pairs, seconds),)


def decided(work: tuple[StepSums, ...], found: Measurements | None = None, *, is_flash: bool = True) -> Decision:
    found, former = found or measured(ON, OFF), kept(is_flash=is_flash)
    return decide(CANDIDATES, found, CONTEXT_SIZE, num_layers=NUM_LAYERS, former=former, work=work)


def test_the_model_s_own_work_decides_once_there_is_enough() -> None:
    """A token behind 2 * DEPTH others takes 5 s with flash attention and 2 s with plain attention."""
    assert decided(()).attention.flash == "on", "it is slower for prompts"
    assert decided(used_for(1, 2 * DEPTH, 500.0)).attention.flash == "on", "ten minutes at least"
    assert decided(used_for(1, 20, 1000.0)).attention.flash == "on", "close to a prompt's beginning both are alike"
    assert decided(used_for(128, 0, 1000.0)).attention.flash == "on"
    decision = decided(used_for(1, 2 * DEPTH, 6000.0))
    form = decision.choices[0]
    assert (decision.attention.flash, form.by) == ("off", "measurement")
    assert form.why == "time of the model's own work of 100 minutes, off being 1: on 2.00"
    assert [each.work_ms for each in form.alternatives] == [{"token": 6000.0}, {"token": 3000.0}]
    assert decision.work == used_for(1, 2 * DEPTH, 3000.0), "the seconds are those of the chosen form"


def test_a_calibration_measures_what_a_choice_by_own_work_needs() -> None:
    """Plain attention takes longer for prompts, and less time for tokens behind a text."""

    def cost(attention: Attention, work: Workload) -> float:
        is_behind = work in (Workload.TOKEN_AFTER_TEXT, Workload.STREAMS_AFTER_TEXT)
        return 1e-5 * (4 if is_behind and attention.flash == "on" else 1.2 if attention.flash == "off" else 1)

    for has_padding in (False, True):
        found = Machine(cost).calibrate(has_padding=has_padding)
        assert found is not None and found.is_whole
        assert decided((), found).attention.flash == "on"
        decision = decided(used_for(1, 2 * DEPTH, 6000.0), found)
        assert decision.choices[0].why.startswith("time of the model's own work")
        assert decision.work


def test_a_choice_by_own_work_stays_at_the_next_loads() -> None:
    """With the chosen form, the work takes less than the ten minutes that are enough, and other work would be slow."""
    slow = OFF | dict.fromkeys(
        (Workload.PROMPT_ALONE, Workload.PROMPT_AFTER_TEXT, Workload.TURN_AFTER_TEXT, Workload.STREAMS_AFTER_TEXT), 3.0
    )
    found = measured(ON, slow)
    work, form = used_for(1, 2 * DEPTH, 3100.0), "on"
    for _ in range(3):
        decision = decided(work, found, is_flash=form == "on")
        work, form = decision.work, decision.attention.flash
        assert (form, round(work[0].seconds)) == ("off", 310)


@pytest.mark.parametrize("is_flash", [True, False])
def test_a_worker_that_replaces_another_keeps_the_form(*, is_flash: bool) -> None:
    other = used_for(1, 2 * DEPTH, 6000.0) if is_flash else used_for(128, 0, 1200.0)
    former, found = kept(is_flash=is_flash), measured(ON, OFF)
    for keep in (False, True):
        decision = decide(
            CANDIDATES, found, CONTEXT_SIZE, num_layers=NUM_LAYERS, former=former, work=other, keep_former_form=keep
        )
        assert (decision.attention.flash == "on") == (is_flash == keep)
    assert decision.work == other


def test_own_work_changes_a_former_choice_only_if_the_other_is_clearly_better() -> None:
    decision = decided(used_for(128, 0, 1200.0), is_flash=False)
    assert (decision.attention.flash, decision.work) == ("on", used_for(128, 0, 1000.0))
    work = used_for(128, 0, 2400.0)
    decision = decided(work, is_flash=False)
    assert (decision.attention.flash, decision.work) == ("off", work)
    assert decision.choices[0].why.endswith("on 0.92; off was chosen before, and another must be better by 15%")


def test_own_work_decides_nothing_without_measurements_of_all_kinds() -> None:
    partly: dict[Workload, float] = {
        work: seconds for work, seconds in OFF.items() if work != Workload.STREAMS_AFTER_TEXT
    }
    assert decided(used_for(1, 2 * DEPTH, 6000.0), measured(ON, partly)).attention.flash == "on"


def test_idle_texts_weigh_as_much_as_there_is_room_for_them() -> None:
    """Plain attention is faster after a prefix but slower beside other texts, so how many texts fit decides."""
    on = alike(1.0) | {Workload.TURN_AFTER_TEXT: 1.7, Workload.TOKEN_AFTER_TEXT: 1.7}
    off = alike(1.0) | {Workload.TURN_AFTER_TEXT: 1.2, Workload.TOKEN_AFTER_TEXT: 1.2, Workload.TOKEN_BESIDE_IDLE: 1.3}
    assert chosen(measured(on, off), context_size=ContextSize(8192, 1, keeps_idle=True)) == "off"
    assert chosen(measured(on, off), context_size=ContextSize(8192, 8, keeps_idle=True)) == "on"
    # Those that leave the cells slow nobody, except the latest one.
    assert chosen(measured(on, off), context_size=ContextSize(8192, 8)) == "off"


def test_without_measurements_the_default_or_what_was_chosen_before() -> None:
    one_sided = measured({Workload.PROMPT_ALONE: 9.0}, {Workload.PROMPT_ALONE: 1.0})
    for found in (None, measured({}, {}), measured(alike(9.0), {Workload.PROMPT_ALONE: 1.0}), one_sided):
        decision = decide(CANDIDATES, found, CONTEXT_SIZE, num_layers=NUM_LAYERS)
        assert decision.attention == CANDIDATES[0]
        assert [choice.by for choice in decision.choices] == ["default", "default"]
        assert chosen(found, kept(is_flash=False)) == "off"


def test_sizes_of_one_form_say_nothing_of_the_other() -> None:
    """The sizes are measured with the form that has the better score. Own work may choose the other form later."""
    found = Machine(cheap("on", 64)).calibrate()
    assert found is not None
    former, work = kept(is_flash=False), used_for(1, 0, 6000.0)
    decision = decide(
        CANDIDATES, found, CONTEXT_SIZE, num_layers=NUM_LAYERS, former=former, work=work, keep_former_form=True
    )
    assert decision.attention == Attention("off", 512)
    assert decision.choices[1].why == "sizes were measured only with the other form of attention"


def test_an_option_overrides() -> None:
    found = measured({Workload.PROMPT_ALONE: 9.0}, {Workload.PROMPT_ALONE: 1.0})
    decision = decide(CANDIDATES[:3], found, CONTEXT_SIZE, num_layers=NUM_LAYERS, option_value="on")
    assert decision.attention.flash == "on"
    assert decision.choices[0].by == "option"


def test_the_reasons_name_numbers() -> None:
    found = measured(alike(0.1), alike(0.3))
    [form, size] = decide(CANDIDATES, found, CONTEXT_SIZE, num_layers=2 * NUM_LAYERS).choices
    assert form.why == "mean time over 4 kinds of work, on being 1: off 3.00"
    assert [(each.value, each.work_ms) for each in form.alternatives] == [
        ("on", dict.fromkeys(("prompt alone", "turn behind", "token behind", "token beside"), 200.0)),
        ("off", dict.fromkeys(("prompt alone", "turn behind", "token behind", "token beside"), 600.0)),
    ]
    assert size.why == "too little could be measured in the time for it"
