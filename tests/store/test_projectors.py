"""Which projector belongs to a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeagent.errors import ModelDamaged, ModelNotFound
from edgeagent.store.projectors import check_projector, choose_projector, find_projector, media_of, memory_bytes
from edgeagent.types import MemoryKind
from tests.models import make_tiny_model
from tests.projectors import Kind, make_projector


@pytest.mark.parametrize(
    ("model", "others", "found"),
    [
        ("seeing-Q4_K_M.gguf", {"mmproj-seeing-F16.gguf": 9}, "mmproj-seeing-F16.gguf"),
        ("seeing-Q4_K_M.gguf", {"mmproj-model-f16.gguf": 9, "seeing-Q8_0.gguf": 9}, "mmproj-model-f16.gguf"),
        ("seeing-Q4_K_M.gguf", {"mmproj-F32.gguf": 9, "mmproj-F16.gguf": 5}, "mmproj-F16.gguf"),
        ("seeing-Q4_K_M.gguf", {"mmproj-model-f16.gguf": 9, "other-Q8_0.gguf": 9}, None),
        (
            "Other-Q8_0.gguf",
            {"mmproj-model-f16.gguf": 9, "seeing.gguf": 9, "other.mmproj.gguf": 9},
            "other.mmproj.gguf",
        ),
        (
            "seeing-Q4_K_M-00001-of-00002.gguf",
            {"seeing-Q4_K_M-00002-of-00002.gguf": 9, "mmproj.gguf": 1},
            "mmproj.gguf",
        ),
        ("seeing.gguf", {"mmproj.txt": 1}, None),
    ],
)
def test_it_is_beside_the_model(tmp_path: Path, model: str, others: dict[str, int], found: str | None) -> None:
    for name, size in {model: 1, **others}.items():
        (tmp_path / name).write_bytes(bytes(size))
    assert find_projector(tmp_path / model) == (None if found is None else tmp_path / found)


def test_a_folder_that_is_gone_has_none(tmp_path: Path) -> None:
    assert find_projector(tmp_path / "gone" / "m.gguf") is None


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        ({"m-Q4_K_M.gguf": 9, "mmproj-m-f16.gguf": 5, "mmproj-m-Q8_0.gguf": 3}, "mmproj-m-Q8_0.gguf"),
        ({"m-Q4_K_M.gguf": 9, "mmproj-BF16.gguf": 5, "mmproj-F16.gguf": 5, "mmproj-F32.gguf": 9}, "mmproj-F16.gguf"),
        ({"m-Q4_K_M.gguf": 9, "other/mmproj-F16.gguf": 5}, None),
        ({"m-Q4_K_M.gguf": 9, "mmproj.json": 1}, None),
    ],
)
def test_which_one_of_a_repository_is_pulled(files: dict[str, int], chosen: str | None) -> None:
    assert choose_projector("m-Q4_K_M.gguf", files) == chosen


def test_what_a_projector_reads(tmp_path: Path) -> None:
    assert media_of(make_projector(tmp_path / "a.gguf", "gemma3")) == ("image",)
    assert media_of(make_projector(tmp_path / "b.gguf", "ultravox")) == ("audio",)
    (tmp_path / "c.gguf").write_bytes(b"GGUF")
    assert media_of(tmp_path / "c.gguf") == ()
    assert media_of(tmp_path / "none.gguf") == ()


@pytest.mark.parametrize(
    ("kind", "num_rows"),
    [("gemma3", 256), ("idefics3", 256), ("lfm2", 1024), ("qwen2vl_merger", 16_384), ("ultravox", 1500)],
)
def test_the_memory_of_a_projector(tmp_path: Path, kind: Kind, num_rows: int) -> None:
    """Each patch of the largest image, or each frame of half a minute, takes 64 + 4 x 32 values."""
    sense = "audio" if kind == "ultravox" else "vision"
    for key in (f"clip.{sense}.projector_type", "clip.projector_type"):  # the first if a file may have both senses
        path = make_projector(tmp_path / f"{key}.gguf", kind, kind_key=key)
        assert memory_bytes(path) == path.stat().st_size + num_rows * (64 + 4 * 32) * 4
    path.write_bytes(b"hello")
    assert memory_bytes(path) == 5 and memory_bytes(tmp_path / "gone.gguf") == 0


def test_what_is_no_projector(tmp_path: Path) -> None:
    check_projector(make_projector(tmp_path / "a.gguf", "gemma3"))
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    (tmp_path / "text.gguf").write_bytes(b"hello, this is a text")
    make_tiny_model(tmp_path / "model.gguf", MemoryKind.FULL_ATTENTION)
    for name, error, why in (
        ("none.gguf", ModelNotFound, "none.gguf"),
        ("broken.gguf", ModelDamaged, "broken.gguf"),
        ("text.gguf", ModelDamaged, "not a GGUF file"),
        ("model.gguf", ModelDamaged, "is no projector: its general.architecture is 'llama', not 'clip'"),
    ):
        with pytest.raises(error, match=why):
            check_projector(tmp_path / name)
