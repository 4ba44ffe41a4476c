"""The daemon's calibration files: stored unchanged, small, private; a failure to store them harms nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from edgeagent.worker.parent.pool.kept_choices import MAX_BYTES, KeptChoices

MODEL, OTHER = Path("a.gguf"), Path("b.gguf")


def test_each_model_has_its_own(tmp_path: Path) -> None:
    kept = KeptChoices(tmp_path / "calibrations")
    assert kept.read(MODEL) == b""
    kept.write(MODEL, b"one")
    kept.write(OTHER, b"two")
    kept.write(MODEL, b"three")
    kept.write(OTHER, b"")
    for reader in (kept, KeptChoices(tmp_path / "calibrations")):
        assert (reader.read(MODEL), reader.read(OTHER)) == (b"three", b"two")


def test_without_a_folder_the_process_remembers() -> None:
    kept = KeptChoices()
    kept.write(MODEL, b"one")
    assert (kept.read(MODEL), kept.read(OTHER)) == (b"one", b"")


def test_what_is_large_is_neither_written_nor_read(tmp_path: Path) -> None:
    kept = KeptChoices(tmp_path)
    kept.write(MODEL, b"x" * (MAX_BYTES + 1))
    assert list(tmp_path.iterdir()) == []
    kept.write(MODEL, b"x" * MAX_BYTES)
    [file] = tmp_path.iterdir()
    file.write_bytes(b"x" * (MAX_BYTES + 1))
    assert KeptChoices(tmp_path).read(MODEL) == b""


@pytest.mark.skipif(sys.platform == "win32", reason="modes")
def test_others_files_and_links_are_not_read(tmp_path: Path) -> None:
    KeptChoices(tmp_path).write(MODEL, b"mine")
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
    kept.write(MODEL, b"x")
    assert kept.read(MODEL) == b"x"


def test_there_are_not_many(tmp_path: Path) -> None:
    kept = KeptChoices(tmp_path)
    for number in range(70):
        kept.write(Path(f"{number}.gguf"), b"x")
    assert len(list(tmp_path.iterdir())) == 64
