"""`edgeagent rm`, `prune`, `cp` and `import`, in this process."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import typer

from edgeagent.cli import main
from edgeagent.config import StoreConfig
from edgeagent.store import library_editor
from edgeagent.store.hub.cache import HubCache
from tests.cli.conftest import Run
from tests.hub_server import sha256
from tests.store.gguf_bytes import small_model
from tests.store.test_adoption import blob, manifest
from tests.store.test_library import REPO, put
from tests.store.test_library_names import lay

CONTENT = small_model(1, 300_000)


def names(run: Run) -> set[str]:
    return {model["name"] for model in json.loads(run("list", "--json")[1])} - {"builtin"}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder for this test, with one of Ollama's models in it."""
    for name in ("OLLAMA_MODELS", "LLAMA_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(library_editor, "_OLLAMA_SYSTEM_FOLDER", tmp_path / "nowhere")
    blob(tmp_path, CONTENT)
    manifest(tmp_path, "registry.ollama.ai/library/theirs/1b", sha256(CONTENT))
    return tmp_path


def answering(monkeypatch: pytest.MonkeyPatch, answer: bool) -> list[str]:
    asked: list[str] = []

    def confirm(question: str, **_: object) -> bool:
        asked.append(question)
        return answer

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(typer, "confirm", confirm)
    return asked


def test_rm_says_what_it_frees_and_asks(run: Run, store: StoreConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, "m-Q4_0.gguf", CONTENT)
    assert answering(monkeypatch, answer=False) == []
    status, _, err = run("rm", REPO)
    assert status == 1 and f"{REPO}:Q4_0: 300.7 kB in " in err and names(run) == {f"{REPO}:Q4_0"}
    assert answering(monkeypatch, answer=True) == []
    status, out, _ = run("rm", REPO)
    assert (status, out) == (0, "300.7 kB are free again.\n") and names(run) == set()


def test_rm_without_a_terminal_needs_a_yes(run: Run, store: StoreConfig) -> None:
    put(store, "m-Q4_0.gguf", CONTENT)
    status, _, err = run("rm", REPO)
    assert status == 2 and "repeat with --yes" in err and names(run) == {f"{REPO}:Q4_0"}
    status, out, _ = run("rm", "--yes", "--json", REPO)
    (record,) = json.loads(out)
    assert status == 0 and (record["name"], record["freed_bytes"]) == (f"{REPO}:Q4_0", len(CONTENT))


def test_rm_of_a_wrong_name_removes_nothing(run: Run, store: StoreConfig) -> None:
    lay(store, "household.gguf")
    status, out, err = run("rm", "--yes", "household", "househod")
    assert (status, out) == (2, "") and "near names: household" in err and names(run) == {"household"}


def test_cp_then_rm_of_the_alias(run: Run, store: StoreConfig) -> None:
    lay(store, "household.gguf")
    assert run("cp", "household", "home")[:2] == (
        0,
        "home means household now. `edgeagent rm home` removes this name.\n",
    )
    assert json.loads(run("cp", "--json", "home", "casa")[1]) == {"alias": "casa", "name": "household"}
    assert run("show", "casa")[0] == 0
    status, out, err = run("rm", "--yes", "home")
    assert (status, out) == (0, "0 B are free again.\n") and "no file is deleted" in err
    assert names(run) == {"household"} and run("show", "home")[0] == 2
    status, _, err = run("cp", "household", "a/b")
    assert status == 2 and "cannot be a model's name" in err
    status, _, err = run("cp", "household", "builtin")
    assert status == 2 and "'builtin' has a meaning of its own; choose another name" in err


def test_prune(run: Run, store: StoreConfig) -> None:
    assert run("prune")[:2] == (0, "There is nothing to delete.\n")
    put(store, "m-Q4_0.gguf", CONTENT)
    HubCache.of(store).partial(REPO, "d" * 64).write_bytes(b"GGUF")
    status, _, err = run("prune")
    assert status == 2 and "not finished" in err and "--yes" in err
    assert run("prune", "--yes")[:2] == (0, "4 B are free again.\n")
    assert json.loads(run("prune", "--yes", "--json")[1]) == [] and names(run) == {f"{REPO}:Q4_0"}


def test_import_lists_then_imports(run: Run, home: Path) -> None:
    status, out, _ = run("import")
    assert status == 0 and "theirs:1b  ollama  300.7 kB" in out and "`edgeagent import SOURCE` imports these" in out
    assert names(run) == set()
    assert "1 imported. `edgeagent list` shows them." in run("import", "ollama")[1]
    assert "0 imported, 1 known before" in run("import", "ollama")[1]
    (model,) = json.loads(run("list", "--json")[1])[1:]
    assert (model["name"], model["origin"]) == ("theirs:1b", "import") and model["paths"][0].startswith(str(home))


def test_import_of_one_model(run: Run, home: Path) -> None:
    manifest(home, "registry.ollama.ai/library/other/latest", sha256(CONTENT))
    (record,) = json.loads(run("import", "ollama", "--only", "other", "--json")[1])
    assert (record["name"], record["is_imported"], record["is_new"]) == ("other", True, True)
    assert names(run) == {"other"}
    status, _, err = run("import", "ollama", "--only", "othr")
    assert status == 2 and "near names: other" in err


def test_import_of_a_damaged_model(run: Run, home: Path) -> None:
    blob(home, CONTENT).write_bytes(small_model(2, 300_000))
    status, out, err = run("import", "ollama")
    assert status == 1 and "0 imported" in out and "is damaged" in err and names(run) == set()


def test_import_of_nothing(run: Run, tmp_path: Path, home: Path) -> None:
    assert run("import", "lmstudio")[:2] == (0, "No model was found in lmstudio.\n")
    status, _, err = run("import", "olama")
    assert status == 2 and "olama is not one of ollama, lmstudio, llama.cpp" in err
    assert main(["import", "--help"]) == 0


def test_rm_says_what_a_name_means_afterwards(run: Run, store: StoreConfig) -> None:
    lay(store, "m.gguf")
    deep = lay(store, "deep/m.gguf")
    status, out, _ = run("rm", "m", "--yes")
    assert status == 0 and f"Another model has the name m, which now means {deep}." in out
    assert json.loads(run("rm", "m", "--yes", "--json")[1])[0]["means_now"] is None


def test_a_name_for_a_file_elsewhere_is_listed(run: Run, tmp_path: Path) -> None:
    outside = tmp_path / "outside.gguf"
    outside.write_bytes(CONTENT)
    assert run("cp", str(outside), "mine")[0] == 0
    assert names(run) == {"mine"}
    assert json.loads(run("show", "mine", "--json")[1])["name"] == "mine"
    assert run("rm", "mine", "--yes")[0] == 0 and outside.exists() and names(run) == set()
