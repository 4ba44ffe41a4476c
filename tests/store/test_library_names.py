"""The meaning of a name on this machine: the default, the owner's aliases and imports, files in the models' folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from edgeagent.config import StoreConfig
from edgeagent.errors import EdgeAgentError, ModelDamaged, ModelNotFound, StoreError
from edgeagent.store.drafts import DraftFinder, FoundDraft
from edgeagent.store.gguf.header import read_header
from edgeagent.store.library import Library, ModelFolder
from edgeagent.store.names.own import NAMES_FILE, Imported, OwnNames, OwnNamesFile, with_alias, with_import
from tests.hub_server import sha256
from tests.store.gguf_bytes import MODEL_KEYS, STRING, GgufBytes, key, small_model, split_model
from tests.store.test_library import REPO, put

HUB_FILE = "model-Q4_0.gguf"


@pytest.fixture
def own(state_dir: Path) -> OwnNamesFile:
    return OwnNamesFile(state_dir)


def lay(store: StoreConfig, name: str, content: bytes | None = None) -> Path:
    """Write a file into the models' folder."""
    assert store.models_dir is not None
    path = store.models_dir / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(small_model() if content is None else content)
    return path


def test_a_file_in_the_models_folder_is_a_model_under_its_name(library: Library, store: StoreConfig) -> None:
    path = lay(store, "My-Model-Q4_0.gguf")
    for name in ("My-Model-Q4_0", "My-Model-Q4_0.gguf", "my-model-q4_0", "My-Model-Q4_0:latest"):
        assert (library.resolve(name).name, library.resolve(name).path) == ("My-Model-Q4_0", path)
    assert library.holds("My-Model-Q4_0")
    assert [(model.name, model.origin) for model in library.models() if model.origin != "builtin"] == [
        ("My-Model-Q4_0", "folder")
    ]


def test_a_split_model_in_a_folder_of_its_own(library: Library, store: StoreConfig) -> None:
    paths = [lay(store, f"a/b/m-{no:05d}-of-00002.gguf", part) for no, part in enumerate(split_model(2), 1)]
    assert library.resolve("m").paths == tuple(paths)
    paths[1].unlink()
    with pytest.raises(ModelNotFound):
        library.resolve("m")


def test_of_two_files_with_one_name_the_nearer_to_the_root_is_the_model(library: Library, store: StoreConfig) -> None:
    lay(store, "z/m.gguf")
    near = lay(store, "m.gguf")
    assert library.resolve("m").path == near


def test_a_file_in_the_folder_comes_before_the_catalog(library: Library, store: StoreConfig) -> None:
    path = lay(store, "qwen3-4b.gguf")
    assert library.resolve("qwen3-4b").path == path


def test_downloads_and_companions_are_no_loose_files(store: StoreConfig) -> None:
    put(store, HUB_FILE, small_model())
    lay(store, "mmproj-model.gguf")
    lay(store, ".hidden.gguf")
    lay(store, "readme.txt")
    assert ModelFolder(store.models_dir).models() == {}


@pytest.mark.skipif(os.name == "nt", reason="POSIX kinds of files")
@pytest.mark.parametrize(
    "kind", ["link out", "link to a device", "dangling link", "loop", "fifo", "folder", "folder out"]
)
def test_what_is_no_file_of_the_folder_is_no_model(tmp_path: Path, store: StoreConfig, kind: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "m.gguf").write_bytes(small_model())
    planted = lay(store, "m.gguf")
    planted.unlink()
    match kind:
        case "link out":
            planted.symlink_to(outside / "m.gguf")
        case "link to a device":
            planted.symlink_to("/dev/zero")
        case "dangling link":
            planted.symlink_to(tmp_path / "nothing")
        case "loop":
            planted.symlink_to(planted)
        case "fifo":
            os.mkfifo(planted)
        case "folder":
            planted.mkdir()
        case "folder out":
            (planted.parent / "inner").symlink_to(outside)
    assert ModelFolder(store.models_dir).models() == {}


def test_an_alias_means_its_model_everywhere(library: Library, store: StoreConfig, own: OwnNamesFile) -> None:
    put(store, HUB_FILE, small_model())
    own.change(lambda names: with_alias(names, "mine", f"{REPO}:Q4_0"))
    assert library.resolve("mine") == library.resolve(REPO)
    assert library.resolve("mine:latest") == library.resolve(REPO)
    assert library.holds("mine") and library.means_a_model("mine")
    assert [model.aliases for model in library.models() if model.origin == "hub"] == [("mine",)]


def test_an_alias_of_a_file_elsewhere_is_its_model_s_name(library: Library, own: OwnNamesFile, tmp_path: Path) -> None:
    outside = tmp_path / "outside.gguf"
    outside.write_bytes(small_model())
    own.change(lambda names: with_alias(with_alias(names, "mine", str(outside)), "ours", str(outside)))
    (listed,) = [model for model in library.models() if model.origin == "alias"]
    assert (listed.name, listed.aliases, listed.paths) == ("mine", ("ours",), (outside,))
    assert listed.header is not None
    for name in ("mine", "ours", "mine:latest"):
        assert library.holds(name)
        assert (library.resolve(name).name, library.resolve(name).path) == ("mine", outside)
    outside.unlink()
    assert not library.holds("mine") and library.models()[-1].problem is not None
    with pytest.raises(ModelNotFound, match=r"mine stands for .*outside\.gguf, which is gone: `edgeagent rm mine`"):
        library.resolve("mine")


def test_an_alias_by_path_of_a_file_that_has_a_name_is_no_second_model(
    library: Library, store: StoreConfig, own: OwnNamesFile
) -> None:
    path = lay(store, "m.gguf")
    own.change(lambda names: with_alias(names, "mine", str(path)))
    assert [(model.name, model.aliases) for model in library.models() if model.origin != "builtin"] == [
        ("m", ("mine",))
    ]


