"""Signs that the network has changed: the local address of the route to a peer, and how long the machine has slept.

Nothing is sent: connecting or binding a datagram socket only makes the kernel look up the route.
"""

from __future__ import annotations

import socket
import time

# An address that no machine has (RFC 5737), for remotes to which there was no connection yet.
NOWHERE = ("192.0.2.1", 9)


def source_of(peer: tuple[str, int]) -> str:
    """Return the local address that the route to a peer uses; "" if there is no route."""
    try:
        with socket.socket(_family(peer[0]), socket.SOCK_DGRAM) as probe:
            probe.connect(peer)
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def is_ours(address: str) -> bool:
    """Whether this machine currently has an address."""
    try:
        with socket.socket(_family(address), socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
            return True
    except OSError:
        return False


def seconds_asleep() -> float:
    """Return how many seconds the machine has slept since it was started; 0 if the system has no clock for it."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return 0.0 if boot is None else time.clock_gettime(boot) - time.clock_gettime(time.CLOCK_MONOTONIC)


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
