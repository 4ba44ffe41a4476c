"""The SLO ledger as a machine with a clock of its own: windows, budgets, restarts and damage."""

from __future__ import annotations

import itertools
import json
import random

import pytest
from prometheus_client.parser import text_string_to_metric_families

from edgeagent import metrics
from edgeagent.metrics.exposition import Snapshot, exposition
from edgeagent.metrics.slo import SloLedger, TierFigures, Totals, read_totals

HERE, CLUSTER = ("interactive", "local"), ("interactive", "remote:gpu")
MINUTE_S, HOUR_S = 60.0, 3600.0
NUM_BUCKETS = len(metrics.first_token_seconds.bounds) + 1
BUCKET_OF_50_MS = metrics.first_token_seconds.bounds.index(0.05)


class Machine:
    """A clock, what a process has counted, and its ledger."""

    def __init__(self, now_s: float = 100 * 24 * HOUR_S, content: bytes | None = None) -> None:
        self.now_s = now_s
        self.totals: dict[tuple[str, str], dict[str, list[int]]] = {}
        self.ledger = SloLedger(self.read, lambda: self.now_s)
        if content is not None:
            self.ledger.restore(content)

    def read(self) -> Totals:
        return self.totals

    def answer(self, outcome: str = "met", cell: tuple[str, str] = HERE, num: int = 1) -> None:
        counts = self.totals.setdefault(cell, {"first_token": [0] * NUM_BUCKETS})
        counts["first_token"][BUCKET_OF_50_MS] += num
        counts.setdefault(f"outcome:{outcome}", [0])[0] += num

    def wait(self, seconds: float) -> None:
        """Let time pass, with a tick a minute as in the daemon."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.ledger.tick()
            self.now_s = min(end_s, self.now_s + MINUTE_S)

    def of(self, window: str, tier: str = "interactive") -> TierFigures | None:
        found = [each for each in self.ledger.figures() if (each.window, each.tier) == (window, tier)]
        return found[0] if found else None

    def num(self, window: str) -> int:
        figures = self.of(window)
        return 0 if figures is None else figures.num_answers


def test_shares_rates_and_the_budget() -> None:
    machine = Machine()
    machine.answer(num=195)
    machine.answer("prefill", num=3)
    machine.answer("remote", cell=CLUSTER, num=2)
    machine.answer(cell=("realtime", "local"))
    machine.wait(600)
    for window in ("1h", "1d"):
        figures = machine.of(window)
        assert figures is not None
        assert (figures.seconds, figures.num_answers) == (600, 200)
        assert figures.attainment == pytest.approx(0.975)
        assert figures.goodput_per_s == pytest.approx(195 / 600)
        assert figures.budget_burn == pytest.approx(2.5)
        here, cluster = figures.routes
        assert (here.served_by, here.num_answers, here.num_met, here.late) == ("local", 198, 195, {"prefill": 3})
        assert (cluster.served_by, cluster.num_met, cluster.late) == ("remote:gpu", 0, {"remote": 2})
        assert here.times["first_token"].num == 198
        assert 25 < here.times["first_token"].p50_ms < here.times["first_token"].p99_ms <= 50
    realtime = machine.of("1h", "realtime")
    assert realtime is not None and (realtime.attainment, realtime.budget_burn) == (1.0, 0.0)
    assert machine.of("1h", "batch") is None


def test_an_hour_is_over_before_a_day() -> None:
    machine = Machine()
    machine.answer("queue", num=4)
    machine.wait(HOUR_S)
    assert (machine.num("1h"), machine.num("1d")) == (4, 4)
    machine.answer()
    machine.wait(6 * MINUTE_S)
    assert (machine.num("1h"), machine.num("1d")) == (1, 5)
    machine.wait(22 * HOUR_S)
    assert (machine.num("1h"), machine.num("1d")) == (0, 5)
    machine.wait(2 * HOUR_S)
    assert (machine.num("1h"), machine.num("1d")) == (0, 1)
    machine.wait(2 * HOUR_S)
    assert machine.ledger.figures() == []


def test_a_restart_loses_nothing() -> None:
    before = Machine()
    before.answer("decode", num=2)
    before.wait(30 * MINUTE_S)
    before.answer(num=3)
    assert not before.ledger.is_saved
    before.ledger.tick()
    content = before.ledger.dump()
    assert before.ledger.is_saved
    after = Machine(before.now_s + 20 * MINUTE_S, content)
    after.answer(num=5)
    figures = after.of("1h")
    assert figures is not None
    assert (figures.num_answers, figures.seconds) == (10, 30 * MINUTE_S), "the daemon was down for 20"
    assert figures.routes[0].late == {"decode": 2}
    assert figures.routes[0].times["first_token"].num == 10
    after.wait(20 * MINUTE_S)
    assert (after.num("1h"), after.num("1d")) == (8, 10)
    # Long after, nothing of it counts.
    assert Machine(after.now_s + 30 * HOUR_S, after.ledger.dump()).ledger.figures() == []


def test_an_hour_is_no_longer_after_the_machine_slept() -> None:
    machine = Machine()
    machine.wait(8 * HOUR_S)
    machine.answer()
    hour, day = machine.of("1h"), machine.of("1d")
    assert hour is not None and day is not None
    assert HOUR_S <= hour.seconds < HOUR_S + 5 * MINUTE_S
    assert day.seconds == 8 * HOUR_S


def test_a_year_takes_as_much_room_as_a_day() -> None:
    machine = Machine()
    sizes = []
    for _ in range(60):
        for cell in (HERE, CLUSTER):
            machine.answer(cell=cell, num=999)
        machine.now_s += 7 * HOUR_S / 12
        machine.ledger.tick()
        sizes.append(len(machine.ledger.dump()))
    assert max(sizes) < 20_000
    assert sizes[-1] < 1.1 * sizes[45]


def test_a_clock_that_is_set_back() -> None:
    machine = Machine()
    machine.answer()
    machine.ledger.tick()
    machine.now_s -= 48 * HOUR_S
    machine.answer(num=2)
    assert (machine.num("1h"), machine.num("1d")) == (2, 2)
    figures = machine.of("1h")
    assert figures is not None and figures.seconds >= 1.0


def good() -> dict[str, object]:
    machine = Machine()
    machine.answer()
    machine.ledger.tick()
    document: dict[str, object] = json.loads(machine.ledger.dump())
    return document


def damaged() -> list[bytes]:
    slot = {"window": "1h", "number": 480_000, "tier": "batch", "served_by": "local"}
    slots = [
        {**slot, "window": "1y", "counts": {}},
        {**slot, "counts": {"first_token": [1]}},
        {**slot, "counts": {"outcome:met": [-1]}},
        {**slot, "counts": {"outcome:met": [1, 2]}},
        {**slot, "counts": {"other": [1]}},
        {**slot, "counts": {"outcome:met": ["1"]}},
    ]
    whole = json.dumps(good()).encode()
    return [
        b"",
        b"\0" * 100,
        whole[:-20],
        b"[]",
        json.dumps(good() | {"bounds": {"first_token": [1.0]}}).encode(),
        json.dumps(good() | {"known_s": {"1h": {}}}).encode(),
        json.dumps(good() | {"known_s": {"1h": {"1": -1.0}, "1d": {}}}).encode(),
        *(json.dumps(good() | {"slots": [each]}).encode() for each in slots),
    ]


@pytest.mark.parametrize("content", damaged(), ids=range(len(damaged())))
def test_what_is_damaged_is_refused_as_a_whole(content: bytes) -> None:
    machine = Machine()
    with pytest.raises(ValueError):
        machine.ledger.restore(content)
    assert machine.ledger.figures() == []
    machine.answer()
    assert machine.num("1h") == 1


def test_whatever_comes_when_is_counted_once() -> None:
    for seed in range(20):
        rng, machine, num = random.Random(seed), Machine(), 0
        for _ in range(rng.randint(1, 40)):
            for _ in range(rng.randint(0, 3)):
                machine.answer(rng.choice(("met", "queue")), rng.choice((HERE, CLUSTER)))
                num += 1
            machine.now_s += rng.uniform(0.0, 80.0)
            if rng.random() < 0.5:
                machine.ledger.tick()
            if rng.random() < 0.2:
                machine.ledger.tick()
                machine = Machine(machine.now_s, machine.ledger.dump())
        assert machine.num("1h") == machine.num("1d") == num


def test_percentiles_are_those_of_prometheus() -> None:
    """The values are those of histogram_quantile for these buckets."""
    machine = Machine()
    counts = [0] * NUM_BUCKETS
    bounds = metrics.first_token_seconds.bounds
    counts[bounds.index(0.05)], counts[bounds.index(0.1)], counts[-1] = 50, 45, 5
    machine.totals[HERE] = {"first_token": counts}
    figures = machine.of("1h")
    assert figures is not None and figures.num_answers == 0 and figures.attainment is None
    times = figures.routes[0].times["first_token"]
    assert (times.p50_ms, times.p95_ms, times.p99_ms) == (50.0, 100.0, 120_000.0)


names = (f"slo-{number}" for number in itertools.count())


def test_it_reads_what_the_meter_has_counted() -> None:
    tier, place = next(names), next(names)
    before = read_totals().get((tier, place), {})
    assert before == {}
    for model in ("a", "b"):
        metrics.first_token_seconds.labels(model, tier, place).observe(0.04)
        metrics.inter_token_seconds.labels(model, tier, place).observe(0.01)
        metrics.answers_total.labels(model, tier, place, "met").inc()
    metrics.stage_seconds.labels("prefill", tier, place).observe(0.03)
    counts = read_totals()[tier, place]
    assert {name: sum(each) for name, each in counts.items()} == {
        "first_token": 2,
        "token": 2,
        "outcome:met": 2,
        "stage:prefill": 1,
    }


def test_the_gauges() -> None:
    machine = Machine()
    machine.answer(num=9)
    machine.answer("load")
    machine.wait(100)
    text = exposition(Snapshot([], 0, slo=machine.ledger.figures())).decode()
    samples = {
        (sample.name.removeprefix("edgeagent_slo_"), sample.labels["window"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("edgeagent_slo_")
    }
    for window in ("1h", "1d"):
        assert samples["attainment", window] == pytest.approx(0.9)
        assert samples["goodput", window] == pytest.approx(0.09)
        assert samples["budget_burn", window] == pytest.approx(10.0)
