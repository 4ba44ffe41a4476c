"""The plain loop finds faults that are planted in the compared output."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from gguf import GGMLQuantizationType

from edgeagent.config import EngineConfig
from edgeagent.engine.llama.model import Model
from edgeagent.types import MemoryKind
from tests.integration import naive as plain_loop
from tests.integration.naive import FACTOR, FLOOR, Asked, Naive, Recorder, check, differences
from tests.integration.router import Swaps
from tests.models import make_tiny_model
from tests.peer.shelf import TWINS, make_model

CONFIG = EngineConfig(threads=1, ctx=768, flash_attention="on")


@pytest.fixture(autouse=True)
def _few_further_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault is far from all runs, and each costs as much as the first."""
    monkeypatch.setattr(plain_loop, "MORE_RUNS", 4)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = tmp_path_factory.mktemp("exact") / "tiny.gguf"
    make_tiny_model(path, MemoryKind.FULL_ATTENTION, num_heads=2, matrix_type=GGMLQuantizationType.F32)
    loaded = Model(path, CONFIG)
    yield loaded
    loaded.close()


@pytest.fixture
def naive(model: Model) -> Iterator[Naive]:
    naive = Naive(model, CONFIG)
    yield naive
    naive.close()


@pytest.fixture
def asked(model: Model, naive: Naive) -> Asked:
    return answered(model, naive)


def answered(model: Model, naive: Naive, num_tokens: int = 300, swaps: Swaps = frozenset()) -> Asked:
    """Return the output of a correct engine: the eight likeliest tokens after random ones."""
    rng = random.Random(1)
    asked = Asked([rng.randrange(10, 250) for _ in range(num_tokens)], 8, Recorder(model), [])
    for _ in range(asked.max_tokens):
        asked.recorder.rows.append(asked.recorder.rows[-1] if asked.recorder.rows else None)  # type: ignore[arg-type]
        asked.recorder.rows[-1] = naive.run(asked, swaps).rows[-1]
        asked.output.append(int(asked.recorder.rows[-1].argmax()))
    assert not any(naive.is_end(token) for token in asked.output), "choose another seed"
    return asked


def test_what_is_right_passes(asked: Asked, naive: Naive) -> None:
    check([asked], naive, FLOOR)


def test_one_wrong_token_in_the_middle_of_the_prompt_is_seen(asked: Asked, naive: Naive) -> None:
    asked.prompt[150] += 1
    with pytest.raises(AssertionError, match="logits differ"):
        check([asked], naive, FLOOR)


def test_a_fault_behind_the_first_tokens_is_seen(asked: Asked, naive: Naive) -> None:
    rows = asked.recorder.rows
    rows[-1] = rows[-1] + 0.5 * (rows[0] - rows[-1]) / abs(rows[0] - rows[-1]).max()
    rows[-1][asked.output[-1]] = rows[-1].max() + 0.01
    with pytest.raises(AssertionError, match="logits differ"):
        check([asked], naive, FLOOR)


def test_a_runner_up_is_seen(asked: Asked, naive: Naive) -> None:
    likeliest, asked.output[3] = asked.output[3], int(asked.recorder.rows[3].argsort()[-2])
    assert likeliest != asked.output[3]
    with pytest.raises(AssertionError):
        check([asked], naive, FLOOR)


def test_an_early_end_is_seen(asked: Asked, naive: Naive) -> None:
    asked.max_tokens += 1
    with pytest.raises(AssertionError):
        check([asked], naive, FLOOR)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Model, Naive]]:
    path = make_model(tmp_path_factory.mktemp("exact") / "mixture.gguf", TWINS["qwen3moe-1b-a400m"], "F32")
    loaded = Model(path, CONFIG)
    naive = Naive(loaded, CONFIG)
    yield loaded, naive
    naive.close()
    loaded.close()


def test_either_expert_of_a_tie_is_right(mixture: tuple[Model, Naive]) -> None:
    model, naive = mixture
    plain = answered(model, naive, 120)
    run, other = naive.run(plain), naive.run_beside_another(plain)
    most = FACTOR * run.experts.difference(other.experts)
    swaps = frozenset(run.experts.ties(most, len(plain.prompt))[:1])
    swapped = answered(model, naive, 120, swaps)
    assert max(differences(swapped.recorder.rows, naive.run(swapped).rows)) > FACTOR * run.difference(other) + FLOOR
    check([swapped], naive, FLOOR)


def test_an_expert_that_was_far_ahead_is_missed(mixture: tuple[Model, Naive]) -> None:
    model, naive = mixture
    plain = answered(model, naive, 30)
    leads = naive.run(plain).experts
    certain = set(leads.ties(1e9, len(plain.prompt))) - set(leads.ties(0.5, len(plain.prompt)))
    with pytest.raises(AssertionError, match="logits differ"):
        check([answered(model, naive, 30, frozenset({max(certain)}))], naive, FLOOR)


def test_one_wrong_token_is_seen_among_experts(mixture: tuple[Model, Naive]) -> None:
    model, naive = mixture
    asked = answered(model, naive, 40)
    asked.prompt[20] += 1
    with pytest.raises(AssertionError, match="logits differ"):
        check([asked], naive, FLOOR)
