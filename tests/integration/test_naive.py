"""The plain loop finds faults that are planted in the compared output."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from gguf import GGMLQuantizationType

from edgeagent.config import EngineConfig
from edgeagent.engine.llama.model import Model
from edgeagent.types import MemoryKind
from tests.integration.naive import FLOOR, Asked, Naive, Recorder, check
from tests.models import make_tiny_model

CONFIG = EngineConfig(threads=1, ctx=768, flash_attention="on")


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
    """The output of a correct engine: the eight likeliest tokens after 300."""
    rng = random.Random(1)
    asked = Asked([rng.randrange(10, 250) for _ in range(300)], 8, Recorder(model), [])
    for _ in range(asked.max_tokens):
        asked.recorder.rows.append(asked.recorder.rows[-1] if asked.recorder.rows else None)  # type: ignore[arg-type]
        asked.recorder.rows[-1] = naive.rows(asked)[-1]
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
