"""The engine's law on real llama.cpp: batched, cached, restored, interrupted output equals naive greedy output.

llama.cpp's logits depend on the order of a sequence's cells, which are taken where there is room. Attention sums in
that order; flash attention, smaller cells and quantized weights amplify the difference in the last bit (measured on
these models: 1e-5 if everything is f32 and plain, 0.1 with flash attention or smaller cells, 0.4 with quantized weights
too). From 64 tokens per batch, logits also depend on the chunks. So every row of logits is compared with a plain
loop's; the allowed distance is that between two plain runs (naive.py).
"""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from edgeagent.config import EngineConfig
from edgeagent.engine.cache.block import Keyring
from edgeagent.engine.cache.block_table import make_table
from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.choices import Choices
from edgeagent.engine.engine import Engine
from edgeagent.engine.llama.context import LlamaRunner
from edgeagent.engine.llama.model import Model
from edgeagent.engine.sampling.sampler import log_total
from edgeagent.engine.sequence import Sequence, SequenceSpec
from edgeagent.engine.speculation import proposals
from edgeagent.engine.speculation.acceptance import Ending
from edgeagent.engine.speculation.allocation import Offer
from edgeagent.engine.speculation.draft_model import DraftModel
from edgeagent.engine.speculation.ngram import NgramDrafter
from edgeagent.engine.speculation.proposals import MODEL, Drafters
from edgeagent.types import MemoryKind, Tier, replace
from tests.conftest import TinyModel
from tests.fakes import ALWAYS, FakeClock, FakeTier
from tests.integration.naive import EXACT_FLOOR, FACTOR, FLOOR, Asked, Naive, Recorder, Rows, check
from tests.integrity import check_integrity
from tests.models import MEMORIES, make_tiny_model
from tests.peer.shelf import TWINS, make_model

F16 = EngineConfig(threads=1, batch=48, parallel=4, ctx=768, flash_attention="on")
CONFIG = replace(F16, kv_type_k="f32", kv_type_v="f32", flash_attention="off")
# Batches in which the states of many sequences are moved at once, and interrupted.
WIDE = replace(CONFIG, batch=128)
Q8 = replace(F16, kv_type_k="q8_0", kv_type_v="q8_0")
SECRET = b"s" * 32


@dataclass(frozen=True)
class Setup:
    """A model and its engine configuration."""

    model: Model
    config: EngineConfig

    def runner(self) -> LlamaRunner:
        return LlamaRunner(self.model, self.config)

    def engine(self, runner: LlamaRunner, below: FakeTier | None = None, host_bytes: int = 1 << 20) -> Engine:
        config = replace(self.config, cache_memory_bytes=host_bytes)
        blocks = make_table(self.model.memory_kind, config, Keyring(b"", SECRET), below)
        prefixes = PrefixStore(runner, blocks, clock=FakeClock())
        return Engine(runner, max_running=4, prefixes=prefixes, clock=FakeClock())


@dataclass(frozen=True)
class Chosen:
    """Choices behind a prompt, and the log probabilities that the engine gave them."""

    prompt: list[int]
    choices: Choices
    logprobs: tuple[float, ...]

    def check(self, naive: Naive, floor: float) -> None:
        """Compare with a plain loop that computes each choice alone, as far as two plain runs agree."""
        for tokens, logprob in zip(self.choices.tokens, self.logprobs, strict=True):
            recorder = Recorder(naive.model)
            recorder.rows = [np.zeros(1, np.float32)] * (len(tokens) + 1)  # as many rows are compared
            asked = Asked(self.prompt, len(tokens), recorder, list(tokens))
            apart, least = abs(logprob - (plain := self._of(naive.run(asked).rows, tokens))), floor * (len(tokens) + 1)
            if apart > least:
                beside = self._of(naive.run_beside_another(asked).rows, tokens)
                assert apart <= FACTOR * abs(plain - beside) + least

    def _of(self, rows: Rows, tokens: Items[int]) -> float:
        scores = [float(row[token]) - log_total(row) for row, token in zip(rows, tokens, strict=False)]
        ends = np.logaddexp.reduce(rows[-1][list(self.choices.ends)].astype(np.float64))
        return math.fsum(scores) + float(ends) - log_total(rows[-1])


ExactModel = Callable[[MemoryKind | str], Path]


@pytest.fixture(scope="session")
def exact_model(tmp_path_factory: pytest.TempPathFactory) -> ExactModel:
    """Return a function from a memory kind or a shape's name to a tiny model with f32 weights."""
    folder = tmp_path_factory.mktemp("exact")

    def get(kind: MemoryKind | str) -> Path:
        path = folder / f"{kind}.gguf"
        if not path.exists() and isinstance(kind, MemoryKind):
            make_tiny_model(path, kind, num_heads=2, matrix_type=GGMLQuantizationType.F32)
        elif not path.exists():
            make_model(path, TWINS[kind], "F32")
        return path

    return get


