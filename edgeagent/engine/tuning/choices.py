"""Chooses a model's settings on this machine by the measured times of the candidates, and gives the reasons in words.

The compared situations are those of a machine with one user:

- a prompt: with no cells in use, after a long text, or with idle prefixes in the cells
- the next turn of a conversation
- the tokens of one stream, or of several

All situations have the same weight: a candidate's score is the geometric mean of its times, each divided by the best
candidate's time. While it is not known what a model is used for, another form of attention than the default is chosen
only if it is not slower for new prompts and short texts. Once enough of the model's work is recorded, the form is
chosen for this work instead. An earlier choice is kept until another one is clearly better, since blocks on disk fit
one form.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgeagent.engine.tuning.attention import Attention
from edgeagent.engine.tuning.own_work import expected_work
from edgeagent.engine.tuning.padding import PADDING_WORKS, WeightPadding, choose_padding
from edgeagent.engine.tuning.workload import Workload
from edgeagent.types.choices import Alternative, CandidateTimes, Measurements, SavedTuning, SettingChoice, StepSums

# A candidate must be better than the default by _MARGIN, or better than an earlier choice by _KEPT_MARGIN. Repeated
# measurements differ by about as much.
_MARGIN = 0.05
_KEPT_MARGIN = 0.15
# By its score, a form is chosen only if none of _LIMITED_WORKS takes longer with it than with the usual form, by more
# than the share _MOST_SLOWER.
_MOST_SLOWER = 0.03
_LIMITED_WORKS = (Workload.PROMPT_ALONE, Workload.PROMPT_AFTER_TEXT, Workload.TOKEN_ALONE, Workload.STREAMS_ALONE)
# With so many seconds of recorded work, the work decides.
_ENOUGH_WORK_S = 600.0


# The work of each situation, and the same work without used cells. None if the situation has no used cells.
_FORM_SITUATIONS: Mapping[Workload, Workload | None] = {
    Workload.PROMPT_ALONE: None,
    Workload.PROMPT_AFTER_TEXT: Workload.PROMPT_ALONE,
    Workload.PROMPT_BESIDE_IDLE: Workload.PROMPT_ALONE,
    Workload.TURN_AFTER_TEXT: Workload.TURN_ALONE,
    Workload.TOKEN_AFTER_TEXT: Workload.TOKEN_ALONE,
    Workload.TOKEN_BESIDE_IDLE: Workload.TOKEN_ALONE,
    Workload.STREAMS_AFTER_TEXT: Workload.STREAMS_ALONE,
}
_SIZE_SITUATIONS: Mapping[Workload, Workload | None] = {
    Workload.BATCH_ALONE: None,
    Workload.BATCH_AFTER_TEXT: Workload.BATCH_ALONE,
}


@dataclass(frozen=True, slots=True)
class ContextSize:
    """The size of a context: its cells, and how many sequences share them.

    `keeps_idle`: whether idle prefixes stay in the cells as long as there is room. If not, they are copied into blocks
    in idle time, and their cells are freed when another sequence computes.
    """

    num_cells: int
    parallel: int
    keeps_idle: bool = False

    @property
    def num_own(self) -> float:
        """The average number of cells that one sequence uses: half of its share, since it grows from nothing."""
        return self.num_cells / self.parallel / 2

    def reach(self, work: Workload, depth: int) -> float:
        """Return how many used cells a kind of work usually finds, as a multiple of `depth`.

        For work beside idle prefixes, only their cells count. `depth`: how many cells were in use in the measurement.
        """
        num_used = self.num_own
        if work in (Workload.PROMPT_BESIDE_IDLE, Workload.TOKEN_BESIDE_IDLE):
            num_others = self.num_cells / 2 - self.num_own
            # Only the latest idle prefix may not have been read out yet.
            num_used = num_others if self.keeps_idle else min(num_others, self.num_own)
        return num_used * (self.parallel if work is Workload.STREAMS_AFTER_TEXT else 1) / depth


@dataclass(frozen=True, slots=True)
class Decision:
    """The attention and the padding that a context should use, and the choices that led to it, with their reasons.

    `work`: the recorded work of the model, with its expected seconds if this attention is used. `weight_padding`: None
    if batches of the model cannot be padded.
    """

    attention: Attention
    choices: tuple[SettingChoice, ...]
    work: tuple[StepSums, ...] = ()
    weight_padding: WeightPadding | None = None


def decide(
    candidates: Sequence[Attention],
    measurements: Measurements | None,
    context_size: ContextSize,
    *,
    num_layers: int,
    option_value: str = "auto",
    former: SavedTuning | None = None,
    work: Sequence[StepSums] = (),
    keep_former_form: bool = False,
    usual_padding: WeightPadding | None = None,
) -> Decision:
    """Choose one of the candidates, and the padding. The first candidate is the default.

    `option_value`: the value of the option --flash-attention. `former`: the earlier choice, if any. It may have been
    measured under other conditions. `work`: the model's work that was recorded with that choice, under the same
    conditions. `keep_former_form`: keep the form of attention of `former`, if more than one form is possible.
    `usual_padding`: the padding without measurements; None if batches of the model cannot be padded.
    """
    chooser = _Chooser(measurements, context_size, num_layers)
    form = chooser.choose_form(candidates, option_value, former, work, keep_former_form=keep_former_form)
    of_form = [candidate for candidate in candidates if candidate.flash == form.value]
    size = chooser.choose_size(of_form, former)
    chosen = next(each for each in of_form if str(each.micro_batch) == size.value)
    if former is not None and form.value != _form_of(former):
        work = chooser.expected_work(work, former).get(form.value, ())
    if usual_padding is None:
        return Decision(chosen, (form, size), tuple(work))
    # It was measured with one form, without used cells. So the form makes hardly any difference.
    by_form = (chooser.seconds(is_flash=is_flash) for is_flash in (True, False))
    seconds = next((each for each in by_form if each.keys() >= set(PADDING_WORKS)), {})
    padding, choice = choose_padding(seconds, usual_padding)
    return Decision(chosen, (form, size, choice), tuple(work), padding)


class _Chooser:
    """Compares candidates by the measurements of one calibration."""

    def __init__(self, measurements: Measurements | None, context_size: ContextSize, num_layers: int) -> None:
        self._times: tuple[CandidateTimes, ...] = () if measurements is None else measurements.candidates
        self._depth = 1 if measurements is None else measurements.depth
        self._scale = 1.0 if measurements is None else num_layers / measurements.num_layers
        self._context_size = context_size

    def choose_form(
        self,
        candidates: Sequence[Attention],
        option_value: str,
        former: SavedTuning | None,
        work: Sequence[StepSums],
        *,
        keep_former_form: bool,
    ) -> SettingChoice:
        forms = list(dict.fromkeys(candidate.flash for candidate in candidates))
        name, default = "flash attention", forms[0]
        if option_value != "auto":
            return SettingChoice(name, default, "option", f"--flash-attention {option_value} was asked for")
        if default == "auto":
            return SettingChoice(name, default, "default", "llama.cpp decides on a GPU, and for a quantized V cache")
        if len(forms) == 1:
            why = "plain attention's buffer would take too much memory for this context"
            return SettingChoice(name, default, "default", why)
        seconds: dict[str, dict[str, float]] = {form: self.seconds(is_flash=form == "on") for form in forms}
        if former is None:
            return self._choose(name, seconds, _FORM_SITUATIONS, None, _LIMITED_WORKS)
        if keep_former_form:
            return SettingChoice(
                name, _form_of(former), "default", "kept for the requests that go on after a worker's end"
            )
        expected = self.expected_work(work, former)
        # The longest time counts. So the work that changes a choice is still enough after the change.
        if max((sum(each.seconds for each in of_form) for of_form in expected.values()), default=0) >= _ENOUGH_WORK_S:
            return self._choose_for_own_work(name, expected, _form_of(former))
        return self._choose(name, seconds, _FORM_SITUATIONS, _form_of(former), _LIMITED_WORKS)

    def expected_work(self, work: Sequence[StepSums], former: SavedTuning) -> dict[str, tuple[StepSums, ...]]:
        """Return, by form of attention, the recorded work with its expected seconds if this form is used.

        `former`: the choice with which the work was recorded. Return an empty dict if the seconds are unknown.
        """
        seconds = {form: self.seconds(is_flash=form == "on") for form in ("on", "off")}
        return expected_work(
            seconds, work, _form_of(former), depth=self._depth, parallel=self._context_size.parallel, scale=self._scale
        )

    def _choose_for_own_work(self, name: str, expected: Mapping[str, Sequence[StepSums]], kept: str) -> SettingChoice:
        """Choose the form with which the recorded work takes the least time."""
        totals = {form: sum(each.seconds for each in work) for form, work in expected.items()}
        best = min(totals, key=lambda form: totals[form])
        taken = best if totals[best] < (1 - _KEPT_MARGIN) * totals[kept] else kept
        alternatives = tuple(
            Alternative(form, {each.kind: round(1000 * each.seconds / max(1.0, each.num_steps), 3) for each in work})
            for form, work in expected.items()
        )
        rest = ", ".join(f"{form} {totals[form] / totals[taken]:.2f}" for form in totals if form != taken)
        why = f"time of the model's own work of {totals[kept] / 60:.0f} minutes, {taken} being 1: {rest}"
        if taken != best:
            why += f"; {taken} was chosen before, and another must be better by {_KEPT_MARGIN:.0%}"
        return SettingChoice(name, taken, "measurement", why, alternatives)

    def choose_size(self, candidates: Sequence[Attention], former: SavedTuning | None) -> SettingChoice:
        name, sizes = "micro-batch", [str(candidate.micro_batch) for candidate in candidates]
        if len(sizes) == 1:
            return SettingChoice(name, sizes[0], "default", "no other size fits the options and this context")
        is_flash = candidates[0].flash == "on"
        measured_with = {times.is_flash for times in self._times if Workload.BATCH_ALONE in times.seconds}
        if measured_with == {not is_flash}:
            return SettingChoice(name, sizes[0], "default", "sizes were measured only with the other form of attention")
        seconds = {size: self.seconds(int(size), is_flash=is_flash) for size in sizes}
        kept = None
        if former is not None and former.is_flash == is_flash and str(former.micro_batch) in sizes:
            kept = str(former.micro_batch)
        return self._choose(name, seconds, _SIZE_SITUATIONS, kept)

    def seconds(self, micro_batch: int | None = None, *, is_flash: bool) -> dict[str, float]:
        """Return the measured seconds by kind of work, for one form of attention. `micro_batch`: None means any."""
        found: dict[str, float] = {}
        for times in self._times:
            if times.is_flash == is_flash and micro_batch in (None, times.micro_batch):
                found |= times.seconds
        return found

    def _choose(
        self,
        name: str,
        seconds: Mapping[str, Mapping[str, float]],
        situations: Mapping[Workload, Workload | None],
        kept: str | None,
        limited: Sequence[Workload] = (),
    ) -> SettingChoice:
        """Choose one of the keys of `seconds`. They are the possible values of a setting.

        `seconds` has the measured times of each value, by kind of work. The usual value is `kept`, or else the default
        (the first value). Another one is chosen only if it is clearly better. Values without measurements are left out.
        The others are compared by the kinds of work that were measured for all of them. These must be at least half of
        the `situations`, so that the comparison is not one-sided. `limited`: see _LIMITED_WORKS.
        """
        usual = kept or next(iter(seconds))
        measured = [value for value, works in seconds.items() if any(work in works for work in situations)]
        works = [
            work
            for work, alone in situations.items()
            if all(work in seconds[value] and (alone or work) in seconds[value] for value in measured)
        ]
        predicted = {
            value: {work: self._predict(seconds[value], work, situations[work]) for work in works} for value in measured
        }
        alternatives = tuple(
            Alternative(value, {str(work): round(1000 * took_s, 3) for work, took_s in predicted[value].items()})
            for value in measured
        )
        if usual not in measured or len(measured) == 1 or 2 * len(works) < len(situations):
            return SettingChoice(
                name, usual, "default", "too little could be measured in the time for it", alternatives
            )
        scores = _scores(predicted, works)
        best = min(scores, key=lambda value: scores[value])
        margin = _MARGIN if kept is None else _KEPT_MARGIN
        # The way back to the default is not limited.
        slower = _slower(seconds[best], seconds[usual], limited) if usual == next(iter(seconds)) else ""
        taken = best if scores[best] < (1 - margin) * scores[usual] and not slower else usual
        rest = ", ".join(f"{value} {scores[value] / scores[taken]:.2f}" for value in measured if value != taken)
        why = f"mean time over {len(works)} kinds of work, {taken} being 1: {rest}"
        if taken != best:
            which = "is the default" if kept is None else "was chosen before"
            why += f"; {taken} {which}, and another must "
            why += f"not be slower: {best} takes {slower}" if slower else f"be better by {margin:.0%}"
        return SettingChoice(name, taken, "measurement", why, alternatives)

    def _predict(self, seconds: Mapping[str, float], work: Workload, alone: Workload | None) -> float:
        """Return the expected seconds of a kind of work with all layers and the usual number of used cells.

        `seconds`: the measured times. `alone`: the same kind without used cells; None if `work` itself has none.
        """
        if alone is None:
            return self._scale * seconds[work]
        added = self._context_size.reach(work, self._depth) * (seconds[work] - seconds[alone])
        return self._scale * (seconds[alone] + max(0.0, added))


def _form_of(tuning: SavedTuning) -> str:
    return "on" if tuning.is_flash else "off"


def _slower(seconds: Mapping[str, float], usual: Mapping[str, float], limited: Sequence[Workload]) -> str:
    """Return the largest slowdown of `limited` work against `usual`, in words; "" if it is at most _MOST_SLOWER."""
    factors = {work: seconds[work] / usual[work] for work in limited if work in seconds and work in usual}
    worst = max(factors, key=lambda work: factors[work], default=None)
    return "" if worst is None or factors[worst] <= 1 + _MOST_SLOWER else f"{factors[worst]:.2f} of the time ({worst})"


def _scores(predicted: Mapping[str, Mapping[Workload, float]], works: Sequence[Workload]) -> dict[str, float]:
    best = {work: min(times[work] for times in predicted.values()) for work in works}
    return {
        value: math.exp(sum(math.log(times[work] / best[work]) for work in works) / len(works))
        for value, times in predicted.items()
    }
