"""The costs of an engine's steps."""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Items

import pytest

from edgeagent.engine.cache.block import Keyring
from edgeagent.engine.cache.block_table import BlockTable
from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.costs.cost_model import FLASH_TILE, CostModel, StepShape
from edgeagent.engine.engine import Engine
from edgeagent.engine.runner import Slice
from edgeagent.engine.sampling.params import ResolvedSampling
from edgeagent.engine.sampling.sampler import Sampler
from edgeagent.engine.scheduler import BatchPart
from edgeagent.engine.sequence import Sequence, SequenceSpec
from edgeagent.engine.step_costs import StepCosts
from tests.fakes import AsynchronousRunner, FakeClock, FakeRunner


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
    assert ask("turn", [*prefix, *range(10, 30)]) == [padded, 0, 0]


class TimedRunner(FakeRunner):
    """A step takes 20 ms, and 5 ms for each token."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(num_cells=2048, max_batch=512, end_token=-1)
        self._clock = clock

    def decode(self, slices: Items[Slice], min_tokens: int = 0) -> None:
        super().decode(slices, min_tokens)
        self._clock.advance(0.02 + 0.005 * sum(len(part.tokens) for part in slices))


def ended(*lengths: int) -> Engine:
    """Return an engine that answered prompts of these lengths."""
    clock = FakeClock()
    engine = Engine(TimedRunner(clock), max_running=4, clock=clock)
    for number, length in enumerate(lengths):
        prompt = [1 + number, *(5 + index % 40 for index in range(length - 1))]
        engine.add(SequenceSpec(str(number), prompt, Sampler(ResolvedSampling(temperature=0.0), 50), max_tokens=40))
        while engine.num_live:
            engine.step()
    return engine


def test_the_rate_of_an_idle_engine_is_not_that_beside_its_last_answer() -> None:
    assert ended(1000).status().prefill_tokens_per_s == pytest.approx(1000 / 5.1, rel=0.1)


def test_the_rate_of_prompts_is_unknown_after_a_short_one() -> None:
    assert ended(12).status().prefill_tokens_per_s == 0.0
    assert ended(12, 600).status().prefill_tokens_per_s == pytest.approx(600 / 3.1, rel=0.15)


class DeviceRunner(AsynchronousRunner):
    """A device that computes a batch in a second. Like llama.cpp, `save` waits for it, then takes 10 ms."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(end_token=-1)
        self._clock, self._ends_s = clock, 0.0

    def submit(self, slices: Items[Slice], min_tokens: int = 0) -> None:
        super().submit(slices, min_tokens)
        self._ends_s = self._clock.now_s + 1.0

    def wait(self) -> None:
        super().wait()
        self._clock.now_s = max(self._clock.now_s, self._ends_s)

    def save(self, seq_id: int, start: int, end: int) -> memoryview:
        self._clock.now_s = max(self._clock.now_s, self._ends_s) + 0.01
        return super().save(seq_id, start, end)


class RecordedCosts(CostModel):
    """Keeps the seconds of all steps."""

    def __init__(self) -> None:
        super().__init__(64)
        self.seconds: list[float] = []

    def record(self, shape: StepShape, seconds: float) -> None:
        self.seconds.append(seconds)
        super().record(shape, seconds)


class CountedFits(CostModel):
    """Counts how often the fit was updated."""

    def __init__(self) -> None:
        super().__init__(64)
        self.num_fits = 0

    def fit_if_due(self) -> None:
        self.num_fits += 1
        super().fit_if_due()


def test_the_fit_waits_until_the_tokens_were_sent() -> None:
    """A fit takes some tenths of a millisecond, and the caller sends the tokens before it saves the step."""
    clock, costs = FakeClock(), CountedFits()
    runner = DeviceRunner(clock)
    engine = Engine(runner, max_running=2, prefixes=PrefixStore(runner, None, costs, clock), clock=clock)
    engine.add(SequenceSpec("a", [9, 8, 7], Sampler(ResolvedSampling(temperature=0.0), 50), max_tokens=40))
    num_saved = 0
    while engine.num_live:
        engine.admit()
        engine.begin_step()
        engine.finish_step()
        assert costs.num_fits == num_saved
        engine.save_step()
        num_saved += 1
    assert costs.num_fits == num_saved > 30


def test_what_is_read_out_while_a_device_computes_is_not_the_time_of_its_step() -> None:
    clock, costs = FakeClock(), RecordedCosts()
    runner, table = DeviceRunner(clock), BlockTable(Keyring(b"fake", b"s" * 32), 1 << 20)
    prefixes = PrefixStore(runner, table, costs, clock)
    engine = Engine(runner, max_running=2, prefixes=prefixes, clock=clock)
    sampler = Sampler(ResolvedSampling(temperature=0.0), 50)
    engine.add(SequenceSpec("short", [1 + index % 40 for index in range(60)], sampler, max_tokens=2))
    engine.add(SequenceSpec("long", [9, 8, 7], sampler, max_tokens=60))
    while engine.num_live:
        engine.admit()
        engine.begin_step()
        engine.save_step()
        engine.finish_step()
    assert table.stats().num_blocks > 0, "beside the long answer"
    assert costs.seconds == pytest.approx([1.0] * len(costs.seconds))