# Over restarts, every kind and form is tried. One life alone is tried with exact cells, where the law is strictest.
EXACT = [
    *(pytest.param((kind, CONFIG), id=f"{kind}-f32") for kind in MEMORIES),
    *(pytest.param((kind, WIDE), id=f"{kind}-wide") for kind in (MemoryKind.RECURRENT, MemoryKind.HYBRID)),
]
# The forms that the engine may choose on a CPU. A recurrent memory has no cells to quantize and no attention.
PLAIN = replace(F16, flash_attention="off")
ROUNDED = [
    pytest.param((kind, config), id=f"{kind}-{label}", marks=[] if config is F16 else [pytest.mark.slow(seconds=1.5)])
    for kind in MEMORIES
    if kind is not MemoryKind.RECURRENT
    for label, config in (("f16", F16), ("q8_0", Q8), ("plain", PLAIN))
]
# Features that the tiny models of each kind lack: norms of queries and keys with windows in five of six layers, matrix
# states, states of convolutions alone. Experts are among the slow ones.
SHAPES = ("gemma-3-1b", "qwen3.5-0.8b", "lfm2-350m")
SHAPES_AND_CELLS = [
    pytest.param(
        (name, config),
        id=f"{name}-{label}",
        marks=[] if name in SHAPES and config is F16 else [pytest.mark.slow(seconds=3)],
    )
    for name in TWINS
    for label, config in (("f32", CONFIG), ("f16", F16), ("q8_0", Q8), ("plain", PLAIN))
]
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.slow(seconds=0.7)) for seed in range(1, 10))]
# With the host's memory, where more can happen, each kind is tried every day. Without it, one with cells alone and one
# with states too; each of the others about once a month.
WITHOUT_HOST = ((MemoryKind.FULL_ATTENTION, CONFIG), (MemoryKind.HYBRID, WIDE))
LIVES = [
    pytest.param(
        each.values[0],
        host_bytes,
        id=f"{host_bytes}-{each.id}",
        marks=[] if host_bytes or each.values[0] in WITHOUT_HOST else [pytest.mark.slow(seconds=1.5)],
    )
    for host_bytes in (0, 400_000)
    for each in EXACT
]


@pytest.fixture(params=[*EXACT, *ROUNDED])
def setup(request: pytest.FixtureRequest, exact_model: ExactModel) -> Iterator[Setup]:
    kind, config = request.param
    loaded = Model(exact_model(kind), config)
    yield Setup(loaded, config)
    loaded.close()


def run_schedule(
    model: Model,
    engine: Engine,
    runner: LlamaRunner,
    rng: random.Random,
    num_steps: int,
    known: list[list[int]] | None = None,
    below: FakeTier | None = None,
    chosen: list[Chosen] | None = None,
) -> list[Asked]:
    """Run an engine through a random schedule; return the requests that were not cancelled, with their output.

    New prompts share prefixes with those in `known`, to which they are added. Blocks `below` are damaged sometimes. If
    there is a list `chosen`, some requests have choices, and it gets their results.
    """
    choosing: dict[str, SequenceSpec] = {}
    known = [] if known is None else known
    known.append([rng.randrange(10, 250) for _ in range(60)])
    known.append([rng.randrange(10, 250) for _ in range(550)])
    asked: dict[str, Asked] = {}
    done: set[str] = set()
    step = 0
    while step < num_steps or engine.has_work:
        if step < num_steps and rng.random() < 0.15:
            base = rng.choice(known)
            kept = len(base) if rng.random() < 0.4 else rng.randrange(1, len(base) + 1)
            prompt = base[:kept] + [rng.randrange(10, 250) for _ in range(rng.randrange(1, 20))]
            name = f"s{step}"
            asked[name] = Asked(prompt[-600:], rng.randrange(1, 12), Recorder(model), [])
            # The shared prefix sometimes counts as instructions.
            num_system = kept if len(prompt) <= 600 and rng.random() < 0.4 else 0
            urgency = random.Random(step)  # less urgent sequences give way, and go on later
            spec = SequenceSpec(
                name,
                asked[name].prompt,
                asked[name].recorder,
                max_tokens=asked[name].max_tokens,
                num_system=num_system,
                boundaries=(num_system,) if num_system else (),
                tier=urgency.choice(list(Tier)),
                due_s=urgency.random(),
                is_ahead=urgency.random() < 0.1,
            )
            engine.add(spec)
        if chosen is not None and step < num_steps and step % 9 == 0:
            base = rng.choice(known)
            prompt = base[-400 : rng.randrange(1, len(base) + 1)] or base[:3]
            texts = {tuple(rng.randrange(10, 13) for _ in range(rng.randrange(1, 5))) for _ in range(8)}
            choices = Choices(tuple(texts), (3, 4))
            name = f"c{step}"
            choosing[name] = SequenceSpec(name, prompt, Recorder(model), tier=rng.choice(list(Tier)), choices=choices)
            engine.add(choosing[name])
        if asked and rng.random() < 0.05:
            victim = rng.choice(list(asked))
            if engine.cancel(victim) is not None:
                del asked[victim]
        if below is not None and below.blocks and rng.random() < 0.03:
            below.lost.add(rng.choice(list(below.blocks)))
        # An abort flag that is set before a decode interrupts it at its first node. Other memory kinds are never
        # interrupted: llama.cpp leaves their states half moved, and a later sequence may start with such a state.
        if rng.random() < 0.08 and model.memory_kind is MemoryKind.FULL_ATTENTION:
            runner.request_abort()
        for output in engine.step():
            assert output.error is None
            name = output.sequence.id
            if name in choosing:
                found = output.sequence.spec.choices
                if output.is_last and chosen is not None and found is not None:
                    chosen.append(Chosen(list(choosing.pop(name).prompt), found, output.choice_logprobs))
                continue
            asked[name].output.extend(output.tokens)
            if output.finish_reason is not None:
                assert name not in done
                done.add(name)
                known.append([*asked[name].prompt, *asked[name].output][-600:])
        runner.clear_abort()
        check_integrity(engine)
        step += 1
    assert done == asked.keys()
    assert not choosing
    return list(asked.values())


