"""The completions that the shell offers for MODEL."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from edgeagent.cli.completion import model_names, remote_names
from edgeagent.remotes import EndpointConfig, Remote
from edgeagent.remotes.file import add_remote

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "work" / "models").mkdir(parents=True)
    (tmp_path / "work" / ".hidden").mkdir()
    (tmp_path / "work" / "a.gguf").touch()
    (tmp_path / "work" / "notes.txt").touch()
    (tmp_path / "work" / "models" / "b.gguf").touch()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def test_files_folders_and_the_bundled_model() -> None:
    names = model_names("")
    assert {"a.gguf", "builtin", "models/", "qwen3-0.6b"} <= set(names)
    assert "notes.txt" not in names and ".hidden/" not in names
    assert model_names("bui") == ["builtin"]
    assert model_names("models/") == ["models/b.gguf"]
    assert model_names("./") == ["./a.gguf", "./models/"]


def test_downloaded_models_that_have_a_gguf(folder: Path) -> None:
    for repo, file in {"models--org--some-model": "q4.gguf", "models--org--other": "weights.bin"}.items():
        snapshot = folder / "hub" / repo / "snapshots" / "0a1b"
        snapshot.mkdir(parents=True)
        (snapshot / file).touch()
    assert model_names("org") == ["org/some-model"]


def test_the_quantizations_that_are_here(folder: Path) -> None:
    download(folder, "models--org--repo", "model-Q4_K_M.gguf", "model-Q8_0.gguf", "mmproj-F16.gguf", "odd.gguf")
    assert model_names("org/repo") == ["org/repo", "org/repo:Q4_K_M", "org/repo:Q8_0"]
    assert model_names("org/repo:Q8") == ["org/repo:Q8_0"]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_is_given_the_part_behind_a_colon(folder: Path) -> None:
    """Run the script that `edgeagent --install-completion` installs, on lines that bash splits at their colons."""
    cases: list[tuple[list[str], list[str]]] = [
        (["run", "org/re"], ["org/repo", "org/repo:Q4_K_M", "org/repo:Q8_0"]),
        (["run", "org/repo", ":"], ["Q4_K_M", "Q8_0"]),
        (["run", "org/repo", ":", "Q8"], ["Q8_0"]),
        (["serve", "--draft", "org/repo", ":", "Q4"], ["Q4_K_M"]),
        (["run", "org/repo", ":", "Q8_0", "--te"], ["--temperature"]),
        (["pull", "qwen3-0"], ["qwen3-0.6b"]),
    ]
    download(folder, "models--org--repo", "model-Q4_K_M.gguf", "model-Q8_0.gguf")
    command = folder / "bin" / "edgeagent"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m edgeagent "$@"\n')
    command.chmod(0o755)
    script = 'eval "$(_EDGEAGENT_COMPLETE=source_bash edgeagent)"\n'
    for words, _ in cases:
        line = " ".join(shlex.quote(word) for word in ["edgeagent", *words])
        script += f"""
            COMP_WORDS=({line}); COMP_CWORD={len(words)}; COMPREPLY=(); _edgeagent_completion edgeagent
            echo "${{COMPREPLY[@]}}"
        """
    environment = {**os.environ, "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    answer = subprocess.run(
        ["bash", "--norc", "-c", script], capture_output=True, text=True, env=environment, check=True
    )
    given = [sorted(line.split()) for line in answer.stdout.splitlines()]
    assert given == [expected for _, expected in cases], answer.stderr


def download(folder: Path, repo: str, *files: str) -> None:
    snapshot = folder / "hub" / repo / "snapshots" / "0a1b"
    snapshot.mkdir(parents=True)
    for file in files:
        (snapshot / file).touch()


def test_a_path_that_does_not_exist_offers_nothing() -> None:
    assert model_names("/no/such/folder/") == []
    assert model_names("zzz") == []


def test_the_remotes_that_were_added(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEAGENT_STATE_DIR", str(folder / "state"))
    assert remote_names("") == []
    (folder / "state").mkdir(mode=0o700)
    for name in ("gpu", "cluster", "gpu2"):
        add_remote(folder / "state", Remote(name, (EndpointConfig("https://gpu.example"),)))
    assert (remote_names("g"), remote_names("")) == (["gpu", "gpu2"], ["cluster", "gpu", "gpu2"])
    (folder / "state" / "remotes.json").write_text("{")
    assert remote_names("") == []
