"""Opens the sockets that the daemon listens on, if they are safe and their addresses are free: TCP, TLS and Unix."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import socket
import ssl
import stat
import struct
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from edgeagent.config import is_loopback
from edgeagent.daemon.state import ExitCode, StartError
from edgeagent.keepalive import end_if_vanished
from edgeagent.runtime_file import bracketed
from edgeagent.usable import port_user

if TYPE_CHECKING:
    from edgeagent.config import ServerConfig

logger = logging.getLogger(__name__)

_FIRST_DESCRIPTOR = 3  # SD_LISTEN_FDS_START


def inherited_sockets() -> list[socket.socket]:
    """Return the listening sockets that systemd opened for this process. The caller closes them.

    Raise StartError if the variables of systemd are not about listening sockets.
    """
    if os.environ.get("LISTEN_PID") != str(os.getpid()):
        return []
    # Called once: the variables must not count for a second caller, or for a child that gets this process id later.
    num = os.environ.pop("LISTEN_FDS", "0")
    del os.environ["LISTEN_PID"]
    os.environ.pop("LISTEN_FDNAMES", None)
    try:
        descriptors = range(_FIRST_DESCRIPTOR, _FIRST_DESCRIPTOR + int(num))
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        given = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        is_right = all(each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) for each in given)
    except (OSError, ValueError):
        is_right = False
    if not is_right:
        raise StartError(
            f"LISTEN_FDS={num} promises sockets that listen, and this process has others; in a unit of your own leave "
            "out Accept=yes, or run `edgeagent service install`",
            ExitCode.WRONG_SETTING,
        )
    return given


def notify(message: str) -> None:
    """Send a message to systemd, for example READY=1. A message that cannot be sent is dropped."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):  # a name without a file
        address = f"\0{address[1:]}"
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(1.0)
        sender.sendto(message.encode(), address)


async def keep_watchdog() -> None:
    """Tell systemd that the event loop runs, twice in each period of its watchdog, forever. Return if it has none.

    A period that is not a number of microseconds is logged, and counts as none. systemd itself sets no such period.
    """
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return
    period = os.environ.get("WATCHDOG_USEC", "0")
    if not (period.isascii() and period.isdigit()):
        logger.warning("WATCHDOG_USEC=%s is not a number of microseconds; systemd gets no signs of life", period)
        return
    period_s = int(period) / 1e6
    while period_s:
        notify("WATCHDOG=1")
        await asyncio.sleep(period_s / 2)


# A client whose machine or network is gone sends no FIN. Its connection ends after this many seconds without a sign of
# it, and its requests are cancelled. A WebSocket has as long: two pings.
VANISHED_S = 40
NUM_PROBES = 4
_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104 compared, not bound


def external_urls(listener: socket.socket, scheme: str) -> list[str]:
    """Return the URLs of a listening socket, one for each address that other machines can reach.

    The list is empty for a loopback or link-local address, and if the machine's addresses cannot be read.
    """
    host, port = listener.getsockname()[:2]
    found = _addresses(_families(listener)) if host in _WILDCARDS else [host]
    own = [address for address in found if _is_reached(address)]
    return [f"{scheme}://{bracketed(address)}:{port}" for address in own]


def _families(listener: socket.socket) -> set[int]:
    families = {int(listener.family)}
    if listener.family == socket.AF_INET6:
        with suppress(OSError):
            if not listener.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY):
                families.add(int(socket.AF_INET))
    return families


def _addresses(families: set[int]) -> list[str]:
    try:
        interfaces, states = psutil.net_if_addrs(), psutil.net_if_stats()
    except (psutil.Error, OSError):
        return []  # the daemon still listens; only the URLs are unknown
    return [
        entry.address
        for name, entries in interfaces.items()
        for entry in entries
        if int(entry.family) in families and (name not in states or states[name].isup)
    ]


def _is_reached(address: str) -> bool:
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False  # an address with a zone, which means nothing on another machine
    return not (ip.is_loopback or ip.is_link_local or ip.is_unspecified)


