"""How llama.cpp's reason for not loading a file is attributed: to the file, or to this machine."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from edgeagent.config import EngineConfig
from edgeagent.engine.llama import bindings
from edgeagent.engine.llama import model as model_module
from edgeagent.engine.llama.model import Model
from edgeagent.errors import ModelDamaged, ModelLoadFailed, ModelOutOfMemory
from edgeagent.types import MemoryKind
from tests.models import make_tiny_model


def test_a_file_without_a_tensor_that_it_needs_is_damaged(tmp_path: Path) -> None:
    path = make_tiny_model(tmp_path / "torn.gguf", MemoryKind.FULL_ATTENTION, num_layers=1)
    path.write_bytes(path.read_bytes().replace(b"blk.0.attn_q.weight", b"blk.0.attn_x.weight"))
    with pytest.raises(ModelDamaged, match=r"cannot load \S*torn\.gguf: .*blk\.0\.attn_q\.weight"):
        Model(path, EngineConfig(gpu_layers=0))


def test_an_error_is_told_once_and_also_while_another_context_is_interrupted(tmp_path: Path) -> None:
    path = make_tiny_model(tmp_path / "torn.gguf", MemoryKind.FULL_ATTENTION, num_layers=1)
    path.write_bytes(path.read_bytes().replace(b"blk.0.attn_q.weight", b"blk.0.attn_x.weight"))
    flag = ctypes.create_string_buffer(b"\1")
    bindings.abort_flags.append(flag)
    try:
        with pytest.raises(ModelDamaged, match=r"blk\.0\.attn_q\.weight"):
            Model(path, EngineConfig(gpu_layers=0))
    finally:
        bindings.abort_flags.remove(flag)
    assert bindings.last_error() == ""


@pytest.mark.parametrize(
    "why", ["error loading model: unable to allocate CPU buffer", "error loading model: mmap failed", ""]
)
def test_a_machine_that_cannot_hold_it_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    monkeypatch.setattr(model_module, "last_error", lambda: why)
    kind = ModelOutOfMemory if "allocate" in why else ModelLoadFailed
    assert type(model_module._load_failure(tmp_path)) is kind
