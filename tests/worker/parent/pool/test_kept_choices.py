"""The daemon's calibration files: stored unchanged, small, private; a failure to store them harms nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from edgeagent.worker.parent.pool.kept_choices import MAX_BYTES, KeptChoices

MODEL, OTHER = Path("a.gguf"), Path("b.gguf")


def keep(kept: KeptChoices, model: Path, content: bytes) -> None:
    if kept.note(model, content):
        kept.write(model)


def test_each_model_has_its_own(tmp_path: Path) -> None:
    kept = KeptChoices(tmp_path / "calibrations")
    assert kept.read(MODEL) == b""
    keep(kept, MODEL, b"one")
    keep(kept, OTHER, b"two")
    keep(kept, MODEL, b"three")
    keep(kept, OTHER, b"")
    for reader in (kept, KeptChoices(tmp_path / "calibrations")):
        assert (reader.read(MODEL), reader.read(OTHER)) == (b"three", b"two")


def test_the_latest_is_read_at_once_and_written_last(tmp_path: Path) -> None:
    kept = KeptChoices(tmp_path)
    assert kept.note(MODEL, b"old")
    assert kept.note(MODEL, b"new")
    assert kept.read(MODEL) == b"new"
    kept.write(MODEL)
    kept.write(MODEL)  # of the older one, whose thread was slower
    assert KeptChoices(tmp_path).read(MODEL) == b"new"
    assert not kept.note(MODEL, b"new")


def test_without_a_folder_the_process_remembers() -> None:
    kept = KeptChoices()
    keep(kept, MODEL, b"one")
    assert (kept.read(MODEL), kept.read(OTHER)) == (b"one", b"")


def test_what_is_large_is_neither_written_nor_read(tmp_path: Path) -> None:
    kept = KeptChoices(tmp_path)
    keep(kept, MODEL, b"x" * (MAX_BYTES + 1))
    assert list(tmp_path.iterdir()) == []
    keep(kept, MODEL, b"x" * MAX_BYTES)
    [file] = tmp_path.iterdir()
    file.write_bytes(b"x" * (MAX_BYTES + 1))
    assert KeptChoices(tmp_path).read(MODEL) == b""


@pytest.mark.skipif(sys.platform == "win32", reason="modes")
def test_others_files_and_links_are_not_read(tmp_path: Path) -> None:
    keep(KeptChoices(tmp_path), MODEL, b"mine")
    [file] = tmp_path.iterdir()
    file.chmod(0o644)
    assert KeptChoices(tmp_path).read(MODEL) == b""
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert KeptChoices(tmp_path).read(MODEL) == b""


def test_a_folder_that_cannot_be_made_is_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    kept = KeptChoices(tmp_path / "file")
    assert kept.read(MODEL) == b""
    keep(kept, MODEL, b"x")
    assert kept.read(MODEL) == b"x"


def test_there_are_not_many(tmp_path: Path) -> None:
    kept = KeptChoices(tmp_path)
    for number in range(70):
        keep(kept, Path(f"{number}.gguf"), b"x")
    assert len(list(tmp_path.iterdir())) == 64