def floor_of(config: EngineConfig) -> float:
    return FLOOR if config.kv_type_k != "f32" else EXACT_FLOOR


@pytest.mark.parametrize(("setup", "host_bytes"), LIVES, indirect=["setup"])
@pytest.mark.parametrize("seed", SEEDS)
def test_random_schedules(setup: Setup, seed: int, host_bytes: int) -> None:
    check_one_life(setup, seed, host_bytes)


@pytest.mark.slow
@pytest.mark.parametrize("setup", ROUNDED, indirect=True)
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("host_bytes", [0, 400_000])
def test_random_schedules_with_rounded_cells(setup: Setup, seed: int, host_bytes: int) -> None:
    check_one_life(setup, seed, host_bytes)


def check_one_life(setup: Setup, seed: int, host_bytes: int) -> None:
    runner = setup.runner()
    engine = setup.engine(runner, None, host_bytes)
    naive = Naive(setup.model, setup.config)
    chosen: list[Chosen] = []
    asked = run_schedule(setup.model, engine, runner, random.Random(seed), 120, chosen=chosen)
    for each in chosen[::4]:
        each.check(naive, floor_of(setup.config))
    assert len(chosen) > 5
    assert len(asked) > 5
    assert any(each.output for each in asked)
    check(asked, naive, floor_of(setup.config))
    naive.close()
    runner.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_random_schedules_over_restarts(setup: Setup, seed: int) -> None:
    check_over_restarts(setup, seed)


@pytest.mark.daily(1, seconds=2)
@pytest.mark.parametrize("setup", SHAPES_AND_CELLS, indirect=True)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_schedules_of_shapes_over_restarts(setup: Setup, seed: int) -> None:
    check_over_restarts(setup, seed)


