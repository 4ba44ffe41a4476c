"""Ends TCP connections whose other side has vanished, since such a side sends no FIN."""

from __future__ import annotations

import contextlib
import math
import socket
import sys


def end_if_vanished(connection: socket.socket, after_s: float, num_probes: int) -> None:
    """Let the system end a connection if the other side has given no sign of it for about this many seconds.

    Probes find that out while this side sends nothing. Data that it sends must be acknowledged in this time: without
    that limit, systems repeat it for up to a quarter of an hour. A slow program is not affected, since its kernel
    acknowledges. A listener's sockets inherit the options. Those that the system lacks are left out.
    """
    probe_s = max(1, int(after_s / (num_probes + 1)))
    options = {
        "TCP_KEEPIDLE": probe_s,
        "TCP_KEEPALIVE": probe_s,  # macOS has this name for TCP_KEEPIDLE
        "TCP_KEEPINTVL": probe_s,
        "TCP_KEEPCNT": num_probes,
        "TCP_USER_TIMEOUT": round(after_s * 1000),
    }
    numbers = [(getattr(socket, name), value) for name, value in options.items() if hasattr(socket, name)]
    if sys.platform == "darwin":
        numbers.append((0x80, math.ceil(after_s)))  # TCP_RXT_CONNDROPTIME
    elif sys.platform == "win32":
        numbers.append((5, math.ceil(after_s)))  # TCP_MAXRT
    # The connection may have ended meanwhile.
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for number, value in numbers:
            connection.setsockopt(socket.IPPROTO_TCP, number, value)
