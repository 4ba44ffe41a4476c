"""What the shell is offered for MODEL."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeagent.cli.completion import model_names


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
    assert model_names("") == ["a.gguf", "builtin", "models/"]
    assert model_names("bui") == ["builtin"]
    assert model_names("models/") == ["models/b.gguf"]
    assert model_names("./") == ["./a.gguf", "./models/"]


def test_downloaded_models_that_have_a_gguf(folder: Path) -> None:
    for repo, file in {"models--org--some-model": "q4.gguf", "models--org--other": "weights.bin"}.items():
        snapshot = folder / "hub" / repo / "snapshots" / "0a1b"
        snapshot.mkdir(parents=True)
        (snapshot / file).touch()
    assert model_names("org") == ["org/some-model"]


def test_a_path_that_does_not_exist_offers_nothing() -> None:
    assert model_names("/no/such/folder/") == []
    assert model_names("zzz") == []
