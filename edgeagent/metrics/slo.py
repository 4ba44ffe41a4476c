"""The SLO ledger: how many answers kept their latency targets, and how long they took, in the last hour and day.

It measures nothing. It reads the counters and histograms that `metrics.meter` feeds, and keeps by how much they moved
in each slot of time. So it costs a request nothing, and its figures survive a restart.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate

import msgspec
from msgspec import Struct

from edgeagent import metrics
from edgeagent.metrics import FastHistogram
from edgeagent.metrics.meter import MET
from edgeagent.types import Tier

OBJECTIVE = 0.99
"""The share of answers that must keep their targets; the rest is the error budget."""
_HOUR, _DAY = "1h", "1d"
_SLOT_S = {_HOUR: 300, _DAY: 3600}
_NUM_SLOTS = {_HOUR: 12, _DAY: 24}
WINDOWS = tuple(_SLOT_S)

# What is kept of a histogram: its counts by bucket. Of the outcomes of answers: one count each.
Counts = dict[str, list[int]]
Cell = tuple[str, str]
"""A tier, and where its answers ran."""
Totals = Mapping[Cell, Counts]

_HISTOGRAMS: dict[str, FastHistogram] = {
    "first_token": metrics.first_token_seconds,
    "usable": metrics.usable_seconds,
    "token": metrics.inter_token_seconds,
    "total": metrics.generation_seconds,
}
_STAGE, _OUTCOME = "stage:", "outcome:"


class Times(Struct, frozen=True):
    """How long something took: how often it was measured, and percentiles, estimated from a histogram."""

    num: int
    p50_ms: float
    p95_ms: float
    p99_ms: float


class RouteFigures(Struct, frozen=True):
    """The answers of one tier that ran at one place.

    `late`: how many missed their target, by the stage that broke it, or failed. `times`: first_token (TTFT), usable
    (the first whole sentence or tool call), token (ITL) and total. `stages`: the time of each stage.
    """

    served_by: str
    num_answers: int
    num_met: int
    late: dict[str, int]
    times: dict[str, Times]
    stages: dict[str, Times]


class TierFigures(Struct, frozen=True):
    """The answers of one tier in one window of time: `1h` or `1d`, in which the daemon ran for `seconds`.

    `attainment`: the share that kept their target. `goodput_per_s`: how many a second did. `budget_burn`: how many
    times faster than the objective allows the error budget is spent. Both shares are null if there was no answer.
    """

    window: str
    tier: str
    seconds: float
    num_answers: int
    attainment: float | None
    goodput_per_s: float
    budget_burn: float | None
    routes: tuple[RouteFigures, ...]


class _Slot(Struct):
    window: str
    number: int  # since 1970, in lengths of the window's slots
    tier: str
    served_by: str
    counts: Counts


class _Saved(Struct):
    known_s: dict[str, dict[int, float]]
    bounds: dict[str, list[float]]
    slots: list[_Slot]


def read_totals() -> Totals:
    """Return what was counted since the process began, by tier and place, for all models together."""
    totals: dict[Cell, Counts] = {}
    for name, histogram in _HISTOGRAMS.items():
        for (_, *cell), series in histogram.series.items():
            _add(totals, (cell[0], cell[1]), {name: series.counts})
    for (stage, *cell), series in metrics.stage_seconds.series.items():
        _add(totals, (cell[0], cell[1]), {_STAGE + stage: series.counts})
    for sample in next(iter(metrics.answers_total.collect())).samples:
        labels = sample.labels
        _add(totals, (labels["tier"], labels["served_by"]), {_OUTCOME + labels["outcome"]: [int(sample.value)]})
    return totals


class SloLedger:
    """Keeps what moved in each slot of the last hour and the last day. `clock` is time.time: slots survive restarts."""

    def __init__(self, read: Callable[[], Totals] = read_totals, clock: Callable[[], float] = time.time) -> None:
        self._read = read
        self._clock = clock
        self._last = _copied(read())
        self._ticked_s = clock()
        self._slots: dict[str, dict[int, dict[Cell, Counts]]] = {window: {} for window in WINDOWS}
        self._known_s: dict[str, dict[int, float]] = {window: {} for window in WINDOWS}  # while the daemon ran
        self.is_saved = True
        """Whether nothing was booked since the last `dump`."""

    def tick(self) -> None:
        """Book what moved since the last call to the present slots."""
        totals = self._read()
        moved = {cell: change for cell, counts in totals.items() if (change := _change(self._last.get(cell), counts))}
        if moved:
            self._last, self.is_saved = _copied(totals), False
        elapsed_s, self._ticked_s = max(0.0, self._clock() - self._ticked_s), self._clock()
        for window, slots in self._slots.items():
            number, known_s = self._number(window), self._known_s[window]
            known_s[number] = known_s.get(number, 0.0) + elapsed_s
            for cell, change in moved.items():
                _add(slots.setdefault(number, {}), cell, change)
            # Slots of the future are there after the clock was set back.
            for old in [each for each in known_s | slots if not 0 <= number - each <= _NUM_SLOTS[window]]:
                known_s.pop(old, None)
                slots.pop(old, None)

    def figures(self) -> list[TierFigures]:
        """Return the figures of each window and tier that has answers, or times of unfinished ones."""
        self.tick()
        return [
            self._of_tier(window, tier.value, routes)
            for window, slots in self._slots.items()
            for tier in Tier
            if (routes := _routes(tier.value, slots.values()))
        ]

    def dump(self) -> bytes:
        """Return what `restore` reads."""
        self.is_saved = True
        slots = [
            _Slot(window, number, *cell, counts)
            for window, numbered in self._slots.items()
            for number, cells in numbered.items()
            for cell, counts in cells.items()
        ]
        return msgspec.json.encode(_Saved(self._known_s, _bounds(), slots))

    def restore(self, content: bytes) -> None:
        """Add what an earlier process has dumped. Raise ValueError if it cannot be used."""
        saved = msgspec.json.decode(content, type=_Saved)
        if saved.bounds != _bounds():
            raise ValueError("its histograms have other buckets")
        are_times_sound = all(seconds >= 0.0 for known_s in saved.known_s.values() for seconds in known_s.values())
        if not are_times_sound or saved.known_s.keys() != _SLOT_S.keys() or not all(map(_is_sound, saved.slots)):
            raise ValueError("it has counts that no version writes")
        for slot in saved.slots:
            _add(self._slots[slot.window].setdefault(slot.number, {}), (slot.tier, slot.served_by), slot.counts)
        for window, known_s in saved.known_s.items():
            for number, seconds in known_s.items():
                self._known_s[window][number] = self._known_s[window].get(number, 0.0) + seconds
        self.tick()

    def _number(self, window: str) -> int:
        return int(self._clock() // _SLOT_S[window])

    def _of_tier(self, window: str, tier: str, routes: tuple[RouteFigures, ...]) -> TierFigures:
        begin_s = (self._number(window) - _NUM_SLOTS[window]) * _SLOT_S[window]
        # A machine that slept books the whole time to the slot in which it woke.
        seconds = max(1.0, min(sum(self._known_s[window].values()), self._clock() - begin_s))
        num, num_met = sum(route.num_answers for route in routes), sum(route.num_met for route in routes)
        attainment = num_met / num if num else None
        burn = None if attainment is None else (1.0 - attainment) / (1.0 - OBJECTIVE)
        return TierFigures(window, tier, seconds, num, attainment, num_met / seconds, burn, routes)


def _routes(tier: str, slots: Iterable[dict[Cell, Counts]]) -> tuple[RouteFigures, ...]:
    """Return the figures of a tier's places, over several slots."""
    sums: dict[Cell, Counts] = {}
    for cells in slots:
        for cell, counts in cells.items():
            if cell[0] == tier:
                _add(sums, cell, counts)
    return tuple(_of_route(served_by, counts) for (_, served_by), counts in sorted(sums.items()))


