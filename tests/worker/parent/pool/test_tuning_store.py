"""The daemon's calibration files: stored unchanged, small, private; a failure to store them harms nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from edgeagent.worker.parent.pool.tuning_store import MAX_BYTES, TuningStore

MODEL, OTHER = Path("a.gguf"), Path("b.gguf")


def keep(store: TuningStore, model: Path, content: bytes) -> None:
    if store.note(model, content):
        store.write(model)


def test_each_model_has_its_own(tmp_path: Path) -> None:
    store = TuningStore(tmp_path / "calibrations")
    assert store.read(MODEL) == b""
    keep(store, MODEL, b"one")
    keep(store, OTHER, b"two")
    keep(store, MODEL, b"three")
    keep(store, OTHER, b"")
    for reader in (store, TuningStore(tmp_path / "calibrations")):
        assert (reader.read(MODEL), reader.read(OTHER)) == (b"three", b"two")


def test_the_latest_is_read_at_once_and_written_last(tmp_path: Path) -> None:
    store = TuningStore(tmp_path)
    assert store.note(MODEL, b"old")
    assert store.note(MODEL, b"new")
    assert store.read(MODEL) == b"new"
    store.write(MODEL)
    store.write(MODEL)  # of the older one, whose thread was slower
    assert TuningStore(tmp_path).read(MODEL) == b"new"
    assert not store.note(MODEL, b"new")


def test_without_a_folder_the_process_remembers() -> None:
    store = TuningStore()
    keep(store, MODEL, b"one")
    assert (store.read(MODEL), store.read(OTHER)) == (b"one", b"")


def test_what_is_large_is_neither_written_nor_read(tmp_path: Path) -> None:
    store = TuningStore(tmp_path)
    keep(store, MODEL, b"x" * (MAX_BYTES + 1))
    assert list(tmp_path.iterdir()) == []
    keep(store, MODEL, b"x" * MAX_BYTES)
    [file] = tmp_path.iterdir()
    file.write_bytes(b"x" * (MAX_BYTES + 1))
    assert TuningStore(tmp_path).read(MODEL) == b""


@pytest.mark.skipif(sys.platform == "win32", reason="modes")
def test_others_files_and_links_are_not_read(tmp_path: Path) -> None:
    keep(TuningStore(tmp_path), MODEL, b"mine")
    [file] = tmp_path.iterdir()
    file.chmod(0o644)
    assert TuningStore(tmp_path).read(MODEL) == b""
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert TuningStore(tmp_path).read(MODEL) == b""


def test_a_folder_that_cannot_be_made_is_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = TuningStore(tmp_path / "file")
    assert store.read(MODEL) == b""
    keep(store, MODEL, b"x")
    assert store.read(MODEL) == b"x"


def test_there_are_not_many(tmp_path: Path) -> None:
    store = TuningStore(tmp_path)
    for number in range(70):
        keep(store, Path(f"{number}.gguf"), b"x")
    assert len(list(tmp_path.iterdir())) == 64
