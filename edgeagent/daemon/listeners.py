"""Opens the sockets that the daemon listens on, if they are safe and their addresses are free."""

from __future__ import annotations

import errno
import logging
import socket
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edgeagent.daemon.state import ExitCode, StartError
from edgeagent.daemon.tls import server_context, trouble_with
from edgeagent.daemon.unix import BACKLOG, unix_listener

if TYPE_CHECKING:
    from edgeagent.config import ServerConfig

logger = logging.getLogger(__name__)

# A client whose machine or network is gone sends no FIN. Its connection ends after this many seconds without a sign of
# it, and its requests are cancelled. A WebSocket has as long: two pings.
VANISHED_S = 40
NUM_PROBES = 4


@dataclass(frozen=True, slots=True)
class Listeners:
    """The listening sockets. `unix` is None if no Unix socket is configured."""

    tcp: socket.socket
    unix: socket.socket | None = None


@contextmanager
def listening(server: ServerConfig) -> Iterator[Listeners]:
    """Yield the listening sockets, and close them at the end.

    Raise StartError if a socket cannot be opened or would not be safe.
    """
    _check_tls(server)
    with closing(bind(server.host, server.port)) as tcp, unix_listener(server.unix) as unix:
        yield Listeners(tcp, unix)


def _check_tls(server: ServerConfig) -> None:
    if (server.tls_certificate is None) is not (server.tls_key is None):
        raise StartError(
            "server.tls_certificate and server.tls_key go together; one of them is missing", ExitCode.WRONG_SETTING
        )
    if server.tls_certificate is not None:
        try:
            context = server_context(server.tls_certificate, server.tls_key)
            trouble = trouble_with(context, server.tls_certificate)
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


def bind(host: str, port: int) -> socket.socket:
    """Open a listening socket. Raise StartError if the port is taken or not allowed, or the address cannot be used."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise StartError(f"cannot listen on {host!r}: {error.strerror}") from error
    listener = socket.socket(family, kind, protocol)
    try:
        # On Windows SO_REUSEADDR would let another program share the port.
        if sys.platform == "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _end_vanished(listener)
        listener.bind(address)
        # From now on a client that connects before the daemon is ready waits in the queue and is not refused.
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno in (errno.EADDRINUSE, errno.EACCES) and port:
            raise StartError(_why_port_unavailable(host, port, error.errno), ExitCode.PORT_TAKEN) from error
        raise StartError(f"cannot listen on {host} port {port}: {error.strerror}") from error
    return listener


def _end_vanished(listener: socket.socket) -> None:
    """Let the system end connections whose client has been silent for VANISHED_S. Accepted sockets inherit the options.

    Probes find a client that is sent nothing. TCP_USER_TIMEOUT is for what is sent and not acknowledged: without it,
    Linux repeats it for a quarter of an hour.
    """
    probe_s = VANISHED_S // (NUM_PROBES + 1)
    options = {
        "TCP_KEEPIDLE": probe_s,
        "TCP_KEEPALIVE": probe_s,  # macOS has this name for TCP_KEEPIDLE
        "TCP_KEEPINTVL": probe_s,
        "TCP_KEEPCNT": NUM_PROBES,
        "TCP_USER_TIMEOUT": VANISHED_S * 1000,
    }
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in options.items():
        if (option := getattr(socket, name, None)) is not None:
            listener.setsockopt(socket.IPPROTO_TCP, option, value)


def _why_port_unavailable(host: str, port: int, number: int) -> str:
    """Return why a port cannot be bound: it is in use, or it needs more rights. `number` is the error's errno.

    On Windows, the text always says that the port is in use, since Windows reports EACCES for that too.
    """
    if number == errno.EADDRINUSE or sys.platform == "win32":
        return (
            f"port {port} on {host} is taken by another program; stop that program, or choose a port with --port "
            "(0 takes a free one)"
        )
    return f"port {port} on {host} needs more rights; choose one above 1023 with --port (0 takes a free one)"