def _of_route(served_by: str, counts: Counts) -> RouteFigures:
    outcomes = {name.removeprefix(_OUTCOME): num for name, [num, *_] in counts.items() if name.startswith(_OUTCOME)}
    num_met = outcomes.pop(MET, 0)
    times = {name: _times(counts[name], histogram.bounds) for name, histogram in _HISTOGRAMS.items() if name in counts}
    stages = {
        name.removeprefix(_STAGE): _times(each, metrics.stage_seconds.bounds)
        for name, each in counts.items()
        if name.startswith(_STAGE)
    }
    return RouteFigures(served_by, num_met + sum(outcomes.values()), num_met, outcomes, times, stages)


def _times(counts: Sequence[int], bounds: Sequence[float]) -> Times:
    upto = list(accumulate(counts))
    p50, p95, p99 = (1000.0 * _quantile(share, upto, bounds) for share in (0.5, 0.95, 0.99))
    return Times(upto[-1], p50, p95, p99)


def _quantile(share: float, upto: Sequence[int], bounds: Sequence[float]) -> float:
    """Return a quantile, as Prometheus's histogram_quantile does: linear in its bucket, at most the last bound."""
    rank = share * upto[-1]
    index = bisect_left(upto, rank)
    if index >= len(bounds):
        return bounds[-1]
    below, above = (bounds[index - 1], upto[index - 1]) if index else (0.0, 0)
    inside = upto[index] - above
    return below + (bounds[index] - below) * ((rank - above) / inside if inside else 0.0)


def _bounds() -> dict[str, list[float]]:
    return {name: [*each.bounds] for name, each in (*_HISTOGRAMS.items(), (_STAGE, metrics.stage_seconds))}


def _is_sound(slot: _Slot) -> bool:
    """Whether a saved slot has the form that `dump` writes."""
    lengths = {name: len(bounds) + 1 for name, bounds in _bounds().items()} | {_OUTCOME: 1}
    kinds = {name: name if name in _HISTOGRAMS else name[: name.find(":") + 1] for name in slot.counts}
    are_whole = all(len(counts) == lengths.get(kinds[name]) for name, counts in slot.counts.items())
    return slot.window in WINDOWS and are_whole and all(num >= 0 for each in slot.counts.values() for num in each)


def _copied(totals: Totals) -> dict[Cell, Counts]:
    return {cell: {name: [*each] for name, each in counts.items()} for cell, counts in totals.items()}


def _add(cells: dict[Cell, Counts], cell: Cell, counts: Counts) -> None:
    kept = cells.setdefault(cell, {})
    for name, each in counts.items():
        before = kept.get(name)
        kept[name] = [*each] if before is None else [a + b for a, b in zip(before, each, strict=True)]


def _change(before: Counts | None, after: Counts) -> Counts:
    """Return by how much counts moved, without those that did not."""
    old = before or {}
    changes = {
        name: [a - b for a, b in zip(each, old.get(name, [0] * len(each)), strict=True)] for name, each in after.items()
    }
    return {name: each for name, each in changes.items() if any(each)}
