"""`edgeagent fit` on the bundled model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgeagent.store import library as library_module
from edgeagent.store.names import catalog
from edgeagent.types import MemoryKind
from tests.cli.conftest import Run
from tests.models import make_tiny_model
from tests.projectors import make_projector


@pytest.fixture(autouse=True)
def _real_model(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `builtin` mean the bundled model, which `run` replaces with a smaller one."""
    monkeypatch.setattr(library_module, "builtin_model", catalog.builtin_model)


def test_the_bundled_model_fits(run: Run) -> None:
    status, out, err = run("fit", "builtin")
    assert status == 0, err
    assert "builtin fits:" in out
    assert "KV cells, 2,048 tokens in f16" in out


def test_json_has_each_part(run: Run) -> None:
    record = json.loads(run("fit", "builtin", "--json", "--ctx", "1024", "--ram", "8G", "--vram", "4GiB")[1])
    assert record["fits"]
    assert (record["context"], record["num_gpu_layers"], record["instead"]) == (1024, -1, [])
    assert record["gpus"][0]["bytes"] > 0
    assert record["ram_room_bytes"] == (8 << 30) - (8 << 30) // 20
    with_draft = record["parts"]["weights"]
    alone = json.loads(run("fit", "builtin", "--no-draft", "--json")[1])["parts"]["weights"]
    assert alone < with_draft


def test_a_projector_counts(run: Run, tmp_path: Path) -> None:
    """It takes its size of main memory beside the model, and 64 + 4 x 32 values for each of 256 patches."""
    model = make_tiny_model(tmp_path / "seeing-F32.gguf", MemoryKind.FULL_ATTENTION)
    without = json.loads(run("fit", str(model), "--json", "--ram", "2G")[1])
    size = make_projector(tmp_path / "mmproj-seeing-F16.gguf", "gemma3").stat().st_size
    record = json.loads(run("fit", str(model), "--json", "--ram", "2G")[1])
    taken = size + 256 * (64 + 4 * 32) * 4
    assert record["parts"]["projector"] == taken and without["parts"]["projector"] == 0
    assert record["ram_bytes"] == without["ram_bytes"] + taken
    assert record["ram_room_bytes"] == without["ram_room_bytes"]
    assert "projector, for images or sounds" in run("fit", str(model))[1]
    shown = json.loads(run("show", str(model), "--json")[1])
    assert shown["media"] == ["image"] and shown["projector_bytes"] == size


def test_a_projector_counts_where_it_is(run: Run, tmp_path: Path) -> None:
    """It is on the GPU that gets layers, if it fits there beside one, and else in main memory."""
    model = make_tiny_model(tmp_path / "seeing-F32.gguf", MemoryKind.FULL_ATTENTION)

    def fit(vram: str) -> tuple[int, int]:
        record = json.loads(run("fit", str(model), "--json", "--ram", "2G", "--vram", vram)[1])
        assert record["num_gpu_layers"]
        return record["ram_bytes"], record["gpus"][0]["bytes"]

    without = {vram: fit(vram) for vram in ("4G", "440M")}
    make_projector(tmp_path / "mmproj-seeing-F16.gguf", "gemma3")
    with (tmp_path / "mmproj-seeing-F16.gguf").open("ab") as file:
        file.truncate(256 << 20)
    taken = (256 << 20) + 256 * (64 + 4 * 32) * 4
    assert fit("4G") == (without["4G"][0], without["4G"][1] + taken)
    assert fit("440M") == (without["440M"][0] + taken, without["440M"][1])


def test_a_model_s_own_options_count(run: Run, tmp_path: Path) -> None:
    config = tmp_path / "own.toml"
    config.write_text("[models.builtin.engine]\nctx = 512\n")
    record = json.loads(run("fit", "builtin", "--json", "--config", str(config))[1])
    assert record["context"] == 512


def test_what_does_not_fit_is_told_with_what_would(run: Run) -> None:
    status, out, _ = run("fit", "builtin", "--ctx", "100000000", "--ram", "2G")
    assert status == 1
    assert "builtin does not fit:" in out
    assert "With --ctx 2048 it would." in out
    assert "`edgeagent pull NAME`" in out


def test_mistakes(run: Run) -> None:
    assert "is not a size such as 8G" in run("fit", "builtin", "--ram", "lots")[2]
    assert "model 'nothing-like-it' not found; known names: builtin" in run("fit", "nothing-like-it")[2]
