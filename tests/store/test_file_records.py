"""The sha256 of a model that an answer reports: a verified one, or one computed from a small file."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from edgeagent.store import file_records as hashes
from edgeagent.store.file_records import VerifiedFiles, known_sha256


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def verified(tmp_path: Path) -> VerifiedFiles:
    return VerifiedFiles(tmp_path / "state")


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is too large to be hashed for an answer."""
    monkeypatch.setattr(hashes, "_SMALL_BYTES", 4)
    path = tmp_path / "large.gguf"
    path.write_bytes(b"large")
    return path


def test_a_small_file_is_read_again_after_a_change(tmp_path: Path, verified: VerifiedFiles) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"first")
    assert known_sha256(path, verified) == sha256(b"first")
    path.write_bytes(b"second")
    assert known_sha256(path, verified) == sha256(b"second")


def test_a_large_file_is_known_once_it_was_verified(large: Path, verified: VerifiedFiles) -> None:
    assert known_sha256(large, verified) == ""
    assert verified.check(large, sha256(b"large"))
    assert known_sha256(large, verified) == sha256(b"large")
    large.write_bytes(b"other")
    assert known_sha256(large, verified) == ""


def test_a_file_that_is_gone_is_not_known(tmp_path: Path, verified: VerifiedFiles) -> None:
    assert known_sha256(tmp_path / "gone.gguf", verified) == ""
