"""The user at the other end of a TCP connection: three ways to find it, and inputs that must not mislead them."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from edgeagent.credentials.decision import UNKNOWN_USER, User
from edgeagent.daemon import peers
from edgeagent.daemon.peers import TcpPeer
from tests.daemon.running import has_ipv6_loopback

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
IPV6 = pytest.mark.skipif(not has_ipv6_loopback(), reason="no ::1 here")
OTHER_UID = 54321
ME = User(os.getuid() if sys.platform != "win32" else None, is_own=True)
HOSTS = ["127.0.0.1", pytest.param("::1", marks=IPV6)]


@contextmanager
def connected(host: str = "127.0.0.1") -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield the two ends of a connection, the client's first."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with (
        closing(socket.create_server((host, 0), family=family)) as listener,
        closing(socket.create_connection(listener.getsockname()[:2])) as client,
    ):
        server, _ = listener.accept()
        with closing(server):
            yield client, server


def ends(server: socket.socket) -> tuple[tuple[str, int], tuple[str, int]]:
    """Return the addresses of the client and the server, as the server's socket knows them."""
    return server.getpeername()[:2], server.getsockname()[:2]


@pytest.fixture(params=[pytest.param("netlink", marks=LINUX), pytest.param("proc", marks=LINUX), "psutil"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one of the three ways tell."""
    if request.param == "netlink":
        try:
            socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 4).close()
        except OSError:
            pytest.skip("no netlink here")
    elif request.param == "proc":
        monkeypatch.setattr(socket, "AF_NETLINK", 9999)  # the error of a kernel without it
    else:
        monkeypatch.setattr(sys, "platform", "darwin")
        monkeypatch.setattr(psutil, "pids", lambda: [os.getpid()])


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("host", HOSTS)
async def test_each_way_tells_the_user(host: str) -> None:
    with connected(host) as (client, server):
        assert await TcpPeer(*ends(server), server).user() == ME
        # The reversed addresses name the server's own socket, which no caller asks for; its user is known too.
        assert await TcpPeer(*ends(client), client).user() == ME


@pytest.mark.usefixtures("way")
async def test_who_has_closed_is_nobody() -> None:
    """The kernel attributes a socket without a process to root, and a listener on the port is another socket."""
    with connected() as (client, server):
        addresses = ends(server)
        client.close()
        assert await TcpPeer(*addresses, server).user() == UNKNOWN_USER
        with suppress(OSError), closing(socket.create_server(addresses[0], reuse_port=True)):
            assert await TcpPeer(*addresses, server).user() == UNKNOWN_USER


@pytest.mark.skipif(sys.platform == "win32", reason="no uid there")
@pytest.mark.usefixtures("way")
async def test_who_has_ended_its_sending_is_still_there() -> None:
    with connected() as (client, server):
        addresses = ends(server)
        client.shutdown(socket.SHUT_WR)
        assert await TcpPeer(*addresses, server).user() == ME
        assert server.recv(1) == b""
        assert await TcpPeer(*addresses, server).user() == ME
        # The kernel keeps the connection for a while and attributes it to root.
        client.close()
        assert await TcpPeer(*addresses, server).user() == UNKNOWN_USER


@pytest.mark.usefixtures("way")
async def test_a_listener_is_not_taken_for_the_client() -> None:
    with connected() as (_, server), closing(socket.create_server(("127.0.0.1", 0))) as listener:
        address = listener.getsockname()
        assert await TcpPeer(address, ("127.0.0.1", 1), server).user() == UNKNOWN_USER
        assert await TcpPeer(("127.0.0.1", 1), address, server).user() == UNKNOWN_USER


@LINUX
@IPV6
@pytest.mark.parametrize("way", ["netlink", "proc"], indirect=True)
@pytest.mark.usefixtures("way")
async def test_a_client_that_speaks_ipv6_to_an_address_of_ipv4() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
        with closing(socket.socket(socket.AF_INET6)) as client:
            client.connect(("::ffff:127.0.0.1", port))
            server, _ = listener.accept()
            with closing(server):
                assert await TcpPeer(*ends(server), server).user() == ME


CONNECT = "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); sys.stdin.read()"


@pytest.mark.skipif(not shutil.which("setpriv"), reason="needs setpriv")
async def test_another_user(way: None, request: pytest.FixtureRequest) -> None:
    if os.getuid() != 0:
        pytest.skip("becoming another user takes root")
    become = ["setpriv", f"--reuid={OTHER_UID}", f"--regid={OTHER_UID}", "--clear-groups", "/usr/bin/env", "python3"]
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        command = [*become, "-c", CONNECT, str(listener.getsockname()[1])]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as other:  # noqa: ASYNC220
            server, _ = listener.accept()
            with closing(server):
                told = UNKNOWN_USER if "psutil" in request.node.name else User(OTHER_UID, is_own=False)
                assert await TcpPeer(*ends(server), server).user() == told
            other.communicate()


async def test_who_it_was_stays_who_it_is() -> None:
    with connected() as (client, server):
        peer = TcpPeer(*ends(server), server)
        assert await peer.user() == ME
        client.close()
        assert (await peer.user()).is_own
        assert await TcpPeer(*ends(server), server).user() == UNKNOWN_USER


@pytest.mark.parametrize("platform", ["darwin", "win32", "freebsd14"])
@pytest.mark.parametrize("host", HOSTS)
async def test_elsewhere_psutil_finds_own_processes(monkeypatch: pytest.MonkeyPatch, host: str, platform: str) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(psutil, "pids", lambda: [1, os.getpid(), 2**22 + 1])
    with connected(host) as (client, server):
        assert (await TcpPeer(*ends(server), server).user()).is_own
        monkeypatch.setattr(psutil, "pids", list[int])  # it is remembered
        assert (await TcpPeer(*ends(server), server).user()).is_own
        client.close()
        assert await TcpPeer(*ends(server), server).user() == UNKNOWN_USER


async def test_a_system_that_refuses_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise psutil.AccessDenied

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(psutil.Process, "net_connections", refuse)
    with connected() as (_, server):
        assert await TcpPeer(*ends(server), server).user() == UNKNOWN_USER


@LINUX
@pytest.mark.parametrize("way", ["proc"], indirect=True)
@pytest.mark.usefixtures("way")
async def test_without_netlink_and_the_table_it_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise PermissionError

    monkeypatch.setattr(Path, "read_text", refuse)
    with connected() as (_, server):
        assert await TcpPeer(*ends(server), server).user() == UNKNOWN_USER


@pytest.mark.parametrize("uid", [65534, 2**32 - 1, None])
def test_a_user_of_another_namespace_is_nobody(monkeypatch: pytest.MonkeyPatch, uid: int | None) -> None:
    if sys.platform != "win32":
        monkeypatch.setattr(os, "getuid", lambda: uid)
    assert peers._user_of(uid) == UNKNOWN_USER


@pytest.mark.parametrize(
    ("client", "server"),
    [(None, ("127.0.0.1", 1)), (("127.0.0.1", 1), None), (("127.0.0.1", 1), ("/run/s", None))],
)
async def test_what_is_no_tcp_connection(client: tuple[str, int] | None, server: tuple[str, int | None] | None) -> None:
    with connected() as (_, connection):
        assert await TcpPeer(client, server, connection).user() == UNKNOWN_USER


async def test_other_machines_are_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    client, server = ("192.0.2.1", 5000), ("192.0.2.2", 8127)
    held = SimpleNamespace(laddr=client, raddr=server, status=psutil.CONN_ESTABLISHED)
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(psutil.Process, "net_connections", lambda *_: [held])
    with connected() as (_, connection):
        assert await TcpPeer(client, server, connection).user() == UNKNOWN_USER


@LINUX
async def test_who_takes_over_a_port_is_not_who_had_it() -> None:
    """The last request of a client that leaves at once must not be attributed to the next client on its port."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        leaver = socket.socket()
        leaver.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        leaver.bind(("127.0.0.1", 0))
        leaver.connect(listener.getsockname())
        port = leaver.getsockname()[1]
        left, _ = listener.accept()
        leaver.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        addresses = ends(left)
        leaver.close()
        with closing(socket.socket()) as next_one, closing(left):
            next_one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            next_one.bind(("127.0.0.1", port))
            next_one.connect(listener.getsockname())
            taken, _ = listener.accept()
            with closing(taken):
                assert ends(taken) == addresses
                assert (await TcpPeer(*addresses, taken).user()).is_own
                assert await TcpPeer(*addresses, left).user() == UNKNOWN_USER
