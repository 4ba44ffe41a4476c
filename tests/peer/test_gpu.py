"""The plan of the measurement on a GPU, without building or measuring anything."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from edgeagent.bench.measure import Measurement
from edgeagent.bench.scenarios import RATE, Metric, Round
from tests.peer import gpu, gpu_rows
from tests.peer.laboratory import SCENARIOS
from tests.peer.rows import Situation, Size
from tests.peer.servers import Setup
from tests.peer.shelf.shapes import SEVEN_B
from tests.peer.shelf.tensors import Matrix, tensors
from tests.peer.shelf.vocabularies import vocabulary


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    assert not list(gpu.lacking(_source(tmp_path), tmp_path, is_small=True))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(gpu, "cublas_package", lambda: None)
    monkeypatch.setattr(gpu, "_is_installed", lambda name: name not in ("numpy", "gguf"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 0))
    said = list(gpu.lacking(tmp_path / "none", tmp_path, is_small=False))
    assert [line.split()[0] for line in said[:4]] == ["cmake", "c++", "nvidia-smi", "nvcc"]
    assert said[4].startswith("cublas_v2.h is not in")
    assert sum("--source" in line for line in said) == 3
    assert "lacks numpy, gguf;" in said[-2]
    assert "12 GiB" in said[-1]


def _source(folder: Path) -> Path:
    for part in ("llama_cpp/llama_cpp.py", "vendor/llama.cpp/CMakeLists.txt", "vendor/llama.cpp/ggml/src/ggml-cuda/a"):
        (folder / part).parent.mkdir(parents=True, exist_ok=True)
        (folder / part).touch()
    return folder


def test_one_architecture_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = subprocess.CompletedProcess([], 0, "NVIDIA H200, 9.0\nNVIDIA H200, 9.0\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)
    assert gpu.device() == ("NVIDIA H200", "90")
    for part in ("include/cublas_v2.h", "lib/libcublas.so.13"):
        (tmp_path / "nvidia" / "cu13" / part).parent.mkdir(parents=True)
        (tmp_path / "nvidia" / "cu13" / part).touch()
    monkeypatch.syspath_prepend(tmp_path)
    flags: list[str] = []
    monkeypatch.setattr(subprocess, "Popen", lambda _, env: flags.append(env["CMAKE_ARGS"]))
    gpu_rows.build(tmp_path, tmp_path, "90")
    gpu_rows.build(tmp_path, tmp_path, "")
    assert "-DCMAKE_CUDA_ARCHITECTURES=90-real" in flags[0]
    assert f"-DCUDA_cublas_LIBRARY={tmp_path}/nvidia/cu13/lib/libcublas.so.13" in flags[0]
    assert flags[1:] == [""]


def test_the_model_has_seven_billion_weights() -> None:
    found = tensors(SEVEN_B, vocabulary(SEVEN_B.vocabulary, SEVEN_B.num_vocab))
    assert 6.9e9 < sum(math.prod(each.shape) for each in found if isinstance(each, Matrix)) < 7.2e9


def test_rows_have_the_bars_that_were_set() -> None:
    bars = [row.bar.text for row in gpu_rows.gpu_rows(Size()) if row.bar is not None]
    assert bars == ["≥ 0.97", "≥ 1", "≥ 1", "≤ 0.0333"]


def test_a_second_run_measures_what_the_first_has_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    def rounds(situation: str, *each: dict[Metric, list[float]]) -> Measurement:
        asked.append(situation)
        found: list[list[Round]] = [[one] for one in each]
        return Measurement(SCENARIOS[situation], found)

    def fake(setup: Setup, situation: Situation, *_: Any) -> tuple[Measurement, dict[str, Any]]:
        if situation.name == "restart" and "restart" not in asked:
            asked.append("restart")
            raise SystemExit("the time is over")
        metrics = {metric: [8.0] for metric in SCENARIOS[situation.scenario].metrics}
        return rounds(situation.name, metrics, metrics), {}

    decode = {RATE: [90.0]}, {RATE: [100.0]}
    monkeypatch.setattr(gpu_rows, "build", lambda *_: subprocess.Popen(["true"]))
    monkeypatch.setattr(gpu_rows, "measured", fake)
    monkeypatch.setattr(gpu_rows, "beside_llama_bench", lambda *_: rounds("decode", *decode))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    options = gpu.parse(["--source", str(_source(tmp_path)), "--folder", str(tmp_path), "--small"])
    with pytest.raises(SystemExit, match="over"):
        gpu_rows.run(options, seed=1)
    printed = capsys.readouterr().out
    assert "0.90 (0.90–0.90) | ≥ 0.97 | **missed** |" in printed
    assert "1.00 (1.00–1.00) | ≥ 1 | met |" in printed
    gpu_rows.run(options, seed=1)
    assert asked == ["decode", "parallel", "restart", "restart"]
    assert "all is measured" in capsys.readouterr().out
    assert os.environ["PYTHONPATH"].startswith(str(tmp_path / "python"))
