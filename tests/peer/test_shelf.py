"""Tests that llama.cpp can use the models on the shelf: their tensors, types, vocabulary and answers."""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize

from edgeagent.bench.scenarios import Prompts
from edgeagent.config import EngineConfig
from edgeagent.engine.llama.bindings import lib
from edgeagent.engine.llama.context import LlamaRunner
from edgeagent.engine.llama.model import Model
from edgeagent.engine.runner import Slice
from edgeagent.types import MemoryKind
from tests.peer.shelf import QUANTS, SHAPES, TWINS, Quant, Shape, cached_model, make_model
from tests.peer.shelf.blocks import random_rows
from tests.peer.shelf.files import make_hollow_model
from tests.peer.shelf.mixture import FILE_TYPES, choose_types
from tests.peer.shelf.tensors import tensors
from tests.peer.shelf.vocabularies import FAMILIES, vocabulary

CONFIG = EngineConfig(threads=1, batch=256, parallel=1, ctx=512)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "gemma"])
def test_pieces_are_distinct_and_reached_by_merges_in_order(family: str) -> None:
    words = vocabulary(family, 40_000)
    assert len(words.pieces) == len(set(words.pieces)) == 40_000
    known = set(words.pieces[:256])
    for merge in words.merges:
        start, end = merge.split(" ")
        assert start in known
        assert end in known
        known.add(start + end)
    assert len(known) == 40_000 - len(words.controls)
    assert [words.pieces[token] for token in words.controls] == list(FAMILIES[family].controls)


@pytest.mark.parametrize("name", ["gemma-3-1b", "qwen3.5-0.8b"])
def test_the_largest_vocabularies_have_as_many_pieces_as_they_say(name: str) -> None:
    pieces = vocabulary(SHAPES[name].vocabulary, SHAPES[name].num_vocab).pieces
    assert len(pieces) == len(set(pieces)) == SHAPES[name].num_vocab


@pytest.mark.parametrize("kind", ["F32", "F16", "Q4_0", "Q5_0", "Q8_0", "Q4_K", "Q6_K"])
def test_packed_weights_have_no_mean_and_the_spread_they_were_asked_for(kind: str) -> None:
    quantized = GGMLQuantizationType[kind]
    data = random_rows(np.random.default_rng(0), quantized, 64, 1024, 0.03)
    values = dequantize(
        data.view(np.float32 if kind == "F32" else np.float16 if kind == "F16" else np.uint8), quantized
    )
    assert values.shape == (64, 1024)
    assert values.std() == pytest.approx(0.03, rel=0.02)
    assert abs(float(values.mean())) < 0.001
    assert float(np.abs(values.mean(axis=1)).max()) < 0.006


def types_of_llama_cpp(path: Path, quant: Quant) -> dict[str, str]:
    """Return the type that llama.cpp's own quantization would choose for each tensor. A dry run reports them."""
    lines: list[str] = []

    @lib.llama_log_callback  # type: ignore[untyped-decorator]
    def listen(level: int, text: bytes, data: object) -> None:
        lines.append(text.decode())

    params = lib.llama_model_quantize_default_params()
    params.ftype, params.dry_run = int(FILE_TYPES[quant]), True
    former, former_data = lib.llama_log_callback(), ctypes.c_void_p()
    lib.llama_log_get(ctypes.byref(former), ctypes.byref(former_data))
    lib.llama_log_set(listen, ctypes.c_void_p())
    try:
        assert lib.llama_model_quantize(str(path).encode(), b"", ctypes.byref(params)) == 0
    finally:
        lib.llama_log_set(former, former_data)
    pattern = r"\] (\S+) +- \[[^]]*\], type = +(\w+), size = [^\n(]*(?:\((\w+)\))?\n"
    found = re.findall(pattern, "".join(lines))
    return {name: (after or before).upper() for name, before, after in found}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_tensors_have_the_types_that_llama_cpp_would_give_them(shape: Shape, tmp_path: Path) -> None:
    shape = replace(shape, num_vocab=1024)  # types do not depend on it
    all_tensors = list(tensors(shape, vocabulary(shape.vocabulary, shape.num_vocab)))
    hollow = make_hollow_model(tmp_path / "hollow.gguf", shape, "F32")
    for quant in ("Q4_0", "Q4_K_M", "Q8_0"):
        ours = choose_types(all_tensors, quant, shape.num_layers)
        assert {name: kind.name for name, kind in ours.items()} == types_of_llama_cpp(hollow, quant)


