"""Predicted costs of steps: learnt from few, right for others, and quick to follow a machine that changes."""

from __future__ import annotations

import math
import random

import pytest

from edgeagent.engine.costs.cost_model import FLASH_TILE, TILE, CostModel, StepShape

NOTHING = StepShape()


def alone(num_tokens: int, depth: int = 0) -> StepShape:
    return StepShape.alone(num_tokens, depth)


class Machine:
    """The seconds of a step on a scripted machine, whose kernels take as long for five tokens as for eight."""

    def __init__(
        self, *, base_s: float = 0.02, token_s: float = 0.002, cell_s: float = 0.0, pair_s: float = 0.0
    ) -> None:
        self.base_s, self.token_s, self.cell_s, self.pair_s = base_s, token_s, cell_s, pair_s
        self.slowness = 1.0

    def seconds(self, shape: StepShape) -> float:
        in_tiles = -(-shape.num_tokens // 8) * 8
        attention_s = self.cell_s * shape.num_tokens * shape.num_cells + self.pair_s * shape.num_pairs
        return self.slowness * (self.base_s + self.token_s * in_tiles + attention_s)


def learn(costs: CostModel, machine: Machine, num_steps: int, seed: int = 1) -> None:
    """Measure steps as a busy daemon runs them: streams, with and without a prompt's chunk."""
    chance = random.Random(seed)
    for _ in range(num_steps):
        shape = StepShape(0, chance.randrange(0, 4000), 0.0)
        for _ in range(chance.randrange(1, 6)):
            shape = shape.plus(chance.randrange(1, 4), chance.randrange(0, 3000))
        if chance.random() < 0.5:
            shape = shape.plus(chance.choice([32, 64, 128, 256, 400]), chance.randrange(0, 3000))
        costs.observe(shape, machine.seconds(shape) * chance.uniform(0.95, 1.05))


def test_knows_nothing_at_first() -> None:
    costs = CostModel(512)
    assert costs.predict(alone(8)) is None
    assert costs.prefill_s(100, 0) is None
    assert costs.predict_if_reliable(alone(1)) is None
    assert costs.predict_added(alone(1), [0, 1], 10) is None
    assert costs.max_tokens_within(1.0, NOTHING, 100, 32) == 32
    assert costs.error is None


def test_a_single_measurement_counts_for_each_token_and_no_less_than_itself() -> None:
    costs = CostModel(512)
    costs.observe(alone(32), 0.1)
    assert costs.predict(alone(32)) == pytest.approx(0.1)
    assert costs.predict(alone(64)) == pytest.approx(0.2)
    assert costs.predict(alone(16)) == pytest.approx(0.1)


@pytest.mark.parametrize(
    "machine",
    [Machine(), Machine(cell_s=2e-6), Machine(pair_s=2e-6), Machine(cell_s=1e-6, pair_s=1e-6, base_s=0.1)],
    ids=["flat", "by cells", "by pairs", "by both"],
)
def test_the_error_is_small_after_200_steps(machine: Machine) -> None:
    costs = CostModel(512)
    learn(costs, machine, 200)
    learn(costs, machine, 200, seed=2)
    assert costs.error is not None
    assert costs.error.median < 0.05
    assert costs.error.p95 < 0.15


def test_what_was_learnt_of_prompts_lasts_through_a_thousand_tokens() -> None:
    costs, machine = CostModel(512), Machine(cell_s=2e-6)
    learn(costs, machine, 200)
    for depth in range(1000):
        costs.observe(alone(1, depth), machine.seconds(alone(1, depth)))
    prompt = alone(384, 2000)
    assert costs.predict(prompt) == pytest.approx(machine.seconds(prompt), rel=0.15)


def test_idle_cells_cost_what_they_add() -> None:
    by_cells, by_pairs = CostModel(512), CostModel(512)
    learn(by_cells, Machine(cell_s=2e-6), 300)
    learn(by_pairs, Machine(pair_s=2e-6), 300)
    assert by_cells.idle_cells_s(100, 1000) == pytest.approx(0.2, rel=0.2)
    assert by_pairs.idle_cells_s(100, 1000) < 0.03


@pytest.mark.parametrize("machine", [Machine(cell_s=2e-6), Machine(pair_s=2e-6)], ids=["by cells", "by pairs"])
def test_a_sequence_that_is_alone_does_not_tell_what_idle_cells_cost(machine: Machine) -> None:
    """They count as free until a step beside some was measured; then the two kinds of machine are told apart."""
    costs = CostModel(512)
    for _ in range(4):
        for depth in range(0, 1500, 500):
            costs.observe(alone(480, depth), machine.seconds(alone(480, depth)))
    assert costs.idle_cells_s(1000, 1000) < 0.1
    for depth in range(0, 1500, 500):
        beside = alone(480, depth)._replace(num_cells=depth + 1500)
        costs.observe(beside, machine.seconds(beside))
    assert costs.idle_cells_s(1000, 1000) == pytest.approx(1e6 * machine.cell_s, rel=0.2, abs=0.1)


def test_an_outlier_is_forgotten() -> None:
    costs, machine = CostModel(512), Machine()
    learn(costs, machine, 100)
    costs.observe(alone(8), 60.0)  # the machine was suspended
    learn(costs, machine, 30, seed=2)
    assert costs.predict(alone(8)) == pytest.approx(machine.seconds(alone(8)), rel=0.3)


def test_a_disturbed_first_step_is_forgotten_at_once() -> None:
    costs = CostModel(512)
    costs.observe(StepShape.alone(1, 0), 5.0)  # the weights were still being read
    costs.observe(StepShape.alone(32, 0), 0.3)
    assert (costs.predict(StepShape.alone(16, 0)) or 0.0) < 5.0
    costs.observe(StepShape.alone(1, 0), 0.02)
    assert costs.predict(StepShape.alone(1, 0)) == pytest.approx(0.02, rel=0.5)
    assert (costs.predict(StepShape.alone(512, 0)) or 0.0) < 30.0


def test_a_machine_that_became_slow_is_believed_for_all_sizes() -> None:
    costs, machine = CostModel(512), Machine()
    learn(costs, machine, 100)
    machine.slowness = 4.0
    for _ in range(8):
        costs.observe(alone(4, 100), machine.seconds(alone(4, 100)))
    expected_s = costs.predict(alone(256))
    assert expected_s is not None
    assert expected_s > 0.5 * machine.seconds(alone(256))
    machine.slowness = 1.0
    for _ in range(12):
        costs.observe(alone(4, 100), machine.seconds(alone(4, 100)))
    assert costs.predict(alone(256)) == pytest.approx(machine.seconds(alone(256)), rel=0.35)


def test_tiles_are_seen() -> None:
    """Here five to eight tokens cost the same; a fitted line alone would not show that."""
    costs, machine = CostModel(512), Machine(base_s=0.01, token_s=0.005)
    for _ in range(10):
        for size in range(1, 17):
            costs.observe(alone(size), machine.seconds(alone(size)))
    found = costs.predict_added(alone(1), range(16), 0)
    assert found is not None
    assert found[7] == pytest.approx(found[4], rel=0.1)
    assert found[8] > 1.5 * found[7]


def test_of_sizes_that_contradict_each_other_the_one_measured_later_is_believed() -> None:
    cold, busy = CostModel(512), CostModel(512)
    cold.observe(alone(1), 0.500)
    cold.observe(alone(4), 0.020)
    found = cold.predict_added(alone(1), [0, 1, 3], 0)
    assert found is not None
    assert found[0] < 0.1
    busy.observe(alone(4), 0.020)
    busy.observe(alone(1), 0.500)
    found = busy.predict_added(alone(1), [0, 3], 0)
    assert found is not None
    assert found[1] >= found[0] > 0.1


def test_a_size_that_was_slow_long_ago_costs_no_more_than_in_proportion_to_a_smaller_one() -> None:
    costs = CostModel(512)
    costs.observe(alone(4), 2.0)
    for _ in range(40):
        costs.observe(alone(1), 0.02)
    found = costs.predict_added(alone(1), range(4), 0)
    assert found is not None
    assert found[0] == pytest.approx(0.02, rel=0.01)
    assert found[3] == pytest.approx(4 * found[0], rel=0.01)
    assert costs.is_outdated(4) is False
    for _ in range(100):
        costs.observe(alone(1), 0.02)
    assert costs.is_outdated(4) and not costs.is_outdated(1)


def test_a_step_that_was_much_faster_than_expected_is_believed_at_once() -> None:
    """Nothing makes a step faster by accident. A slower one may have been disturbed."""
    costs = CostModel(512)
    for _ in range(10):
        costs.observe(alone(4), 2.0)
        costs.observe(alone(1), 0.02)
    costs.observe(alone(4), 0.04)
    costs.observe(alone(1), 0.02)
    costs.fit_if_due()
    found = costs.predict_added(alone(1), range(4), 0)
    assert found is not None
    assert found[3] <= 4 * 0.02


def test_no_size_costs_less_than_a_smaller_one() -> None:
    costs = CostModel(512)
    chance = random.Random(3)
    for _ in range(200):
        costs.observe(alone(chance.randrange(1, 500), chance.randrange(2000)), chance.uniform(0.01, 0.3))
    found = costs.predict_added(StepShape(4, 3000, 4000.0), range(64), 1000)
    assert found is not None
    assert found == sorted(found)


def test_the_largest_step_within_a_time_is_of_whole_tiles() -> None:
    costs, machine = CostModel(512), Machine()
    learn(costs, machine, 200)
    beside = StepShape(4, 1000, 4000.0)
    found = costs.max_tokens_within(0.5, beside, 1000, 32)
    assert (4 + found) % TILE == 0
    assert 0.5 * 0.8 < machine.seconds(beside.plus(found, 1000)) < 0.5 * 1.15
    assert costs.max_tokens_within(0.001, beside, 1000, 32) == 32
    assert costs.max_tokens_within(60.0, beside, 1000, 32) == 508
    assert costs.max_tokens_within(60.0, beside, 1000, 32, most=45) == 45, "all of a prompt, in no whole tiles"


def test_a_deep_prompt_gets_smaller_chunks() -> None:
    costs = CostModel(512)
    learn(costs, Machine(cell_s=2e-6), 300)
    shallow, deep = (costs.max_tokens_within(0.5, StepShape(4, depth, 400.0), depth, 32) for depth in (100, 4000))
    assert deep < shallow


def test_a_step_that_costs_no_more_may_be_larger() -> None:
    """On a CPU, flash attention computes 64 tokens faster than 36."""
    costs = CostModel(512)
    for _ in range(3):
        for depth in (100, 1000, 3000):
            for size in (1, 4, 36):
                costs.observe(alone(size, depth), 0.03 + 0.002 * size + 1e-5 * size * depth)
            costs.observe(alone(256, depth), 0.03 + 0.002 * 256 + 1e-6 * 256 * depth)
    found = costs.max_tokens_within(0.1, StepShape(4, 3000, 4000.0), 3000, 32)
    assert (4 + found) % 64 == 0


def test_a_size_that_was_dear_once_is_tried_again() -> None:
    costs = CostModel(512)
    costs.observe(alone(512), 60.0)  # the machine was suspended
    for _ in range(40):
        costs.observe(alone(256), 0.5)
    assert costs.max_tokens_within(2.0, NOTHING, 0, 32) == 512


def test_an_unknown_size_may_have_more_time_and_grows_by_so_much_at_most() -> None:
    costs = CostModel(2048)
    costs.observe(alone(4), 1.5)
    assert costs.max_tokens_within(2.0, NOTHING, 0, 4) == 4
    assert costs.max_tokens_within(2.0, NOTHING, 0, 4, at_first=4.0) == 8
    quick = CostModel(2048)
    quick.observe(alone(4), 0.001)
    assert quick.max_tokens_within(2.0, NOTHING, 0, 4, max_growth=16) == 64


def test_a_batch_that_is_no_power_of_two_can_be_full() -> None:
    costs = CostModel(100)
    costs.observe(alone(100), 0.1)
    assert costs.max_tokens_within(2.0, NOTHING, 0, 4) == 100


def test_a_size_that_was_never_measured_is_not_guessed_from_larger_batches() -> None:
    costs = CostModel(512)
    costs.observe(alone(512), 1.0)
    assert costs.predict_if_reliable(alone(1)) is None
    costs.observe(alone(4), 0.02)
    assert costs.predict_if_reliable(alone(1)) == pytest.approx(0.02, rel=0.2)


class TiledMachine(Machine):
    """A machine with flash attention: from 64 tokens on, a pair takes a tenth of the time."""

    def seconds(self, shape: StepShape) -> float:
        pair_s = 2e-5 if shape.num_tokens < FLASH_TILE else 2e-6
        return 0.02 + 0.004 * shape.num_tokens + pair_s * shape.num_pairs


def taught(tile: int, machine: Machine | None = None) -> CostModel:
    costs, machine = CostModel(512, tile), machine or TiledMachine()
    for depth in (0, 1000, 3000):
        for num_tokens in (1, 4, 16, 128, 512):
            costs.observe(alone(num_tokens, depth), machine.seconds(alone(num_tokens, depth)))
    return costs


@pytest.mark.parametrize(
    ("num_tokens", "depth", "is_padded"),
    [
        pytest.param(40, 1500, True, id="a turn behind a long text"),
        pytest.param(63, 400, True, id="nearly a tile"),
        pytest.param(40, 100, False, id="little attention"),
        pytest.param(4, 1500, False, id="few tokens"),
        pytest.param(1, 6000, False, id="a single token"),
        pytest.param(64, 6000, False, id="a whole tile"),
        pytest.param(200, 6000, False, id="more than a tile"),
    ],
)
def test_a_step_is_padded_to_a_tile_where_that_is_faster(num_tokens: int, depth: int, *, is_padded: bool) -> None:
    shape = alone(num_tokens, depth)
    expected = alone(FLASH_TILE, depth) if is_padded else shape
    assert taught(FLASH_TILE).padded(shape, depth) == expected
    assert taught(0).padded(shape, depth) == shape
    machine = TiledMachine()
    assert is_padded == (machine.seconds(alone(FLASH_TILE, depth)) < machine.seconds(shape)) or num_tokens >= FLASH_TILE


def test_a_step_is_not_padded_where_tiles_are_no_faster() -> None:
    costs = taught(FLASH_TILE, Machine(pair_s=2e-5))
    assert costs.padded(alone(40, 3000), 3000) == alone(40, 3000)


def test_a_tile_of_several_sequences_computes_its_pairs_with_all_their_cells() -> None:
    costs, shape = taught(FLASH_TILE), alone(30, 2000).plus(10, 2000)
    assert costs.padded(shape, 2000).num_tokens == FLASH_TILE
    assert costs.padded(shape, 20_000) == shape


def test_what_is_urgent_is_not_padded_to_measure_that_again() -> None:
    costs, shape = taught(FLASH_TILE), alone(20, 300)
    assert all(costs.padded(shape, 2000, is_urgent=True) == shape for _ in range(200))
    assert any(costs.padded(shape, 2000) != shape for _ in range(200))


@pytest.mark.parametrize(
    ("span", "target_s", "share"),
    [
        pytest.param(300, 0.1, 1.0, id="1.4 times as long"),
        pytest.param(2000, 0.5, 0.1, id="2.4 times as long: 0.53 s"),
        pytest.param(2000, 0.6, 1.0, id="within the target"),
    ],
)
def test_a_shape_that_breaks_a_target_is_tried_more_rarely(span: int, target_s: float, share: float) -> None:
    shape, counts = alone(20, 300), []
    for each_s in (math.inf, target_s):
        costs = taught(FLASH_TILE)
        counts.append(sum(costs.padded(shape, span, target_s=each_s) != shape for _ in range(10_000)))
    assert counts[1] == pytest.approx(share * counts[0], abs=1)


def test_small_steps_are_computed_as_they_are_until_one_was_measured() -> None:
    costs = CostModel(512, FLASH_TILE)
    for depth in (0, 2000):
        costs.observe(alone(512, depth), TiledMachine().seconds(alone(512, depth)))
        costs.observe(alone(1, depth), 0.1)  # seems to be 30 times as much for 12 tokens
    assert costs.padded(alone(12, 2000), 2000) == alone(12, 2000)
    costs.observe(alone(14, 2000), 3.0)
    assert costs.padded(alone(12, 2000), 2000).num_tokens == FLASH_TILE


def test_drafts_of_one_stream_cost_no_more_than_a_tile() -> None:
    seconds = taught(FLASH_TILE).predict_added(alone(1, 3000), range(64), 3000)
    assert seconds is not None
    tile_s = TiledMachine().seconds(alone(FLASH_TILE, 3000))
    assert seconds[4] < seconds[20] == seconds[40] == pytest.approx(tile_s, rel=0.1)
    apart = taught(FLASH_TILE).predict_added(alone(1, 3000).plus(1, 3000), [0, 40], 3000)
    assert apart is not None
    assert apart[1] > 2 * tile_s, "of several streams it is not known how many cells a tile would meet"


def test_beside_streams_a_chunk_fills_no_tile_with_their_cells() -> None:
    """With eight streams of 1,000 tokens, 64 tokens take as many pairs as 64 behind 8,000 tokens."""
    costs, machine = taught(FLASH_TILE), TiledMachine()
    beside = StepShape.of([(1, 1000)] * 8, 8000)
    assert beside.num_pairs == 8000
    assert costs.predict(beside.plus(56, 0)) == pytest.approx(machine.seconds(alone(64, 8000)), rel=0.1)
    assert costs.predict(beside.plus(55, 0)) == pytest.approx(machine.seconds(beside.plus(55, 0)), rel=0.2)
    assert costs.max_tokens_within(0.5, beside, 0, 16) == 55
    assert taught(0).max_tokens_within(0.5, beside, 0, 16) == 88


def test_memory_is_bounded() -> None:
    costs = CostModel(4096)
    chance = random.Random(4)
    for _ in range(2000):
        costs.observe(alone(chance.randrange(1, 4096), chance.randrange(100_000)), 0.1)
    assert sum(map(len, costs._fit._means.values())) <= 128
