"""The costs of an engine's steps."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Items

import pytest

from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.costs.cost_model import CostModel
from edgeagent.engine.costs.step_shape import FLASH_TILE, StepShape
from edgeagent.engine.engine import Engine
from edgeagent.engine.runner import Slice
from edgeagent.engine.sampling.params import ResolvedSampling
from edgeagent.engine.sampling.sampler import Sampler
from edgeagent.engine.scheduler import BatchPart
from edgeagent.engine.sequence import Sequence, SequenceSpec
from edgeagent.engine.step_costs import StepCosts
from tests.fakes import FakeClock, FakeRunner


def test_a_step_without_its_drafts_has_neither_their_tokens_nor_their_attention() -> None:
    runner, costs = FakeRunner(), CostModel(64)
    for size in (1, 2, 4, 8, 16):
        for depth in (0, 100, 1000):
            costs.observe(StepShape.alone(size, depth), 0.001 * size * (1 + depth / 100))
    spec = SequenceSpec("a", [5] * 999, Sampler(ResolvedSampling(), 50))
    sequence = Sequence(spec, array("i", [5] * 1001), 1000, 2000, 0, seq_id=0, num_computed=1000)
    step_costs = StepCosts(runner, PrefixStore(runner, None, costs), 0.1)
    plain = BatchPart(sequence, 1, (), num_logits=1, num_scored=0)
    drafted = BatchPart(sequence, 1, (6,) * 15, num_logits=16, num_scored=0)
    assert step_costs.shape([drafted]).num_tokens == 16
    assert step_costs.plain_s([drafted]) == pytest.approx(step_costs.plain_s([plain]))


class TiledRunner(FakeRunner):
    """A runner with flash attention: a pair takes `pair_s` in a batch of less than a tile, and nothing in a tile."""

    def __init__(self, clock: FakeClock, num_cells: int, pair_s: float) -> None:
        super().__init__(num_cells=num_cells, max_batch=128, end_token=-1)
        self.attention_tile = FLASH_TILE
        self._clock, self._pair_s = clock, pair_s

    def decode(self, slices: Items[Slice], min_tokens: int = 0) -> None:
        super().decode(slices, min_tokens)
        num_tokens = max(min_tokens, sum(len(part.tokens) for part in slices))
        num_pairs = sum(len(part.tokens) * part.start for part in slices)
        self._clock.advance(1e-3 * num_tokens + (0.0 if num_tokens >= FLASH_TILE else self._pair_s * num_pairs))


@pytest.mark.parametrize(
    ("num_cells", "pair_s", "padded"),
    [
        pytest.param(1024, 1e-4, FLASH_TILE, id="behind a long text"),
        pytest.param(1024, 1e-9, 0, id="where attention is cheap"),
        pytest.param(310, 1e-4, 0, id="where cells are short"),
    ],
)
def test_a_turn_is_padded_to_a_tile_where_that_is_faster(num_cells: int, pair_s: float, padded: int) -> None:
    clock = FakeClock()
    runner = TiledRunner(clock, num_cells, pair_s)
    engine = Engine(runner, max_running=4, clock=clock)
    prefix = [5 + index % 40 for index in range(256)]

    def ask(name: str, prompt: list[int]) -> list[int]:
        """Return the `min_tokens` of each batch."""
        del runner.least_tokens[:]
        engine.add(SequenceSpec(name, prompt, Sampler(ResolvedSampling(temperature=0.0), 50), max_tokens=3))
        while engine.num_live:
            engine.step()
        return runner.least_tokens

    for number in range(3):
        ask(f"earlier {number}", [*prefix, 6 + number])
    before = {each.kind: each for each in engine.cost_model.work.sums()}
    assert ask("turn", [*prefix, *range(10, 30)]) == [padded, 0, 0]
    after = {each.kind: each for each in engine.cost_model.work.sums()}
    assert after.get("prompt") == before.get("prompt"), "padding is not the model's own work"
    assert after["turn"].num_tokens - (before["turn"].num_tokens if "turn" in before else 0.0) == 20


def test_a_step_during_which_the_machine_slept_is_not_hours_of_work() -> None:
    spec = SequenceSpec("a", [5] * 999, Sampler(ResolvedSampling(), 50))
    sequence = Sequence(spec, array("i", [5] * 1001), 1000, 2000, 0, seq_id=0, num_computed=1000)
    costs = CostModel(64)
    step_costs, parts = (
        StepCosts(FakeRunner(), PrefixStore(FakeRunner(), None, costs), 0.1),
        [BatchPart(sequence, 1, (), 1, 0)],
    )
    for seconds in (*[0.1] * 20, 7200.0):
        shape, _ = step_costs.padded(parts)
        step_costs.observe(shape, seconds, ())
    [sums] = costs.work.sums()
    assert (sums.kind, sums.num_steps) == ("token", 21.0)
    assert sums.seconds == pytest.approx(2.2, rel=0.05)
