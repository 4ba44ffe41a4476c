"""A5: the Unix socket is private from its first moment, and for this user alone."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

import httpx
import pytest
from websockets.asyncio.client import unix_connect

from edgeagent.daemon import listeners, transport
from edgeagent.daemon.listeners import unix_listener
from edgeagent.daemon.state import ExitCode, StartError
from tests.robust.fake_serve import serving

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no Unix sockets")

NOBODY = 65534


def mode(path: Path) -> int:
    return path.lstat().st_mode & 0o777


def client(path: Path) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path)), base_url="http://localhost")


async def test_it_serves_without_a_token_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "run" / "edgeagent.sock"
    with serving(tmp_path / "state", "--unix", str(path), "--token-required") as daemon:
        assert (mode(path.parent), mode(path)) == (0o700, 0o600)
        async with client(path) as http:
            assert (await http.get("/v1/models")).status_code == 200
            assert (await http.get("/edgeagent/status")).status_code == 200
            # The protection from web pages applies here too.
            assert (await http.get("/v1/models", headers={"Host": "evil.example"})).status_code == 403
            assert (await http.get("/v1/models", headers={"Origin": "http://evil.example"})).status_code == 403
        async with unix_connect(str(path), uri="ws://localhost/v1/responses"):
            pass
        async with httpx.AsyncClient() as http:
            assert (await http.get(f"{daemon.runtime.url}/v1/models")).status_code == 401
    assert not path.exists()


async def test_after_a_kill_the_path_is_taken_again(tmp_path: Path) -> None:
    path = tmp_path / "run" / "edgeagent.sock"
    with serving(tmp_path / "state", "--unix", str(path)) as daemon:
        daemon.process.kill()
        daemon.process.wait()
    assert path.is_socket()
    with serving(tmp_path / "state", "--unix", str(path)):
        async with client(path) as http:
            assert (await http.get("/health")).status_code == 200


@pytest.mark.parametrize(
    "plant",
    [
        lambda path: path.write_text(""),
        lambda path: path.mkdir(),
        lambda path: path.symlink_to(path.parent / "elsewhere"),
        lambda path: os.mkfifo(path),
        lambda path: (path.parent / "target").write_text("") or path.symlink_to(path.parent / "target"),
    ],
    ids=["file", "folder", "dangling link", "fifo", "link"],
)
def test_what_lies_there_already_is_refused(tmp_path: Path, plant: Callable[[Path], object]) -> None:
    tmp_path.chmod(0o700)
    path = tmp_path / "s"
    plant(path)
    with pytest.raises(StartError, match="not this user's socket") as refused, unix_listener(path):
        pass
    assert refused.value.exit_code is ExitCode.WRONG_SETTING
    assert os.path.lexists(path)


def test_a_link_to_a_socket_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with unix_listener(tmp_path / "real"):
        (tmp_path / "s").symlink_to(tmp_path / "real")
        with pytest.raises(StartError, match="not this user's socket"), unix_listener(tmp_path / "s"):
            pass


def test_a_socket_in_use_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with unix_listener(tmp_path / "s"), pytest.raises(StartError) as refused, unix_listener(tmp_path / "s"):
        pass
    assert refused.value.exit_code is ExitCode.PORT_TAKEN


@pytest.mark.parametrize("bits", [0o755, 0o750, 0o707, 0o1777])
def test_a_folder_that_is_open_to_others_is_refused(tmp_path: Path, bits: int) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    folder.chmod(bits)
    with pytest.raises(StartError, match="chmod 700"), unix_listener(folder / "s"):
        pass


def test_a_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "run").symlink_to(tmp_path / "real")
    with pytest.raises(StartError, match="not a folder"), unix_listener(tmp_path / "run" / "s"):
        pass


def test_a_path_that_is_too_long(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="cannot listen"), unix_listener(tmp_path / "run" / ("x" * 120)):
        pass


def test_anothers_socket_is_left_alone_at_the_end(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    path = tmp_path / "s"
    with unix_listener(path):
        path.unlink()
        path.write_text("another's")
    assert path.read_text() == "another's"


def test_who_is_at_the_other_end(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        assert not listeners.is_other_user(ours)
        uid = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: uid + 1)
        assert listeners.is_other_user(ours)
    with socket.socket() as tcp:
        assert not listeners.is_other_user(tcp)


ATTEMPT = """
import socket, sys
probe = socket.socket(socket.AF_UNIX)
try:
    probe.connect(sys.argv[1])
except PermissionError:
    sys.exit(13)
probe.sendall(b"GET /v1/models HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
sys.exit(int(probe.recv(64).split()[1]) % 250)
"""


@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("setpriv"), reason="needs Linux and setpriv")
def test_another_user_gets_nowhere(tmp_path: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("becoming another user takes root")
    # A folder that the other user may traverse, as /run is.
    folder = Path(subprocess.check_output(["mktemp", "-d"], text=True).strip())
    try:
        folder.chmod(0o755)
        path = folder / "run" / "s"
        become = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        attempt = [*become, "/usr/bin/env", "python3", "-c", ATTEMPT, str(path)]
        with serving(tmp_path / "state", "--unix", str(path)):
            assert subprocess.run(attempt).returncode == 13
            # Even with loosened modes, the daemon itself checks which user connects.
            path.parent.chmod(0o755)
            path.chmod(0o666)
            assert subprocess.run(attempt).returncode == 403 % 250
    finally:
        shutil.rmtree(folder)


def test_the_refusal_of_a_stranger_has_words() -> None:
    assert "another user" in transport.REFUSALS[HTTPStatus.FORBIDDEN][1]