def test_a_damaged_file_is_listed_as_such(library: Library, store: StoreConfig) -> None:
    lay(store, "bad.gguf", b"GGUF")
    (bad,) = [model for model in library.models() if model.origin == "folder"]
    assert bad.is_damaged and bad.header is None and "the file ends at byte 4" in (bad.problem or "")


def test_an_alias_of_an_alias_means_nothing(library: Library, own: OwnNamesFile) -> None:
    own.change(lambda names: with_alias(with_alias(names, "a", "b"), "b", "a"))
    with pytest.raises(ModelNotFound):
        library.resolve("a")


def test_an_imported_model_is_verified_where_its_source_tells_its_sha256(
    library: Library, own: OwnNamesFile, tmp_path: Path
) -> None:
    content = small_model()
    blob = tmp_path / f"sha256-{sha256(content)}"
    blob.write_bytes(content)
    own.change(lambda names: with_import(names, "other:7b", Imported((blob,), "ollama", sha256(content))))
    assert (library.resolve("other:7b").name, library.resolve("other:7b").path) == ("other:7b", blob)
    blob.write_bytes(content[:-1] + b"!")
    with pytest.raises(ModelDamaged, match="damaged"):
        library.resolve("other:7b")
    blob.unlink()
    with pytest.raises(ModelNotFound, match="edgeagent rm other:7b"):
        library.resolve("other:7b")


def test_the_default_is_what_is_configured(store: StoreConfig, state_dir: Path) -> None:
    path = lay(store, "m.gguf")
    library = Library(store, state_dir, "m")
    assert {library.resolve(name).path for name in ("", "default", "m")} == {path}
    assert Library(store, state_dir, str(path)).resolve_for_client("default").path == path


def test_clients_name_models_and_no_paths(library: Library, store: StoreConfig, tmp_path: Path) -> None:
    lay(store, "m.gguf")
    outside = tmp_path / "x.gguf"
    outside.write_bytes(small_model())
    assert library.resolve_for_client("m.gguf").name == "m"
    for name in (str(outside), "../x.gguf", "~/x.gguf", "./x.gguf"):
        with pytest.raises(EdgeAgentError, match=r"not paths|there is no file"):
            library.resolve_for_client(name)


def test_an_unknown_name_is_told_with_near_ones(library: Library, store: StoreConfig, own: OwnNamesFile) -> None:
    lay(store, "falcon-mini.gguf")
    own.change(lambda names: with_alias(names, "my-assistant", "builtin"))
    with pytest.raises(ModelNotFound, match="near names: falcon-mini"):
        library.resolve("falcon-mimi")
    with pytest.raises(ModelNotFound, match="near names: my-assistant"):
        library.resolve("myassistant")
    assert not library.means_a_model("myassistant")
    assert library.means_a_model("qwen3:4b-q8_0") and not library.means_a_model("hello")


def test_a_target_from_the_hub_has_the_catalog_s_draft(library: Library, store: StoreConfig) -> None:
    path = put(store, "Qwen3-1.7B-Q8_0.gguf", small_model(1), repo="Qwen/Qwen3-1.7B-GGUF")
    header, find = read_header(path), DraftFinder(library).find
    none = find(library.resolve("qwen3:1.7b"), header)
    assert none == FoundDraft(None, "the catalog's partner qwen3-0.6b is not here: `edgeagent pull qwen3-0.6b`")
    draft = put(store, "Qwen3-0.6B-Q8_0.gguf", small_model(2), repo="Qwen/Qwen3-0.6B-GGUF")
    for name in ("qwen3:1.7b", "Qwen/Qwen3-1.7B-GGUF", "hf.co/Qwen/Qwen3-1.7B-GGUF:q8_0"):
        assert find(library.resolve(name), header) == FoundDraft(draft, "the catalog's partner")


def test_the_names_outlive_a_writer_and_are_refused_when_torn(
    own: OwnNamesFile, state_dir: Path, tmp_path: Path
) -> None:
    assert own.read() == OwnNames()
    model = Imported((tmp_path / "m.gguf",), "llama.cpp", None)
    own.change(lambda names: with_import(with_alias(names, "a", "m"), "m", model))
    assert OwnNamesFile(state_dir).read() == OwnNames({"a": "m"}, {"m": model})
    assert own.change(lambda names: names.without("m")) == OwnNames()
    for content in (b"[]", b"{", json.dumps({"aliases": [], "imports": 3}).encode()):
        (state_dir / NAMES_FILE).write_bytes(content)
        with pytest.raises(StoreError, match=r"models\.json cannot be read"):
            own.read()


def test_a_model_s_adapters_by_any_of_its_names(store: StoreConfig, state_dir: Path) -> None:
    path = lay(store, "m.gguf")
    library = Library(store, state_dir, "m", {"M.gguf": ("one",), "gone": ("two",)})
    (model,) = [model for model in library.models() if model.origin == "folder"]
    assert model.adapters == library.local("m").adapters == ("one",)
    assert library.holds("m+one") and library.means_a_model("m+one") and library.has_adapter("default", "one")
    for name in ("m+two", "gone+two", "+one", "m+", f"{path}+one"):
        assert not library.holds(name)


def test_an_adapter_in_the_models_folder_is_not_a_model(library: Library, store: StoreConfig) -> None:
    lay(store, "a.gguf", GgufBytes(keys=(*MODEL_KEYS, key("general.type", STRING, "adapter"))).to_bytes())
    (listed,) = [model for model in library.models() if model.origin == "folder"]
    assert listed.header is None and listed.problem == "it is an adapter, not a model"
