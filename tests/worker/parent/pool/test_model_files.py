"""Whether a worker's own folder is still the original one."""

from __future__ import annotations

import shutil
from pathlib import Path

from edgeagent.worker.parent.pool.loading import WorkerCacheFolder


def test_a_folder_that_is_gone_is_made_anew_and_told_until_it_is_given_again(tmp_path: Path) -> None:
    path, folder = tmp_path / "cache", WorkerCacheFolder()
    assert not folder.is_replaced()
    path.mkdir()
    folder.record(path)
    assert not folder.is_replaced()
    path.rename(tmp_path / "kept")  # its inode stays in use, so the new folder gets another
    assert folder.is_replaced()
    assert path.is_dir()
    assert folder.is_replaced()
    folder.record(path)
    assert not folder.is_replaced()
    shutil.rmtree(path)
    folder.record(None)
    assert not folder.is_replaced()
    assert not path.exists()


def test_a_folder_that_cannot_be_made_is_not_there(tmp_path: Path) -> None:
    path, folder = tmp_path / "parent" / "cache", WorkerCacheFolder()
    path.mkdir(parents=True)
    folder.record(path)
    shutil.rmtree(path.parent)
    path.parent.touch()
    assert not folder.is_replaced()
