"""The file operations one by one: they close what they open, and return complete data or an error."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from edgeagent.engine.cache.disk import files as module
from edgeagent.engine.cache.disk.files import Files, in_words

CONTENT = b"0123456789"


@pytest.fixture
def files(tmp_path: Path) -> Files:
    (tmp_path / "block").write_bytes(CONTENT)
    return Files(tmp_path)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Return the set of open file descriptors, updated as files are opened and closed."""
    descriptors: set[int] = set()
    os_open, os_close = os.open, os.close

    def open_one(*args: Any, **options: Any) -> int:
        descriptor = os_open(*args, **options)
        descriptors.add(descriptor)
        return descriptor

    def close_one(descriptor: int) -> None:
        descriptors.discard(descriptor)
        os_close(descriptor)

    monkeypatch.setattr(os, "open", open_one)
    monkeypatch.setattr(os, "close", close_one)
    return descriptors


def test_what_is_opened_is_closed(files: Files, opened: set[int]) -> None:
    assert files.read("block", len(CONTENT)) == CONTENT
    assert files.read_head("block", 4) == CONTENT[:4]
    files.stamp("block", 1000.0)
    files.sync_folder()
    for size in (len(CONTENT) - 1, len(CONTENT) + 1):
        with pytest.raises(ValueError, match="no regular file of"):
            files.read("block", size)
    assert opened == set()
    assert (files.folder / "block").stat().st_mtime == 1000.0


@pytest.mark.skipif(sys.platform == "win32", reason="no named pipes in folders")
def test_a_planted_pipe_is_no_block(files: Files, opened: set[int]) -> None:
    os.mkfifo(files.folder / "pipe")
    with pytest.raises(ValueError, match="no regular file"):
        files.read_head("pipe", 4)
    with pytest.raises(ValueError, match="no regular file"):
        files.read("pipe", 0)
    assert opened == set()


def test_a_file_that_comes_in_pieces_is_read_whole(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    os_read = os.read
    monkeypatch.setattr(os, "read", lambda descriptor, num_bytes: os_read(descriptor, min(3, num_bytes)))
    assert files.read("block", len(CONTENT)) == CONTENT


def test_a_file_that_ends_early_is_an_error(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = [CONTENT[:4], b""]
    monkeypatch.setattr(os, "read", lambda descriptor, num_bytes: pieces.pop(0))
    with pytest.raises(ValueError, match="ends early"):
        files.read("block", len(CONTENT))


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system takes no advice")
@pytest.mark.parametrize("is_taken", [True, False])
def test_the_disk_is_told_not_to_read_on_behind_a_head(
    files: Files, monkeypatch: pytest.MonkeyPatch, is_taken: bool
) -> None:
    advice = []

    def advise(descriptor: int, *said: int) -> None:
        advice.append(said)
        if not is_taken:
            raise OSError(errno.EINVAL, "no advice here")

    monkeypatch.setattr(module, "_advise", advise)
    assert files.read_head("block", 4) == CONTENT[:4]
    assert advice == [(0, 0, os.POSIX_FADV_RANDOM)]


def test_all_is_written_though_the_disk_takes_little_at_a_time(files: Files) -> None:
    written = bytearray()

    class Slow:
        def write(self, view: memoryview) -> int:
            written.extend(view[:3])
            return min(3, len(view))

    files.write(Slow(), [CONTENT, bytearray(b"abcd"), b""])  # type: ignore[arg-type]
    assert bytes(written) == CONTENT + b"abcd"


def test_a_sync_is_of_all_that_was_written(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(module, "_sync_data", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    with files.create("new") as file:
        files.write(file, [CONTENT, CONTENT])
        files.sync(file)
    assert synced == [2 * len(CONTENT)]


def test_a_new_file_is_new(files: Files) -> None:
    with pytest.raises(FileExistsError):
        files.create("block")
    with files.create("other") as file:
        assert file.write(b"x") == 1
    files.rename("other", "block")
    assert (files.folder / "block").read_bytes() == b"x"
    files.remove("block")
    files.remove("block")
    assert files.list_names() == []
    assert files.is_there()


def test_a_name_that_cannot_be_given_is_an_error(files: Files) -> None:
    with pytest.raises(FileNotFoundError):
        files.rename("nothing", "new")
    (files.folder / "new").mkdir()
    (files.folder / "old").touch()
    with pytest.raises(IsADirectoryError):
        files.rename("old", "new")


def test_a_folder_in_the_way_is_told_as_such_on_every_system(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    (files.folder / "new").mkdir()

    def refuse(self: Path, target: Path) -> None:
        raise PermissionError(errno.EACCES, "Access is denied")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(IsADirectoryError):
        files.rename("block", "new")
    with pytest.raises(PermissionError):
        files.rename("block", "other")


def test_a_stamp_is_left_too_where_an_open_file_takes_none(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "supports_fd", set())
    files.stamp("block", 1000.0)
    assert (files.folder / "block").stat().st_mtime == 1000.0


def test_errors_are_told_in_words() -> None:
    assert in_words(OSError(errno.ENOSPC, "No space left")) == "the disk is full"
    assert in_words(OSError(errno.ENXIO, "No such device or address")) == "No such device or address"
    assert in_words(OSError("odd")) == "OSError"
