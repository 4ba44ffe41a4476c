"""The tiny models load in llama.cpp, have the memory kind that they claim, and give varied greedy output."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from llama_cpp import llama_cpp as llama

from edgeagent.types import MemoryKind
from tests.conftest import TinyModel
from tests.models import MEMORIES, WINDOW, make_tiny_model

PROMPT = b"<|im_start|>user\nHello you<|im_end|>\n"


@llama.llama_log_callback  # type: ignore[untyped-decorator]
def _quiet(_level: int, _text: bytes, _user: ctypes.c_void_p) -> None:
    pass


@contextmanager
def loaded(path: Path) -> Iterator[tuple[ctypes.c_void_p, ctypes.c_void_p]]:
    former, former_data = llama.llama_log_callback(), ctypes.c_void_p()
    llama.llama_log_get(ctypes.byref(former), ctypes.byref(former_data))
    llama.llama_log_set(_quiet, ctypes.c_void_p())
    try:
        with _loaded(path) as found:
            yield found
    finally:
        llama.llama_log_set(former, former_data)


@contextmanager
def _loaded(path: Path) -> Iterator[tuple[ctypes.c_void_p, ctypes.c_void_p]]:
    llama.llama_backend_init()
    model = llama.llama_model_load_from_file(str(path).encode(), llama.llama_model_default_params())
    assert model is not None
    params = llama.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_threads, params.n_threads_batch = 256, 64, 1, 1
    context = llama.llama_init_from_model(model, params)
    assert context is not None
    yield model, context
    llama.llama_free(context)
    llama.llama_model_free(model)


def tokens_of(vocab: ctypes.c_void_p) -> list[int]:
    buffer = (llama.llama_token * 64)()
    return list(buffer[: llama.llama_tokenize(vocab, PROMPT, len(PROMPT), buffer, 64, False, True)])


def greedy(path: Path, num_tokens: int, chunk: int) -> tuple[list[int], np.ndarray]:
    """Decode the prompt in chunks, then greedily; return the tokens and the logits of each step."""
    with loaded(path) as (model, context):
        vocab = llama.llama_model_get_vocab(model)
        num_vocab = llama.llama_vocab_n_tokens(vocab)
        prompt = tokens_of(vocab)
        pending = [prompt[i : i + chunk] for i in range(0, len(prompt), chunk)]
        output: list[int] = []
        rows: list[np.ndarray] = []
        while True:
            for part in pending:
                array = (llama.llama_token * len(part))(*part)
                assert llama.llama_decode(context, llama.llama_batch_get_one(array, len(part))) == 0
            rows.append(np.ctypeslib.as_array(llama.llama_get_logits_ith(context, -1), (num_vocab,)).copy())
            output.append(int(rows[-1].argmax()))
            if len(output) == num_tokens:
                return output, np.array(rows)
            pending = [[output[-1]]]


@pytest.mark.parametrize("kind", MEMORIES)
def test_output_is_varied_and_independent_of_chunks(tiny_model: TinyModel, kind: MemoryKind) -> None:
    output, logits = greedy(tiny_model(kind), 80, chunk=64)
    again, logits_again = greedy(tiny_model(kind), 80, chunk=3)
    assert output == again
    assert np.array_equal(logits, logits_again)
    assert len(set(output)) > 30
    assert 2.0 < logits.std() < 4.0


@pytest.mark.parametrize("kind", MEMORIES)
def test_memory_is_of_its_kind(tiny_model: TinyModel, kind: MemoryKind) -> None:
    with loaded(tiny_model(kind)) as (model, _):
        assert llama.llama_model_is_recurrent(model) == (kind is MemoryKind.RECURRENT)
        assert llama.llama_model_is_hybrid(model) == (kind is MemoryKind.HYBRID)
        assert llama.llama_model_n_swa(model) == (WINDOW if kind is MemoryKind.SLIDING_WINDOW else 0)


def test_vocabulary_covers_all_bytes_and_chatml(tiny_model: TinyModel) -> None:
    with loaded(tiny_model(MemoryKind.FULL_ATTENTION)) as (model, _):
        vocab = llama.llama_model_get_vocab(model)
        end = llama.llama_vocab_eos(vocab)
        tokens = tokens_of(vocab)
        assert tokens.count(end) == 1
        assert len(tokens) < len(PROMPT) - len("<|im_start|>") - len("<|im_end|>")
        every_byte = bytes(range(1, 256))
        buffer = (llama.llama_token * 512)()
        count = llama.llama_tokenize(vocab, every_byte, len(every_byte), buffer, 512, False, False)
        assert count > 0
        text = (ctypes.c_char * 512)()
        length = llama.llama_detokenize(vocab, buffer, count, text, 512, False, False)
        assert text.raw[:length].startswith(every_byte[:127])


def test_same_seed_same_file(tmp_path: Path) -> None:
    first, second, other = (
        make_tiny_model(tmp_path / f"{i}.gguf", MemoryKind.HYBRID, seed=seed) for i, seed in enumerate((1, 1, 2))
    )
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes() != other.read_bytes()
