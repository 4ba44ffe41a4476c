"""`edgeagent quantize` on real tiny models, whose results generate in a real worker."""

from __future__ import annotations

import functools
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gguf
import pytest

from edgeagent.cli import quantize as quantize_command
from edgeagent.cli.progress import Show
from edgeagent.config import Config, EngineConfig
from edgeagent.store.gguf.header import read_header, validate_model
from edgeagent.store.library import Found
from edgeagent.types import MemoryKind
from edgeagent.worker.parent.pool.loading import ModelSource
from edgeagent.worker.parent.pool.pool import Pool
from tests import models
from tests.cli.conftest import Run
from tests.worker.support import Record, found_at, request

F16, Q8_0 = gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.Q8_0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


@pytest.fixture
def source(folder: Path) -> Path:
    return models.make_tiny_model(folder / "tiny-F16.gguf", MemoryKind.FULL_ATTENTION, num_layers=1, matrix_type=F16)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def answer_of(path: Path) -> str:
    config = Config(engine=EngineConfig(threads=1, ctx=256))
    pool = Pool(config, ModelSource(lambda _: found_at(path), validate_model))
    record = Record()
    try:
        await pool.start()
        pool.submit(request("in the", max_tokens=4), record)
        await record.end()
    finally:
        await pool.stop()
    assert record.error is None
    return record.text


@pytest.mark.parametrize("type_name", ["q8_0", "Q4_K_M"])
async def test_a_smaller_model_that_answers(run: Run, source: Path, folder: Path, type_name: str) -> None:
    status, out, err = run("quantize", "tiny-f16", type_name)
    target = folder / f"tiny-{type_name.upper()}.gguf"
    assert status == 0 and str(target) in out, err
    assert "100%" in err and f"edgeagent run tiny-{type_name.upper()}" in err
    header = read_header(target)
    assert header.quant == type_name.upper() and header.size_bytes < read_header(source).size_bytes
    assert names(folder) == ["tiny-F16.gguf", target.name]
    assert [model["name"] for model in json.loads(run("list", "--json")[1])] == ["builtin", "tiny-F16", target.stem]
    assert await answer_of(target)


def test_json_tells_every_step(run: Run, source: Path) -> None:
    status, out, _ = run("quantize", "tiny-F16", "Q8_0", "--json", "--threads", "1")
    *steps, done = [json.loads(line) for line in out.splitlines()]
    assert status == 0 and {step["event"] for step in steps} == {"progress"}
    assert steps[-1]["num_tensors"] == steps[-1]["num_tensors_total"] == 12
    assert done["event"] == "done" and done["name"] == "tiny-Q8_0" and done["size_bytes"] > 0


def test_a_quantized_model_needs_a_yes(run: Run, folder: Path) -> None:
    path = folder / "tiny-Q8_0.gguf"
    models.make_tiny_model(path, MemoryKind.FULL_ATTENTION, num_layers=1, matrix_type=Q8_0)
    status, _, err = run("quantize", "tiny-Q8_0", "Q4_0")
    assert status == 2 and "is quantized already (Q8_0)" in err and "--allow-requantize" in err
    status, _, err = run("quantize", "tiny-Q8_0", "Q4_0", "--allow-requantize")
    assert status == 0 and "warning: tiny-Q8_0 is Q8_0 already" in err
    assert names(folder) == ["tiny-Q4_0.gguf", "tiny-Q8_0.gguf"]


def test_parts_become_one_file(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "GGUFWriter", functools.partial(gguf.GGUFWriter, split_max_tensors=8))
    models.make_tiny_model(folder / "tiny.gguf", MemoryKind.FULL_ATTENTION, num_layers=1, matrix_type=F16)
    assert len(names(folder)) == 2
    status, _, err = run("quantize", "tiny", "Q8_0")
    assert status == 0, err
    header = validate_model(folder / "tiny-Q8_0.gguf")
    assert header.num_tensors == 12 and header.split is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_nothing(
    run: Run, source: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    @contextmanager
    def progress(*_: object, **_options: object) -> Iterator[Show]:
        yield lambda *_: signal.raise_signal(number)

    monkeypatch.setattr(quantize_command, "progress", progress)
    status, _, err = run("quantize", "tiny-F16", "Q8_0")
    assert status == 130 and "nothing was kept" in err
    assert names(folder) == [source.name]


@pytest.mark.parametrize(
    "arguments, why",
    [
        (("tiny-F16", "Q9"), "'Q9' is not a type"),
        (("tiny-F17", "Q8_0"), "near names: tiny-F16"),
        (("tiny-F16", "Q8_0", "out.bin"), "must end in .gguf"),
    ],
)
def test_what_is_refused(run: Run, source: Path, arguments: tuple[str, ...], why: str) -> None:
    code, _, err = run("quantize", *arguments)
    assert code == 2 and why in err


def test_an_existing_file_is_not_replaced(run: Run, source: Path, folder: Path) -> None:
    (folder / "tiny-Q8_0.gguf").write_bytes(b"mine")
    status, _, err = run("quantize", "tiny-F16", "Q8_0")
    assert status == 2 and "--force" in err
    assert (folder / "tiny-Q8_0.gguf").read_bytes() == b"mine"
    assert run("quantize", "tiny-F16", "Q8_0", "--force")[0] == 0
    assert read_header(folder / "tiny-Q8_0.gguf").quant == "Q8_0"


def test_a_name_outside_of_the_models_folder_is_a_path(tmp_path: Path, source: Path) -> None:
    from edgeagent.config import StoreConfig
    from edgeagent.quantize import plan

    planned = plan(Found("tiny", (source,), "folder"), "Q8_0", tmp_path / "x.gguf", StoreConfig())
    assert quantize_command._name(planned, source.parent) == str((tmp_path / "x.gguf").resolve())
