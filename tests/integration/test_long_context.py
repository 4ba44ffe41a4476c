"""A context of 4,096 tokens on a real daemon, filled to its last cell, with full attention and a hybrid memory."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from edgeagent.types import MemoryKind
from tests.integration.conftest import Daemon, start_daemon, stop_daemon
from tests.integration.leaks import status_of
from tests.models import make_tiny_model
from tests.patience import patient

CONTEXT = 4096
# Tokens of one byte each; their meaning is irrelevant.
VOCABULARY = range(100, 200)


@pytest.fixture(scope="module", params=[MemoryKind.FULL_ATTENTION, MemoryKind.HYBRID])
def long_daemon(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("long")
    model = make_tiny_model(folder / "tiny.gguf", request.param, num_layers=2)
    running = start_daemon(folder / "state", str(model), "--ctx", str(CONTEXT), "--parallel", "2")
    yield running
    stop_daemon(running)


def prompt(num_tokens: int, seed: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.choice(VOCABULARY) for _ in range(num_tokens)]


def complete(daemon: Daemon, tokens: list[int], **fields: Any) -> httpx.Response:
    body = {"prompt": tokens, "temperature": 0, "max_tokens": 4, "ignore_eos": True, **fields}
    return httpx.post(f"{daemon.url}/v1/completions", json=body, timeout=patient(100))


@pytest.mark.daily(1, seconds=4)
def test_the_last_cell_is_used_and_one_more_token_is_refused_with_counts(long_daemon: Daemon) -> None:
    tokens = prompt(CONTEXT - 1, seed=0)
    usage = complete(long_daemon, tokens, max_tokens=100).json()["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (CONTEXT - 1, 1)
    refused = complete(long_daemon, prompt(CONTEXT, seed=1))
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert str(CONTEXT) in error["message"]
    assert complete(long_daemon, tokens[:100]).status_code == 200


@pytest.mark.daily(1, seconds=1)
def test_a_long_prompt_asked_again_is_hardly_computed(long_daemon: Daemon) -> None:
    tokens = prompt(CONTEXT - 192, seed=2)
    first = complete(long_daemon, tokens).json()
    again = complete(long_daemon, tokens).json()
    assert again["choices"][0]["text"] == first["choices"][0]["text"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= len(tokens) - 256


@pytest.mark.daily(1, seconds=1)
def test_two_that_do_not_fit_together_both_end(long_daemon: Daemon) -> None:
    prompts = [prompt(CONTEXT * 5 // 8, seed) for seed in (3, 4)]
    with ThreadPoolExecutor(2) as pool:
        answers = [answer.json() for answer in pool.map(lambda tokens: complete(long_daemon, tokens), prompts)]
    assert [answer["usage"]["completion_tokens"] for answer in answers] == [4, 4]
    (model,) = status_of(long_daemon.url)["models"]
    assert model["num_restarts"] == 0
