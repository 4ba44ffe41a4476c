"""The settings that a cached prompt depends on, end to end: change one at a time; it is either found again or not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgeagent.config import EngineConfig
from edgeagent.engine.costs.cost_model import CostModel
from edgeagent.engine.llama import fingerprint
from edgeagent.engine.llama.model import Model
from edgeagent.types import MemoryKind, replace
from edgeagent.worker.child import opening
from edgeagent.worker.child.generator import host
from tests.integration.test_disk_cache_host import PROMPT, Machine
from tests.models import make_tiny_model

CONFIG = EngineConfig(ctx=1024, batch=32, threads=1, flash_attention="on")


@pytest.fixture(autouse=True)
def _always_restore(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore all cached blocks, even if a busy machine would compute them faster."""
    monkeypatch.setattr(CostModel, "prefill_s", lambda *_: None)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return two models of one shape with different weights. Their heads are wide enough for quantized cells."""
    folder = tmp_path_factory.mktemp("models")
    return (
        make_tiny_model(folder / "one.gguf", MemoryKind.FULL_ATTENTION, num_heads=2),
        make_tiny_model(folder / "other.gguf", MemoryKind.FULL_ATTENTION, num_heads=2, seed=1),
    )


class Kept:
    """A model's file, and a folder with the blocks of a first run."""

    def __init__(self, folder: Path, models: tuple[Path, Path]) -> None:
        self.other = models[1]
        self.model = folder / "model.gguf"
        self.folder = folder / "cache"
        shutil.copy(models[0], self.model)
        machine = Machine(self.model, self.folder, CONFIG)
        assert machine.ask(PROMPT)[1] == 0
        assert machine.notes == ()
        machine.close()

    def cached(self, config: EngineConfig = CONFIG, draft: Path | None = None) -> tuple[int, str]:
        """Return how much of the prompt the next run finds, and its notes about blocks that it does not use."""
        machine = Machine(self.model, self.folder, config, draft=draft)
        machine.max_tokens = 1  # two threads wait for each other at each, which is slow beside another program
        num_cached = machine.ask(PROMPT)[1]
        machine.close()
        return num_cached, " ".join(machine.notes)


@pytest.fixture
def kept(tmp_path: Path, models: tuple[Path, Path]) -> Kept:
    return Kept(tmp_path, models)


SAME: dict[str, dict[str, object]] = {
    "nothing": {},
    "threads": {"threads": 2},
    "batch": {"batch": 48},
    "parallel": {"parallel": 2},
    "main_gpu": {"main_gpu": 1},
    "split_mode": {"split_mode": "none"},
    "context": {"ctx": 1280},
    "tensor_split": {"tensor_split": (1.0, 2.0)},
    "memory": {"cache_memory_bytes": 1 << 22},
}


@pytest.mark.parametrize("changes", SAME.values(), ids=SAME)
def test_what_means_nothing_to_a_block_changes_nothing(kept: Kept, changes: dict[str, object]) -> None:
    num_cached, note = kept.cached(replace(CONFIG, **changes))
    assert num_cached > 200
    assert "blocks of this model" not in note


def test_how_many_layers_are_on_a_gpu_changes_nothing(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    class Offloaded(Model):
        def __init__(self, *rest: Any, **named: Any) -> None:
            super().__init__(*rest, **named)
            self.num_gpu_layers = 3

    monkeypatch.setattr(opening, "Model", Offloaded)
    assert kept.cached()[0] > 200


def test_a_draft_beside_it_changes_nothing(kept: Kept) -> None:
    num_cached, note = kept.cached(replace(CONFIG, draft_tokens=4), draft=kept.other)
    assert num_cached > 200
    assert note == ""
    assert kept.cached()[0] > 200


OTHER: dict[str, tuple[dict[str, object], str]] = {
    "K type": ({"kv_type_k": "q8_0"}, "K type (f16, now q8_0)"),
    "V type": ({"kv_type_v": "q8_0"}, "V type (f16, now q8_0)"),
    "flash attention": ({"flash_attention": "off"}, "flash attention (on, now off)"),
}


@pytest.mark.parametrize(("changes", "words"), OTHER.values(), ids=OTHER)
def test_blocks_of_other_settings_are_not_found_and_the_log_says_why(
    kept: Kept, changes: dict[str, object], words: str
) -> None:
    num_cached, note = kept.cached(replace(CONFIG, **changes))
    assert num_cached == 0
    assert f"since these differ: {words};" in note
    assert kept.cached()[0] > 200, "and those of the first are still there"


def _rewrite(kept: Kept) -> None:
    shutil.copy(kept.other, kept.model)


def _flip(kept: Kept) -> None:
    """Change one bit of the weights, but not the file's time."""
    times = kept.model.stat()
    content = bytearray(kept.model.read_bytes())
    content[-100] ^= 1
    kept.model.write_bytes(content)
    os.utime(kept.model, ns=(times.st_atime_ns, times.st_mtime_ns))


def _touch(kept: Kept) -> None:
    os.utime(kept.model, (1, 1))


@pytest.mark.parametrize("change", [_rewrite, _flip, _touch])
def test_blocks_of_another_file_under_its_name_are_not_found(kept: Kept, change: Callable[[Kept], None]) -> None:
    change(kept)
    num_cached, note = kept.cached()
    assert num_cached == 0
    assert "these differ: model file" in note


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("commit", lambda: "another", "llama.cpp ("),
        ("library_stamp", lambda: "another", "llama.cpp library ("),
        ("_BLOCKS_VERSION", 1, "block format (3, now 1)"),
    ],
)
def test_blocks_of_another_build_are_not_found(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, name: str, value: object, words: str
) -> None:
    monkeypatch.setattr(fingerprint, name, value)
    num_cached, note = kept.cached()
    assert num_cached == 0
    assert words in note


def test_blocks_of_another_size_are_not_found(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "choose_block_tokens", lambda token_bytes: 64)
    num_cached, note = kept.cached()
    assert num_cached == 0
    assert "block size (256, now 64)" in note


def test_every_field_is_varied_here() -> None:
    varied = {"RoPE factors", "K type", "V type", "flash attention", "model file", "block size"}
    varied |= {"llama.cpp", "llama.cpp library", "block format", "cells in blocks"}
    made = fingerprint.make_fingerprint([], CONFIG, rope="short", block_tokens=1, flash_attention="on")
    assert made.fields.keys() == varied
    for name in made.fields:
        assert fingerprint.Fingerprint({**made.fields, name: "another"}).digest != made.digest
