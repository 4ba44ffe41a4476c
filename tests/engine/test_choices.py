"""Choices: the trees that are computed for them, and what an engine on a fake runner says of them."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence as Items

import pytest

from edgeagent.engine.choices import Choices, grow
from edgeagent.engine.engine import Engine
from edgeagent.engine.sequence import SequenceSpec
from edgeagent.errors import ContextLengthExceeded
from edgeagent.types import FinishReason, MemoryKind, Tier
from tests.engine.support import greedy, make_engine, naive
from tests.fakes import AsynchronousRunner, FakeRunner, FakeTier, next_token
from tests.integrity import check_integrity

NUM_VOCAB = 50
LOG_TOTAL = math.log(math.exp(10.0) + NUM_VOCAB - 1)
ENDS = (0, 7)
MANY = {"max_tokens": 64, "max_rows": 64, "max_branches": 64}


def expected(prompt: Items[int], choices: Choices) -> list[float]:
    """Return what a plain loop says of each choice: its log probability, token by token, and that of its end."""

    def logprob(before: Items[int], tokens: Items[int]) -> float:
        likeliest = next_token(before, NUM_VOCAB)
        total = math.fsum(math.exp(10.0) if token == likeliest else 1.0 for token in tokens)
        return math.log(total) - LOG_TOTAL

    scores = []
    for tokens in choices.tokens:
        parts = [logprob([*prompt, *tokens[:index]], [token]) for index, token in enumerate(tokens)]
        if choices.ends:
            parts.append(logprob([*prompt, *tokens], choices.ends))
        scores.append(math.fsum(parts))
    return scores


def check_scores(scores: Items[float], prompt: Items[int], choices: Choices) -> None:
    assert scores == pytest.approx(expected(prompt, choices), abs=1e-4)


def make_choices(rng: random.Random, prompt: Items[int], ends: Items[int] = ENDS) -> Choices:
    """Return choices of which some share tokens, some are the beginning of others, and one is the likeliest answer."""
    texts = {tuple(naive(list(prompt), 3)[0] or [5])}
    while len(texts) < rng.randrange(2, 12):
        base = rng.choice(sorted(texts))
        texts.add(
            (*base[: rng.randrange(len(base) + 1)], *(rng.randrange(1, 50) for _ in range(rng.randrange(1, 4))))[:6]
        )
    tokens = list(texts)
    rng.shuffle(tokens)
    return Choices(tuple(tokens), tuple(ends))


class TestTree:
    def test_shared_tokens_are_computed_once(self) -> None:
        choices = Choices(((3, 4, 5), (2,), (3, 4), (3, 4, 6)), ENDS)
        tree = grow(choices, 0, [8, 9], **MANY)
        assert tree is not None
        assert (tree.tokens, tree.num_rows) == ([8, 9, 2, 3, 4, 5, 6], 6)
        assert tree.paths == [[2], [3, 4], [3, 4, 5], [3, 4, 6]]
        places = [(0, 0, 4), (1, 0, 4), (2, 0, 1), (2, 1, 4), (3, 1, 4), (4, 2, 3), (4, 3, 4)]
        assert [tuple(place) for place in tree.places] == places

    def test_a_last_token_is_not_computed_if_nothing_may_end(self) -> None:
        tree = grow(Choices(((3, 4), (3, 5), (6,)), ()), 0, [9], **MANY)
        assert tree is not None
        assert tree.tokens == [9, 3]
        assert tree.paths == [[1], [1], []]

    @pytest.mark.parametrize(
        ("limit", "num"), [({"max_branches": 2}, 2), ({"max_tokens": 6}, 2), ({"max_rows": 3}, 1), ({"max_rows": 2}, 0)]
    )
    def test_what_does_not_fit_is_left_for_the_next_tree(self, limit: dict[str, int], num: int) -> None:
        choices = Choices(((1, 2), (1, 3), (4, 5)), ENDS)
        tree = grow(choices, 0, [8, 9], **{**MANY, **limit})
        assert (0 if tree is None else len(tree.paths)) == num
        rest = grow(choices, num, [8, 9], **MANY)
        assert rest is not None
        assert len(rest.paths) == 3 - num


def choose(engine: Engine, name: str, prompt: list[int], choices: Choices, **fields: object) -> None:
    engine.add(SequenceSpec(name, prompt, greedy(), choices=choices, **fields))  # type: ignore[arg-type]


def run(engine: Engine) -> dict[str, tuple[float, ...]]:
    scores = {}
    while engine.has_work:
        for output in engine.step():
            assert output.error is None
            if output.is_last:
                scores[output.sequence.id] = output.choice_logprobs
        check_integrity(engine)
    return scores


@pytest.mark.parametrize("ends", [ENDS, ()])
@pytest.mark.parametrize("kind", [MemoryKind.FULL_ATTENTION, MemoryKind.RECURRENT])
def test_each_choice_gets_the_log_probability_that_a_plain_loop_gives_it(kind: MemoryKind, ends: Items[int]) -> None:
    rng = random.Random(3)
    engine = make_engine(FakeRunner(memory_kind=kind))
    prompts = {f"s{length}": [rng.randrange(1, 50) for _ in range(length)] for length in (1, 2, 40)}
    asked = {name: (prompt, make_choices(rng, prompt, ends)) for name, prompt in prompts.items()}
    for name, (prompt, choices) in asked.items():
        choose(engine, name, prompt, choices)
    for name, scores in run(engine).items():
        check_scores(scores, *asked.pop(name))
    assert not asked


def test_a_cached_prefix_is_used_and_left_as_it_was() -> None:
    runner = FakeRunner()
    engine, prompt = make_engine(runner), list(range(1, 41))
    choices = Choices(((3, 4), (3, 5), (6,)), ENDS)
    choose(engine, "first", prompt, choices)
    check_scores(run(engine)["first"], prompt, choices)
    num_before, num_decodes = runner.num_tokens_computed, runner.num_decodes
    choose(engine, "second", prompt, choices)
    check_scores(run(engine)["second"], prompt, choices)
    # One step computes the prompt's last token and the tree.
    assert (runner.num_tokens_computed - num_before, runner.num_decodes - num_decodes) == (5, 1)
    engine.add(SequenceSpec("answer", prompt, greedy(), max_tokens=5))
    outputs = engine.step() + engine.step()
    assert outputs[0].sequence.num_cached == len(prompt) - 1
    assert [token for output in outputs for token in output.tokens] == naive(prompt, 5)[0][:2]


@pytest.mark.parametrize(("num_new", "num_steps"), [(20, 1), (40, 2)])
def test_a_short_end_of_the_prompt_is_computed_with_all_choices(num_new: int, num_steps: int) -> None:
    runner = FakeRunner()
    engine, prompt = make_engine(runner), list(range(1, 41))
    choices = Choices(((3, 4), (3, 5), (6,)), ENDS)
    choose(engine, "first", prompt, choices)
    run(engine)
    longer = [*prompt[:39], *range(1, num_new + 1)]
    num_decodes = runner.num_decodes
    choose(engine, "second", longer, choices)
    check_scores(run(engine)["second"], longer, choices)
    assert runner.num_decodes - num_decodes == num_steps


def test_the_longest_choice_must_fit_behind_the_prompt() -> None:
    engine = make_engine(FakeRunner(num_cells=48))
    with pytest.raises(ContextLengthExceeded, match="The prompt has 46 tokens and its longest choice 3, but"):
        choose(engine, "long", list(range(1, 47)), Choices(((1,), (2, 3, 4)), ENDS))
    prompt, choices = list(range(1, 46)), Choices(((1,), (2, 3, 4), (4, 5, 6)), ENDS)
    choose(engine, "fits", prompt, choices)
    check_scores(run(engine)["fits"], prompt, choices)


def test_two_that_leave_each_other_no_room_run_one_after_the_other() -> None:
    rng = random.Random(1)
    engine = make_engine(FakeRunner(num_cells=48))
    prompts = {name: [rng.randrange(1, 50) for _ in range(20)] for name in ("a", "b")}
    choices = Choices((tuple(range(1, 9)), tuple(range(11, 19))), ENDS)
    for name, prompt in prompts.items():
        choose(engine, name, prompt, choices)
    for name, scores in run(engine).items():
        check_scores(scores, prompts.pop(name), choices)
    assert not prompts


@pytest.mark.parametrize(("max_batch", "longest"), [(32, 27), (64, 30)])
def test_the_longest_choice_fits_into_a_step_beside_the_most_streams(max_batch: int, longest: int) -> None:
    runner = FakeRunner(end_token=-1, num_cells=2048, max_batch=max_batch, max_outputs=max_batch)
    runner.min_prompt_chunk = 2
    engine = make_engine(runner, max_running=4)
    assert engine.max_choice_tokens == longest
    for number in range(3):
        engine.add(SequenceSpec(f"stream{number}", [1, 2, number], greedy(), max_tokens=500))
    engine.step()
    choices = Choices((tuple(range(1, longest + 1)), (4,)), ENDS)
    choose(engine, "choice", [5, 6, 7], choices)
    outputs = [output for _ in range(8) for output in engine.step() if output.sequence.id == "choice"]
    check_scores(outputs[-1].choice_logprobs, [5, 6, 7], choices)


def test_a_choice_beside_a_stream_takes_turns_of_few_tokens() -> None:
    """A step with a stream has at most the tokens of its budget, though the tree has more."""
    runner = FakeRunner(end_token=-1, num_cells=512)
    engine = make_engine(runner, batch_s=0.8)  # 64 tokens take 0.8 s; the budget is 0.1 s
    engine.add(SequenceSpec("stream", [1, 2], greedy(), max_tokens=200))
    engine.step()
    choices = Choices(tuple((number, number + 1, number + 2, number + 3) for number in range(1, 13)), ())
    choose(engine, "choice", [5, 6, 7], choices)
    sizes, scores = [], None
    while scores is None:
        before, rows = runner.num_tokens_computed, 0
        for output in engine.step():
            rows += bool(output.tokens)
            if output.sequence.id == "choice" and output.is_last:
                scores = output.choice_logprobs
        assert rows == 1, "the stream got no token"
        sizes.append(runner.num_tokens_computed - before)
    check_scores(scores, [5, 6, 7], choices)
    assert max(sizes) <= 1 + 16


@pytest.mark.parametrize("runner_class", [FakeRunner, AsynchronousRunner])
@pytest.mark.parametrize("kind", [MemoryKind.FULL_ATTENTION, MemoryKind.RECURRENT])
@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow(seconds=1)) for seed in range(2, 6))]
)
def test_the_law_over_random_schedules(seed: int, kind: MemoryKind, runner_class: type[FakeRunner]) -> None:
    """Choices and answers share prompts, batches and cells, are cancelled, preempted, interrupted and refused."""
    rng = random.Random(seed)
    runner = runner_class(
        num_cells=rng.choice((48, 96, 256)),
        num_sequences=rng.choice((4, 6, 12)),
        max_batch=rng.choice((16, 64)),
        memory_kind=kind,
    )
    draft = FakeRunner(num_cells=runner.num_cells, num_sequences=runner.num_sequences) if seed % 2 else None
    disk = rng.choice((None, FakeTier()))
    engine = make_engine(runner, max_running=rng.choice((1, 2, 4)), draft=draft, host_bytes=20_000, below=disk)
    base = [rng.randrange(1, 50) for _ in range(30)]
    chosen: dict[str, tuple[list[int], Choices]] = {}
    answered: dict[str, tuple[list[int], int]] = {}
    outputs: dict[str, list[int]] = {}
    for step in range(5000):
        if step < 250 and rng.random() < 0.3:
            prompt = base[: rng.randrange(1, 31)] + [rng.randrange(1, 50) for _ in range(rng.randrange(1, 6))]
            name, tier, due_s = f"s{step}", rng.choice(list(Tier)), time.monotonic() + rng.random()
            if rng.random() < 0.6:
                chosen[name] = prompt, make_choices(rng, prompt, rng.choice((ENDS, ())))
                choose(engine, name, *chosen[name], tier=tier, due_s=due_s)
            else:
                answered[name] = prompt, rng.randrange(1, 12)
                engine.add(SequenceSpec(name, prompt, greedy(), max_tokens=answered[name][1], tier=tier, due_s=due_s))
        live = [name for name in chosen if name in engine._running or name in engine._waiting]
        if live and rng.random() < 0.05:
            victim = rng.choice(live)
            engine.cancel(victim)
            del chosen[victim]
        if rng.random() < 0.1:
            runner.cancel_next = rng.randrange(3)
        if rng.random() < 0.02 and engine.status().num_running > 2:
            runner.refuse_next = True
        if rng.random() < 0.01:
            engine.purge()
        for output in engine.step():
            name = output.sequence.id
            if output.error is not None:
                assert "no room" in output.error.message
                chosen.pop(name, None)
                answered.pop(name, None)
            elif name in chosen:
                assert not output.tokens
                if output.is_last:
                    assert output.finish_reason is FinishReason.STOP
                    check_scores(output.choice_logprobs, *chosen.pop(name))
            else:
                outputs.setdefault(name, []).extend(output.tokens)
                if output.is_last and name in answered:
                    prompt, max_tokens = answered.pop(name)
                    room = runner.num_cells - len(prompt)
                    assert outputs[name] == naive(prompt, min(max_tokens, room))[0]
        runner.refuse_next = False
        check_integrity(engine)
        if step >= 250:
            runner.cancel_next = None
            if not engine.num_live:
                break
    assert not chosen
    assert not answered
    assert not engine.num_live
    engine.close()