KINDS = {
    "qwen2.5-0.5b": MemoryKind.FULL_ATTENTION,
    "qwen3-0.6b": MemoryKind.FULL_ATTENTION,
    "llama-3.2-1b": MemoryKind.FULL_ATTENTION,
    "gemma-3-1b": MemoryKind.SLIDING_WINDOW,
    "qwen3.5-0.8b": MemoryKind.HYBRID,
    "lfm2-350m": MemoryKind.HYBRID,
    "qwen3moe-1b-a400m": MemoryKind.FULL_ATTENTION,
    "8b-kv": MemoryKind.FULL_ATTENTION,
}


@pytest.mark.parametrize("quant", ["Q4_0", "Q4_K_M", "Q8_0"])
@pytest.mark.parametrize("name", SHAPES)
def test_a_twin_answers_at_length_and_not_always_the_same(name: str, quant: Quant, tmp_path: Path) -> None:
    model = Model(make_model(tmp_path / "twin.gguf", TWINS[name], quant), CONFIG)
    runner = LlamaRunner(model, CONFIG)
    assert model.memory_kind is KINDS[name]
    assert model.num_tokens == TWINS[name].num_vocab
    tokens = model.tokenize("Hello <b>wörld</b>!", parse_special=True, add_bos=True)
    assert b"".join(map(model.piece, tokens[model.bos_token is not None :])) == "Hello <b>wörld</b>!".encode()
    runner.decode([Slice(0, 0, tokens, 1)])
    output, spreads = [], []
    for at in range(64):
        row = runner.logits(0)
        spreads.append(float(row.std()))
        output.append(int(row.argmax()))
        runner.decode([Slice(0, len(tokens) + at, [output[-1]], 1)])
    assert not any(map(model.is_end, output))
    assert len(set(output)) > 32
    assert 2.0 < sum(spreads) / len(spreads) < 4.0
    runner.close()
    model.close()


@pytest.mark.parametrize("family", FAMILIES)
def test_words_are_few_tokens(family: str, tmp_path: Path) -> None:
    shape = next(shape for shape in SHAPES.values() if shape.vocabulary == family)
    model = Model(make_model(tmp_path / "words.gguf", replace(TWINS[shape.name], num_vocab=20_000)), CONFIG)
    text = Prompts(0, "A").cold("words", 200)
    tokens = model.tokenize(text, parse_special=True)
    assert 2.0 < len(text) / len(tokens) < 5.0
    assert model.chat_template is not None
    rendered = model.tokenize(FAMILIES[family].controls[-1], parse_special=True)
    assert len(rendered) == 1
    assert model.is_control(rendered[0])
    model.close()


def test_the_same_seed_makes_the_same_file(tmp_path: Path) -> None:
    first, again, other = (
        make_model(tmp_path / f"{at}.gguf", TWINS["qwen3-0.6b"], seed=seed).read_bytes()
        for at, seed in enumerate((1, 1, 2))
    )
    assert first == again
    assert first != other


def test_a_cached_model_is_made_once(tmp_path: Path) -> None:
    path = cached_model(tmp_path / "models", TWINS["qwen3-0.6b"], "Q8_0")
    made_ns = path.stat().st_mtime_ns
    assert cached_model(tmp_path / "models", TWINS["qwen3-0.6b"], "Q8_0") == path
    assert path.stat().st_mtime_ns == made_ns
    assert cached_model(tmp_path / "models", TWINS["qwen3-0.6b"], "Q4_0") != path
    assert len(list((tmp_path / "models").iterdir())) == 2


def test_control_tokens_are_quiet(tmp_path: Path) -> None:
    for name in ("qwen3-0.6b", "gemma-3-1b"):
        shape = TWINS[name]
        reader = GGUFReader(make_model(tmp_path / f"{name}.gguf", shape))
        (table,) = [tensor for tensor in reader.tensors if tensor.name == "token_embd.weight"]
        spreads = dequantize(table.data, table.tensor_type).std(axis=1)
        controls = vocabulary(shape.vocabulary, shape.num_vocab).controls
        assert spreads[controls.start : controls.stop].max() < 0.1 * spreads.mean()


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_table_of_shapes_says_what_they_are(shape: Shape) -> None:
    figures = (Path(__file__).parents[2] / "docs" / "figures.md").read_text(encoding="utf-8")
    cells = f"{shape.num_layers} | {shape.width:,} | {shape.token_bytes // 1024} KiB"
    assert f"\n| {shape.name} | {shape.architecture} | {cells} |" in figures


def test_every_quantization_is_offered() -> None:
    assert set(QUANTS) == set(FILE_TYPES)
