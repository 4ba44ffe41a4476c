"""A6: where tokens are and are not: files, process arguments, environments and logs; and how they end."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from edgeagent.cli import main
from edgeagent.credentials.keys import (
    CLIENTS_FILE,
    Client,
    KeyRing,
    KeyStatus,
    Scope,
    add_client,
    ensure_token,
    remove_client,
    rotate_token,
)
from edgeagent.errors import ConfigError
from edgeagent.runtime_file import TOKEN_FILE, read_token, write_private
from edgeagent.worker.parent.environment import worker_environment
from tests.robust.fake_serve import serving

POSIX = pytest.mark.skipif(os.name == "nt", reason="POSIX modes")
SECRET = "hf_canaryCanaryCanaryCanaryCanary"


def status(url: str, token: str | None) -> int:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.get(f"{url}/v1/models", headers=headers).status_code


def test_a_rotated_token_is_dead_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "state"
    with serving(folder, "--token-required") as daemon:
        url, old = daemon.runtime.url, daemon.runtime.token
        assert old is not None
        assert status(url, old) == 200
        assert main(["token", "rotate", "--state-dir", str(folder)]) == 0
        new = read_token(folder)
        assert new is not None and new not in capsys.readouterr().out
        assert (status(url, old), status(url, new), status(url, None)) == (401, 200, 401)
        assert main(["token", "add", "kiosk", "--state-dir", str(folder)]) == 0
        kiosk = capsys.readouterr().out.strip()
        assert status(url, kiosk) == 200
        assert main(["token", "remove", "kiosk", "--state-dir", str(folder)]) == 0
        assert (status(url, kiosk), status(url, new)) == (401, 200)
        # A token file that others could have read gives no access; neither does a deleted one.
        if os.name != "nt":
            (folder / TOKEN_FILE).chmod(0o644)
            assert status(url, new) == 401
        (folder / TOKEN_FILE).unlink()
        assert status(url, new) == 401
    log = folder.with_suffix(".log").read_text()
    assert not [token for token in (old, new, kiosk) if token in log]


@POSIX
def test_the_files_are_private_and_made_anew(tmp_path: Path) -> None:
    ensure_token(tmp_path)
    add_client(tmp_path, "kiosk", [Scope.INFER])
    for name in (TOKEN_FILE, CLIENTS_FILE):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
        before = (tmp_path / name).stat().st_ino
        # An open descriptor of the old file, or a link in its place, gets nothing of the new one.
        (tmp_path / name).rename(tmp_path / "elsewhere")
        (tmp_path / name).symlink_to(tmp_path / "elsewhere")
        if name == TOKEN_FILE:
            rotate_token(tmp_path)
        else:
            write_private(tmp_path / name, b'{"clients": []}')
        assert not (tmp_path / name).is_symlink()
        assert (tmp_path / name).stat().st_ino != before


def test_clients_tokens_are_not_kept(tmp_path: Path) -> None:
    token = add_client(tmp_path, "kiosk", [Scope.INFER])
    assert token not in (tmp_path / CLIENTS_FILE).read_text()
    checked = KeyRing(tmp_path).judge([token.encode()])
    assert checked.client == Client("kiosk", frozenset({Scope.INFER}))
    assert KeyRing(tmp_path).judge([b""]).status is KeyStatus.FOREIGN
    again = add_client(tmp_path, "kiosk", [Scope.MODELS])
    ring = KeyRing(tmp_path)
    key_statuses = [ring.judge([each.encode()]).status for each in (token, again)]
    assert key_statuses == [KeyStatus.UNKNOWN, KeyStatus.KNOWN]
    remove_client(tmp_path, "kiosk")
    assert ring.judge([again.encode()]).status is KeyStatus.UNKNOWN
    with pytest.raises(ConfigError, match="known clients: none"):
        remove_client(tmp_path, "kiosk")


@pytest.mark.parametrize("name", ["", "-x", "a b", "../x", "x" * 65, "é", "a\n", "\x1b[31m"])
def test_names_of_clients(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="name"):
        add_client(tmp_path, name, [Scope.INFER])


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"clients": {}}',
        '{"clients": [{}]}',
        '{"clients": [{"name": "x", "scopes": ["all"], "sha256": "' + "0" * 64 + '"}]}',
        '{"clients": [{"name": "x", "scopes": [], "sha256": "0"}]}',
        '{"clients": [7]}',
    ],
)
def test_a_broken_file_opens_nothing(tmp_path: Path, content: str) -> None:
    token = ensure_token(tmp_path)
    write_private(tmp_path / CLIENTS_FILE, content.encode())
    checked = KeyRing(tmp_path).judge([token.encode()])
    assert checked.status is (KeyStatus.KNOWN if content == '{"clients": {}}' else KeyStatus.UNUSABLE)
    if content != '{"clients": {}}':
        with pytest.raises(ConfigError, match="delete it"):
            add_client(tmp_path, "kiosk", [Scope.INFER])


def test_the_worker_gets_no_secrets() -> None:
    secrets = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "OPENAI_API_KEY", "EDGEAGENT_TOKEN", "AWS_SECRET_ACCESS_KEY")
    environment = worker_environment({"PATH": "/bin", **dict.fromkeys(secrets, SECRET), "CUDA_API_KEY": SECRET})
    assert SECRET not in environment.values()
    assert environment["PATH"] == "/bin"


def test_the_token_is_in_no_arguments_no_environment_and_no_core(tmp_path: Path) -> None:
    with serving(tmp_path / "state", "--token-required") as daemon:
        token = daemon.runtime.token
        assert token is not None
        for process in (psutil.Process(daemon.process.pid), *psutil.Process(daemon.process.pid).children()):
            assert token not in " ".join(process.cmdline())
            assert token not in " ".join(process.environ().values())
        assert httpx.get(f"{daemon.runtime.url}/v1/models").text.count(token) == 0
        assert token not in (tmp_path / "state" / "daemon.json").read_text()
        if sys.platform == "linux":
            limits = Path(f"/proc/{daemon.process.pid}/limits").read_text().splitlines()
            (core,) = [line.split()[4] for line in limits if line.startswith("Max core file size")]
            assert core == "0"
