"""Prompts whose own tokens are scored, and prompts that report their progress, on a fake runner."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from edgeagent.engine import verification
from edgeagent.engine.engine import Engine
from edgeagent.engine.sampling import sampler
from edgeagent.engine.sampling.params import resolve
from edgeagent.engine.sampling.sampler import Sampler
from edgeagent.engine.sequence import SequenceSpec
from edgeagent.engine.verification import Output
from edgeagent.errors import InternalError
from edgeagent.types import SamplingParams
from tests.fakes import FakeRunner, next_token
from tests.integrity import check_integrity

NUM_VOCAB = 50
GREEDY = resolve(SamplingParams(temperature=0.0), SamplingParams(repeat_last_n=0))
LOG_TOTAL = math.log(math.exp(10.0) + NUM_VOCAB - 1)


def spec(name: str, prompt: list[int], max_tokens: int = 3, *, num_top: int | None = 1, **fields: Any) -> SequenceSpec:
    sampler = Sampler(GREEDY, NUM_VOCAB)
    is_read = num_top is None
    return SequenceSpec(name, prompt, sampler, max_tokens, read_cache=is_read, num_prompt_logprobs=num_top, **fields)


def run(engine: Engine) -> dict[str, list[Output]]:
    outputs: dict[str, list[Output]] = {}
    while engine.has_work:
        for output in engine.step():
            assert output.error is None
            outputs.setdefault(output.sequence.id, []).append(output)
        check_integrity(engine)
    return outputs


def check_scores(outputs: list[Output], prompt: list[int]) -> None:
    scores = [score for output in outputs for score in output.prompt_logprobs]
    assert [score.token for score in scores] == prompt[1:]
    for position, score in enumerate(scores, 1):
        likeliest = next_token(prompt[:position], NUM_VOCAB)
        assert math.isclose(score.logprob, (10.0 if score.token == likeliest else 0.0) - LOG_TOTAL, abs_tol=1e-4)
        assert [rival.token for rival in score.top] == [likeliest]


def test_every_token_of_a_prompt_but_the_first_is_scored_before_the_answer() -> None:
    prompt = list(range(1, 40))
    engine = Engine(FakeRunner(max_outputs=12), max_running=2)
    engine.add(spec("a", prompt))
    outputs = run(engine)["a"]
    check_scores(outputs, prompt)
    first_answer = next(index for index, output in enumerate(outputs) if output.tokens)
    assert not any(output.prompt_logprobs for output in outputs[first_answer + 1 :])


def test_a_prompt_that_is_only_scored_gives_no_token() -> None:
    engine = Engine(FakeRunner(), max_running=2)
    engine.add(spec("a", [5, 6, 7, 8], prefill_only=True))
    engine.add(spec("b", [5], prefill_only=True))
    outputs = run(engine)
    check_scores(outputs["a"], [5, 6, 7, 8])
    check_scores(outputs["b"], [5])
    assert not any(output.tokens for each in outputs.values() for output in each)


def test_scores_stand_whatever_is_cancelled_preempted_or_refused() -> None:
    for seed in range(30):
        chance = random.Random(seed)
        runner = FakeRunner(num_cells=64, max_outputs=chance.randint(8, 24))
        engine = Engine(runner, max_running=4)
        prompts = {
            f"{seed}-{index}": [chance.randrange(1, 50) for _ in range(chance.randint(1, 40))] for index in range(5)
        }
        for name, prompt in prompts.items():
            engine.add(spec(name, prompt, chance.randint(1, 20), num_top=1))
        outputs: dict[str, list[Output]] = {name: [] for name in prompts}
        while engine.has_work:
            if chance.random() < 0.1:
                runner.cancel_next = chance.randint(0, 2)
            if chance.random() < 0.1:
                runner.refuse_next = True
            for output in engine.step():
                assert output.error is None or "no room" in output.error.message
                outputs[output.sequence.id].append(output)
            check_integrity(engine)
        for name, prompt in prompts.items():
            if all(output.error is None for output in outputs[name]):
                check_scores(outputs[name], prompt)


def test_scoring_one_prompt_holds_up_no_other_stream() -> None:
    """There are few rows of logits, and a decoding sequence gets its own in every step."""
    engine = Engine(FakeRunner(max_outputs=4, end_token=-1), max_running=3)
    engine.add(spec("stream", [1, 2], 30, num_top=None))
    engine.step()
    engine.add(spec("scored", list(range(1, 30))))
    has_ended = False
    while not has_ended:
        outputs = {output.sequence.id: output for output in engine.step()}
        assert outputs["stream"].tokens
        has_ended = "scored" in outputs and outputs["scored"].is_last


def test_progress_is_told_until_the_prompt_is_computed() -> None:
    engine = Engine(FakeRunner(max_batch=16, end_token=-1), max_running=2)
    engine.add(spec("a", list(range(1, 41)), num_top=None, reports_progress=True))
    engine.admit()
    told = []
    while engine.has_work:
        told += [output.sequence.num_computed for output in engine.step() if not output.tokens]
    assert told == [16, 32]


def test_a_prompt_that_cannot_be_scored_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def score(logits: Any, token: int, num_top: int) -> Any:
        if token == 13:
            raise InternalError("the logits hold NaN or infinity")
        return sampler.score(logits, token, num_top)

    monkeypatch.setattr(verification, "score", score)
    engine = Engine(FakeRunner(end_token=-1), max_running=4)
    engine.add(spec("bad", [5, 13, 7]))
    engine.add(spec("good", [5, 6, 7]))
    errors, tokens = {}, []
    while engine.has_work:
        for output in engine.step():
            if output.error is not None:
                errors[output.sequence.id] = str(output.error)
            elif output.sequence.id == "good":
                tokens += output.tokens
        check_integrity(engine)
    assert errors == {"bad": "the logits hold NaN or infinity"}
    assert len(tokens) == 3
