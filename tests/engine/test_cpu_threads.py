"""How many threads to use while other programs use the machine."""

from __future__ import annotations

from typing import NamedTuple

import psutil
import pytest

from edgeagent.engine import cpu_threads
from edgeagent.engine.cpu_threads import CpuSample, ThreadGovernor, read_cpu


class Times(NamedTuple):
    """The times of a CPU, as psutil returns them."""

    user: float
    idle: float


class Machine:
    """A scripted machine: the cores used by others and by this process since the last sample."""

    def __init__(self) -> None:
        self.now_s = self.others_s = self.own_s = 0.0

    def run(self, seconds: float, *, others: float, own: float = 0.0) -> float:
        self.now_s += seconds
        self.others_s += others * seconds
        self.own_s += own * seconds
        return self.now_s

    def sample(self) -> CpuSample:
        return CpuSample(self.now_s, self.others_s + self.own_s, self.own_s)


def test_gives_up_a_core_that_others_use_and_takes_it_back() -> None:
    machine = Machine()
    governor = ThreadGovernor(2, num_cores=2, sample=machine.sample)
    assert not governor.update(machine.run(1, others=0.1, own=1.9))
    assert governor.update(machine.run(1, others=0.9, own=1.1))
    assert governor.num_threads == 1
    assert not governor.update(machine.run(1, others=0.4, own=1))  # not enough free cores to return to more threads
    assert governor.update(machine.run(1, others=0.1, own=1))
    assert governor.num_threads == 2


def test_what_others_used_while_nothing_was_computed_does_not_count() -> None:
    machine = Machine()
    governor = ThreadGovernor(2, num_cores=2, sample=machine.sample)
    assert not governor.update(machine.run(1, others=0.1, own=1.9))
    governor.rest()
    machine.run(10, others=2)
    assert not governor.update(machine.now_s)
    assert not governor.update(machine.run(1, others=0.1, own=1.9)) and governor.num_threads == 2
    assert governor.update(machine.run(1, others=1, own=1)) and governor.num_threads == 1


def test_short_answers_take_back_a_core_that_is_free_again() -> None:
    """None of them computes for as long as the load is measured."""
    machine = Machine()
    governor = ThreadGovernor(2, num_cores=2, sample=machine.sample)
    assert governor.update(machine.run(1, others=1, own=1)) and governor.num_threads == 1
    for _ in range(3):
        assert not governor.update(machine.run(0.1, others=0.0, own=1))
        governor.rest()
        machine.run(0.05, others=0.0)
    assert governor.update(machine.run(0.1, others=0.0, own=1)) and governor.num_threads == 2


def test_always_leaves_one() -> None:
    machine = Machine()
    governor = ThreadGovernor(4, num_cores=4, sample=machine.sample)
    governor.update(machine.run(1, others=8))
    assert governor.num_threads == 1


def test_spare_cores_of_the_machine_bear_the_load_first() -> None:
    machine = Machine()
    governor = ThreadGovernor(4, num_cores=8, sample=machine.sample)
    assert not governor.update(machine.run(1, others=3.9, own=4))
    assert governor.update(machine.run(1, others=6, own=2))
    assert governor.num_threads == 2


def test_looks_only_now_and_then() -> None:
    machine = Machine()
    governor = ThreadGovernor(2, num_cores=2, sample=machine.sample)
    assert not governor.update(machine.run(0.1, others=2))
    assert governor.num_threads == 2


def test_two_threads_that_ask_at_once_measure_once() -> None:
    machine = Machine()
    governor = ThreadGovernor(2, num_cores=2, sample=machine.sample)
    governor.update(machine.run(1, others=0.1, own=1.9))
    # The other thread compared the time before the first one had measured.
    assert not governor.update(machine.now_s + 1)
    assert governor.num_threads == 2


def test_the_real_machine_answers() -> None:
    first, second = read_cpu(), read_cpu()
    assert second.all_s >= first.all_s > 0
    assert second.own_s >= first.own_s > 0


def test_only_the_cpus_that_the_process_may_use_count(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [Times(user=7.0, idle=100.0), Times(user=40.0, idle=100.0)]
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: rows)
    for usable, busy_s in (({1}, 40.0), ({0}, 7.0), ({0, 1}, 47.0), ({5}, 47.0)):
        monkeypatch.setattr(cpu_threads, "usable_cpus", lambda usable=usable: frozenset(usable))
        assert read_cpu().all_s == busy_s


def test_another_program_on_the_only_usable_cpu_takes_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_threads, "usable_cpus", lambda: frozenset({3, 5}))
    machine = Machine()
    governor = ThreadGovernor(2, sample=machine.sample)
    assert governor.update(machine.run(1, others=1, own=1))
    assert governor.num_threads == 1


def test_a_limit_holds_at_once_and_ends_with_the_next_sample() -> None:
    machine = Machine()
    governor = ThreadGovernor(4, num_cores=4, sample=machine.sample)
    assert governor.limit(0.5) and (governor.num_threads, governor.max_threads) == (2, 2)
    assert not governor.update(machine.run(1, others=0.0, own=2.0))
    assert not governor.limit(0.5)
    assert not governor.limit(1.0)
    assert governor.update(machine.run(1, others=0.0, own=2.0)) and governor.num_threads == 4
    assert ThreadGovernor(1, num_cores=1, sample=machine.sample).limit(0.5) is False, "one thread is the least"
