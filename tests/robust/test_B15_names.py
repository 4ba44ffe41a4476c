"""B15: hostile names of models and files: nothing outside the models' folder is opened, listed or created."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from edgeagent.config import StoreConfig
from edgeagent.errors import EdgeAgentError, InvalidRequest, ModelNotFound
from edgeagent.store.hub.cache import HubCache
from edgeagent.store.library import Library
from edgeagent.store.names.parsing import HubName, is_file_name, is_repo_name, parse_name
from tests.patience import patient
from tests.robust.name_vectors import ABSOLUTE, TRAVERSALS, WIRE_NAMES

COMMIT = "a" * 40


def test_there_are_enough() -> None:
    assert len(set(WIRE_NAMES)) >= 200


def test_over_the_wire(tmp_path: Path) -> None:
    # Paths that leave the folder would reach these files.
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.gguf").write_bytes(b"GGUF")
    folder = tmp_path / "a" / "b" / "state"
    folder.mkdir(parents=True)
    done = subprocess.run(
        [sys.executable, "-m", "tests.robust.name_probe", str(folder)],
        capture_output=True,
        text=True,
        timeout=patient(110),
    )
    assert done.returncode == 0, done.stderr[-2000:]
    report = json.loads(done.stdout)
    statuses = report["statuses"]
    # Only a pull of a possible repository name fails, since there is no hub.
    repos = {name for name in WIRE_NAMES if is_repo_name(name) and not name.endswith(".gguf")}
    for path in ("/api/pull", "/v1/models/pull"):
        assert set(statuses[path].pop("500")) == repos
    # The root path itself gives Ollama's greeting.
    assert set(statuses["/"].pop("200")) <= {"", "/", ".", "..", "?"}
    # A blank name is as if there were none: the default model, or no earlier response.
    for path in ("/v1/chat/completions", "/v1/responses", "/api/chat"):
        assert set(statuses[path].pop("200", ())) <= {""}, path
    assert {status for by_status in statuses.values() for status in by_status} == {"400", "404"}, statuses
    harmless = (sys.prefix, sys.base_prefix, str(Path(__file__).parents[2]), "/etc/ssl", "/usr/lib", "/dev/null")
    # The hub's token is read for every pull, and is sent only to the hub.
    strange = [path for path in report["opened"] if not path.startswith(harmless)]
    assert [path for path in strange if not path.endswith("/huggingface/token")] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "outside"]
    assert sorted(path.name for path in (tmp_path / "outside").iterdir()) == ["secret.gguf"]


def test_no_name_of_a_repository_leads_out(tmp_path: Path) -> None:
    cache = HubCache(tmp_path / "cache")
    for name in TRAVERSALS + ABSOLUTE:
        if "://" in name:
            continue
        try:
            meaning = parse_name(name)
        except (InvalidRequest, ModelNotFound):
            continue
        # Other names reach the loader only from the owner's command line.
        if isinstance(meaning, HubName):
            snapshot = cache.pointer(meaning.repo, COMMIT, "x").parent
            inside = cache.pointer(meaning.repo, COMMIT, meaning.file or "x").resolve()
            assert inside.is_relative_to(snapshot.resolve()), name
            assert meaning.file is None or is_file_name(meaning.file), name


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    path = HubCache(tmp_path / "cache").pointer("org/repo", COMMIT, "x").parent
    path.mkdir(parents=True)
    return path


@pytest.mark.skipif(os.name == "nt", reason="POSIX kinds of files")
@pytest.mark.parametrize("kind", ["link out", "link to a device", "dangling link", "loop", "fifo", "socket", "folder"])
def test_what_is_no_file_of_the_cache_is_not_there(tmp_path: Path, snapshot: Path, kind: str) -> None:
    outside = tmp_path / "outside.gguf"
    outside.write_bytes(b"GGUF")
    planted = snapshot / "model-Q4_0.gguf"
    match kind:
        case "link out":
            planted.symlink_to(outside)
        case "link to a device":
            planted.symlink_to("/dev/random")
        case "dangling link":
            planted.symlink_to(tmp_path / "nothing")
        case "loop":
            planted.symlink_to(planted)
        case "fifo":
            os.mkfifo(planted)
        case "socket":
            with socket.socket(socket.AF_UNIX) as listener:
                os.chdir(snapshot)
                listener.bind(planted.name)
        case "folder":
            planted.mkdir()
    library = Library(StoreConfig(models_dir=tmp_path / "cache"), tmp_path / "state")
    assert [model.name for model in library.models() if model.origin == "hub"] == []
    with pytest.raises(ModelNotFound):
        library.resolve("org/repo:Q4_0")


@pytest.mark.skipif(os.name == "nt", reason="POSIX kinds of files")
def test_a_folder_that_leads_out(tmp_path: Path, snapshot: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "model-Q4_0.gguf").write_bytes(b"GGUF")
    (snapshot / "inner").symlink_to(outside)
    assert HubCache(tmp_path / "cache").files("org/repo") == {}
    snapshot.rmdir() if not any(snapshot.iterdir()) else (snapshot / "inner").unlink()
    snapshot.rmdir()
    snapshot.symlink_to(outside)
    assert HubCache(tmp_path / "cache").files("org/repo") == {}


def test_a_hard_link_is_not_trusted(tmp_path: Path, snapshot: Path) -> None:
    """A hard link looks like any file, but no sha256 vouches for it, so it is never loaded."""
    outside = tmp_path / "outside.gguf"
    outside.write_bytes(b"GGUF")
    (snapshot / "model-Q4_0.gguf").hardlink_to(outside)
    library = Library(StoreConfig(models_dir=tmp_path / "cache"), tmp_path / "state")
    with pytest.raises(EdgeAgentError, match="cannot be verified"):
        library.resolve("org/repo:Q4_0")


def test_names_that_differ_in_case_alone_do_not_meet(tmp_path: Path) -> None:
    cache = HubCache(tmp_path)
    assert cache.blob("org/repo", "a" * 64).name == "a" * 64
    assert parse_name("org/Repo") != parse_name("org/repo")
    with pytest.raises(InvalidRequest):
        parse_name("org/rep\u043e")
