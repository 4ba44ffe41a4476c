"""The user at the other end of a TCP connection: three ways to find it, and inputs that must not mislead them."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

import psutil
import pytest

from edgeagent.credentials.decision import UNKNOWN_USER, User
from edgeagent.daemon import peers
from edgeagent.daemon.peers import TcpPeer
from tests.daemon.running import has_ipv6_loopback

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
IPV6 = pytest.mark.skipif(not has_ipv6_loopback(), reason="no ::1 here")
OTHER_UID = 54321
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


def netlink(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    try:
        return peers._uid_from_netlink(client, server)
    except PermissionError:
        pytest.skip("no netlink here")


def proc(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    return peers._uid_from_proc(client, server)


Told = Callable[[tuple[str, int], tuple[str, int]], int | None]


@LINUX
@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("told", [netlink, proc])
def test_linux_tells_the_user(told: Told, host: str) -> None:
    with connected(host) as (_, server):
        assert told(*ends(server)) == os.getuid()
        # The reversed addresses name the server's own socket, which no caller asks for; its user is known too.
        assert told(*reversed(ends(server))) == os.getuid()


@LINUX
@pytest.mark.parametrize("told", [netlink, proc])
def test_who_has_closed_is_nobody(told: Told) -> None:
    """The kernel attributes a socket without a process to root, and a listener on the port is another socket."""
    with connected() as (client, server):
        addresses = ends(server)
        client.close()
        assert told(*addresses) is None
        with suppress(OSError), closing(socket.create_server(addresses[0], reuse_port=True)):
            assert told(*addresses) is None


def by_psutil(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    return peers._user_from_psutil(client, server).uid


@pytest.mark.skipif(sys.platform == "win32", reason="no uid there")
@pytest.mark.parametrize("told", [pytest.param(netlink, marks=LINUX), pytest.param(proc, marks=LINUX), by_psutil])
def test_who_has_ended_its_sending_is_still_there(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "_pids", lambda: [os.getpid()])
    with connected() as (client, server):
        addresses = ends(server)
        client.shutdown(socket.SHUT_WR)
        assert told(*addresses) == os.getuid()
        assert server.recv(1) == b""
        assert told(*addresses) == os.getuid()
        # The kernel keeps the connection for a while and attributes it to root.
        client.close()
        assert told(*addresses) is None


@LINUX
@pytest.mark.parametrize("told", [netlink, proc])
def test_a_listener_is_not_taken_for_the_client(told: Told) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        address = listener.getsockname()
        assert told(address, ("127.0.0.1", 1)) is None
        assert told(("127.0.0.1", 1), address) is None


@LINUX
@IPV6
@pytest.mark.parametrize("told", [netlink, proc])
def test_a_client_that_speaks_ipv6_to_an_address_of_ipv4(told: Told) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
        with closing(socket.socket(socket.AF_INET6)) as client:
            client.connect(("::ffff:127.0.0.1", port))
            server, _ = listener.accept()
            with closing(server):
                assert told(*ends(server)) == os.getuid()


CONNECT = "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); sys.stdin.read()"


@LINUX
@pytest.mark.skipif(not shutil.which("setpriv"), reason="needs setpriv")
async def test_another_user() -> None:
    if os.getuid() != 0:
        pytest.skip("becoming another user takes root")
    become = ["setpriv", f"--reuid={OTHER_UID}", f"--regid={OTHER_UID}", "--clear-groups", "/usr/bin/env", "python3"]
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        command = [*become, "-c", CONNECT, str(listener.getsockname()[1])]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as other:  # noqa: ASYNC220
            server, _ = listener.accept()
            with closing(server):
                assert netlink(*ends(server)) == proc(*ends(server)) == OTHER_UID
                assert await TcpPeer(*ends(server), server).user() == User(OTHER_UID, is_own=False)
                assert peers._user_from_psutil(*ends(server)) == UNKNOWN_USER
            other.communicate()


async def test_who_it_was_stays_who_it_is() -> None:
    with connected() as (client, server):
        peer = TcpPeer(*ends(server), server)
        assert await peer.user() == User(os.getuid() if sys.platform != "win32" else None, is_own=True)
        client.close()
        assert (await peer.user()).is_own
        assert await TcpPeer(*ends(server), server).user() == UNKNOWN_USER


@pytest.mark.parametrize("platform", ["darwin", "win32", "freebsd14"])
@pytest.mark.parametrize("host", HOSTS)
async def test_elsewhere_psutil_finds_own_processes(monkeypatch: pytest.MonkeyPatch, host: str, platform: str) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(peers, "_pids", lambda: [1, os.getpid(), 2**22 + 1])
    peers._remembered.clear()
    with connected(host) as (client, server):
        assert (await TcpPeer(*ends(server), server).user()).is_own
        assert list(peers._remembered) == [os.getpid()]
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
async def test_without_netlink_the_table_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(97, "Address family not supported by protocol")

    monkeypatch.setattr(peers, "_uid_from_netlink", refuse)
    with connected() as (_, server):
        assert await TcpPeer(*ends(server), server).user() == User(os.getuid(), is_own=True)
        monkeypatch.setattr(peers, "_PROC_TABLES", ("/nonexistent",))
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
    monkeypatch.setattr(peers, "_uid_from_netlink", lambda *_: os.getuid())
    with connected() as (_, connection):
        assert await TcpPeer(("192.0.2.1", 5000), ("192.0.2.2", 8127), connection).user() == UNKNOWN_USER


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
