"""What is refused before a load: a foreign draft, and a context larger than all memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from edgeagent.errors import ModelLoadFailed
from edgeagent.store.kv_shape import KvShape
from edgeagent.types import DeviceInfo
from edgeagent.worker.fit import check_draft, check_memory

MODEL, DRAFT = Path("/models/big.gguf"), Path("/models/small.gguf")
GIB = 1 << 30
SHAPE = KvShape(512, 256)


@dataclass(frozen=True)
class FakeHeader:
    num_vocab: int = 100
    context_length: int | None = None
    kv_shape: KvShape = SHAPE
    size_bytes: int = GIB
    num_layers: int | None = 3
    matrix_bytes: tuple[tuple[str, int], ...] = ()


@pytest.fixture(autouse=True)
def _four_gibibytes_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=3 * GIB))
    monkeypatch.setattr(psutil, "swap_memory", lambda: SimpleNamespace(free=GIB))


def test_a_draft_with_another_vocabulary() -> None:
    check_draft(FakeHeader(), MODEL, FakeHeader(), DRAFT)
    check_draft(FakeHeader(), MODEL, FakeHeader(num_vocab=0), DRAFT)
    with pytest.raises(ModelLoadFailed, match=r"draft /models/small.gguf has 99 tokens .* /models/big.gguf has 100;"):
        check_draft(FakeHeader(), MODEL, FakeHeader(num_vocab=99), DRAFT)


def test_a_context_that_no_memory_holds_is_refused_with_one_that_fits() -> None:
    with pytest.raises(ModelLoadFailed) as refused:
        check_memory(4 << 20, 2048.0, [])
    assert refused.value.message == (
        "a context of 4194304 tokens takes 8.6 GB of memory for the KV cache, and 4.3 GB are free; "
        "--ctx 1048576 would fit"
    )
    check_memory(1048576, 2048.0, [])
    with pytest.raises(ModelLoadFailed, match="--ctx 8192 would fit"):
        check_memory(4 << 20, 2048.0, [], num_trained=8192)
    with pytest.raises(ModelLoadFailed, match="no context would fit"):
        check_memory(512, 64.0 * GIB, [])


def test_what_fits_on_a_gpu_or_is_not_known_is_tried() -> None:
    gpu = DeviceInfo("CUDA0", "a GPU", "gpu", 8 * GIB, 6 * GIB)
    check_memory(4 << 20, 2048.0, [gpu])
    with pytest.raises(ModelLoadFailed):
        check_memory(4 << 20, 2048.0, [DeviceInfo("CPU", "a CPU", "cpu", 64 * GIB, 64 * GIB)])
    check_memory(1 << 30, 0.0, [])
