"""Resolves host names. Each lookup has its own thread, since a resolver may hang.

Addresses are not cached, since they may change with the network.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import threading

_MAX_LOOKUPS = 16
_running_lookups: set[int] = set()


async def resolve(host: str, port: int) -> list[str]:
    """Return a host's addresses in the order to try, without those that `_may_be` forbids for a remote.

    If `host` is an address itself, it is returned without this check. The result is empty if all of the host's
    addresses are forbidden. Raise OSError if the host has no address, or if too many earlier lookups still hang.
    """
    try:
        ipaddress.ip_address(host)
    except ValueError:
        allowed = [address for address in await _look_up(host, port) if _may_be(host, address)]
        return _alternating(allowed) if allowed else []
    return [host]


async def _look_up(host: str, port: int) -> list[str]:
    """Resolve a name in a new thread. Raise OSError if too many earlier lookups still hang."""
    if len(_running_lookups) >= _MAX_LOOKUPS:
        raise OSError(f"{_MAX_LOOKUPS} earlier lookups still hang")
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[str]] = loop.create_future()
    number = id(answer)
    _running_lookups.add(number)

    def tell(found: list[str] | OSError) -> None:
        _running_lookups.discard(number)
        if answer.done():
            return
        if isinstance(found, OSError):
            answer.set_exception(found)
        else:
            answer.set_result(found)

    def ask() -> None:
        found: list[str] | OSError
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found = list(dict.fromkeys(str(info[4][0]) for info in infos))
        except OSError as error:
            found = error
        except UnicodeError:
            found = OSError("it is not a valid host name")
        with contextlib.suppress(RuntimeError):  # the loop is closed, and no task waits
            loop.call_soon_threadsafe(tell, found)

    threading.Thread(target=ask, name="edgeagent-dns", daemon=True).start()
    return await answer


def _may_be(host: str, address: str) -> bool:
    """Whether a remote with this host name may have this address.

    A name must not resolve to this machine, to a link-local address such as a cloud's metadata service, or to a
    multicast or unspecified address. Such a result is a mistake of the resolver or a DNS rebinding attack. An owner
    who means such an address configures the address itself, or localhost. The name localhost must resolve to this
    machine, because no TLS is required for it. Private networks are allowed, because clusters are there.
    """
    ip = ipaddress.ip_address(address.partition("%")[0])
    # The system connects to ::ffff:127.0.0.1 as to 127.0.0.1.
    ip = getattr(ip, "ipv4_mapped", None) or ip
    if ip.is_link_local or ip.is_multicast or ip.is_unspecified:
        return False
    return ip.is_loopback == (host == "localhost" or host.endswith(".localhost"))


def _alternating(addresses: list[str]) -> list[str]:
    """Alternate IPv4 and IPv6 addresses, beginning with the IP version of the resolver's first address (RFC 8305)."""
    first_kind = ":" in addresses[0]
    ours = [address for address in addresses if (":" in address) == first_kind]
    others = [address for address in addresses if (":" in address) != first_kind]
    mixed: list[str] = []
    while ours or others:
        for kind in (ours, others):
            if kind:
                mixed.append(kind.pop(0))
    return mixed
