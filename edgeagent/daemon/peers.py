"""Finds the user whose process is at the other end of a loopback TCP connection, if the system can tell.

On Linux the kernel finds the socket by its addresses, over netlink, in microseconds. If netlink cannot be used, a
thread reads /proc/net/tcp. On other systems, psutil searches the processes of this user only. If none of them has the
socket, the client's user is unknown.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import struct
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from edgeagent.credentials.decision import UNKNOWN_USER, User

# linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h, net/tcp_states.h
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST = 4, 20, 1
# Established, and the two states of a client that has finished sending and waits for the answer. As long as a process
# holds such a socket, no other socket can have the same two addresses. A socket that no process holds has no inode.
_OPEN = (1, 4, 5)
_OPEN_IN_WORDS = (psutil.CONN_ESTABLISHED, psutil.CONN_FIN_WAIT1, psutil.CONN_FIN_WAIT2)
_NO_COOKIE = 0xFFFFFFFF
_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBBI")
_PORTS = struct.Struct("!HH")
_ANSWER = struct.Struct("=BBBB")
_OWNER = struct.Struct("=IIIII")
_ID_BYTES = 48
# The kernel reports this uid for all users of other user namespaces, so it identifies none of them.
_OVERFLOW_UIDS = (65534, 2**32 - 1)
_PROC_TABLES = ("/proc/self/net/tcp", "/proc/self/net/tcp6")

SocketAddress = tuple[str, int]


class TcpPeer:
    """The client of one accepted connection. Its user is looked up once, when it is first needed."""

    def __init__(
        self, client: SocketAddress | None, server: tuple[str, int | None] | None, connection: socket.socket
    ) -> None:
        self._client = client
        self._server = server
        self._connection = connection
        self._user: User | None = None
        self.client: str | None = None

    async def user(self) -> User:
        """Return the client's user.

        Return UNKNOWN_USER if the client's address is not loopback, if the system cannot tell, or if the connection has
        closed.
        """
        if self._user is None:
            user = await self._look_up()
            # While the connection is open, no other socket has its two ports, so the right process was found. After
            # the connection has closed, another process may get the client's port and be found instead.
            self._user = user if _is_connected(self._connection) else UNKNOWN_USER
        return self._user

    async def _look_up(self) -> User:
        if self._client is None or self._server is None or self._server[1] is None:
            return UNKNOWN_USER
        client, server = self._client, (self._server[0], self._server[1])
        if not ipaddress.ip_address(client[0].partition("%")[0]).is_loopback:
            return UNKNOWN_USER
        if sys.platform != "linux":
            return await asyncio.to_thread(_user_from_psutil, client, server)
        with suppress(OSError):
            return _user_of(_uid_from_netlink(client, server))
        # A service's sandbox may forbid netlink.
        return _user_of(await asyncio.to_thread(_uid_from_proc, client, server))


def _is_connected(connection: socket.socket) -> bool:
    try:
        if sys.platform == "win32":
            connection.getpeername()
            return True
        # Use a copy, since event loops return stand-ins for their sockets, without some methods.
        with socket.socket(connection.family, connection.type, fileno=os.dup(connection.fileno())) as copy:
            copy.getpeername()
    except OSError:
        return False
    return True


def _user_of(uid: int | None) -> User:
    if uid is None or uid in _OVERFLOW_UIDS:
        return UNKNOWN_USER
    return User(uid, is_own=uid == os.getuid())


def _uid_from_netlink(client: SocketAddress, server: SocketAddress) -> int | None:
    """Return the uid of the client's socket for this connection; None if no process has such an open socket.

    Raise OSError if netlink cannot be used.
    """
    family = socket.AF_INET6 if ":" in client[0] else socket.AF_INET
    addresses = _PORTS.pack(client[1], server[1]) + _packed(family, client[0]) + _packed(family, server[0])
    socket_id = addresses + struct.pack("=III", 0, _NO_COOKIE, _NO_COOKIE)
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, 2**32 - 1) + socket_id
    length = _HEADER.size + len(body)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as kernel:
        kernel.send(_HEADER.pack(length, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0) + body)
        # The kernel answers during `send`. If no answer is there now, none will come.
        kernel.setblocking(False)
        answer, (sender, _) = kernel.recvfrom(8192)
    if sender != 0 or _HEADER.unpack_from(answer)[1] != _SOCK_DIAG_BY_FAMILY:
        return None
    at = _HEADER.size
    _, state, _, _ = _ANSWER.unpack_from(answer, at)
    found = answer[at + _ANSWER.size :][: len(addresses)]
    *_, uid, inode = _OWNER.unpack_from(answer, at + _ANSWER.size + _ID_BYTES)
    # The kernel may return a listener in place of a closed socket, and it reports root for a socket without a process.
    is_it = state in _OPEN and inode != 0 and addresses in (found, _unmapped(found))
    return uid if is_it else None


def _unmapped(found: bytes) -> bytes:
    """Return the ports and addresses of a socket with IPv4 addresses instead of IPv4-mapped IPv6 addresses."""
    prefix = bytes(10) + b"\xff\xff"
    sides = [found[4:20], found[20:36]]
    return found[:4] + b"".join(side[12:] + bytes(12) if side.startswith(prefix) else side for side in sides)


def _packed(family: socket.AddressFamily, address: str) -> bytes:
    return socket.inet_pton(family, address.partition("%")[0]).ljust(16, b"\0")


def _uid_from_proc(client: SocketAddress, server: SocketAddress) -> int | None:
    """Return the same uid as `_uid_from_netlink`, but read from /proc/net/tcp.

    The kernel may change a row while it prints the table, so the table is read twice. If the results differ, return
    None.
    """
    first, second = (next(_rows_of(client, server), None) for _ in range(2))
    return first if first == second else None


def _rows_of(client: SocketAddress, server: SocketAddress) -> Iterator[int]:
    wanted = {tuple(_in_hex(*end, mapped=mapped) for end in (client, server)) for mapped in (False, True)}
    for table in _PROC_TABLES:
        with suppress(OSError):
            for line in Path(table).read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if (fields[1], fields[2]) in wanted and int(fields[3], 16) in _OPEN and fields[9] != "0":
                    yield int(fields[7])


def _in_hex(address: str, port: int, *, mapped: bool) -> str:
    """Return an address and a port as /proc/net/tcp prints them: the address as 32-bit words in the machine's order.

    With `mapped`, an IPv4 address is returned as its IPv4-mapped IPv6 address.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    packed = bytes(10) + b"\xff\xff" + ip.packed if mapped and ip.version == 4 else ip.packed
    words = [packed[at : at + 4] for at in range(0, len(packed), 4)]
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words) + f":{port:04X}"


# Programs connect repeatedly, so the processes that were found last are checked first.
_remembered: deque[int] = deque(maxlen=8)


def _user_from_psutil(client: SocketAddress, server: SocketAddress) -> User:
    """Return this process's user if a process of this user has the client's socket, else UNKNOWN_USER."""
    me = psutil.Process().username()
    tried: set[int] = set()
    # New processes connect more often than old ones, and mostly have the highest numbers.
    for pid in (*_remembered, *reversed(psutil.pids())):
        if pid in tried:
            continue
        tried.add(pid)
        with suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            if process.username() == me and _holds(process, client, server):
                if pid not in _remembered:
                    _remembered.appendleft(pid)
                return User(os.getuid() if sys.platform != "win32" else None, is_own=True)
    return UNKNOWN_USER


def _holds(process: psutil.Process, client: SocketAddress, server: SocketAddress) -> bool:
    return any(
        tuple(connection.laddr) == client and tuple(connection.raddr) == server and connection.status in _OPEN_IN_WORDS
        for connection in process.net_connections("tcp")
    )
