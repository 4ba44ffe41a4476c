"""How a worker opens a model within the available memory."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from msgspec import structs

from edgeagent.config import EngineConfig
from edgeagent.engine.llama.bindings import devices
from edgeagent.engine.llama.fingerprint import machine_conditions
from edgeagent.errors import ModelLoadFailed
from edgeagent.store.gguf.header import read_header
from edgeagent.types import DeviceInfo, LayerShape, MemoryKind
from edgeagent.types.choices import Profile, TunedOptions
from edgeagent.worker.child import opening
from edgeagent.worker.child.generator.host import Host
from edgeagent.worker.child.opening import can_take_less, open_model, with_profile
from edgeagent.worker.protocol import Load
from tests.conftest import TinyModel
from tests.fit.shapes import GIB, shape
from tests.local_template import open_here

CARD = DeviceInfo("CUDA0", "a card", "gpu", 8 * GIB, 7 * GIB, backend="CUDA")


def make_load(path: Path, **options: Any) -> Load:
    config = EngineConfig(**{"threads": 1, **options})
    return Load("tiny", str(path), None, config, shapes=(read_header(path).shape,))


@pytest.fixture
def path(tiny_model: TinyModel) -> Path:
    return tiny_model(MemoryKind.FULL_ATTENTION)


def test_with_memory_it_is_opened_as_asked(path: Path) -> None:
    opened = open_model(make_load(path, ctx=512, gpu_layers=0))
    opened.model.close()
    assert (opened.config.ctx, opened.config.kv_type_k, opened.choices) == (512, "f16", ())


def profile_of(path: Path, **changes: Any) -> Profile:
    options = TunedOptions(flash_attention="off", threads=3)
    made = Profile("tiny", str(path), machine_conditions(path), options, "2026-01-01T00:00:00")
    return structs.replace(made, **changes)


def test_the_options_of_a_profile_are_used_where_they_were_measured(path: Path) -> None:
    load = structs.replace(make_load(path, threads=0, ctx=512), profile=profile_of(path))
    opened = open_model(load)
    opened.model.close()
    assert (opened.config.flash_attention, opened.config.threads, opened.is_tuned) == ("off", 3, True)
    assert opened.choices[0].value == "flash_attention off, threads 3"
    assert opened.choices[0].why == "measured by `edgeagent tune` on 2026-01-01"


def test_an_option_beside_a_profile_is_the_users(path: Path) -> None:
    profile = profile_of(path, options=TunedOptions(threads=3), own={"flash_attention": "off"})
    load = make_load(path, threads=0, ctx=512, flash_attention="off")
    opened = open_model(structs.replace(load, profile=profile))
    opened.model.close()
    assert opened.config.threads == 3 and not opened.is_tuned


@pytest.mark.parametrize(
    ("changes", "threads", "why"),
    [
        ({"conditions": {"processor": "another"}}, 0, "version, model file, llama.cpp, processor"),
        ({}, 1, "you set threads 1 now, and nothing then"),
        ({"own": {"batch": "64"}}, 0, "you set nothing now, and batch 64 then"),
    ],
)
def test_a_profile_of_other_conditions_is_told_and_not_used(
    path: Path, changes: dict[str, Any], threads: int, why: str
) -> None:
    load = structs.replace(make_load(path, threads=threads), profile=profile_of(path, **changes))
    used, (choice,) = with_profile(load)
    assert used is load
    assert choice.value == "none"
    assert why in choice.why


def test_a_context_below_the_shortest_is_noted(path: Path) -> None:
    load = make_load(path, ctx=1, gpu_layers=0)
    host = Host(load, open_model(load), open_here)
    assert (host.info.context_length, host.notes) == (
        256,
        ("--ctx 1 is less than the shortest context, which has 256 tokens",),
    )
    host.close()


def test_it_takes_no_more_than_the_daemon_allows(path: Path) -> None:
    load = make_load(path, gpu_layers=0)
    large = structs.replace(load, shapes=(shape(),), room_bytes=int(1.15 * GIB))
    opened = open_model(large)
    assert 1024 <= opened.config.ctx < 8192
    (context,) = (choice for choice in opened.choices if choice.name == "context")
    assert context.by == "memory"
    host = Host(large, opened, open_here)
    assert host.info.context_length == opened.config.ctx
    assert context in host.info.choices
    host.close()


def test_another_try_takes_less_and_says_why(path: Path) -> None:
    load = make_load(path, gpu_layers=0)
    opened = [open_model(structs.replace(load, num_tries=count)) for count in (0, 1)]
    for each in opened:
        each.model.close()
    assert 0 < opened[1].config.ctx < (opened[0].config.ctx or 8192)
    assert opened[1].choices[-1].why == "a load before this one ran out of memory"
    assert can_take_less(load)
    assert not can_take_less(make_load(path, ctx=512, gpu_layers=0)), "what was asked for is kept"


def test_a_context_that_cannot_be_is_refused_before_the_file_is_opened(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=GIB, total=2 * GIB))
    monkeypatch.setattr(opening, "Model", None)
    with pytest.raises(ModelLoadFailed, match="a context of 40000000 tokens takes"):
        open_model(make_load(path, ctx=40_000_000))


def test_no_other_try_where_even_the_least_does_not_fit_any_more(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = structs.replace(make_load(path, gpu_layers=0), shapes=(shape(),))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=1000, total=GIB))
    assert not can_take_less(load)


def test_layers_on_a_gpu_that_is_not_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only_cpu = tuple(device for device in devices() if device.kind == "cpu")
    monkeypatch.setattr(opening, "devices", lambda: only_cpu)
    with pytest.raises(ModelLoadFailed, match=r"--gpu-layers puts 3 layers on a GPU, but .* sees none"):
        open_model(make_load(path, gpu_layers=3))
    opened = open_model(make_load(path, main_gpu=1))
    opened.model.close()
    (note,) = opened.notes
    assert note.startswith("--main-gpu 1 has no effect: llama.cpp sees no GPU")
    monkeypatch.setattr(opening, "devices", lambda: (*only_cpu, CARD))
    with pytest.raises(ModelLoadFailed, match=r"--main-gpu names GPU 1, but there is 1, counted from 0"):
        open_model(make_load(path, main_gpu=1))


def test_a_projector_s_memory_counts_where_it_is_loaded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is on the GPU of the layers, also on the second one if --main-gpu names that alone."""
    cards = (CARD, structs.replace(CARD, name="CUDA1"))
    monkeypatch.setattr(opening, "devices", lambda: (*devices(), *cards))
    for options, gpu in (({}, "CUDA0"), ({"split_mode": "none", "main_gpu": 1}, "CUDA1"), ({"gpu_layers": 0}, "")):
        load = make_load(path, ctx=512, **options)
        without, opened = open_model(load), open_model(structs.replace(load, projector_bytes=GIB))
        for each in (without, opened):
            each.model.close()
        assert opened.projector_gpu == gpu
        assert opened.num_gpu_bytes - without.num_gpu_bytes == (GIB if gpu else 0)


def test_a_load_that_ran_out_of_memory_is_repeated_without_its_draft_first(path: Path) -> None:
    alone = make_load(path, ctx=512, gpu_layers=0)
    pair = structs.replace(alone, draft_path=str(path), shapes=alone.shapes * 2)
    opened = [open_model(structs.replace(pair, num_tries=tries)) for tries in (0, 1)]
    for each in opened:
        each.model.close()
    assert [each.why_no_draft for each in opened] == ["", "a load with it ran out of memory"]
    assert opened[1].config == opened[0].config and opened[1].choices == ()
    assert can_take_less(pair)
    assert not can_take_less(structs.replace(pair, num_tries=1)) and not can_take_less(alone)


def test_a_draft_s_cells_do_not_count_for_what_is_possible(path: Path) -> None:
    load = make_load(path, ctx=512, gpu_layers=0)
    layer = LayerShape(1 << 20, 0, 1 << 40, 1 << 40)
    huge = structs.replace(shape(), layers=(layer,))
    opened = open_model(structs.replace(load, shapes=(*load.shapes, huge)))
    opened.model.close()
    assert "too little for both" in opened.why_no_draft