def server_context(certificate: Path, key: Path | None) -> ssl.SSLContext:
    """Return a TLS context that accepts TLS 1.2 and later.

    Raise OSError if a file cannot be read or is not in PEM format, or if the key is encrypted or does not match the
    certificate.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # This is Python's default, but a system's OpenSSL settings may override that.
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key, password=_refuse_password)
    return context


def _refuse_password() -> bytes:
    # Without this, OpenSSL would ask for the password on the terminal.
    raise OSError("the key is encrypted; the daemon needs one without a password")


def trouble_with(certificate: Path) -> str | None:
    """Return a warning if a server's certificate has expired or is not valid yet; None if its dates are valid.

    `server_context` must have accepted the file.
    """
    from cryptography import x509  # imported here, since it is large and most daemons have no certificate

    served, now = x509.load_pem_x509_certificate(certificate.read_bytes()), datetime.now(UTC)
    if served.not_valid_before_utc <= now <= served.not_valid_after_utc:
        return None
    reason = "has expired" if now > served.not_valid_after_utc else "is not valid yet"
    return f"the certificate {certificate} {reason}, so clients refuse it; replace it"


BACKLOG = 2048
# struct xucred (macOS, sys/ucred.h) begins with a version and the user.
_LOCAL_PEERCRED, _SOL_LOCAL = 0x001, 0


@contextmanager
def unix_listener(path: Path | None) -> Iterator[socket.socket | None]:
    """Yield a listening socket at a path, and remove it at the end. Yield None if `path` is None.

    Raise StartError if the folder is not private to this user, if another file or program uses the path, or if
    listening fails. On Windows, every path raises it.
    """
    if path is None:
        yield None
        return
    if sys.platform == "win32":
        raise StartError("there are no Unix sockets on Windows; leave server.unix empty", ExitCode.WRONG_SETTING)
    _check_folder(path.parent)
    _clear(path)
    with contextlib.closing(_bind(path)) as listener:
        inode = path.lstat().st_ino
        try:
            yield listener
        finally:
            with contextlib.suppress(OSError):
                if path.lstat().st_ino == inode:
                    path.unlink()


def _check_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise StartError(f"cannot use the folder {folder} for a socket: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode):
        raise StartError(
            f"{folder} is not a folder (or a link to one); choose another for server.unix", ExitCode.WRONG_SETTING
        )
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise StartError(
            f"the folder {folder} is open to other users; run `chmod 700 {folder}`, or choose another",
            ExitCode.WRONG_SETTING,
        )


def _clear(path: Path) -> None:
    """Remove the socket that a killed daemon has left. Raise StartError if anything else is at the path."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode) or status.st_uid != os.getuid():
        raise StartError(
            f"{path} exists and is not this user's socket; remove it, or choose another server.unix",
            ExitCode.WRONG_SETTING,
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if probe.connect_ex(str(path)) != errno.ECONNREFUSED:
            raise StartError(f"another program listens on {path}; stop it first", ExitCode.PORT_TAKEN)
    path.unlink(missing_ok=True)


def _bind(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # With this mask the socket is private from its first moment. No other thread creates files while the daemon starts.
    mask = os.umask(0o177)
    try:
        listener.bind(str(path))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise StartError(f"cannot listen on {path}: {error.strerror or error}") from error
    finally:
        os.umask(mask)
    return listener


def is_other_user(connection: socket.socket) -> bool:
    """Whether the client of a Unix socket belongs to another or an unknown user. False for a socket of another kind."""
    if sys.platform == "win32" or connection.family != socket.AF_UNIX:
        return False
    # Use a copy, since event loops return stand-ins for their sockets, without options.
    with socket.socket(connection.family, connection.type, fileno=os.dup(connection.fileno())) as copy:
        try:
            return _peer_uid(copy) != os.getuid()
        except OSError:
            return True


def _peer_uid(connection: socket.socket) -> int:
    uid: int
    if sys.platform == "linux":
        _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    else:
        _, uid = struct.unpack("2I", connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, 76)[:8])
    return uid


@dataclass(frozen=True, slots=True)
class Listeners:
    """The listening sockets. `unix` and `wyoming` are None if they are not configured."""

    tcp: socket.socket
    unix: socket.socket | None = None
    wyoming: socket.socket | None = None


@contextmanager
def listening(server: ServerConfig) -> Iterator[Listeners]:
    """Yield the listening sockets, and close them at the end. Those that systemd opened are taken, the others opened.

    Raise StartError if a socket cannot be opened, would not be safe, or is not the one of the settings.
    """
    _check_tls(server)
    _check_wyoming(server)
    with contextlib.ExitStack() as stack:
        given = [stack.enter_context(closing(each)) for each in inherited_sockets()]
        for each in given:
            _check_given(each, server)
        unix = next((each for each in given if each.family == socket.AF_UNIX), None)
        tcp = next((each for each in given if each is not unix), None)
        yield Listeners(
            tcp or stack.enter_context(closing(bind(server.host, server.port))),
            unix or stack.enter_context(unix_listener(server.unix)),
            None
            if server.wyoming < 0
            else stack.enter_context(closing(bind(server.wyoming_host, server.wyoming, "--wyoming"))),
        )


def _check_given(listener: socket.socket, server: ServerConfig) -> None:
    """Raise StartError unless a socket of systemd has the address in the settings, which all checks are about."""
    opened = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        wanted: object = None if server.unix is None else str(server.unix)
        if opened == wanted and server.unix is not None:
            _check_folder(server.unix.parent)
            return
    else:
        wanted = _resolved(server.host, server.port)[-1]
        if opened == wanted:
            end_if_vanished(listener, VANISHED_S, NUM_PROBES)
            return
    raise StartError(
        f"systemd listens on {opened} for this service, and the settings say {wanted}; run "
        "`edgeagent service install` again, or change the settings",
        ExitCode.WRONG_SETTING,
    )


def _check_tls(server: ServerConfig) -> None:
    if (server.tls_certificate is None) is not (server.tls_key is None):
        raise StartError(
            "server.tls_certificate and server.tls_key go together; one of them is missing", ExitCode.WRONG_SETTING
        )
    if server.tls_certificate is not None:
        try:
            server_context(server.tls_certificate, server.tls_key)
            trouble = trouble_with(server.tls_certificate)
        except OSError as error:
            raise StartError(
                f"cannot use the certificate {server.tls_certificate} with its key: {error}", ExitCode.WRONG_SETTING
            ) from error
        if trouble is not None:
            logger.warning("%s", trouble)
    elif not server.is_loopback and not server.plaintext:
        raise StartError(
            f"{server.host or 'every address'} is reached from other machines, and without TLS the token could be read "
            "on the way: give --tls-certificate and --tls-key, or --plaintext, or listen on 127.0.0.1",
            ExitCode.WRONG_SETTING,
        )


def _check_wyoming(server: ServerConfig) -> None:
    if server.wyoming < 0:
        return
    if server.token_required:
        raise StartError(
            "server.token_required wants a token of every client, but those of server.wyoming have none: leave one out",
            ExitCode.WRONG_SETTING,
        )
    if not is_loopback(server.wyoming_host):
        logger.warning(
            "Wyoming has neither passwords nor encryption: whoever reaches %s port %d may ask the model, and all of it "
            "can be read on the way; let only Home Assistant and satellites through, for example with a firewall",
            server.wyoming_host or "every address",
            server.wyoming,
        )


def bind(host: str, port: int, flag: str = "--port") -> socket.socket:
    """Open a listening socket. Raise StartError if the port is taken or not allowed, or the address cannot be used.

    `flag`: the option that sets the port, for the error's text.
    """
    family, kind, protocol, _, address = _resolved(host, port)
    listener = socket.socket(family, kind, protocol)
    try:
        # On Windows SO_REUSEADDR would let another program share the port.
        if sys.platform == "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        end_if_vanished(listener, VANISHED_S, NUM_PROBES)
        listener.bind(address)
        # From now on a client that connects before the daemon is ready waits in the queue and is not refused.
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno in (errno.EADDRINUSE, errno.EACCES) and port:
            raise StartError(_why_port_unavailable(host, port, error.errno, flag), ExitCode.PORT_TAKEN) from error
        raise StartError(f"cannot listen on {host} port {port}: {error.strerror}") from error
    return listener


def _resolved(host: str, port: int) -> tuple[Any, ...]:
    """Return the first entry of getaddrinfo for an address to listen on; raise StartError if there is none."""
    try:
        return socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise StartError(f"cannot listen on {host!r}: {error.strerror}") from error


def _why_port_unavailable(host: str, port: int, number: int, flag: str) -> str:
    """Return why a port cannot be bound: it is in use, or it needs more rights. `number` is the error's errno.

    On Windows, the text always says that the port is in use, since Windows reports EACCES for that too.
    """
    if number == errno.EADDRINUSE or sys.platform == "win32":
        who = port_user(port) or "another program"
        if who.startswith("systemd"):
            return (
                f"systemd ({who}) listens on {host} port {port}, and starts a service for the first client; see "
                f"`edgeagent service status`, or choose a port with {flag} (0 takes a free one)"
            )
        return (
            f"port {port} on {host} is taken by {who}; stop that program (an edgeagent: `edgeagent stop`, with its "
            f"--state-dir), or choose a port with {flag} (0 takes a free one)"
        )
    return f"port {port} on {host} needs more rights; choose one above 1023 with {flag} (0 takes a free one)"
