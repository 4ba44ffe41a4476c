"""Weights that were trained, through daemon and worker: twenty prompts at once give the words of a plain loop.

The loop calls llama.cpp alone: one prompt in one batch, then token by token, with llama.cpp's own defaults.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from edgeagent.config import EngineConfig
from edgeagent.engine.llama.bindings import lib
from edgeagent.engine.llama.model import Model
from tests.integration.conftest import Daemon, start_daemon, stop_daemon
from tests.patience import patient
from tests.smollm2 import MODEL

NUM_TOKENS = 8
# Batches of other sizes use other kernels: measured with flash attention, logits differ by up to 0.38. So a token that
# is this near to the likeliest one is as good.
NEAR_TIE = 0.4
PROMPTS = (
    "The capital of France is",
    "Water boils at a temperature of",
    "Once upon a time there was a small",
    "def fibonacci(n):\n    if n",
    "The opposite of hot is",
    "import numpy as np\n\nx = np.",
    "A triangle has three",
    "The largest planet in the solar system is",
    "Dear Sir or Madam,\n\nI am writing to",
    "1, 2, 3, 4, 5,",
    "Photosynthesis is the process by which plants",
    "In 1969, the first human being",
    "SELECT name, age FROM users WHERE",
    "To make bread, you need flour,",
    "The sum of the angles of a",
    "He opened the door and saw",
    "Shakespeare wrote the play Romeo and",
    "The heart pumps blood through the",
    "# Shopping list\n- apples\n- bananas\n-",
    "Il fait beau aujourd'hui, donc je",
)


class PlainLoop:
    """One llama.cpp context, and nothing around it."""

    def __init__(self, model: Model) -> None:
        params = lib.llama_context_default_params()
        # One thread never waits for another, which takes long beside other programs.
        params.n_ctx, params.n_threads, params.n_threads_batch = 512, 1, 1
        self._context = lib.llama_init_from_model(model.handle, params)
        self._num_vocab = model.num_tokens

    def start(self, tokens: list[int]) -> NDArray[np.float32]:
        """Forget everything, compute a prompt, and return the logits after it."""
        lib.llama_memory_clear(lib.llama_get_memory(self._context), False)
        return self.go_on(tokens)

    def go_on(self, tokens: list[int]) -> NDArray[np.float32]:
        """Compute the next tokens, and return the logits after them."""
        array = (ctypes.c_int32 * len(tokens))(*tokens)
        assert lib.llama_decode(self._context, lib.llama_batch_get_one(array, len(tokens))) == 0
        return np.ctypeslib.as_array(lib.llama_get_logits_ith(self._context, -1), (self._num_vocab,))

    def close(self) -> None:
        lib.llama_free(self._context)


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    loaded = Model(MODEL, EngineConfig())
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    started = start_daemon(tmp_path_factory.mktemp("words") / "state", str(MODEL), "--ctx", "2048")
    yield started
    stop_daemon(started)


def complete(daemon: Daemon, prompt: str) -> dict[str, Any]:
    body = {"model": MODEL.stem, "prompt": prompt, "temperature": 0, "max_tokens": NUM_TOKENS}
    reply = httpx.post(f"{daemon.url}/v1/completions", json=body, timeout=patient(120), trust_env=False)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def check_words(model: Model, loop: PlainLoop, prompt: str, answer: dict[str, Any]) -> None:
    """Assert that each token of an answer is the likeliest one of the plain loop, or about as likely."""
    tokens = model.tokenize(prompt, parse_special=True)
    assert answer["usage"]["prompt_tokens"] == len(tokens)
    rest = answer["choices"][0]["text"].encode()
    logits = loop.start(tokens)
    for _ in range(NUM_TOKENS):
        good = np.flatnonzero(logits >= logits.max() - NEAR_TIE)
        good = good[np.argsort(-logits[good])]
        if not rest and any(model.is_end(int(token)) for token in good):
            break
        fitting = [int(token) for token in good if model.piece(int(token)) and rest.startswith(model.piece(int(token)))]
        pieces = [model.piece(int(token)) for token in good]
        assert fitting, f"after {prompt!r}: {rest!r} begins with none of the likeliest tokens {pieces}"
        rest = rest.removeprefix(model.piece(fitting[0]))
        logits = loop.go_on(fitting[:1])
    assert not rest, f"after {prompt!r}: {rest!r} remains"


def test_twenty_prompts_at_once_give_the_words_of_a_plain_loop(model: Model, daemon: Daemon) -> None:
    loop = PlainLoop(model)
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        answers = list(pool.map(lambda prompt: complete(daemon, prompt), PROMPTS))
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        check_words(model, loop, prompt, answer)
    # Again from the cache, one after another.
    for prompt in PROMPTS[:4]:
        check_words(model, loop, prompt, complete(daemon, prompt))
    loop.close()


def test_another_word_is_seen(model: Model) -> None:
    loop = PlainLoop(model)
    answer = {"usage": {"prompt_tokens": 5}, "choices": [{"text": " London, which is the capital of the"}]}
    with pytest.raises(AssertionError, match="begins with none of"):
        check_words(model, loop, PROMPTS[0], answer)
    loop.close()
