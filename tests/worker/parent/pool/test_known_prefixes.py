"""What the daemon knows of cached prefixes: over a restart, after the end of a worker, and after a purge."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeagent import cache_folder
from edgeagent.cache_folder import PREFIXES_FILE
from edgeagent.worker.parent.pool.known_prefixes import KnownPrefixes

SECRET = b"s" * 32


def make(folder: Path | None) -> KnownPrefixes:
    return KnownPrefixes(SECRET, folder)


def digest_of(prefixes: KnownPrefixes, text: str, client: str = "") -> bytes:
    return next(prefixes.digests(client, [text]))


def compute(prefixes: KnownPrefixes, text: str, *, client: str = "", persists: bool = True) -> bytes:
    digest = digest_of(prefixes, text, client)
    prefixes.expect("r", [digest], persists=persists)
    prefixes.note_computed([digest])
    return digest


async def test_what_was_computed_and_may_be_on_disk_is_known_after_a_restart(tmp_path: Path) -> None:
    before = make(tmp_path)
    kept, hidden = compute(before, "hello"), compute(before, "my secret", persists=False)
    waiting = digest_of(before, "waits")
    before.expect("w", [waiting], persists=True)
    await before.save()
    after = make(tmp_path)
    assert [digest in after for digest in (kept, hidden, waiting)] == [True, False, False]
    assert digest_of(after, "hello") == kept and after.is_end(kept)
    assert digest_of(KnownPrefixes(b"t" * 32, tmp_path), "hello") != kept, "without the secret nothing can be guessed"
    assert (tmp_path / PREFIXES_FILE).stat().st_mode & 0o077 == 0


async def test_a_purge_leaves_nothing_of_its_client(tmp_path: Path) -> None:
    prefixes = make(tmp_path)
    kiosk, owner = compute(prefixes, "hello", client="kiosk"), compute(prefixes, "hello")
    await prefixes.save()
    prefixes = make(tmp_path)
    await prefixes.purge("kiosk")
    assert not (tmp_path / PREFIXES_FILE).exists()
    assert (kiosk in prefixes, owner in prefixes) == (False, True)
    await prefixes.save()
    assert kiosk not in make(tmp_path) and owner in make(tmp_path)
    await prefixes.purge(None)
    assert owner not in prefixes and not (tmp_path / PREFIXES_FILE).exists()


async def test_a_purge_without_a_daemon_deletes_the_file(tmp_path: Path) -> None:
    folder = cache_folder.model_folder(tmp_path, Path("/m.gguf"), SECRET)
    folder.mkdir()
    for client in ("kiosk", None):
        prefixes = make(folder)
        compute(prefixes, "hello")
        await prefixes.save()
        (folder / PREFIXES_FILE).with_name(f".{PREFIXES_FILE}.0a1b").touch()  # of a daemon that died
        cache_folder.purge(tmp_path, client)
        assert list(folder.iterdir()) == []


async def test_a_file_that_the_purge_of_the_folder_deleted_is_written_again(tmp_path: Path) -> None:
    prefixes = make(tmp_path)
    kept = compute(prefixes, "hello")
    await prefixes.save()
    (tmp_path / PREFIXES_FILE).unlink()
    await prefixes.save()
    assert kept in make(tmp_path)


async def test_a_purge_while_the_file_is_written_deletes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prefixes = make(tmp_path)
    compute(prefixes, "hello")

    async def later(function: object, path: Path, *fields: object) -> None:
        """Let the purge end before the write begins."""
        monkeypatch.undo()
        await prefixes.purge(None)
        function(path, *fields)  # type: ignore[operator]

    monkeypatch.setattr("asyncio.to_thread", later)
    await prefixes.save()
    assert not (tmp_path / PREFIXES_FILE).exists()


@pytest.mark.parametrize("has_disk", [False, True])
def test_the_end_of_a_worker_leaves_what_is_on_disk(tmp_path: Path, *, has_disk: bool) -> None:
    prefixes = make(tmp_path if has_disk else None)
    kept, hidden = compute(prefixes, "hello"), compute(prefixes, "my secret", persists=False)
    waiting = digest_of(prefixes, "waits")
    prefixes.expect("w", [waiting], persists=False)
    prefixes.forget_memory()
    assert (kept in prefixes, hidden in prefixes) == (has_disk, False)
    assert waiting in prefixes, "the next worker computes it"


@pytest.mark.parametrize("content", [b"", b"\x81", b"\xc0", b"{}", b"\x81\xa1a\xc3", b"\x81\xa1a\xc3" * 9])
def test_a_file_that_is_no_list_of_prefixes_is_not_used(tmp_path: Path, content: bytes) -> None:
    (tmp_path / PREFIXES_FILE).write_bytes(content)
    (tmp_path / PREFIXES_FILE).chmod(0o600)
    assert not make(tmp_path)._known


async def test_the_file_is_written_once_in_a_while_and_only_if_something_changed(tmp_path: Path) -> None:
    prefixes = make(tmp_path)
    await prefixes.save_if_due()
    assert not (tmp_path / PREFIXES_FILE).exists()
    compute(prefixes, "hello")
    await prefixes.save_if_due()
    later = compute(prefixes, "later")
    await prefixes.save_if_due()
    assert later not in make(tmp_path)
    await prefixes.save()
    assert later in make(tmp_path)
