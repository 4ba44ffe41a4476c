"""A long prompt in its own context: the answer is the same, streams keep their steps, and a failure loses nothing."""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Sequence as Tokens
from itertools import pairwise
from typing import NoReturn

import pytest

from edgeagent.engine import side_prefill
from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.costs.cost_model import CostModel, StepShape
from edgeagent.engine.engine import Engine
from edgeagent.engine.runner import ChunkRows, SideContext
from edgeagent.engine.sequence import Sequence, SequenceSpec
from edgeagent.engine.side_prefill import SidePrefill
from edgeagent.types import Tier
from tests.engine.support import FakeSide, SlowRunner, greedy, step_s
from tests.fakes import FakeClock, FakeRunner, next_token
from tests.integrity import check_integrity

LONG = [7 + index % 40 for index in range(900)]
BUDGET_S = 0.1


def answer(prompt: Tokens[int], num_tokens: int) -> list[int]:
    """Return what a plain loop would generate, without an end token."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(next_token(tokens, 50))
    return tokens[len(prompt) :]


class Scene:
    """An engine with its own clock, and the side contexts that it opened."""

    def __init__(self, *, num_chunks: int = 1000, has_memory: bool = True, num_cells: int = 2000) -> None:
        self.clock, self.sides = FakeClock(), list[FakeSide]()
        self.runner = SlowRunner(self.clock, self.sides)
        self.runner.num_cells = num_cells
        costs = CostModel(512)
        for size in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512):
            costs.observe(StepShape.alone(size, 0), step_s(size))
        self.num_asked = 0

        def open_side(
            tokens: Tokens[int], num_known: int, chunk: int, media: ChunkRows | None = None
        ) -> FakeSide | None:
            assert media is None
            self.num_asked += 1
            if not has_memory:
                return None
            self.sides.append(FakeSide(tokens, num_known, chunk, num_chunks, self.clock))
            return self.sides[-1]

        self.engine = Engine(
            self.runner,
            max_running=4,
            itl_budget_s=BUDGET_S,
            prefixes=PrefixStore(self.runner, None, costs, self.clock),
            open_side=open_side,
            clock=self.clock,
        )
        self.outputs: dict[str, list[int]] = {}
        self.times_s: dict[str, list[float]] = {}

    def add(self, name: str, prompt: list[int], max_tokens: int, **options: object) -> None:
        spec = SequenceSpec(name, prompt, greedy(), max_tokens, **options)  # type: ignore[arg-type]
        self.engine.add(spec)

    def step(self, has_command: Callable[[], bool] = lambda: False) -> None:
        for output in self.engine.step(has_command):
            assert output.error is None
            self.outputs.setdefault(output.sequence.id, []).extend(output.tokens)
            if output.tokens:
                self.times_s.setdefault(output.sequence.id, []).append(self.clock.now_s)
        check_integrity(self.engine)

    def run(self) -> None:
        for _ in range(20_000):
            if not self.engine.num_live:
                return
            self.step()
        raise AssertionError("the engine does not come to an end")

    def stream(self, name: str = "stream", max_tokens: int = 400) -> list[int]:
        """Start a long stream, and return its prompt."""
        prompt = [1, 2, 3]
        self.add(name, prompt, max_tokens)
        while len(self.outputs.get(name, ())) < 3:
            self.step()
        return prompt


def test_a_long_prompt_is_computed_aside_and_both_answers_are_right() -> None:
    scene = Scene()
    prompt = scene.stream()
    num_before = len(scene.runner.sizes)
    scene.add("long", LONG, 5)
    while not scene.outputs.get("long"):
        scene.step()
    sizes = scene.runner.sizes[num_before:]
    assert len(scene.sides) == 1 and scene.sides[0].is_closed and scene.sides[0].num_known == 0
    assert max(sizes) <= 3 and scene.runner.num_tokens_computed < 100  # the last two tokens, beside the stream's one
    scene.run()
    assert scene.outputs == {"stream": answer(prompt, 400), "long": answer(LONG, 5)}


def test_streams_have_their_steps_within_the_budget() -> None:
    scene = Scene()
    scene.stream()
    scene.add("long", LONG, 5)
    while not scene.outputs.get("long"):
        scene.step()
    times_s = [at_s for at_s in scene.times_s["stream"] if at_s < scene.times_s["long"][0]]
    gaps_s = [later - earlier for earlier, later in pairwise(times_s[3:])]
    assert gaps_s and 0.8 * BUDGET_S < max(gaps_s) <= BUDGET_S
    assert scene.sides[0].events[:4] == ["resume", "pause", "resume", "pause"]


def test_a_context_that_pauses_early_lets_the_streams_step_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeSide, "window_s", 0.02)
    scene = Scene()
    scene.add("stream", [9, 8, 7], 400)
    scene.step()
    scene.add("long", LONG, 5)
    scene.run()
    assert scene.outputs == {"stream": answer([9, 8, 7], 400), "long": answer(LONG, 5)}
    gaps = [later - earlier for earlier, later in pairwise(scene.times_s["stream"][:20])]
    assert max(gaps) < 0.06


def test_a_prompt_without_streams_beside_it_is_computed_in_place() -> None:
    scene = Scene()
    scene.add("long", LONG, 5)
    scene.run()
    assert scene.num_asked == 0 and scene.outputs["long"] == answer(LONG, 5)


@pytest.mark.parametrize("prompt", [LONG[:60], LONG[:120]])
def test_a_short_prompt_is_not_worth_a_context(prompt: list[int]) -> None:
    scene = Scene()
    scene.stream()
    scene.add("short", prompt, 5)
    scene.run()
    assert scene.num_asked == 0 and scene.outputs["short"] == answer(prompt, 5)


def test_cached_beginnings_are_given_not_computed() -> None:
    scene = Scene()
    scene.add("first", LONG[:300], 2)
    scene.run()
    scene.stream()
    num_before = scene.runner.num_tokens_computed
    scene.add("long", LONG, 5)
    scene.run()
    (side,) = scene.sides
    assert side.num_known == 300 and side.runner.num_tokens_computed == len(LONG) - 302
    assert scene.runner.num_tokens_computed - num_before < 450
    assert scene.outputs["long"] == answer(LONG, 5)


@pytest.mark.parametrize("num_chunks", [0, 1, 2])
def test_a_context_that_fails_leaves_the_rest_to_the_engine(num_chunks: int) -> None:
    scene = Scene(num_chunks=num_chunks)
    prompt = scene.stream()
    scene.add("long", LONG, 5)
    scene.run()
    assert scene.num_asked == 1 and scene.sides[0].is_closed
    assert scene.outputs == {"stream": answer(prompt, 400), "long": answer(LONG, 5)}


def test_without_memory_the_prompt_is_computed_in_place_and_memory_is_not_asked_for_again() -> None:
    scene = Scene(has_memory=False)
    scene.stream()
    scene.add("long", LONG, 5)
    scene.run()
    assert scene.num_asked == 1 and scene.outputs["long"] == answer(LONG, 5)


def test_memory_is_asked_for_once_for_each_of_two_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_prefill, "MIN_GAIN", -1e9)  # whatever was measured
    scene = Scene(has_memory=False, num_cells=3000)
    scene.stream()
    scene.add("long", LONG, 5)
    scene.add("other", LONG[1:], 5)
    scene.run()
    assert scene.num_asked == 2


def test_the_most_urgent_of_the_waiting_prompts_gets_the_context() -> None:
    scene = Scene(num_cells=3000)
    scene.stream()
    scene.add("long", LONG, 5, tier=list(Tier)[-1])
    scene.add("urgent", LONG[1:], 5, tier=Tier.REALTIME)
    running = scene.engine._running
    scene.engine.admit()
    # The less urgent prompt was admitted first.
    running["urgent"] = running.pop("urgent")
    scene.step()
    assert scene.engine._side.sequence is running["urgent"]


def test_a_more_urgent_long_prompt_takes_the_context() -> None:
    scene = Scene(num_cells=3000)
    scene.stream()
    scene.add("long", LONG, 5, tier=list(Tier)[-1])
    while not scene.sides:
        scene.step()
    scene.add("urgent", LONG[1:], 5, tier=Tier.REALTIME)
    scene.step()
    assert scene.engine._side.sequence is scene.engine._running["urgent"] and scene.sides[0].is_closed
    scene.run()
    assert scene.outputs["long"] == answer(LONG, 5) and scene.outputs["urgent"] == answer(LONG[1:], 5)


def test_blocks_of_another_prompt_are_restored_without_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene()
    scene.stream(max_tokens=6)
    scene.add("long", LONG, 5)
    while "stream" in scene.engine._running:
        scene.step()
    (side,) = scene.sides
    waits_s: list[float] = []
    monkeypatch.setattr(side, "resume", lambda: None)  # a chunk that takes long
    monkeypatch.setattr(side, "wait", waits_s.append)
    scene.step()
    blocked = scene.engine.add(SequenceSpec("cached", [3] * 40, greedy(), 5))
    monkeypatch.setattr(scene.engine._admission, "advance", lambda *_: False)
    scene.engine.admit()
    assert blocked.restoring is not None
    scene.step()
    assert waits_s[0] == 10 * waits_s[-1]


def test_chunks_that_the_cells_refuse_are_computed_in_place() -> None:
    scene = Scene()
    scene.stream()
    scene.add("long", LONG, 5)
    scene.runner.refuse_restores = True
    scene.run()
    assert scene.num_asked == 1 and scene.outputs["long"] == answer(LONG, 5)


def test_a_cancelled_prompt_ends_its_context_and_keeps_what_was_copied() -> None:
    scene = Scene()
    scene.stream()
    scene.add("long", LONG, 5)
    sequence = scene.engine._waiting["long"]
    while sequence.num_computed < 300:
        scene.step()
    scene.engine.cancel("long")
    assert scene.sides[0].is_closed and scene.engine._side.sequence is None
    num_computed = sequence.num_computed
    scene.run()
    scene.add("again", LONG, 5)
    scene.run()
    assert scene.outputs["again"] == answer(LONG, 5)
    assert scene.engine._num_added == 3 and num_computed >= 300


def test_a_waiting_command_ends_the_wait_and_shortens_nobody_s_time() -> None:
    scene = Scene()
    scene.stream()
    scene.add("long", LONG, 5)
    while not scene.sides:
        scene.step()
    scene.step()
    until_s, num_steps = scene.engine._side._until_s, len(scene.runner.sizes)
    assert until_s > scene.clock.now_s
    for _ in range(3):
        scene.step(lambda: True)
    assert len(scene.runner.sizes) == num_steps and scene.clock.now_s < until_s
    scene.step()
    assert len(scene.runner.sizes) == num_steps + 1 and scene.clock.now_s >= until_s


def test_a_more_urgent_prompt_has_the_time_to_itself() -> None:
    scene = Scene()
    scene.stream()
    scene.add("long", LONG, 5, tier=list(Tier)[-1])
    while not scene.sides:
        scene.step()
    scene.step()
    scene.add("urgent", LONG[100:200], 5, tier=Tier.REALTIME)
    num_events = len(scene.sides[0].events)
    while not scene.outputs.get("urgent"):
        scene.step()
    # after the step that gave the first token of the urgent one
    assert scene.sides[0].events[num_events:].count("resume") <= 1
    scene.run()
    assert scene.outputs["long"] == answer(LONG, 5)
    assert scene.outputs["urgent"] == answer(LONG[100:200], 5)


def test_the_prompt_goes_on_when_the_streams_have_ended() -> None:
    scene = Scene()
    scene.stream(max_tokens=8)
    scene.add("long", LONG, 5)
    scene.run()
    assert len(scene.sides) == 1 and scene.outputs["long"] == answer(LONG, 5)


@pytest.mark.daily(3, seconds=0.2)
@pytest.mark.parametrize("seed", range(10))
def test_whatever_comes_and_goes_beside_it_every_answer_is_right(seed: int) -> None:
    chance = random.Random(seed)
    scene = Scene(num_chunks=chance.choice([1000, 2]), num_cells=1300)
    prompts: dict[str, tuple[list[int], int]] = {}
    cancelled: set[str] = set()
    for turn in range(120):
        if chance.random() < 0.1 and len(prompts) - len(cancelled) < 12:
            name, length = f"{turn}", chance.choice([3, 40, 700, 900])
            prompts[name] = LONG[chance.randrange(3) :][:length], chance.choice([3, 60])
            scene.add(name, *prompts[name], tier=chance.choice(list(Tier)))
        if chance.random() < 0.02 and prompts:
            name = chance.choice(list(prompts))
            if scene.engine.cancel(name):
                cancelled.add(name)
        scene.step(lambda: chance.random() < 0.2)
    scene.run()
    for name, (prompt, max_tokens) in prompts.items():
        if name not in cancelled:
            assert scene.outputs.get(name, []) == answer(prompt, max_tokens)
    assert all(side.is_closed for side in scene.sides)


@pytest.mark.parametrize(("budget_s", "is_aside"), [(0.1, True), (0.5, False)])
def test_chunks_that_are_cheap_but_exceed_the_budget_are_computed_aside(*, budget_s: float, is_aside: bool) -> None:
    """A token costs the same in a small and in a large step, but the smallest chunk takes longer than 0.1 s."""
    clock, costs, num_asked = FakeClock(), CostModel(512), 0
    for size in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512):
        costs.observe(StepShape.alone(size, 0), 0.01 * size)

    def open_side(
        tokens: Tokens[int], num_known: int, chunk: int, media: ChunkRows | None = None
    ) -> SideContext | None:
        nonlocal num_asked
        num_asked += 1
        return None

    runner = FakeRunner(num_cells=2000, max_batch=512, end_token=-1)
    side = SidePrefill(open_side, runner, PrefixStore(runner, None, costs, clock), budget_s, costs, clock)
    stream = Sequence.of(SequenceSpec("stream", [1], greedy(), 9), 9, 0, 1, 0.0)
    stream.tokens.append(2)
    stream.num_computed, stream.budget_s = 1, budget_s
    long = Sequence.of(SequenceSpec("long", LONG, greedy(), 9), 9, 1, 1, 0.0)
    assert side.split_running([stream, long], 10) == [stream, long]
    assert num_asked == is_aside


def test_without_memory_for_cached_cells_the_prompt_is_computed_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    def save(seq_id: int, start: int, end: int) -> NoReturn:
        raise MemoryError

    scene = Scene(num_cells=4000)
    scene.add("first", LONG[:300], 2)
    scene.run()
    prompt = scene.stream()
    monkeypatch.setattr(scene.runner, "save", save)
    long = [*LONG[:300], *(9 + index % 30 for index in range(900))]
    scene.add("long", long, 5)
    scene.run()
    assert [(side.num_known, side.is_closed) for side in scene.sides] == [(300, True)]
    assert scene.outputs["stream"] == answer(prompt, 400)
    assert scene.outputs["long"] == answer(long, 5)