def check_over_restarts(setup: Setup, seed: int) -> None:
    """Assert the law for three engines, one after another, which share the blocks that they read out."""
    rng, below, naive = random.Random(4 + seed), FakeTier(), Naive(setup.model, setup.config)
    known: list[list[int]] = []
    num_restored = 0
    for _ in range(3):
        runner = setup.runner()
        engine = setup.engine(runner, below, 300_000)
        asked = run_schedule(setup.model, engine, runner, rng, 60, known, below)
        check(asked, naive, floor_of(setup.config))
        num_restored += below.num_reads
        engine.close()
        runner.close()
    assert num_restored > 0
    naive.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_random_schedules_of_batches_that_are_filled_up(
    exact_model: ExactModel, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    loaded = Model(exact_model(MemoryKind.FULL_ATTENTION), CONFIG)
    naive = Naive(loaded, CONFIG)
    monkeypatch.setattr(Model, "file_type", 2)  # as if its weights were in Q4_0
    runner = LlamaRunner(loaded, CONFIG)
    engine = Setup(loaded, CONFIG).engine(runner, None, 400_000)
    check(run_schedule(loaded, engine, runner, random.Random(20 + seed), 120), naive)
    for each in (naive, runner, loaded):
        each.close()


class Meddler(threading.Thread):
    """Sets the abort flag again and again from another thread, at any point of a decode."""

    def __init__(self, runner: LlamaRunner) -> None:
        super().__init__(daemon=True)
        self._runner = runner
        self._done = threading.Event()

    def run(self) -> None:
        rng = random.Random(5)
        while not self._done.wait(rng.random() * 0.003):
            self._runner.request_abort()

    def stop(self) -> None:
        self._done.set()
        self.join()


def test_interrupted_anywhere(exact_model: ExactModel) -> None:
    model = Model(exact_model(MemoryKind.FULL_ATTENTION), CONFIG)
    runner = LlamaRunner(model, CONFIG)
    engine = Setup(model, CONFIG).engine(runner)
    naive = Naive(model, CONFIG)
    meddler = Meddler(runner)
    meddler.start()
    asked = run_schedule(model, engine, runner, random.Random(11), 150)
    meddler.stop()
    check(asked, naive)
    for each in (naive, runner, model):
        each.close()


class RuleDraft(DraftModel):
    """A draft model whose tokens are those of the target, changed by a rule."""

    def __init__(self, runner: LlamaRunner, rule: str) -> None:
        super().__init__(runner)
        self._rule, self._random = rule, random.Random(13)

    def draft(
        self, counts: Items[tuple[Sequence, int]], endings: Mapping[str, Ending] = MappingProxyType({})
    ) -> dict[str, tuple[int, ...]]:
        drafts = super().draft(counts, endings)
        return {name: tuple(map(self._changed, range(len(each)), each)) for name, each in drafts.items()}

    def _changed(self, place: int, token: int) -> int:
        is_changed = {"right": False, "wrong": True, "third": place % 3 == 2, "random": self._random.random() < 0.4}
        return (token + 1) % 250 if is_changed[self._rule] else token


QUICK_RULES = ((MemoryKind.FULL_ATTENTION, "right"), (MemoryKind.SLIDING_WINDOW, "random"))


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        pytest.param(kind, rule, marks=[] if (kind, rule) in QUICK_RULES else pytest.mark.slow(seconds=4))
        for rule in ("right", "wrong", "third", "random")
        for kind in (MemoryKind.FULL_ATTENTION, MemoryKind.SLIDING_WINDOW)
    ],
    ids=str,
)
def test_drafts_change_nothing(
    exact_model: ExactModel, kind: MemoryKind, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def allocate(offers: Items[Offer], *_: object) -> tuple[list[int], float]:
        """Draft for each sequence, whether or not it pays."""
        counts = [min(4, len(offer.chances)) for offer in offers]
        return counts, 2.0 if any(counts) else 1.0

    monkeypatch.setattr(proposals, "allocate", allocate)
    monkeypatch.setattr(proposals.Proposals, "may_catch_up", True)  # although there is nearly always a new prompt
    monkeypatch.setattr(DraftModel, "catch_up_s", lambda self, sequence: 0.0)
    target = Model(exact_model(kind), CONFIG)
    runner, draft_runner = LlamaRunner(target, CONFIG), LlamaRunner(target, CONFIG)
    naive = Naive(target, CONFIG)
    draft = RuleDraft(draft_runner, rule)
    drafters = Drafters(draft, NgramDrafter(), max_tokens=4, planning_share=ALWAYS)
    engine = Engine(runner, max_running=4, drafters=drafters)
    asked = run_schedule(target, engine, runner, random.Random(7), 120)
    check(asked, naive)
    check_integrity(draft)
    check_counts(engine)
    for each in (naive, runner, draft_runner, target):
        each.close()


def check_counts(engine: Engine) -> None:
    """Check that each verified token is accepted or the first refused one of its draft, and that none counts twice."""
    counts = [each for each in engine.status().drafts if sum(each.num_chosen[1:])]
    assert MODEL in {each.source for each in counts}
    for each in counts:
        num_drafts, num_drafted = sum(each.num_chosen[1:]), sum(n * count for n, count in enumerate(each.num_chosen))
        num_verified, num_accepted = sum(each.num_verified), sum(each.num_accepted)
        assert num_accepted <= num_verified <= min(num_drafted, num_accepted + num_drafts)
        padded = [*each.num_accepted, *[0] * len(each.num_verified)]
        assert each.num_verified[0] == num_drafts
        assert all(before >= here for before, here in zip(padded, each.num_verified[1:], strict=False))


def test_large_batches(tiny_model: TinyModel) -> None:
    model = Model(tiny_model(MemoryKind.FULL_ATTENTION), CONFIG)
    runner = LlamaRunner(model, replace(CONFIG, batch=512, ctx=2048))
    engine = Engine(runner, max_running=4, itl_budget_s=10.0)
    naive = Naive(model, CONFIG)
    asked = run_schedule(model, engine, runner, random.Random(3), 120)
    check(asked, naive, FLOOR)
    for each in (naive, runner, model):
        each.close()
