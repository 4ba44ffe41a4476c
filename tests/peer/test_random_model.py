"""The random model's parts are what llama.cpp will read them as."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize

from tests.peer import random_model


def test_pieces_are_distinct_and_reached_by_merges_in_order() -> None:
    pieces, merges = random_model.vocabulary(151_936)
    assert len(pieces) == len(set(pieces)) == 151_936
    known = set(pieces[:256])
    for merge in merges:
        start, end = merge.split(" ")
        assert start in known
        assert end in known
        known.add(start + end)
    assert known.isdisjoint(random_model.CONTROL_TOKENS)
    assert len(known) == 151_936 - len(random_model.CONTROL_TOKENS)


def test_matrices_have_the_spread_they_were_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = random_model.Shape(1, 64, 2, 1, 96, 1024)
    monkeypatch.setitem(random_model.PRESETS, "small", shape)
    reader = GGUFReader(random_model.make_random_model(tmp_path / "small.gguf", "small"))
    matrices = {tensor.name: tensor for tensor in reader.tensors if len(tensor.shape) == 2}
    assert matrices["token_embd.weight"].tensor_type == GGMLQuantizationType.Q8_0
    up = matrices["blk.0.ffn_up.weight"]
    assert up.tensor_type == GGMLQuantizationType.Q4_0
    assert up.shape.tolist() == [64, 96]
    values = dequantize(up.data, up.tensor_type)
    assert values.std() == pytest.approx(64**-0.5, rel=0.05)
    assert abs(float(np.mean(values))) < 0.01
