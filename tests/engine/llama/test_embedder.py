"""Embeddings by llama.cpp itself: the same for all chunk sizes, and equal to those of llama-cpp-python's own Llama."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from edgeagent.config import EngineConfig
from edgeagent.engine.llama.bindings import lib
from edgeagent.engine.llama.embedder import MAX_CHUNK, Embedder, Pooling, Rows, choose_pooling, truncated
from edgeagent.engine.llama.model import Model
from edgeagent.errors import BackendUnavailable, InternalError
from edgeagent.types import MemoryKind
from tests.conftest import TinyModel
from tests.models import MEMORIES, make_tiny_model

CONFIG = EngineConfig(threads=1, flash_attention="on")
TOKENS = [20 + 7 * i % 200 for i in range(150)]
MAX_TOKENS = 1024

# What llama-cpp-python returns for the same tokens, pooled by llama.cpp, in one batch.
REFERENCE = """
import json, sys
from llama_cpp import Llama
path, tokens, kinds = json.loads(sys.argv[1])
vectors = []
for kind in kinds:
    one = {"n_threads": 1, "n_threads_batch": 1, "verbose": False}  # two threads spin
    llama = Llama(path, embedding=True, pooling_type=kind, n_ctx=512, n_batch=512, **one)
    llama.tokenize = lambda *_, **__: tokens
    vectors.append(llama.embed("", normalize=True))
    llama.close()
