"""Vectors and ranks of whole texts, by models of every architecture that reads a text at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import psutil
import pytest

from edgeagent.config import EngineConfig
from edgeagent.engine.llama.encoder import Encoder, needs_whole_texts
from edgeagent.engine.llama.model import Model
from edgeagent.engine.runner import DecodeCancelled
from edgeagent.errors import BackendUnavailable
from edgeagent.types import MemoryKind
from tests.encoder_models import ARCHITECTURES, BERT, CLS, CONTEXT_LENGTH, MODERN_BERT, PIECES, SEP, make_encoder
from tests.models import make_tiny_model

Make = Callable[..., Encoder]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def make(architecture: str = BERT, *, ctx: int = 0, **options: object) -> Encoder:
        path = make_encoder(tmp_path / f"{architecture}.gguf", architecture, **options)  # type: ignore[arg-type]
        config = EngineConfig(ctx=ctx)
        return Encoder(Model(path, config), config)

    return make


def text(*tokens: int) -> list[int]:
    return [CLS, *tokens, SEP]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_each_token_counts_wherever_it_stands(make: Make, architecture: str) -> None:
    encoder = make(architecture)
    body = list(range(5, 45))  # longer than the window of the architectures that have one
    texts = [text(*body), text(*body[:-1], 50), text(50, *body[1:]), text(*reversed(body))]
    rows = encoder.encode(texts, 1)
    assert np.allclose(np.linalg.norm(rows, axis=1), 1.0, atol=1e-6)
    likeness = rows @ rows.T
    assert np.all(likeness[~np.eye(len(texts), dtype=bool)] < 0.99999)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_text_is_the_same_alone_and_beside_others(make: Make, architecture: str) -> None:
    encoder = make(architecture)
    texts = [text(*range(5, 5 + length)) for length in (1, 40, 7, 90, 3)]
    together = encoder.encode(texts, 1)
    alone = np.concatenate([encoder.encode([each], 1) for each in texts])
    assert np.allclose(together, alone, atol=1e-3)  # flash attention keeps 11 bits


def test_pooling_is_the_files(make: Make) -> None:
    """The first token's vector and the mean differ; the mean of one token is that token's vector."""
    kinds = (gguf.PoolingType.MEAN, gguf.PoolingType.CLS, gguf.PoolingType.LAST)
    mean, first, last = (make(pooling=kind).encode([text(5, 6, 7), [5]], 1) for kind in kinds)
    assert not np.allclose(mean[0], first[0], atol=1e-3)
    assert not np.allclose(first[0], last[0], atol=1e-3)
    assert np.allclose(mean[1], first[1], atol=1e-5)
    assert np.allclose(mean[1], last[1], atol=1e-5)


def test_a_ranker_gives_a_number_of_its_class(make: Make) -> None:
    encoder = make(pooling=gguf.PoolingType.RANK)
    assert encoder.is_ranking
    rows = encoder.encode([text(5, SEP, 6), text(5, SEP, 7), text(5, SEP, 6)], 1)
    assert rows.shape == (3, 1)
    assert rows[0] == pytest.approx(rows[2], abs=1e-5)
    assert abs(rows[0] - rows[1]) > 1e-3


def test_the_longest_text_fits_and_memory_is_freed(make: Make) -> None:
    encoder = make()
    assert encoder.max_tokens == CONTEXT_LENGTH
    long = text(*[7] * (CONTEXT_LENGTH - 2))
    assert encoder.batch_length([long, long]) == 1
    assert not encoder.is_open
    first = encoder.encode([long], 1)
    assert encoder.is_open
    encoder.close()
    assert not encoder.is_open
    assert np.allclose(encoder.encode([long], 1), first, atol=1e-6)
    assert make(ctx=64).max_tokens == 64
    assert make(context_length=128, ctx=256).max_tokens == 128


def test_short_and_long_texts_by_turns_keep_their_contexts(make: Make) -> None:
    encoder = make()
    short, long = text(*range(5, 35)), text(*range(5, 95))
    encoder.warm_up(1)
    contexts = dict(encoder._contexts)  # a request does not wait for one
    rows = encoder.encode([short], 1), encoder.encode([long], 1)
    assert {flash: context.num_cells for flash, context in contexts.items()} == {"off": 64, "auto": CONTEXT_LENGTH}
    again = encoder.encode([short], 1), encoder.encode([long], 1)
    assert encoder._contexts == contexts
    assert np.array_equal(rows[0], again[0]) and np.array_equal(rows[1], again[1])
    assert np.allclose(rows[0], encoder.encode([short, long], 1)[:1], atol=1e-3)  # flash attention keeps 11 bits


@pytest.mark.parametrize(("options", "expected"), [({"flash_attention": "on"}, "on"), ({"kv_type_v": "f32"}, "auto")])
def test_short_texts_get_what_was_asked_for(tmp_path: Path, options: dict[str, Any], expected: str) -> None:
    config = EngineConfig(**options)
    encoder = Encoder(Model(make_encoder(tmp_path / "m.gguf", BERT), config), config)
    assert np.isfinite(encoder.encode([text(5, 6)], 1)).all()
    assert list(encoder._contexts) == [expected]


def test_short_texts_are_computed_together(make: Make) -> None:
    encoder = make(MODERN_BERT, context_length=4096)
    assert encoder.batch_length([[5]] * 1000) == 64
    assert encoder.batch_length([[5] * 200] * 9) == 2
    assert encoder.batch_length([[5] * 4096, [5]]) == 1
    assert encoder.batch_length([[5] * 10, [5] * 4096]) == 1


def test_a_context_grows_with_the_text(make: Make) -> None:
    encoder = make(MODERN_BERT, context_length=4096)
    short = encoder.encode([text(5, 6)], 1)
    assert encoder.encode([[9] * 1500], 1).shape == (1, encoder.length)
    assert np.allclose(encoder.encode([text(5, 6)], 1), short, atol=1e-5)


def test_a_batch_stops_when_asked(make: Make) -> None:
    encoder = make(MODERN_BERT, context_length=8192)
    encoder.encode([[9] * 4000], 1)
    timer = threading.Timer(0.01, encoder.request_abort)
    timer.start()
    with pytest.raises(DecodeCancelled):
        for _ in range(1000):
            encoder.encode([[9] * 4000], 1)
    timer.join()
    encoder.clear_abort()
    assert encoder.encode([[9] * 10], 1).shape == (1, encoder.length)


def test_an_abort_while_a_context_opens_is_not_lost(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = make()
    monkeypatch.setattr(encoder, "_check_memory", lambda _: encoder.request_abort())
    with pytest.raises(DecodeCancelled):
        encoder.encode([text(5, 6)], 1)
    encoder.clear_abort()
    assert encoder.encode([text(5, 6)], 1).shape == (1, encoder.length)


def test_no_room_is_told_before_memory_is_taken(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = make()
    free = len(PIECES) * 4 * CONTEXT_LENGTH - 1  # less than the logit rows need
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=free, total=free))
    with pytest.raises(BackendUnavailable, match="no room for a text of 512 tokens"):
        encoder.encode([text(*range(5, 95))], 1)


def test_models_that_generate_do_not_need_whole_texts(tmp_path: Path) -> None:
    model = Model(make_tiny_model(tmp_path / "m.gguf", MemoryKind.FULL_ATTENTION), EngineConfig())
    assert not needs_whole_texts(model)


def test_a_frame_is_what_the_tokenizer_adds(make: Make, tmp_path: Path) -> None:
    assert make()._model.frame_tokens == ([CLS], [SEP])
    model = Model(make_tiny_model(tmp_path / "m.gguf", MemoryKind.FULL_ATTENTION), EngineConfig())
    assert model.frame_tokens == ([], [])
