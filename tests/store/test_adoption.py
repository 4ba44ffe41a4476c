"""Models of Ollama, LM Studio and llama.cpp are found in their own layouts, including hostile ones."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from edgeagent.config import Config
from edgeagent.store import library_editor
from edgeagent.store.library import Library
from edgeagent.store.library_editor import LibraryEditor, adoptable
from tests.hub_server import sha256
from tests.store.gguf_bytes import small_model, split_model

MODEL = small_model()


@pytest.fixture(autouse=True)
def no_system_folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(library_editor, "_OLLAMA_SYSTEM_FOLDER", tmp_path / "nowhere")


def manifest(home: Path, path: str, digest: str, **layer: object) -> Path:
    file = home / ".ollama" / "models" / "manifests" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    model = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}", **layer}
    file.write_text(json.dumps({"layers": [{"mediaType": "x", "digest": "y"}, model]}))
    return file


def blob(home: Path, content: bytes = MODEL) -> Path:
    path = home / ".ollama" / "models" / "blobs" / f"sha256-{sha256(content)}"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_ollama(tmp_path: Path) -> None:
    path, digest = blob(tmp_path), sha256(MODEL)
    for each in (
        "registry.ollama.ai/library/qwen3/4b",
        "registry.ollama.ai/library/llama3/latest",
        "registry.ollama.ai/mine/own/latest",
        "hf.co/org/repo-GGUF/Q4_0",
    ):
        manifest(tmp_path, each, digest)
    found = adoptable("ollama", {"HOME": str(tmp_path)})
    assert {model.name for model in found} == {"qwen3:4b", "llama3", "mine/own", "hf.co/org/repo-GGUF:Q4_0"}
    assert {(model.paths, model.sha256, model.source, model.size_bytes) for model in found} == {
        ((path,), digest, "ollama", len(MODEL))
    }


def test_the_projector_of_ollamas_model(tmp_path: Path) -> None:
    """Its file has no name that says what it is, so the manifest does."""
    blob(tmp_path)
    projector = blob(tmp_path, b"GGUF, a projector")
    file = manifest(tmp_path, "registry.ollama.ai/library/llava/latest", sha256(MODEL))
    layers = json.loads(file.read_text())["layers"]
    digest = projector.name.replace("-", ":", 1)
    layers.append({"mediaType": "application/vnd.ollama.image.projector", "digest": digest})
    file.write_text(json.dumps({"layers": layers}))
    (model,) = adoptable("ollama", {"HOME": str(tmp_path)})
    assert model.projector == projector
    editor = LibraryEditor(Config(state_dir=tmp_path / "state"))
    assert editor.adopt(model) and not editor.adopt(model)
    assert Library.of(Config(state_dir=tmp_path / "state")).find("llava").projector == projector


def test_another_file_among_ollama_s_manifests_is_skipped(tmp_path: Path) -> None:
    path = manifest(tmp_path, "registry.ollama.ai/library/m/latest", sha256(MODEL))
    blob(tmp_path)
    (tmp_path / ".ollama" / "models" / "manifests" / "README").write_bytes(path.read_bytes())
    assert [model.name for model in adoptable("ollama", {"HOME": str(tmp_path)})] == ["m"]


def test_ollama_s_folder_from_its_variable(tmp_path: Path) -> None:
    blob(tmp_path)
    manifest(tmp_path, "registry.ollama.ai/library/m/latest", sha256(MODEL))
    environment = {"HOME": str(tmp_path / "other"), "OLLAMA_MODELS": str(tmp_path / ".ollama" / "models")}
    assert [model.name for model in adoptable("ollama", environment)] == ["m"]


@pytest.mark.parametrize("content", ["", "[]", "{", '{"layers": 3}', '{"layers": [3, {"mediaType": 1}]}', "[" * 9000])
def test_a_manifest_that_is_none_is_skipped(tmp_path: Path, content: str) -> None:
    blob(tmp_path)
    manifest(tmp_path, "registry.ollama.ai/library/m/latest", sha256(MODEL)).write_text(content)
    assert adoptable("ollama", {"HOME": str(tmp_path)}) == ()


@pytest.mark.parametrize("digest", ["../../../etc/passwd", "0" * 63, "0" * 64, "G" * 64])
def test_a_digest_that_leads_nowhere_is_skipped(tmp_path: Path, digest: str) -> None:
    blob(tmp_path)
    manifest(tmp_path, "registry.ollama.ai/library/m/latest", digest)
    assert adoptable("ollama", {"HOME": str(tmp_path)}) == ()


def test_lm_studio_and_llama_cpp(tmp_path: Path) -> None:
    studio = tmp_path / ".lmstudio" / "models" / "org" / "repo"
    studio.mkdir(parents=True)
    (studio / "m-Q4_0.gguf").write_bytes(MODEL)
    (studio / "mmproj-m.gguf").write_bytes(MODEL)
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "org_repo_m.gguf").write_bytes(MODEL)
    (cache / "org_repo_m.gguf.json").write_text(json.dumps({"etag": f'"{sha256(MODEL)}"'}))
    (cache / "n.gguf").write_bytes(MODEL)
    (cache / "n.gguf.etag").write_text(sha256(MODEL))
    environment = {"HOME": str(tmp_path), "LLAMA_CACHE": str(cache)}
    (found,) = adoptable("lmstudio", environment)
    assert (found.name, found.sha256) == ("m-Q4_0", None)
    assert {(model.name, model.sha256) for model in adoptable("llama.cpp", environment)} == {
        ("org_repo_m", sha256(MODEL)),
        ("n", sha256(MODEL)),
    }


def test_a_folder_and_a_file(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "m.gguf").write_bytes(MODEL)
    for number, part in enumerate(split_model(2), 1):
        (tmp_path / f"s-{number:05d}-of-00002.gguf").write_bytes(part)
    (tmp_path / "torn-00001-of-00002.gguf").write_bytes(MODEL)
    found = {model.name: model.paths for model in adoptable(str(tmp_path))}
    assert found.keys() == {"m", "b/m.gguf", "s"} and len(found["s"]) == 2
    (alone,) = adoptable(str(tmp_path / "a" / "m.gguf"))
    assert (alone.name, alone.paths) == ("m", (tmp_path / "a" / "m.gguf",))
    assert adoptable(str(tmp_path / "none")) == ()


@pytest.mark.skipif(os.name == "nt", reason="POSIX kinds of files")
def test_what_is_no_file_is_not_found(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    (tmp_path / "loop.gguf").symlink_to(tmp_path / "loop.gguf")
    (tmp_path / "device.gguf").symlink_to("/dev/zero")
    assert adoptable(str(tmp_path)) == ()
