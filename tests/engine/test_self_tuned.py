"""Each choice that the engine tunes by itself tries again what it rejected, and takes it once that is better.

Each walk first makes one value look slow, as other programs or an earlier machine may have done, so that the choice
rejects it. Then the value is in truth the faster one. `run` returns for each use whether the value was used.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from edgeagent import engine
from edgeagent.engine.cache.block import CachePriority, Keyring
from edgeagent.engine.cache.block_table import BlockTable
from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.costs.cost_model import FLASH_TILE, CostModel, StepShape
from edgeagent.engine.cpu_threads import ThreadGovernor
from edgeagent.engine.runner import Slice
from edgeagent.engine.scheduler import Scheduler
from edgeagent.engine.sequence import Sequence, SequenceSpec
from edgeagent.engine.speculation.proposals import Drafters, Proposals
from tests.engine.speculation import test_proposals as drafting
from tests.engine.support import greedy, step_s
from tests.engine.test_cpu_threads import Machine as Cores
from tests.engine.test_side_prefill import LONG, Scene
from tests.fakes import FakeClock, FakeRunner

DEPTH = 3000


def make_sequence(name: str) -> Sequence:
    spec = SequenceSpec(name, [5, 6, 7] if name == "stream" else LONG, greedy(), 10)
    return Sequence.of(spec, 10, 0, 1, 0.0)


@dataclass
class Walk:
    """`reject` disturbs the measurements of a value; `run` uses the choice once, and says whether the value was used.

    `num_uses`: within how many uses the value must have won back.
    """

    reject: Callable[[], None]
    run: Callable[[], bool]
    num_uses: int


def padding(*, is_tile_better: bool, target_s: float = math.inf) -> Walk:
    """Padding a batch to a tile of attention, or no padding. `target_s`: that of a stream, which a retrial breaks."""
    costs = CostModel(512, FLASH_TILE)
    short, tile = StepShape.alone(40, DEPTH), StepShape.alone(FLASH_TILE, DEPTH)

    def true_s(shape: StepShape) -> float:
        pair_s = (1.25e-6 if shape.num_tokens >= FLASH_TILE else 4e-6) if is_tile_better else 1e-7
        return 8e-3 + 0.35e-3 * shape.num_tokens + pair_s * shape.num_pairs

    def reject() -> None:
        for shape in (short, tile, StepShape.alone(1, DEPTH), StepShape.alone(512, 1000)):
            costs.observe(shape, true_s(shape))
        for _ in range(10):
            costs.observe(tile if is_tile_better else short, 4 * true_s(tile if is_tile_better else short))

    def run() -> bool:
        shape = costs.padded(short, DEPTH, target_s=target_s)
        costs.observe(shape, true_s(shape))
        one = StepShape.alone(1, DEPTH)
        costs.observe(one, true_s(one))
        return (shape == tile) == is_tile_better

    return Walk(reject, run, 3000 if target_s == math.inf else 15_000)


def restoring() -> Walk:
    """Restoring blocks from host memory, or computing their tokens."""
    clock, slow = FakeClock(), [1.0]

    class Runner(FakeRunner):
        def restore(self, seq_id: int, payload: object, end: int) -> bool:
            clock.advance(slow[0])
            return super().restore(seq_id, payload, end)  # type: ignore[arg-type]

    runner = Runner(num_cells=512)
    costs = CostModel(64)
    for size in (1, 64):
        costs.observe(StepShape.alone(size, 0), 0.001 * size)
    blocks = BlockTable(Keyring(b"k", b"s" * 32), 1 << 20, can_cut=True, block_tokens=32, clock=clock)
    prefixes = PrefixStore(runner, blocks, costs, clock)
    prompt = [5 + index % 40 for index in range(128)]

    def run() -> bool:
        """Use the cached prompt. Return whether its blocks were restored."""
        found = prefixes.match("", prompt, len(prompt))
        restoring = prefixes.claim(array("i", prompt), found)
        assert restoring is not None
        while not prefixes.restorer.advance(restoring, 1.0):
            pass
        num_restored = start = prefixes.slots.length(restoring.seq_id)
        while start < len(prompt):
            assert prefixes.slots.reserve(32)
            runner.decode([Slice(restoring.seq_id, start, prompt[start : start + 32], 0)])
            prefixes.slots.append(restoring.seq_id, prompt[start : start + 32])
            start += 32
        prefixes.release(restoring.seq_id, restoring, keep=True, priority=CachePriority())
        while not prefixes.saver.is_done:
            prefixes.saver.run_when_idle()
        while prefixes.slots.evict_one():
            pass
        return num_restored > 0

    def reject() -> None:
        run()
        run()
        slow[0] = 1e-4

    return Walk(reject, run, 3000)


def threads() -> Walk:
    """Using a core that another program took."""
    cores = Cores()
    governor = ThreadGovernor(2, num_cores=2, sample=cores.sample)

    def run(others: float = 0.1) -> bool:
        governor.update(cores.run(1, others=others, own=1))
        return governor.num_threads == 2

    return Walk(lambda: [run(1.5) for _ in range(20)].clear(), run, 3)


def drafts(*, is_slow: bool) -> Walk:
    """Drafting, which was rejected for unlucky drafts, or because steps of several tokens were slow."""
    machine = drafting.Machine(drafting.tiles, 0.95)

    def reject() -> None:
        machine.rate, machine.target_steps_s = (0.95, drafting.linear) if is_slow else (0.0, drafting.tiles)
        if is_slow:
            for size in (2, 3, 4, 5, 8, 16) * 10:
                machine.costs.observe(StepShape.alone(size, 0), 0.025 * size)
        machine.run(60)
        machine.rate, machine.target_steps_s = 0.95, drafting.tiles

    return Walk(reject, lambda: machine.run(1)[0] > 0, 3000)


def drafts_after_a_busy_time(*, num_tokens: int) -> Walk:
    """Drafting so many tokens of the text, whose steps were measured only while other programs ran."""
    machine = drafting.Machine(drafting.sloped, 0.97)
    drafters = Drafters(None, drafting.Repeating({"a": 16}))
    machine.proposals = Proposals(drafters, machine.costs, clock=lambda: machine.now_s)

    def reject() -> None:
        for size in (2, 4, 8, 16, 17) * 10:
            machine.costs.observe(StepShape.alone(size, 0), 10 * drafting.sloped(size))
        for _ in range(20):
            machine.costs.observe(StepShape.alone(1, 0), drafting.sloped(1))

    return Walk(reject, lambda: machine.run(1)[0] >= num_tokens, 200)


def computing_in_steps() -> Walk:
    """Computing a prompt in the streams' steps, or in a side context."""
    scene = Scene()

    def observe(factor: float) -> None:
        for size in (16, 17, 18, 20, 24, 32, 33, 48, 64, 65, 96, 128):
            scene.engine.cost_model.observe(StepShape.alone(size, 0), factor * step_s(size))

    def true_s(size: int) -> float:
        return 0.01 + size * 0.001

    def reject() -> None:
        scene.runner.true_s = true_s
        scene.stream(max_tokens=1900)
        for _ in range(10):
            observe(4.0)

    numbers = iter(range(10_000))

    def run() -> bool:
        name, num_before = f"long {next(numbers)}", len(scene.sides)
        scene.add(name, [50 + len(scene.outputs), *LONG[:800]], 1)
        while not scene.outputs.get(name):
            scene.step()
        if "stream" not in scene.engine._running:
            scene.outputs.pop("stream")
            scene.stream(max_tokens=1000)
        return len(scene.sides) == num_before

    return Walk(reject, run, 200)


