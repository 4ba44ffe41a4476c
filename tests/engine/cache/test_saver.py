"""When prefixes are read out beside requests: in a small share of the time, and once they have cost as much."""

from __future__ import annotations

import math
from collections.abc import Iterable
from collections.abc import Sequence as Items

import pytest

from edgeagent.engine.cache.block import Keyring
from edgeagent.engine.cache.block_table import BlockTable, empty_table
from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.cache.saver import Saver
from edgeagent.engine.cache.slots import Slots
from edgeagent.engine.costs.cost_model import CostModel, StepShape
from edgeagent.engine.engine import Engine
from edgeagent.engine.runner import Slice
from edgeagent.engine.sequence import SequenceSpec
from tests.engine.support import greedy, run
from tests.fakes import FakeClock, FakeRunner
from tests.integrity import check_integrity

PAUSE_S = 0.01


class FakeSaver(Saver):
    """Has `num_blocks` idle blocks, each of which takes `save_s` seconds to read out."""

    def __init__(
        self,
        *,
        save_s: float = 2**-9,
        idle_s_per_token: float = 0.0,  # seconds that idle blocks add for each token of a step
        is_blocked: bool = False,
    ) -> None:
        self.clock, runner, blocks = FakeClock(), FakeRunner(), empty_table()
        super().__init__(runner, Slots(runner, blocks.tree), blocks, CostModel(64), self.clock)
        self.save_s, self.idle_s_per_token, self.is_blocked = save_s, idle_s_per_token, is_blocked
        self.num_blocks, self.num_saved = 100, 0

    @property
    def has_work(self) -> bool:
        return self.num_saved < self.num_blocks

    @property
    def _is_blocked_by_writes(self) -> bool:
        return self.is_blocked

    @property
    def _is_saved(self) -> bool:
        return not self.has_work or self.is_blocked

    @property
    def _next_save_s(self) -> float:
        return self.save_s

    def _idle_cells_s(self, num_tokens: int, idle: Iterable[int]) -> float:
        return self.idle_s_per_token * num_tokens

    def save_one(self) -> None:
        self.num_saved += 1
        self.clock.advance(self.save_s)


def take_steps(saver: Saver, num_steps: int, step_s: float, **options: int) -> None:
    for _ in range(num_steps):
        saver.run_after_step(
            step_s,
            options.get("num_tokens", 1),
            pause_s=PAUSE_S if options.get("num_streaming", 2) else math.inf,
            is_awaited=bool(options.get("is_awaited", 0)),
        )


def test_cells_that_cost_nothing_are_read_for_a_hundredth_of_the_time() -> None:
    saver = FakeSaver(save_s=2**-11)
    take_steps(saver, 250, 0.004)
    assert saver.num_saved == 20


def test_nothing_is_read_while_a_client_waits_and_cells_cost_nothing() -> None:
    saver = FakeSaver()
    take_steps(saver, 250, 0.1, num_tokens=64, is_awaited=1)
    assert saver.num_saved == 0


def test_what_slows_a_prompt_is_read_within_a_pause_of_each_step() -> None:
    saver = FakeSaver(idle_s_per_token=2**-10)
    take_steps(saver, 1, 0.1, num_tokens=64, is_awaited=1)
    assert saver.num_saved == PAUSE_S // saver.save_s
    take_steps(saver, 19, 0.1, num_tokens=64, is_awaited=1)
    assert saver.num_saved == saver.num_blocks


def test_without_streams_the_pause_is_as_long_as_the_debt() -> None:
    saver = FakeSaver(idle_s_per_token=2**-10)
    take_steps(saver, 1, 0.1, num_tokens=64, is_awaited=1, num_streaming=0)
    assert saver.num_saved == 32


def test_no_more_is_spent_than_they_have_cost() -> None:
    saver = FakeSaver(idle_s_per_token=0.000_01)
    take_steps(saver, 10, 0.1, num_tokens=64, is_awaited=1)
    assert saver.num_saved == 3  # 6.4 ms


def test_streams_are_paused_rarely() -> None:
    saver = FakeSaver(idle_s_per_token=2**-10)
    take_steps(saver, 24, 0.004, num_tokens=2)
    assert saver.num_saved == 0
    take_steps(saver, 1, 0.004, num_tokens=2)
    assert saver.num_saved == PAUSE_S // saver.save_s


def test_a_block_that_takes_longer_than_a_pause_is_read_alone() -> None:
    saver = FakeSaver(save_s=0.03, idle_s_per_token=2**-10)
    take_steps(saver, 3, 0.1, num_tokens=64, is_awaited=1)
    assert saver.num_saved == 3


def test_nothing_is_read_that_could_not_be_kept() -> None:
    saver = FakeSaver(idle_s_per_token=2**-10, is_blocked=True)
    take_steps(saver, 50, 0.1, num_tokens=64, is_awaited=1)
    take_steps(saver, 50, 0.1)
    assert saver.num_saved == 0


class TimedRunner(FakeRunner):
    """A machine on which a step costs time for each token, and for each pair of a token and a used cell."""

    def __init__(self, clock: FakeClock, cell_s: float) -> None:
        super().__init__(num_cells=1024, end_token=-1)
        self._clock, self._cell_s = clock, cell_s
        self.num_used = 0

    def step_s(self, num_tokens: int, num_cells: int) -> float:
        return (1e-5 + self._cell_s * num_cells) * num_tokens

    def decode(self, slices: Items[Slice], min_tokens: int = 0) -> None:
        super().decode(slices)
        self._clock.advance(self.step_s(sum(len(part.tokens) for part in slices), self.num_used))

    def save(self, seq_id: int, start: int, end: int) -> memoryview:
        self._clock.advance(0.001)
        return super().save(seq_id, start, end)


@pytest.mark.parametrize("cell_s", [0.0, 1e-6])
def test_idle_prefixes_leave_the_cells_if_they_slow_others(cell_s: float) -> None:
    """Two machines with opposite costs make opposite choices."""
    clock = FakeClock()
    runner = TimedRunner(clock, cell_s)
    costs = CostModel(64)
    for num_tokens in (1, 2, 4, 8, 16, 32, 64):
        for num_cells in (0, 100, 200, 400):
            costs.observe(StepShape(num_tokens, num_cells, 0.0), runner.step_s(num_tokens, num_cells))
    blocks = BlockTable(Keyring(b"model", b"s" * 32), 1 << 20, None, can_cut=True, clock=clock)
    engine = Engine(runner, max_running=2, prefixes=PrefixStore(runner, blocks, costs, clock), clock=clock)
    engine.add(SequenceSpec("ends", [5, *range(1, 49)] * 4, greedy(), max_tokens=1))
    engine.add(SequenceSpec("goes on", [3, *range(1, 40)], greedy(), max_tokens=400))
    most_idle, slots = 0, engine.prefixes.slots

    def num_idle_cells() -> int:
        return sum(map(slots.num_unshared, slots.idle_ids))

    while engine.num_live == 2:
        engine.step()
    for _ in range(100):
        runner.num_used = slots.num_cells_used
        engine.step()
        check_integrity(engine)
        most_idle = max(most_idle, num_idle_cells())
    assert engine.num_live == 1 and most_idle > 190
    assert (num_idle_cells() == 0) == (cell_s > 0)
    engine.cancel("goes on")
    run(engine)
    engine.close()
