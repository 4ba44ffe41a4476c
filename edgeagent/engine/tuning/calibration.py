"""Measures how fast the loaded model is with each candidate setting, before it serves requests.

- A probe computes only the first layers of the model. Layers are alike, so the measurements of an 8 B model take no
  longer than those of a small one.
- Cells are marked as used without computing them, since the cost of attention does not depend on their content.
- Candidates are measured alternately, so that other load affects all of them. The minimum of several times counts.
- A sample is dropped if other programs took the cores meanwhile.
- A kind of work is left out if any candidate has no sample of it within the budget.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Protocol

from edgeagent.engine.tuning.attention import Attention
from edgeagent.engine.tuning.choices import ContextSize, decide
from edgeagent.engine.tuning.padding import PADDING_WORKS
from edgeagent.engine.tuning.workload import FORM_WORKS, PROMPT_TOKENS, TURN_TOKENS, Workload, tokens_of
from edgeagent.types.choices import CandidateTimes, Measurements

MAX_DEPTH = 512
# The most rounds, if there is time. In each round, work of few tokens is measured _NUM_REPEATS_OF_SHORT times.
_MAX_ROUNDS = 3
_NUM_REPEATS_OF_SHORT = 3
# The forms of attention are measured until _FORM_SHARE of the time is over. Then the work for the padding gets at most
# _PADDING_SHARE of the time, and the micro-batch gets the rest. The number of measured layers is chosen after the first
# warm-up: two rounds of the form and one of the micro-batch should take _PLANNED_SHARE of the time until the deadline
# of the first comparison.
_FORM_SHARE, _PADDING_SHARE, _PLANNED_SHARE = 0.75, 0.05, 0.5
# A sample counts if the threads had cores for at least the share _UNDISTURBED of its time. Threads wait for each other,
# so one thread without a core slows all of them. Systems measure CPU time in ticks of up to 10 ms, so a sample shorter
# than _MIN_COUNTED_S always counts.
_UNDISTURBED = 0.8
_MIN_COUNTED_S = 0.02
_MIN_S = 1e-6

_SIZE_WORKS = (Workload.BATCH_AFTER_TEXT, Workload.BATCH_ALONE)


@dataclass(frozen=True, slots=True)
class Sample:
    """The time of one measurement, and the share of that time in which the threads had cores."""

    seconds: float
    share: float = 1.0


class Probe(Protocol):
    """A context with one candidate setting, which computes only the first layers."""

    def measure(self, work: Workload, num_layers: int, deadline_s: float) -> Sample | None:
        """Measure a kind of work with the first `num_layers` layers. Return None if the deadline passes."""
        ...

    def close(self) -> None:
        """Free the context."""
        ...


@dataclass(slots=True)
class _Times:
    """The measurements of one candidate: the shortest time of each kind of work, in seconds."""

    candidate: Attention
    seconds: dict[str, float] = field(default_factory=dict)

    def record(self, work: Workload, sample: Sample) -> None:
        if sample.share >= _UNDISTURBED or sample.seconds < _MIN_COUNTED_S:
            self.seconds[work] = min(max(sample.seconds, _MIN_S), self.seconds.get(work, math.inf))


class Calibration:
    """Measures candidates within a time budget. `open_probe` makes the context of a candidate.

    `has_padding`: whether batches of the model may be padded. Then the work that decides about padding is measured too.

    `min_layers`, `max_layers`: limits of the number of layers to compute. `depth`: how many cells are in use in the
    kinds of work that need used cells (see Workload).
    """

    def __init__(
        self,
        open_probe: Callable[[Attention], Probe],
        *,
        min_layers: int,
        max_layers: int,
        depth: int,
        has_padding: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_probe = open_probe
        self._has_padding = has_padding
        self._min_layers = min_layers
        self._max_layers = max_layers
        self._depth = depth
        self._clock = clock
        self._num_layers = 0  # how many layers to compute; 0: not chosen yet
        self._layer_s = _MIN_S  # of a turn
        self._is_whole = True

    def measure(
        self, candidates: Sequence[Attention], context_size: ContextSize, budget_s: float
    ) -> Measurements | None:
        """Measure the candidates for about `budget_s` seconds. Return None if nothing could be measured.

        First compare the forms of attention. Then, with the better form, measure what padding gains (if `has_padding`),
        and compare the sizes of a micro-batch.
        """
        started_s = self._clock()
        # The forms are compared before the sizes, so all get the same micro-batch.
        size = min(PROMPT_TOKENS, max(candidate.micro_batch for candidate in candidates))
        forms = [Attention(form, size) for form in dict.fromkeys(candidate.flash for candidate in candidates)]
        times: list[_Times] = []
        if len(forms) > 1:
            times = self._compare(forms, FORM_WORKS, started_s, _FORM_SHARE * budget_s)
        found = self._measurements(times, started_s)
        form = decide(candidates, found, context_size, num_layers=self._max_layers).attention.flash
        if self._has_padding:
            times = self._with_padding(times, Attention(form, size), started_s, budget_s)
        sizes = [candidate for candidate in candidates if candidate.flash == form]
        if len(sizes) > 1:
            times += self._compare(sizes, _SIZE_WORKS, started_s, budget_s)
        return self._measurements(times, started_s)

    def _with_padding(
        self, times: list[_Times], candidate: Attention, started_s: float, budget_s: float
    ) -> list[_Times]:
        """Measure PADDING_WORKS with one candidate. Return `times` with these measurements added."""
        now_s = self._clock()
        share_s = min(_PADDING_SHARE * budget_s, started_s + budget_s - now_s)
        [measured] = self._compare([candidate], PADDING_WORKS, now_s, share_s, is_short=True)
        of_candidate = next((each for each in times if each.candidate == candidate), None)
        if of_candidate is None:
            return [*times, measured]
        of_candidate.seconds = measured.seconds | of_candidate.seconds
        return times

    def _measurements(self, times: Sequence[_Times], started_s: float) -> Measurements | None:
        known = tuple(
            CandidateTimes(each.candidate.flash == "on", each.candidate.micro_batch, each.seconds)
            for each in times
            if each.seconds
        )
        if not known:
            return None
        took_s = max(self._clock() - started_s, _MIN_S)
        return Measurements(self._depth, self._num_layers or self._max_layers, took_s, self._is_whole, known)

    def _compare(
        self,
        candidates: Sequence[Attention],
        works: Sequence[Workload],
        started_s: float,
        budget_s: float,
        *,
        is_short: bool = False,
    ) -> list[_Times]:
        """Measure the candidates and return their times. Leave out work that was not measured for all of them.

        `is_short`: the work is of few tokens, so more layers are computed than for prompts. If all weights stayed in
        the processor's cache, the time of a few tokens would say little. The times are scaled to the number of layers
        that prompts are measured with.
        """
        all_times, num_layers = [_Times(candidate) for candidate in candidates], 0
        deadline_s = started_s + budget_s
        with ExitStack() as stack:
            probes: list[Probe] = []
            for candidate in candidates:
                if self._clock() > deadline_s:
                    break
                probes.append(self._open_probe(candidate))
                stack.callback(probes[-1].close)
            if len(probes) == len(candidates) and self._warm_up(probes, deadline_s):
                num_layers = self._layers_for(works, deadline_s) if is_short else self._num_layers
                self._rounds(probes, all_times, works, deadline_s, num_layers)
        shared = set.intersection(*(set(times.seconds) for times in all_times))
        # Without its work, the padding is the usual one. That is no reason to measure everything again.
        self._is_whole = self._is_whole and (is_short or shared == set(works))
        for times in all_times:
            scale = self._num_layers / num_layers if num_layers else 1.0
            times.seconds = {work: scale * seconds for work, seconds in times.seconds.items() if work in shared}
        return all_times

    def _layers_for(self, works: Sequence[Workload], deadline_s: float) -> int:
        """Return how many layers to compute, so that one round of `works` takes half of the time until the deadline."""
        num_tokens = sum(max(TURN_TOKENS // 2, tokens_of(work)) * _num_repeats(work) for work in works)
        planned_s = _PLANNED_SHARE * (deadline_s - self._clock())
        return self._clipped(int(planned_s / (self._layer_s * num_tokens / TURN_TOKENS)))

    def _clipped(self, num_layers: int) -> int:
        """Limit a number of layers to `min_layers` and `max_layers`, and round it down to whole patterns of layers.

        A pattern has `min_layers` layers; see the constructor.
        """
        num_layers = max(self._min_layers, min(num_layers, self._max_layers))
        return num_layers - num_layers % self._min_layers

    def _warm_up(self, probes: Sequence[Probe], deadline_s: float) -> bool:
        """Load the weights of the first layers, and measure how long a layer takes.

        The first call also chooses how many layers to measure. Return False if the deadline passes.
        """
        took_s = 0.0
        for probe in [*probes, probes[0]]:
            sample = probe.measure(Workload.TURN_ALONE, self._min_layers, deadline_s)
            if sample is None:
                return False
            took_s = sample.seconds
        self._layer_s = max(took_s / self._min_layers, _MIN_S)
        if not self._num_layers:
            num_tokens = 4 * _num_tokens(FORM_WORKS) + 3 * _num_tokens(_SIZE_WORKS)
            planned_s = _PLANNED_SHARE * (deadline_s - self._clock())
            self._num_layers = self._clipped(int(planned_s / (self._layer_s * num_tokens / TURN_TOKENS)))
        return True

    def _rounds(
        self,
        probes: Sequence[Probe],
        all_times: Sequence[_Times],
        works: Sequence[Workload],
        deadline_s: float,
        num_layers: int,
    ) -> None:
        """Measure `works` with the first `num_layers` layers, in up to three rounds, at most until the deadline."""
        for _ in range(_MAX_ROUNDS):
            for work in works:
                for _ in range(_num_repeats(work)):
                    for probe, times in zip(probes, all_times, strict=True):
                        sample = probe.measure(work, num_layers, deadline_s)
                        if sample is None:
                            return
                        times.record(work, sample)


def most_probes(candidates: Sequence[Attention]) -> int:
    """Return the most probes that `Calibration.measure` has open at a time.

    It has one for each form of attention, and later one for each size of micro-batch of one form.
    """
    num_sizes = Counter(candidate.flash for candidate in candidates)
    return max(len(num_sizes), *num_sizes.values())


def _num_repeats(work: Workload) -> int:
    return _NUM_REPEATS_OF_SHORT if tokens_of(work) <= TURN_TOKENS else 1


def _num_tokens(works: Sequence[Workload]) -> int:
    return sum(tokens_of(work) * _num_repeats(work) for work in works)
