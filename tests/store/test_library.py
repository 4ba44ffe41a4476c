"""From names to files on this machine, without a network."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgeagent.config import StoreConfig
from edgeagent.errors import ModelDamaged, ModelLoadFailed, ModelNotFound, StoreError
from edgeagent.store import library as library_module
from edgeagent.store.gguf.header import GgufHeader, read_header
from edgeagent.store.hub.cache import HubCache
from edgeagent.store.library import Found, Library, current_header
from edgeagent.store.names import catalog
from edgeagent.store.names.catalog import BuiltinModel, CatalogEntry
from tests.hub_server import sha256
from tests.store.gguf_bytes import small_model, split_model

REPO = "org/model-GGUF"


def put(store: StoreConfig, name: str, content: bytes, *, repo: str = REPO, commit: str = "a" * 40) -> Path:
    """Write a file into the cache as a download would."""
    cache = HubCache.of(store)
    blob = cache.blob(repo, sha256(content))
    blob.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(content)
    cache.set_main(repo, commit)
    return cache.publish(repo, commit, name, sha256(content))


def test_builtin(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_module, "builtin_model", lambda: BuiltinModel(Path("m.gguf"), Path("d.gguf")))
    assert library.resolve("builtin") == Found("builtin", (Path("m.gguf"),), "builtin")
    assert library.local("builtin").draft == "d", "it has no other name"


def test_a_path(library: Library, tmp_path: Path) -> None:
    path = tmp_path / "My Model.gguf"
    path.write_bytes(small_model())
    assert library.resolve(str(path)) == Found("My Model", (path,))
    with pytest.raises(ModelNotFound, match="does not exist"):
        library.resolve(str(tmp_path / "none.gguf"))
    with pytest.raises(ModelNotFound, match="is not a file"):
        library.resolve(str(tmp_path))


def test_any_part_of_a_split_model(library: Library, tmp_path: Path) -> None:
    paths = tuple(tmp_path / f"m-{no:05d}-of-00003.gguf" for no in (1, 2, 3))
    for path, content in zip(paths, split_model(3), strict=True):
        path.write_bytes(content)
    assert library.resolve(str(paths[1])) == Found("m", paths)
    paths[2].unlink()
    with pytest.raises(ModelNotFound, match=r"one of 3 parts, and m-00003-of-00003.gguf is missing"):
        library.resolve(str(paths[0]))


def test_what_is_not_here_names_the_command(library: Library, store: StoreConfig) -> None:
    for name in (REPO, f"{REPO}:Q4_0", f"{REPO}/m.gguf", "qwen2.5-0.5b"):
        with pytest.raises(ModelNotFound, match=f"run `edgeagent pull {name}`"):
            library.resolve(name)
    no_path = "models/m/none.gguf is not a file in the current folder, nor one of a repository on this machine: run"
    with pytest.raises(ModelNotFound, match=no_path):
        library.resolve("models/m/none.gguf")
    put(store, "m-Q8_0.gguf", small_model())
    with pytest.raises(ModelNotFound, match=f"it has {REPO}:Q8_0; run `edgeagent pull {REPO}:Q4_0`"):
        library.resolve(f"{REPO}:Q4_0")


def test_files_of_older_snapshots_are_still_found(library: Library, store: StoreConfig) -> None:
    old = put(store, "m-Q8_0.gguf", small_model(1), commit="a" * 40)
    put(store, "m-Q4_0.gguf", small_model(2), commit="a" * 40)
    new = put(store, "m-Q4_0.gguf", small_model(3), commit="b" * 40)
    assert library.resolve(f"{REPO}:Q8_0").path == old
    assert library.resolve(f"{REPO}:Q4_0").path == new
    assert library.resolve(REPO).path == new


def test_a_file_is_read_once_and_again_when_it_has_changed(
    store: StoreConfig, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(store, "m.gguf", small_model())
    library = Library(store, state_dir)
    library.resolve(REPO)
    with monkeypatch.context() as patched:
        patched.setattr("edgeagent.store.file_records.file_sha256", None)
        library.resolve(REPO)
    os.utime(path, ns=(1, 1))
    assert library.resolve(REPO).path == path
    path.resolve().write_bytes(small_model(9))
    with pytest.raises(ModelDamaged, match="is damaged"):
        library.resolve(REPO)


def test_a_file_without_a_promised_sha256_is_not_loaded(library: Library, store: StoreConfig) -> None:
    pointer = HubCache.of(store).pointer(REPO, "a" * 40, "m.gguf")
    pointer.parent.mkdir(parents=True)
    pointer.write_bytes(small_model())
    with pytest.raises(StoreError, match="cannot be verified"):
        library.resolve(REPO)


def test_links_that_leave_the_cache_are_not_followed(library: Library, store: StoreConfig, tmp_path: Path) -> None:
    secret = tmp_path / "secret.gguf"
    secret.write_bytes(small_model())
    put(store, "m.gguf", small_model(1))
    HubCache.of(store).pointer(REPO, "a" * 40, "evil.gguf").symlink_to(secret)
    with pytest.raises(ModelNotFound, match=r"no complete model evil\.gguf"):
        library.resolve(f"{REPO}/evil.gguf")
    assert [model.name for model in library.models() if model.origin == "hub"] == [f"{REPO}/m.gguf"]


def test_a_catalog_name_brings_the_name_of_its_draft(
    library: Library, store: StoreConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = {
        "big": CatalogEntry("big", REPO, "MIT", quant="Q4_0", draft="small"),
        "small": CatalogEntry("small", "org/small", "MIT"),
    }
    monkeypatch.setattr(catalog, "load_catalog", lambda: entries)
    monkeypatch.setattr(library_module, "load_catalog", lambda: entries)
    path = put(store, "m-Q4_0.gguf", small_model(1))
    assert library.resolve("big") == Found("big", (path,), "hub", "small")


def test_whether_a_name_is_here(library: Library, store: StoreConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "load_catalog", lambda: {"short": CatalogEntry("short", REPO, "MIT", quant="Q8_0")})
    names = (f"{REPO}:Q8_0", REPO, f"{REPO}/m-Q8_0.gguf", "short")
    assert not any(map(library.holds, names))
    path = put(store, "m-Q8_0.gguf", small_model())
    assert all(map(library.holds, names))
    # Clients cannot find out whether a path exists.
    others = (f"{REPO}:Q4_0", "org/other", str(path), "../x", "a" * 5000, "\0", "")
    assert not any(map(library.holds, others))


def test_the_list(library: Library, store: StoreConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bundled = tmp_path / "mini.gguf"
    bundled.write_bytes(small_model())
    monkeypatch.setattr(library_module, "builtin_model", lambda: BuiltinModel(bundled, None))
    put(store, "m-Q8_0.gguf", small_model(1))
    put(store, "broken.gguf", b"no model", repo="org/broken")
    for no, content in enumerate(split_model(2), start=1):
        put(store, f"s-{no:05d}-of-00002.gguf", content, repo="org/split")
    (HubCache.of(store).root / "models--evil--..--..").mkdir()
    listed = {model.name: model for model in library.models()}
    assert list(listed) == ["builtin", "org/broken/broken.gguf", f"{REPO}:Q8_0", "org/split/s-00001-of-00002.gguf"]
    assert "not a GGUF" in (listed["org/broken/broken.gguf"].problem or "")
    header = listed[f"{REPO}:Q8_0"].header
    assert header is not None and (header.architecture, header.context_length) == ("llama", 512)
    assert listed["org/split/s-00001-of-00002.gguf"].size_bytes == sum(map(len, split_model(2)))


def test_an_empty_machine(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> BuiltinModel:
        raise ModelNotFound("not installed")

    monkeypatch.setattr(library_module, "builtin_model", missing)
    assert library.models() == ()


def test_the_cache_s_place_follows_the_configuration_then_the_hub_s_own_rules(tmp_path: Path) -> None:
    from huggingface_hub import constants

    assert HubCache.of(StoreConfig(models_dir=tmp_path)).root == tmp_path
    assert HubCache.of(StoreConfig()).root == Path(constants.HF_HUB_CACHE)


def test_a_header_is_read_again_when_its_file_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.gguf"
    read: list[Path] = []

    def counting(path: Path) -> GgufHeader:
        read.append(path)
        return read_header(path)

    monkeypatch.setattr(library_module, "read_header", counting)
    path.write_bytes(small_model(1, 288))
    first = current_header(path)
    assert current_header(path) is first and len(read) == 1
    path.write_bytes(small_model(1, 4096))
    assert current_header(path).size_bytes > first.size_bytes
    assert len(read) == 2
    path.unlink()
    with pytest.raises(ModelNotFound):
        current_header(path)
    path.symlink_to(path)
    with pytest.raises((ModelNotFound, ModelLoadFailed)):
        current_header(path)
