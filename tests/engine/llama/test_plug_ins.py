"""The back ends of the portable engine are found in two folders only, and each library gives the same words."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgeagent.config import EngineConfig
from edgeagent.engine.llama import bindings
from edgeagent.engine.llama.bindings import PLUG_IN_FOLDER, cpu_variants, plug_ins
from edgeagent.engine.llama.model import Model
from edgeagent.store.names.catalog import builtin_model
from tests.plain_loop import NEAR_TIE, PlainLoop
from tests.portable_engine import run_with_engine, unpack_engine

PROMPTS = ("The capital of France is", "Once upon a time there was a", "1, 2, 3, 4, 5,", "def add(a, b):\n    return")
NUM_TOKENS = 12
BUILTIN = builtin_model().path
ENDING = ".dll" if sys.platform == "win32" else ".so"

# Greedy tokens of each prompt, with the engine that is loaded.
ANSWER = f"""
import json
from pathlib import Path
from edgeagent.config import EngineConfig
from edgeagent.engine.llama import bindings
from edgeagent.engine.llama.model import Model
from tests.plain_loop import PlainLoop

model = Model(Path({str(BUILTIN)!r}), EngineConfig())
loop = PlainLoop(model)
answers = []
for prompt in {PROMPTS!r}:
    logits, tokens = loop.start(model.tokenize(prompt, parse_special=True)), []
    for _ in range({NUM_TOKENS}):
        tokens.append(int(logits.argmax()))
        logits = loop.go_on(tokens[-1:])
    answers.append(tokens)
print(json.dumps({{"variant": bindings.cpu_variant(), "answers": answers}}))
"""
DESCRIBE = """
import json
from edgeagent.engine.llama import bindings
libraries = sorted({line.split()[-1] for line in open("/proc/self/maps") if "ggml-" in line})
print(json.dumps({"backends": bindings.backends(), "trouble": bindings.PLUG_IN_TROUBLE, "libraries": libraries}))
"""


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_of_two_plug_ins_with_one_file_name_the_later_is_loaded(tmp_path: Path) -> None:
    touch(tmp_path / "cuda12" / f"libggml-cuda{ENDING}")
    later = touch(tmp_path / "cuda13" / f"libggml-cuda{ENDING}")
    other = touch(tmp_path / "vulkan" / f"libggml-vulkan{ENDING}")
    touch(tmp_path / f"libggml-rpc{ENDING}")  # in no plug-in's folder
    assert set(plug_ins(tmp_path)) == {later, other}
    assert not list(plug_ins(tmp_path / "another commit"))


def test_variants_have_the_names_of_their_files(tmp_path: Path) -> None:
    paths = {name: touch(tmp_path / f"libggml-cpu-{name}{ENDING}") for name in ("x64", "haswell", "armv8.2_1")}
    touch(tmp_path / f"libggml-cpu{ENDING}")
    assert cpu_variants(tmp_path) == paths


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack_engine(tmp_path_factory.mktemp("portable"))


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    loaded = Model(BUILTIN, EngineConfig())
    yield loaded
    loaded.close()


def run(engine: Path, code: str, **variables: str) -> Any:
    done = run_with_engine(engine, "-c", code, **variables)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check_answers(model: Model, answers: list[list[int]]) -> None:
    """Assert that the installed engine finds each token about as likely as the likeliest."""
    loop = PlainLoop(model)
    for prompt, tokens in zip(PROMPTS, answers, strict=True):
        logits = loop.start(model.tokenize(prompt, parse_special=True))
        for token in tokens:
            assert logits[token] >= logits.max() - NEAR_TIE, f"{prompt!r}: {model.piece(token)!r}"
            logits = loop.go_on([token])
    loop.close()


def test_each_library_gives_the_same_words_or_is_refused(engine: Path, model: Model) -> None:
    chosen = run(engine, ANSWER)
    check_answers(model, chosen["answers"])
    ran = []
    for name in cpu_variants(engine / "llama_cpp" / "lib"):
        done = run_with_engine(engine, "-c", ANSWER, EDGEAGENT_CPU_VARIANT=name)
        if done.returncode:
            assert done.returncode == 1, f"{name} ended its process: {done.returncode} {done.stderr}"
            assert f"this CPU cannot run libggml-cpu-{name}" in done.stderr
            continue
        answer = json.loads(done.stdout)
        assert answer["variant"] == name
        check_answers(model, answer["answers"])
        ran.append(name)
    assert chosen["variant"] in ran


def test_another_word_is_seen(model: Model) -> None:
    loop = PlainLoop(model)
    logits = loop.start(model.tokenize(PROMPTS[0], parse_special=True))
    unlikely = int(np.argmin(logits))
    loop.close()
    with pytest.raises(AssertionError):
        check_answers(model, [[unlikely], [], [], []])


def test_an_unknown_variant_is_refused(engine: Path) -> None:
    done = run_with_engine(engine, "-c", ANSWER, EDGEAGENT_CPU_VARIANT="../lib")
    assert done.returncode == 1
    assert "EDGEAGENT_CPU_VARIANT=../lib: llama.cpp has " in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_other_folders_are_not_searched(engine: Path, tmp_path: Path) -> None:
    """ggml's own search loads libraries from the current folder; they would run as the user."""
    lib = engine / "llama_cpp" / "lib"
    for name in ("libggml-cpu-x64.so", "libggml-blas.so", "libggml-rpc.so"):
        shutil.copy(lib / "libggml-cpu-x64.so", tmp_path / name)
    code = f"import os; os.chdir({str(tmp_path)!r})\n{DESCRIBE}"
    described = run(engine, code, PATH=str(tmp_path), LD_LIBRARY_PATH="")
    assert described["backends"] == ["CPU"]
    assert len(described["libraries"]) == 2  # ggml-base, and one for the CPU: the others are closed again
    assert all(path.startswith(str(lib)) for path in described["libraries"])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_folder_without_libraries_is_told(engine: Path, tmp_path: Path) -> None:
    emptied = tmp_path / "engine"
    shutil.copytree(engine, emptied, ignore=shutil.ignore_patterns("libggml-cpu-*"))
    shutil.copy(engine / "llama_cpp" / "lib" / "libggml-cpu-x64.so", tmp_path)
    code = f"import os; os.chdir({str(tmp_path)!r})\n{DESCRIBE}"
    done = run_with_engine(emptied, "-c", code)
    assert done.returncode == 1
    assert "runs on this CPU" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="needs a library that cannot be loaded")
def test_a_broken_plug_in_is_left_out_and_told(engine: Path, tmp_path: Path) -> None:
    copied = tmp_path / "engine"
    shutil.copytree(engine, copied)
    folder = copied / PLUG_IN_FOLDER / bindings.commit() / "vulkan"
    folder.mkdir(parents=True)
    (folder / f"libggml-vulkan{ENDING}").write_bytes(b"not a library")
    described = run(copied, DESCRIBE)
    assert described["backends"] == ["CPU"]
    assert "libggml-vulkan" in described["trouble"]


def test_the_installed_engine_loads_no_plug_ins_unless_it_is_portable() -> None:
    """A build for this machine has its back ends linked in."""
    code = "from edgeagent.engine.llama import bindings as b; print(b.IS_PORTABLE, b.cpu_variant() != '')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() in (["False", "False"], ["True", "True"])
