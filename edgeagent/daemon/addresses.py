"""The URLs at which other machines reach the daemon."""

from __future__ import annotations

import ipaddress
import socket
from contextlib import suppress

import psutil

from edgeagent.runtime_file import bracketed

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