def small_chunks() -> Walk:
    """Computing a prompt beside a stream in small chunks, or in tiles of attention."""
    costs = CostModel(512)
    scheduler = Scheduler(512, 0.1, costs)
    stream, prompt = (make_sequence(name) for name in ("stream", "prompt"))
    stream.tokens.append(1)
    stream.num_computed, stream.budget_s = 3, 0.1

    def run() -> bool:
        prompt.num_computed = 0
        parts = scheduler.plan([stream, prompt], {})
        size = sum(part.num_tokens for part in parts)
        costs.observe(StepShape(size, 3, 3.0), 0.01 + 0.002 * size)
        return size < FLASH_TILE

    def reject() -> None:
        for size in (1, 64, 128, *(16, 17, 20, 24, 32) * 10):
            costs.observe(StepShape(size, 3, 3.0), (0.01 + 0.002 * size) * (1 if size in (1, 64, 128) else 4))

    return Walk(reject, run, 2000)


WALKS = {
    "padding": lambda: padding(is_tile_better=True),
    "no padding": lambda: padding(is_tile_better=False),
    "padding beside a stream": lambda: padding(is_tile_better=True, target_s=0.1),
    "no padding beside a stream": lambda: padding(is_tile_better=False, target_s=0.01),
    "restoring": restoring,
    "threads": threads,
    "drafts after unlucky ones": lambda: drafts(is_slow=False),
    "drafts after slow steps": lambda: drafts(is_slow=True),
    "drafts after a busy time": lambda: drafts_after_a_busy_time(num_tokens=3),
    "long drafts after a busy time": lambda: drafts_after_a_busy_time(num_tokens=10),
    "no side context": computing_in_steps,
    "small chunks": small_chunks,
}


@pytest.mark.parametrize("name", WALKS)
def test_what_was_rejected_is_tried_again_and_wins_back(name: str) -> None:
    walk = WALKS[name]()
    walk.reject()
    num_used_in_a_row = 0
    for _ in range(walk.num_uses):
        num_used_in_a_row = num_used_in_a_row + 1 if walk.run() else 0
        if num_used_in_a_row == 5 or (num_used_in_a_row and walk.num_uses < 5):
            return
    raise AssertionError(f"{name} was not used again")


# Where the engine keeps what it measured to choose by, and the walk that tries the choice. The disk's rate only adds to
# the time of restoring. An adapter's turn and the number of threads follow each measurement, and reject nothing. The
# saver rejects nothing either: what is evicted is read out whatever its rate, which measures it again.
PLACES = {
    ("cache/prefix_store.py", "Retrials"): "restoring",
    ("cache/restorer.py", "TransferRate"): "restoring",
    ("cache/disk/store.py", "TransferRate"): "restoring",
    ("costs/cost_model.py", "Retrials"): "padding",
    ("scheduler.py", "Retrials"): "small chunks",
    ("side_prefill.py", "Retrials"): "no side context",
}


def test_each_place_that_keeps_rates_has_a_walk() -> None:
    """A choice by a rate that only its own use measures locks itself off after one disturbed measurement."""
    folder = Path(engine.__path__[0])
    found = {
        (path.relative_to(folder).as_posix(), kind)
        for path in folder.rglob("*.py")
        for kind in re.findall(r"= (Retrials|\w*Rate)\(\)", path.read_text(encoding="utf-8"))
    }
    assert found - {("cache/saver.py", "TransferRate")} == PLACES.keys()
    assert set(PLACES.values()) <= WALKS.keys()
