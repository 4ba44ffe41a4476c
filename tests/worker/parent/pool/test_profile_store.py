"""The profiles of `edgeagent tune` on disk: one for each model, private, and never used if they are damaged."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from edgeagent.types.choices import Profile, TunedOptions
from edgeagent.worker.parent.pool.profile_store import MAX_BYTES, ProfileStore

MODEL, OTHER = Path("/m/a.gguf"), Path("/m/b.gguf")


def profile(model: Path, threads: int) -> Profile:
    return Profile("a", str(model), {}, TunedOptions(threads=threads), "2026-01-01T00:00:00")


def test_each_model_has_its_own(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path)
    assert store.read(MODEL) is None and store.all() == []
    for saved in (profile(MODEL, 1), profile(OTHER, 2), profile(MODEL, 3)):
        store.save(saved)
    assert (store.read(MODEL), store.read(OTHER)) == (profile(MODEL, 3), profile(OTHER, 2))
    assert sorted(each.path for each in store.all()) == [str(MODEL), str(OTHER)]
    store.remove(MODEL)
    store.remove(MODEL)
    assert store.read(MODEL) is None and store.read(OTHER) is not None


@pytest.mark.skipif(sys.platform == "win32", reason="modes")
def test_a_state_folder_that_it_creates_is_one_that_the_daemon_accepts(tmp_path: Path) -> None:
    """`edgeagent tune` may run before the first `serve`, which refuses a folder that is open to other users."""
    state_dir = tmp_path / "parent" / "state"
    ProfileStore(state_dir).save(profile(MODEL, 1))
    assert [each.stat().st_mode & 0o777 for each in (state_dir.parent, state_dir)] == [0o700, 0o700]


@pytest.mark.parametrize(
    "content", [b"", b"{", b"null", b"[]", b"\xff", b"[" * 50_000, b'{"conditions":{"a":1}}', b"x" * (MAX_BYTES + 1)]
)
def test_what_is_no_profile_is_not_used(tmp_path: Path, content: bytes) -> None:
    store = ProfileStore(tmp_path)
    store.save(profile(MODEL, 1))
    [file] = store.folder.iterdir()
    file.write_bytes(content)
    assert store.read(MODEL) is None


@pytest.mark.skipif(sys.platform == "win32", reason="modes")
def test_others_files_and_links_are_not_read(tmp_path: Path) -> None:
    store = ProfileStore(tmp_path)
    store.save(profile(MODEL, 1))
    [file] = store.folder.iterdir()
    file.chmod(0o644)
    assert store.read(MODEL) is None
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert store.read(MODEL) is None
