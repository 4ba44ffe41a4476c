"""A6: every state of a credential file: its effect on every kind of key, and what is reported."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from edgeagent.cli import main
from edgeagent.credentials.keys import CLIENTS_FILE, KeyRing, KeyStatus, Scope, add_client, check_files, ensure_token
from edgeagent.errors import ConfigError
from edgeagent.runtime_file import TOKEN_FILE, write_private
from tests.patience import patient
from tests.robust.fake_serve import serving

POSIX = pytest.mark.skipif(os.name == "nt", reason="POSIX modes")
DIGEST = "0" * 64


def linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def replaced(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def given_away(path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("giving a file away takes root")
    os.chown(path, 1001, -1)


STATES: dict[str, tuple[Callable[[Path], object], str]] = {
    **{
        f"mode {mode:o}": (partial(Path.chmod, mode=mode), "chmod 600")
        for mode in (0o640, 0o604, 0o620, 0o602, 0o660, 0o644, 0o666, 0o601, 0o777)
    },
    "another user's": (given_away, "belongs to another user (uid 1001)"),
    "a link": (linked, "is a link"),
    "a dangling link": (lambda path: replaced(path, lambda path: path.symlink_to("nowhere")), "is a link"),
    "a folder": (lambda path: replaced(path, Path.mkdir), "is not a regular file"),
    "a pipe": (lambda path: replaced(path, os.mkfifo), "is not a regular file"),
    "empty": (lambda path: write_private(path, b""), "delete it"),
    "no text": (lambda path: write_private(path, b"\xff" * 64), "delete it"),
}
BROKEN_CLIENTS = [
    "[" * 100_000,
    '{"clients": [',
    "null",
    '{"clients": [{"name": "x", "scopes": [["infer"]], "sha256": "' + DIGEST + '"}]}',
    '{"clients": [{"name": "x", "scopes": {"infer": 1}, "sha256": "' + DIGEST + '"}]}',
    '{"clients": [{"name": "x", "scopes": ["infer"], "sha256": "' + DIGEST[:-1] + 'G"}]}',
    *('{"clients": [{"name": "' + name + '", "scopes": [], "sha256": "' + DIGEST + '"}]}' for name in ("", "uid:1001")),
]
BROKEN_TOKENS = [
    "x" * 21,
    "x" * 513,
    "[" * 64,
    "a sentence of somebody's own",
    '{"pid": 12345678901234567890}',
    "x" * 43 + "\n2",
]


def check_untrusted(folder: Path, ring: KeyRing, keys: dict[KeyStatus, str], reason: str) -> None:
    """Check that tokens with our prefix are refused, other keys are judged as before, and the reason is reported."""
    for key_status, key in keys.items():
        checked = ring.judge([key.encode()])
        is_ours = key_status in (KeyStatus.KNOWN, KeyStatus.UNKNOWN)
        assert checked.status is (KeyStatus.UNUSABLE if is_ours else key_status), (key_status, checked)
        assert checked.client is None
        assert (reason in checked.reason) is is_ours and str(folder) not in checked.reason
    assert ring.judge([]).status is KeyStatus.NONE
    assert reason in ring.trouble
    with pytest.raises(ConfigError) as refused:
        check_files(folder)
    assert refused.value.message == ring.trouble


def make(folder: Path) -> tuple[KeyRing, dict[KeyStatus, str]]:
    owner, kiosk = ensure_token(folder), add_client(folder, "kiosk", [Scope.INFER])
    ring = KeyRing(folder)
    for token in (owner, kiosk):
        assert ring.judge([token.encode()]).status is KeyStatus.KNOWN
    keys = {KeyStatus.KNOWN: owner, KeyStatus.UNKNOWN: "edge_" + "x" * 43, KeyStatus.FOREIGN: "sk-unused"}
    return ring, keys


@POSIX
@pytest.mark.parametrize("name", [TOKEN_FILE, CLIENTS_FILE])
@pytest.mark.parametrize("state", STATES)
def test_a_file_that_cannot_be_trusted(tmp_path: Path, name: str, state: str) -> None:
    ring, keys = make(tmp_path)
    sound = (tmp_path / name).read_bytes()
    spoil, reason = STATES[state]
    spoil(tmp_path / name)
    check_untrusted(tmp_path, ring, keys, reason)
    # The other file is sound, and this does not help.
    check_untrusted(tmp_path, KeyRing(tmp_path), keys, reason)
    if (tmp_path / name).is_dir():
        (tmp_path / name).rmdir()
    write_private(tmp_path / name, sound)
    assert ring.judge([keys[KeyStatus.KNOWN].encode()]).status is KeyStatus.KNOWN
    assert ring.trouble == ""


@pytest.mark.parametrize("content", BROKEN_CLIENTS, ids=range(len(BROKEN_CLIENTS)))
def test_clients_that_nobody_wrote(tmp_path: Path, content: str) -> None:
    ring, keys = make(tmp_path)
    write_private(tmp_path / CLIENTS_FILE, content.encode())
    check_untrusted(tmp_path, ring, keys, "delete it")


@pytest.mark.parametrize("content", BROKEN_TOKENS, ids=range(len(BROKEN_TOKENS)))
def test_a_token_that_nobody_wrote(tmp_path: Path, content: str) -> None:
    ring, keys = make(tmp_path)
    write_private(tmp_path / TOKEN_FILE, content.encode())
    check_untrusted(tmp_path, ring, keys, "delete it")


@POSIX
@pytest.mark.parametrize("mode", [0o777, 0o722, 0o770, 0o1777])
def test_a_folder_that_others_can_write_into(tmp_path: Path, mode: int) -> None:
    """Users with write access could restore a replaced file, and with it a removed token."""
    ring, keys = make(tmp_path)
    tmp_path.chmod(mode)
    check_untrusted(tmp_path, ring, keys, "chmod 700")
    tmp_path.chmod(0o700)
    assert ring.judge([keys[KeyStatus.KNOWN].encode()]).status is KeyStatus.KNOWN


@POSIX
def test_a_folder_of_another_user(tmp_path: Path) -> None:
    ring, keys = make(tmp_path)
    given_away(tmp_path)
    check_untrusted(tmp_path, ring, keys, "chown")
    os.chown(tmp_path, os.getuid(), -1)


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_a_file_that_cannot_be_read_at_the_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read that failed for another reason than the file is repeated, although the file has not changed."""
    ring, keys = make(tmp_path)
    owner = keys[KeyStatus.KNOWN].encode()
    add_client(tmp_path, "more", [Scope.INFER])
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", lambda *_, **__: (_ for _ in ()).throw(OSError(24, "Too many open files")))
        assert ring.judge([owner]).status is KeyStatus.UNUSABLE
        assert "Too many open files" in ring.trouble
    assert ring.judge([owner]).status is KeyStatus.KNOWN


def test_a_missing_file_is_no_fault(tmp_path: Path) -> None:
    ring, keys = make(tmp_path)
    (tmp_path / TOKEN_FILE).unlink()
    assert ring.judge([keys[KeyStatus.KNOWN].encode()]).status is KeyStatus.UNKNOWN
    assert ring.trouble == ""
    check_files(tmp_path)


@POSIX
def test_what_the_command_line_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(command: str) -> tuple[int, str]:
        code = main([command, "--state-dir", str(tmp_path / "state")])
        return code, "".join(capsys.readouterr())

    with serving(tmp_path / "state") as daemon:
        assert run("status")[0] == 0
        add_client(daemon.state_dir, "kiosk", [Scope.INFER])
        for name in (TOKEN_FILE, CLIENTS_FILE):
            path = daemon.state_dir / name
            path.chmod(0o644)
            for command in ("status", "stop"):
                code, text = run(command)
                assert code != 0 and "chmod 600" in text and name in text, text
            path.chmod(0o600)
        code, text = run("stop")
        assert code == 0, text
        daemon.process.wait(patient(20))
    assert json.loads((tmp_path / "state" / CLIENTS_FILE).read_text())["clients"][0]["name"] == "kiosk"
