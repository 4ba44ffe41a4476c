"""Models removed, renamed and adopted; leftovers pruned; what the header reveals of a model's memory."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import pytest

from edgeagent.config import Config, StoreConfig
from edgeagent.errors import InvalidRequest, ModelDamaged, ModelLoadFailed, ModelNotFound, StoreError
from edgeagent.store.file_records import LastUse
from edgeagent.store.gguf.header import read_header
from edgeagent.store.hub import cache as cache_module
from edgeagent.store.hub.cache import HubCache
from edgeagent.store.library import Library, current_header
from edgeagent.store.library_editor import Adoptable, LibraryEditor
from edgeagent.store.names.own import OwnNames, OwnNamesFile
from tests.hub_server import sha256
from tests.store.gguf_bytes import BOOL, MODEL_KEYS, U32, GgufBytes, array, key, small_model, split_model
from tests.store.test_library import REPO, put
from tests.store.test_library_names import lay

OLD, NEW = "a" * 40, "b" * 40


@pytest.fixture
def config(store: StoreConfig, state_dir: Path) -> Config:
    return Config(state_dir=state_dir, store=store)


@pytest.fixture
def editor(config: Config) -> LibraryEditor:
    return LibraryEditor(config)


def names(config: Config) -> list[str]:
    return [model.name for model in Library.of(config).models() if model.origin != "builtin"]


def test_a_downloaded_model_goes_with_all_its_versions(
    editor: LibraryEditor, config: Config, store: StoreConfig
) -> None:
    old, new = small_model(1, 4_000), small_model(2, 5_000)
    put(store, "m-Q4_0.gguf", old, commit=OLD)
    put(store, "m-Q4_0.gguf", new, commit=NEW)
    editor.copy(REPO, "mine")
    removal = editor.plan(REPO)
    assert (removal.name, removal.aliases) == (f"{REPO}:Q4_0", ("mine",))
    assert removal.freed_bytes == len(old) + len(new)
    editor.remove(removal)
    assert names(config) == [] and not HubCache.of(store).repo_dir(REPO).exists()
    with pytest.raises(ModelNotFound):
        Library.of(config).find("mine")


def test_what_another_model_uses_stays(editor: LibraryEditor, config: Config, store: StoreConfig) -> None:
    same, other = small_model(1), small_model(2)
    put(store, "m-Q4_0.gguf", same)
    put(store, "copy-Q8_0.gguf", same)
    kept = put(store, "m-F16.gguf", other)
    removal = editor.plan(f"{REPO}:Q4_0")
    assert removal.freed_bytes == 0
    editor.remove(removal)
    assert names(config) == [f"{REPO}:Q8_0", f"{REPO}:F16"]
    editor.remove(editor.plan(f"{REPO}:Q8_0"))
    assert names(config) == [f"{REPO}:F16"] and kept.read_bytes() == other


def test_all_parts_of_a_split_model_go(editor: LibraryEditor, config: Config, store: StoreConfig) -> None:
    parts = split_model(3)
    for number, part in enumerate(parts, 1):
        put(store, f"m-Q4_0-{number:05d}-of-00003.gguf", part)
    assert editor.plan(REPO).freed_bytes == sum(map(len, {sha256(part): part for part in parts}.values()))
    editor.remove(editor.plan(REPO))
    assert names(config) == []


def test_a_file_in_the_models_folder_goes(editor: LibraryEditor, config: Config, store: StoreConfig) -> None:
    path = lay(store, "mine.gguf")
    LastUse(config.state_dir).note(path)
    editor.remove(editor.plan("mine"))
    assert not path.exists() and LastUse(config.state_dir).age_s(path) is None


def test_an_alias_goes_alone(editor: LibraryEditor, config: Config, store: StoreConfig) -> None:
    path = lay(store, "mine.gguf")
    editor.copy("mine", "other:tag")
    removal = editor.plan("other:tag")
    assert (removal.files, removal.freed_bytes) == ((), 0)
    editor.remove(removal)
    assert path.exists() and names(config) == ["mine"]


@pytest.mark.parametrize(("name", "why"), [("builtin", "comes with edgeagent"), ("default", "name the model")])
def test_what_cannot_be_removed(editor: LibraryEditor, name: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        editor.plan(name)


def test_a_path_is_not_removed(editor: LibraryEditor, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(small_model())
    with pytest.raises(InvalidRequest, match="delete the file itself"):
        editor.plan(str(path))


def test_a_wrong_name_is_told_with_near_ones(editor: LibraryEditor, store: StoreConfig) -> None:
    lay(store, "household.gguf")
    with pytest.raises(ModelNotFound, match="near names: household"):
        editor.plan("househod")


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="folders that their owner cannot write")
def test_a_file_that_cannot_be_deleted(editor: LibraryEditor, store: StoreConfig) -> None:
    path = lay(store, "mine.gguf")
    path.parent.chmod(0o500)
    try:
        with pytest.raises(StoreError, match="cannot be deleted"):
            editor.remove(editor.plan("mine"))
    finally:
        path.parent.chmod(0o700)


@pytest.mark.parametrize("alias", ["", "default", "builtin", "none", "a/b", "a b", "../x", "x" * 200, "qwen3-4b", "m"])
def test_names_that_no_model_can_have(editor: LibraryEditor, store: StoreConfig, alias: str) -> None:
    lay(store, "m.gguf")
    lay(store, "n.gguf")
    with pytest.raises(InvalidRequest):
        editor.copy("n", alias)


def test_an_alias_may_be_given_anew(editor: LibraryEditor, config: Config, store: StoreConfig) -> None:
    lay(store, "m.gguf")
    lay(store, "n.gguf")
    names_file = OwnNamesFile(config.state_dir)
    stamps = [names_file.stamp()]
    editor.copy("m", "mine")
    stamps.append(names_file.stamp())
    assert editor.copy("n", "mine") == "n"
    stamps.append(names_file.stamp())
    assert Library.of(config).find("mine").name == "n"
    assert len(set(stamps)) == 3 and stamps[2] == names_file.stamp()


def test_a_model_of_the_catalog_has_one_name(config: Config, store: StoreConfig) -> None:
    put(store, "Qwen3-4B-Q4_K_M.gguf", small_model(1), repo="Qwen/Qwen3-4B-GGUF")
    put(store, "Qwen3-4B-Q8_0.gguf", small_model(2), repo="Qwen/Qwen3-4B-GGUF")
    library = Library.of(config)
    for name in ("qwen3-4b", "Qwen/Qwen3-4B-GGUF", "hf.co/Qwen/Qwen3-4B-GGUF:q4_k_m", "qwen3:4b"):
        assert library.resolve(name).name == "qwen3-4b"
    assert library.resolve("Qwen/Qwen3-4B-GGUF:Q8_0").name == library.resolve("qwen3:4b-q8_0").name == "qwen3-4b:Q8_0"
    assert names(config) == ["qwen3-4b", "qwen3-4b:Q8_0"]


def test_an_adopted_model_is_used_where_it_lies(editor: LibraryEditor, config: Config, tmp_path: Path) -> None:
    path = tmp_path / "theirs.gguf"
    path.write_bytes(small_model())
    told: list[int] = []
    model = Adoptable("theirs:1b", "ollama", (path,), sha256(small_model()))
    assert editor.adopt(model, told.append) and told[-1] == path.stat().st_size
    assert not editor.adopt(model)
    assert Library.of(config).resolve("theirs:1b").path == path
    editor.remove(editor.plan("theirs:1b"))
    assert path.exists() and names(config) == []


def test_an_adopted_model_that_is_gone_can_be_forgotten(editor: LibraryEditor, config: Config, tmp_path: Path) -> None:
    path = tmp_path / "theirs.gguf"
    path.write_bytes(small_model())
    editor.adopt(Adoptable("theirs", "path", (path,)))
    path.unlink()
    with pytest.raises(ModelNotFound, match="`edgeagent rm theirs` forgets it"):
        Library.of(config).find("theirs")
    editor.remove(editor.plan("theirs"))
    assert names(config) == []


def test_what_is_not_adopted(editor: LibraryEditor, config: Config, tmp_path: Path) -> None:
    path, broken = tmp_path / "theirs.gguf", tmp_path / "broken.gguf"
    path.write_bytes(small_model())
    broken.write_bytes(small_model()[:-20])
    with pytest.raises(ModelDamaged, match="its sha256 is not"):
        editor.adopt(Adoptable("theirs", "ollama", (path,), "0" * 64))
    with pytest.raises(ModelLoadFailed):
        editor.adopt(Adoptable("broken", "path", (broken,)))
    assert names(config) == []
    editor.adopt(Adoptable("theirs", "path", (path,)))
    other = tmp_path / "other.gguf"
    other.write_bytes(small_model())
    with pytest.raises(InvalidRequest, match="the name theirs is taken"):
        editor.adopt(Adoptable("theirs", "path", (other,)))


def test_what_is_left_over_is_found_and_goes(store: StoreConfig) -> None:
    cache = HubCache.of(store)
    used = put(store, "m-Q4_0.gguf", small_model(1))
    unused = cache.blob(REPO, sha256(small_model(2)))
    unused.write_bytes(small_model(2))
    partial = cache.partial(REPO, sha256(small_model(3)))
    partial.write_bytes(small_model(3)[:200])
    other_programs = cache.blob(REPO, "e" * 64)
    other_programs.write_bytes(b"safetensors")
    found = {leftover.path: (leftover.why, leftover.size_bytes) for leftover in cache.leftovers()}
    assert found == {unused: ("used by no name", len(small_model(2))), partial: ("not finished", 200)}
    assert all(cache.delete(leftover) for leftover in cache.leftovers())
    assert cache.leftovers() == () and used.read_bytes() == small_model(1) and other_programs.exists()


@pytest.mark.parametrize("spelling", ["folder/../models", "link"])
def test_a_used_file_is_no_leftover_however_the_folder_is_spelled(
    store: StoreConfig, tmp_path: Path, spelling: str
) -> None:
    put(store, "m-Q4_0.gguf", small_model(1))
    folder = HubCache.of(store).root
    (folder.parent / "folder").mkdir()
    (folder.parent / "link").symlink_to(folder)
    other = StoreConfig(models_dir=folder.parent / spelling.replace("models", folder.name))
    assert HubCache.of(other).leftovers() == ()
    removed = HubCache.of(other).removable(HubCache.of(other).files(REPO).values())
    assert [path.parent.name for path in removed].count("blobs") == 1


def test_a_link_to_a_file_by_its_whole_path_uses_it(store: StoreConfig) -> None:
    pointer = put(store, "m-Q4_0.gguf", small_model(1))
    blob = pointer.resolve()
    pointer.unlink()
    pointer.symlink_to(blob)
    assert HubCache.of(store).leftovers() == ()


def test_a_download_that_ends_while_leftovers_are_listed(store: StoreConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, "m-Q4_0.gguf", small_model(1))
    cache = HubCache.of(store)
    partial = cache.partial(REPO, "a" * 64)
    partial.write_bytes(b"GGUF")
    is_gguf = cache_module._is_gguf

    def looked_at_last(path: Path) -> bool:
        found = is_gguf(path)
        path.unlink()
        return found

    monkeypatch.setattr(cache_module, "_is_gguf", looked_at_last)
    assert cache.leftovers() == ()


def test_a_download_under_way_is_left(store: StoreConfig) -> None:
    from huggingface_hub.utils import WeakFileLock  # type: ignore[attr-defined]

    cache = HubCache.of(store)
    digest = hashlib.sha256(b"m").hexdigest()
    put(store, "m-Q4_0.gguf", small_model(1))
    partial = cache.partial(REPO, digest)
    partial.write_bytes(b"GGUF")
    (leftover,) = HubCache.of(store).leftovers()
    cache.lock(REPO, digest).parent.mkdir(parents=True, exist_ok=True)
    with WeakFileLock(cache.lock(REPO, digest)):
        assert not HubCache.of(store).delete(leftover)
    assert partial.exists() and HubCache.of(store).delete(leftover)


def test_when_a_model_was_last_loaded(tmp_path: Path) -> None:
    uses, model = LastUse(tmp_path / "state"), tmp_path / "m.gguf"
    assert uses.age_s(model) is None
    uses.note(model)
    age_s = uses.age_s(model)
    assert age_s is not None and age_s >= 0
    if sys.platform != "win32":  # the daemon refuses a state folder that is open to others
        assert (tmp_path / "state").stat().st_mode & 0o077 == 0
    uses.forget(model)
    assert uses.age_s(model) is None


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        ((key("llama.attention.head_count", U32, 4),), "attention"),
        ((key("llama.attention.head_count", U32, 4), key("llama.attention.sliding_window", U32, 8)), "sliding window"),
        ((key("llama.attention.head_count", U32, 4), key("llama.attention.kv_lora_rank", U32, 8)), "latent"),
        ((key("llama.ssm.state_size", U32, 8),), "recurrent"),
        ((key("llama.ssm.state_size", U32, 8), array("llama.attention.head_count_kv", U32, [0, 4])), "hybrid"),
        ((key("llama.full_attention_interval", U32, 4),), "hybrid"),
        ((key("llama.attention.causal", BOOL, False),), "encoder"),
    ],
)
def test_the_kinds_of_memory(tmp_path: Path, keys: tuple[bytes, ...], kind: str) -> None:
    path = GgufBytes(keys=(*MODEL_KEYS, *keys)).write(tmp_path / "m.gguf")
    assert read_header(path).memory_kind == kind


def test_the_header_of_a_split_model_counts_all_parts(tmp_path: Path) -> None:
    paths = [tmp_path / f"m-{number:05d}-of-00002.gguf" for number in (1, 2)]
    for path, part in zip(paths, split_model(2), strict=True):
        path.write_bytes(part)
    assert current_header(paths[0]).num_tensors == 2


def test_an_alias_goes_with_the_file_that_it_names_by_its_path(
    editor: LibraryEditor, config: Config, store: StoreConfig
) -> None:
    path = lay(store, "m.gguf")
    editor.copy(str(path), "mine")
    removal = editor.plan("m")
    assert removal.aliases == ("mine",)
    editor.remove(removal)
    assert OwnNamesFile(config.state_dir).read() == OwnNames()


def test_a_copy_of_a_copy_of_a_path_stands_for_the_path(editor: LibraryEditor, config: Config, tmp_path: Path) -> None:
    outside = tmp_path / "outside.gguf"
    outside.write_bytes(small_model())
    editor.copy(str(outside), "mine")
    assert editor.copy("mine", "ours") == str(outside)
    assert Library.of(config).resolve("ours").path == outside
    editor.remove(editor.plan("mine"))
    assert names(config) == ["ours"]


def test_what_a_removed_name_means_afterwards(editor: LibraryEditor, store: StoreConfig) -> None:
    near, deep = lay(store, "m.gguf"), lay(store, "deep/m.gguf")
    for path, left in ((near, deep), (deep, None)):
        removal = editor.plan("m")
        assert removal.files == (path,)
        editor.remove(removal)
        assert editor.remaining_file(removal) == left
