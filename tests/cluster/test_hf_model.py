"""The bundled model as vLLM's files: the same weights, reordered where the two engines differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from tests.cluster.endless_model import write_endless_model
from tests.cluster.hf_model import write_hf_model

DRAFT = Path(__file__).resolve().parents[2] / "models/builtin/edgeagent-mini-draft.gguf"


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bundled draft model, which is small, changed so that it never ends."""
    path = tmp_path_factory.mktemp("model") / "endless.gguf"
    write_endless_model(path, DRAFT)
    return path


def read_safetensors(path: Path) -> dict[str, npt.NDArray[np.float32]]:
    """Return the tensors of a file."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header: dict[str, Any] = json.loads(content[8 : 8 + size])
    del header["__metadata__"]
    body = content[8 + size :]
    return {
        name: np.frombuffer(body[slice(*entry["data_offsets"])], np.float32).reshape(entry["shape"])
        for name, entry in header.items()
    }


def test_the_endless_model_is_the_bundled_one_but_for_its_scores(endless: Path) -> None:
    reader = gguf.GGUFReader(endless)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    for tensor in gguf.GGUFReader(DRAFT).tensors:
        assert np.array_equal(tensor.data, tensors[tensor.name].data)
    scores, embeddings = (tensors[name].data for name in ("output.weight", "token_embd.weight"))
    end = reader.fields["tokenizer.ggml.eos_token_id"].contents()
    assert not scores[end].any() and embeddings[end].any()
    assert (scores != embeddings).any(axis=1).sum() < 20


def test_rotary_rows_lie_in_halves_and_all_else_as_it_was(endless: Path, tmp_path: Path) -> None:
    write_hf_model(endless, tmp_path)
    weights = read_safetensors(tmp_path / "model.safetensors")
    reader = gguf.GGUFReader(endless)
    source = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.tensors}
    heads = reader.fields["llama.attention.head_count"].contents()
    query = source["blk.0.attn_q.weight"]
    width = len(query) // heads
    ours = weights["model.layers.0.self_attn.q_proj.weight"]
    assert np.array_equal(ours[: width // 2], query[:width:2])
    assert np.array_equal(ours[width // 2 : width], query[1:width:2])
    assert np.array_equal(weights["model.layers.0.self_attn.v_proj.weight"], source["blk.0.attn_v.weight"])
    assert np.array_equal(weights["lm_head.weight"], source["output.weight"])
    assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"] is False


def test_tied_scores_are_told_and_not_written(tmp_path: Path) -> None:
    write_hf_model(DRAFT, tmp_path)
    assert "lm_head.weight" not in read_safetensors(tmp_path / "model.safetensors")
    assert json.loads((tmp_path / "config.json").read_text())["tie_word_embeddings"] is True


def test_the_tokenizer_has_every_token_once(endless: Path, tmp_path: Path) -> None:
    write_hf_model(endless, tmp_path)
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text(encoding="utf-8"))
    ids = [*tokenizer["model"]["vocab"].values(), *(token["id"] for token in tokenizer["added_tokens"])]
    size = json.loads((tmp_path / "config.json").read_text())["vocab_size"]
    assert sorted(ids) == list(range(size))
    template = json.loads((tmp_path / "tokenizer_config.json").read_text(encoding="utf-8"))["chat_template"]
    assert "<|im_start|>" in template
