"""The engine's law on real llama.cpp: batched, chunked, cached and interrupted output equals naive greedy output.

llama.cpp's logits are the same to the bit whatever a sequence's chunks and whoever shares its batch, while a batch
stays under 64 tokens and attention is the flash kind; so the batches here hold 48 at most and equality is exact. Larger
ones use other kernels, and there a near-tie may fall either way (`test_large_batches`).
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgeagent.config import EngineConfig
from edgeagent.engine.cost_model import CostModel
from edgeagent.engine.engine import Engine
from edgeagent.engine.llama import LlamaRunner
from edgeagent.engine.model import Model
from edgeagent.engine.runner import Slice
from edgeagent.engine.sampling import Sampler, resolve
from edgeagent.engine.sequence import SequenceSpec
from edgeagent.engine.speculation import DraftLength, DraftModel
from edgeagent.types import MemoryKind, SamplingParams
from tests.conftest import TinyModel

GREEDY = SamplingParams(temperature=0.0)
CONFIG = EngineConfig(threads=1, batch=48, parallel=4, ctx=512, flash_attention="on")
EPSILON = 0.75  # logits have a standard deviation of 3; larger batches move them by up to 0.4 (measured)


class Naive:
    """A plain loop: the whole prefix in chunks of one context of its own, the likeliest token, again."""

    def __init__(self, model: Model) -> None:
        self._runner = LlamaRunner(model, CONFIG.model_copy(update={"parallel": 1, "batch": 32}))

    def logits(self, tokens: list[int]) -> np.ndarray:
        self._runner.clear(0)
        for start in range(0, len(tokens), 32):
            chunk = tokens[start : start + 32]
            self._runner.decode([Slice(0, start, chunk, 1)])
        return self._runner.logits(0).copy()

    def generate(self, prompt: list[int], max_tokens: int) -> list[int]:
        output: list[int] = []
        while len(output) < max_tokens:
            token = int(self.logits([*prompt, *output]).argmax())
            if self._runner.is_end(token):
                break
            output.append(token)
        return output

    def close(self) -> None:
        self._runner.close()


@pytest.fixture(params=list(MemoryKind), ids=str)
def model(request: pytest.FixtureRequest, tiny_model: TinyModel) -> Iterator[Model]:
    loaded = Model(tiny_model(request.param), CONFIG)
    yield loaded
    loaded.close()


def greedy(model: Model) -> Sampler:
    return Sampler(resolve(GREEDY, model.default_sampling()), model.num_tokens)


def run_schedule(
    model: Model, engine: Engine, runner: LlamaRunner, rng: random.Random, num_steps: int
) -> dict[str, tuple[list[int], int, list[int]]]:
    """Drive an engine through a random schedule; return (prompt, max_tokens, output) of what was not cancelled."""
    known = [[rng.randrange(10, 250) for _ in range(60)]]
    asked: dict[str, tuple[list[int], int, list[int]]] = {}
    done: set[str] = set()
    step = 0
    while step < num_steps or engine.has_work:
        if step < num_steps and rng.random() < 0.15:
            base = rng.choice(known)
            prompt = base[: rng.randrange(1, len(base) + 1)] + [
                rng.randrange(10, 250) for _ in range(rng.randrange(1, 20))
            ]
            name = f"s{step}"
            asked[name] = (prompt[-300:], rng.randrange(1, 12), [])
            engine.add(SequenceSpec(name, asked[name][0], greedy(model), max_tokens=asked[name][1]))
        if asked and rng.random() < 0.05:
            victim = rng.choice(list(asked))
            if engine.cancel(victim) is not None:
                del asked[victim]
        # An abort flag that is set before a decode begins interrupts it at its first node.
        if rng.random() < 0.08:
            runner.request_abort()
        for output in engine.step():
            assert output.error is None
            name = output.sequence.id
            asked[name][2].extend(output.tokens)
            if output.finish_reason is not None:
                assert name not in done
                done.add(name)
                known.append([*asked[name][0], *asked[name][2]][-350:])
        runner.clear_abort()
        engine.check_integrity()
        step += 1
    assert done == asked.keys()
    return asked


@pytest.mark.parametrize("seed", range(2))
def test_random_schedules(model: Model, seed: int) -> None:
    runner = LlamaRunner(model, CONFIG)
    engine = Engine(runner, max_running=4)
    naive = Naive(model)
    asked = run_schedule(model, engine, runner, random.Random(seed), 120)
    assert len(asked) > 5
    assert any(output for _, _, output in asked.values())
    for prompt, max_tokens, output in asked.values():
        assert output == naive.generate(prompt, max_tokens)
    naive.close()
    runner.close()


class Meddler(threading.Thread):
    """Sets the abort flag again and again from another thread, wherever the decode happens to be."""

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


def test_interrupted_anywhere(model: Model) -> None:
    runner = LlamaRunner(model, CONFIG)
    engine = Engine(runner, max_running=4)
    naive = Naive(model)
    meddler = Meddler(runner)
    meddler.start()
    asked = run_schedule(model, engine, runner, random.Random(11), 150)
    meddler.stop()
    for prompt, max_tokens, output in asked.values():
        assert output == naive.generate(prompt, max_tokens)
    naive.close()
    runner.close()


def test_drafts_change_nothing(tiny_model: TinyModel, tmp_path: Path) -> None:
    target = Model(tiny_model(MemoryKind.FULL_ATTENTION), CONFIG)
    runner, draft_runner = LlamaRunner(target, CONFIG), LlamaRunner(target, CONFIG)
    naive = Naive(target)

    class Wrong(DraftModel):
        """A draft model that agrees with the target except for every third token."""

        def draft(self, decoding):  # type: ignore[no-untyped-def]
            drafts = super().draft(decoding)
            return {name: tuple((t + (i % 3 == 2)) % 250 for i, t in enumerate(ts)) for name, ts in drafts.items()}

    drafters: list[Wrong] = []

    def make(cost_model: CostModel) -> Wrong:
        drafters.append(Wrong(draft_runner, DraftLength(4, cost_model)))
        return drafters[0]

    engine = Engine(runner, max_running=4, drafter=make)
    asked = run_schedule(target, engine, runner, random.Random(7), 150)
    for prompt, max_tokens, output in asked.values():
        assert output == naive.generate(prompt, max_tokens)
    drafters[0].check_integrity()
    for each in (naive, runner, draft_runner, target):
        each.close()


def test_large_batches(tiny_model: TinyModel) -> None:
    model = Model(tiny_model(MemoryKind.FULL_ATTENTION), CONFIG)
    runner = LlamaRunner(model, CONFIG.model_copy(update={"batch": 512, "ctx": 2048}))
    engine = Engine(runner, max_running=4, itl_budget_s=10.0)
    naive = Naive(model)
    asked = run_schedule(model, engine, runner, random.Random(3), 120)
    for prompt, max_tokens, output in asked.values():
        expected = naive.generate(prompt, max_tokens)
        if output == expected:
            continue
        at = next(i for i, (a, b) in enumerate(zip(output, expected, strict=False)) if a != b)
        logits = naive.logits([*prompt, *expected[:at]])
        assert logits[expected[at]] - logits[output[at]] < EPSILON
    for each in (naive, runner, model):
        each.close()
