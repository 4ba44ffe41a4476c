"""Cells behind a changed text are moved, no exact prompt uses them, and idle time measures what that changes."""

from __future__ import annotations

import random

import pytest

from edgeagent.engine.engine import Engine
from edgeagent.engine.sequence import Sequence, SequenceSpec
from edgeagent.engine.shift_check import CHECK_ID
from edgeagent.types import FinishReason
from tests.engine.support import BatchSizes, greedy, make_engine, naive, run
from tests.integrity import check_integrity

PROMPT = random.Random(3).choices(range(1, 50), k=600)


def changed(clock: list[int]) -> list[int]:
    """Return the prompt with another clock."""
    return PROMPT[:20] + clock + PROMPT[23:]


def spec(name: str, prompt: list[int], max_tokens: int, *, partition: str = "", is_exact: bool = False) -> SequenceSpec:
    return SequenceSpec(name, prompt, greedy(), max_tokens, partition=partition, is_exact=is_exact)


def answer(engine: Engine, asked: SequenceSpec) -> tuple[list[int], FinishReason | None]:
    """Run a sequence, and all work in idle time behind it; return its output."""
    engine.add(asked)
    return run(engine)[asked.id]


@pytest.fixture
def runner() -> BatchSizes:
    made = BatchSizes(num_cells=4096, max_batch=64)
    made.can_shift = True
    return made


@pytest.fixture
def engine(runner: BatchSizes) -> Engine:
    made = make_engine(runner, host_bytes=1 << 24)
    answer(made, spec("base", PROMPT, 4))
    runner.sizes.clear()
    return made


@pytest.mark.parametrize("clock", [[7, 7, 7], [7, 7, 7, 7, 7], [7], []])
def test_only_the_changed_text_and_the_last_tokens_are_computed(
    engine: Engine, runner: BatchSizes, clock: list[int]
) -> None:
    sequence = engine.add(spec("late", changed(clock), 4))
    outputs = [output for _ in range(40) for output in engine.step() if output.sequence is sequence]
    assert outputs[-1].finish_reason is not None
    assert sequence.num_shifted > 500
    assert sequence.num_cached + sequence.num_shifted + len(clock) + 32 == sequence.num_prompt
    check_integrity(engine)


def test_exact_prompts_never_use_moved_cells(engine: Engine) -> None:
    late = changed([7, 7, 7, 7])
    moved = engine.add(spec("late", late, 4))
    exact = engine.add(spec("exact", late, 4, is_exact=True))
    base = engine.add(spec("base again", PROMPT, 4))
    results = run(engine)
    assert moved.num_shifted
    assert not exact.num_shifted
    assert not base.num_shifted
    assert results["late"] != naive(late, 4), "the fake shows that cells were moved"
    assert results["exact"] == naive(late, 4)
    assert results["base again"] == naive(PROMPT, 4)


def test_a_pinned_prompt_is_computed_and_kept(engine: Engine) -> None:
    asked = SequenceSpec("pinned", changed([7, 8, 9]), greedy(), 4, pin=True)
    sequence = engine.add(asked)
    assert run(engine)["pinned"] == naive(list(asked.prompt), 4) and sequence.num_shifted == 0
    again = engine.add(SequenceSpec("again", asked.prompt, greedy(), 4))
    run(engine)
    assert again.num_cached > 500


def test_idle_time_measures_the_distance_and_a_request_interrupts_it(engine: Engine) -> None:
    late = changed([7, 7, 7, 7])
    sequence = engine.add(spec("late", late, 1))
    while sequence.num_output == 0:
        engine.step()
    while CHECK_ID not in engine._running:
        engine.step()
    assert answer(engine, spec("other", PROMPT, 2)) == naive(PROMPT, 2)
    status = engine.status().shift
    assert status is not None
    assert (status.num_prompts, status.num_measured, status.num_same) == (1, 1, 0)
    assert status.median_distance == status.most_distance > 0
    after = engine.add(spec("after", late, 1))
    while after.num_output == 0:
        engine.step()
    assert (after.num_shifted, after.tokens[-1:].tolist()) == (0, naive(late, 1)[0]), "the check left exact cells"


def test_nothing_is_moved_for_another_client_or_without_the_option(engine: Engine, runner: BatchSizes) -> None:
    late = changed([7, 7, 7])
    assert answer(engine, spec("other client", late, 2, partition="other")) == naive(late, 2)
    runner.can_shift = False
    assert answer(engine, spec("off", changed([9, 9]), 2)) == naive(changed([9, 9]), 2)


def test_cells_that_are_gone_are_computed(runner: BatchSizes) -> None:
    engine = make_engine(runner)  # no blocks
    answer(engine, spec("base", PROMPT, 2))
    assert answer(engine, spec("late", changed([7]), 2)) == naive(changed([7]), 2)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_runs_beside_moved_cells_is_exact(seed: int) -> None:
    """Prompts with changed texts come, are cancelled, purged and preempted; those without moved cells are exact."""
    chance = random.Random(seed)
    runner = BatchSizes(num_cells=2500, max_batch=64)
    runner.can_shift = True
    engine, sequences, collected = (
        make_engine(runner, host_bytes=1 << 24),
        dict[str, Sequence](),
        dict[str, list[int]](),
    )
    for step in range(150):
        if chance.random() < 0.2:
            prompt = list(PROMPT[: chance.choice((400, 600))])
            for _ in range(chance.randrange(3)):
                at = chance.randrange(len(prompt))
                prompt[at : at + chance.randrange(4)] = chance.choices(range(1, 50), k=chance.randrange(5))
            asked = spec(f"s{step}", prompt, chance.randrange(1, 6), partition=chance.choice("ab"))
            sequences[asked.id] = engine.add(asked)
        if sequences and chance.random() < 0.05:
            engine.cancel(chance.choice(list(sequences)))
        if chance.random() < 0.02:
            engine.purge(chance.choice("ab"))
        for output in engine.step():
            assert output.error is None
            collected.setdefault(output.sequence.id, []).extend(output.tokens)
        check_integrity(engine)
    assert any(sequence.num_shifted for sequence in sequences.values())
    for name, sequence in sequences.items():
        if not sequence.num_shifted and not sequence.is_apart:
            prompt = sequence.tokens[: sequence.num_prompt].tolist()
            expected, _ = naive(prompt, 5)
            assert collected.get(name, []) == expected[: len(collected.get(name, []))], name