print(json.dumps(vectors))
"""
KINDS = {Pooling.MEAN: 1, Pooling.FIRST: 2, Pooling.LAST: 3}

Make = Callable[[MemoryKind], Embedder]
MakeOf = Callable[[Path], Embedder]


@pytest.fixture
def make_of() -> Iterator[MakeOf]:
    opened: list[tuple[Embedder, Model]] = []

    def make_one(path: Path) -> Embedder:
        model = Model(path, CONFIG)
        opened.append((Embedder(model, CONFIG, MAX_TOKENS), model))
        return opened[-1][0]

    yield make_one
    for embedder, model in opened:
        embedder.close()
        model.close()


@pytest.fixture
def make(make_of: MakeOf, tiny_model: TinyModel) -> Make:
    return lambda kind: make_of(tiny_model(kind))


@pytest.fixture(scope="module")
def exact_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """Return a function from a memory kind to the path of an F32 model of that kind.

    A CPU may sum one token's products in another order than those of many tokens. Where activations are rounded to 8
    bits, as with quantized weights, the next layers may amplify this to a hundredth; in F32 it stays small.
    """
    folder = tmp_path_factory.mktemp("exact")
    return lambda kind: make_tiny_model(folder / f"{kind}.gguf", kind, matrix_type=GGMLQuantizationType.F32)


def embed(embedder: Embedder, tokens: list[int], chunk: int = MAX_CHUNK) -> Rows:
    """Return the vector of a text that is computed in chunks of one size."""
    embedder._chunk_length = lambda budget_s: chunk  # type: ignore[method-assign]
    embedder.begin(tokens)
    while (vector := embedder.advance(1.0, 1)) is None:
        pass
    return vector


@pytest.mark.parametrize("pooling", Pooling)
@pytest.mark.parametrize("kind", MEMORIES, ids=str)
def test_a_vector_does_not_depend_on_its_chunks(
    make_of: MakeOf, exact_model: TinyModel, kind: MemoryKind, pooling: Pooling
) -> None:
    embedder = make_of(exact_model(kind))
    embedder.pooling = pooling
    whole = embed(embedder, TOKENS[:60])
    assert whole.shape == (64,)
    assert np.linalg.norm(whole) == pytest.approx(1.0, abs=1e-6)
    # The order of sums and the rounding of cells change a vector a hundred times less than one missing token does.
    forgotten = np.linalg.norm(embed(embedder, TOKENS[1:60]) - whole)
    for chunk in (1, 7, 32):
        assert np.linalg.norm(embed(embedder, TOKENS[:60], chunk) - whole) < forgotten / 100
    # Earlier texts leave nothing behind.
    assert np.array_equal(embed(embedder, TOKENS[:60]), whole)


def test_vectors_equal_those_of_llama_cpp_python(make: Make, tiny_model: TinyModel) -> None:
    request = json.dumps([str(tiny_model(MemoryKind.FULL_ATTENTION)), TOKENS, list(KINDS.values())])
    process = subprocess.run([sys.executable, "-c", REFERENCE, request], capture_output=True, check=True)
    embedder = make(MemoryKind.FULL_ATTENTION)
    for pooling, expected in zip(KINDS, json.loads(process.stdout.splitlines()[-1]), strict=True):
        embedder.pooling = pooling
        ours = embed(embedder, TOKENS, 48)
        assert np.allclose(ours, expected, atol=0.02), pooling
        assert float(ours @ np.array(expected)) > 0.9995, pooling


def test_a_longer_text_gets_a_longer_context_and_close_frees_it(make: Make) -> None:
    embedder = make(MemoryKind.FULL_ATTENTION)
    assert not embedder.is_open
    short = embed(embedder, TOKENS[:8])
    embed(embedder, TOKENS * 6)
    assert embedder.num_cells == MAX_TOKENS
    assert np.array_equal(embed(embedder, TOKENS[:8]), short)
    embedder.close()
    assert not embedder.is_open
    assert np.array_equal(embed(embedder, TOKENS[:8]), short)


def test_the_size_is_known_before_the_context_takes_its_memory(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    embedder, sizes = make(MemoryKind.FULL_ATTENTION), list[int]()
    init = lib.llama_init_from_model

    def watched(*arguments: object) -> object:
        sizes.append(embedder.num_cells)
        return init(*arguments) if len(sizes) > 1 else None

    monkeypatch.setattr(lib, "llama_init_from_model", watched)
    with pytest.raises(BackendUnavailable):
        embed(embedder, TOKENS * 6)
    assert embedder.num_cells == 0
    embed(embedder, TOKENS * 6)
    assert sizes == [MAX_TOKENS] * 2


@pytest.mark.slow(seconds=3)
def test_a_vector_does_not_depend_on_the_texts_before(make_of: MakeOf, tmp_path: Path) -> None:
    path = make_tiny_model(tmp_path / "long.gguf", MemoryKind.FULL_ATTENTION, max_short_context=600)
    embedder = make_of(path)
    # llama.cpp rounds a context of 600 tokens up to 768.
    texts = [(TOKENS * 6)[:length] for length in (8, 600, 900)]
    alone = []
    for text in texts:
        alone.append(embed(embedder, text))
        embedder.close()
    for text, expected in (*zip(texts, alone, strict=True), *zip(texts[::-1], alone[::-1], strict=True)):
        assert np.array_equal(embed(embedder, text), expected), len(text)


def test_chunks_are_as_long_as_the_time_allows(make: Make) -> None:
    embedder = make(MemoryKind.FULL_ATTENTION)
    embedder._note_rate(1000.0)
    assert [embedder._chunk_length(budget_s) for budget_s in (0.001, 0.02, 1.0)] == [8, 20, MAX_CHUNK]


def test_where_llama_cpp_has_no_vectors_the_text_fails_and_the_next_does_not(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = make(MemoryKind.FULL_ATTENTION)
    expected = embed(embedder, TOKENS[:8])
    with monkeypatch.context() as patch:
        null = ctypes.POINTER(ctypes.c_float)()
        patch.setattr("edgeagent.engine.llama.embedder.lib.llama_get_embeddings", lambda context: null)
        with pytest.raises(InternalError, match="8 tokens, but has no vectors"):
            embed(embedder, TOKENS[:8])
    assert np.array_equal(embed(embedder, TOKENS[:8]), expected)


@dataclass(frozen=True)
class _Card:
    """A model whose metadata alone is used."""

    pooling: int = 0
    is_causal: bool = True
    has_encoder: bool = False


@pytest.mark.parametrize(
    ("card", "pooling"),
    [
        (_Card(0), Pooling.LAST),
        (_Card(1), Pooling.MEAN),
        (_Card(2), Pooling.FIRST),
        (_Card(3), Pooling.LAST),
        (_Card(4), None),
        (_Card(99), Pooling.LAST),
        (_Card(1, is_causal=False), None),
        (_Card(1, has_encoder=True), None),
    ],
)
def test_the_file_says_how_to_pool(card: _Card, pooling: Pooling | None) -> None:
    assert choose_pooling(cast(Model, card)) is pooling


def test_dimensions_cut_and_keep_the_length() -> None:
    vector = np.array([0.6, 0.0, 0.8], np.float32)
    assert truncated(vector, None) is vector
    assert np.allclose(truncated(vector, 2), [1.0, 0.0])
    assert np.allclose(truncated(np.zeros(3, np.float32), 2), 0.0)
    with pytest.raises(InternalError, match="NaN"):
        truncated(np.array([np.nan, 1.0], np.float32), 1)
