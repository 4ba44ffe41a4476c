"""Which values of the Host header are accepted. This check stops DNS rebinding.

In DNS rebinding, the host name of a web page resolves to this machine. The page's requests then have that name as Host.
A name is accepted only if it is the daemon's own, or if the owner allows it. If the daemon listens beyond loopback, an
IP address is accepted if it is the connection's local address. So an interface that came up later works too.
"""

from __future__ import annotations

import ipaddress
import re
import socket
import threading
from contextlib import suppress

from starlette.types import Scope

from edgeagent.api.gate.access import is_unix
from edgeagent.config import ServerConfig
from edgeagent.runtime_file import bracketed

_DEFAULT_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443}
_PAGE_SCHEMES = {"http": "http", "ws": "http", "https": "https", "wss": "https"}
_LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
_WILDCARDS = ("", "*", "0.0.0.0", "::", "[::]")  # noqa: S104 compared, not bound
# A name, or an address in brackets, and a port without zeros before it.
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:/?#@,\s]+)(?::([1-9][0-9]{0,4}))?")


class Hosts:
    """The daemon's own hosts: loopback, the address that it listens on, and the hosts that the owner allows.

    If the daemon listens beyond loopback, the machine's names and the connection's local address are own hosts too.
    """

    def __init__(self, server: ServerConfig) -> None:
        self._names = set(_LOOPBACK_NAMES)
        if server.host not in _WILDCARDS:
            self._names.add(bracketed(server.host.lower()))
        self._is_beyond_loopback = not server.is_loopback
        if self._is_beyond_loopback:
            self._names |= machine_names()
            # Finding the full name may ask the network, which may be slow.
            self.full_name = threading.Thread(target=self._add_full_name, name="full-name", daemon=True)
            self.full_name.start()
        self._allowed = {bracketed(host.lower()) for host in server.allowed_hosts}

    def is_own(self, host: str, scope: Scope) -> bool:
        """Whether the Host header `host` names this daemon, or is allowed, on the connection that `scope` describes."""
        match = _HOST.fullmatch(host.lower())
        if match is None:
            return False
        name, port = match[1], match[2]
        # A host that is allowed without a port is allowed with any port: a proxy before the daemon has its own ports.
        return name in self._allowed or host.lower() in self._allowed or self._is_served(name, port, scope)

    def example(self, scope: Scope) -> str:
        """Return a value of the Host header that this connection accepts."""
        server = scope.get("server")
        return f"127.0.0.1:{server[1]}" if server and not is_unix(scope) else "localhost"

    def own_origin(self, host: str, scope: Scope) -> bytes | None:
        """Return the Origin of the daemon's own pages at this Host, as browsers write it; None if there is none.

        There is an Origin only if Host is the IP address and port on which the connection came in. A name may lead to
        another program: `localhost` to a program that listens on [::1], or an allowed name to a proxy. A Unix socket
        has no port, and therefore no origin.
        """
        match = _HOST.fullmatch(host.lower())
        server = scope.get("server")
        if match is None or not server or is_unix(scope) or not self._is_port_own(match[2], scope):
            return None
        address = _address(match[1].strip("[]"))
        if address is None or address != _address(server[0]):
            return None
        is_default = match[2] is None or int(match[2]) == _DEFAULT_PORTS[scope["scheme"]]
        return f"{_PAGE_SCHEMES[scope['scheme']]}://{match[1]}{'' if is_default else f':{match[2]}'}".encode()

    def _is_served(self, name: str, port: str | None, scope: Scope) -> bool:
        """Whether the daemon itself listens under this name and port."""
        return self._is_port_own(port, scope) and (name in self._names or self._is_local_address(name, scope))

    def _is_port_own(self, port: str | None, scope: Scope) -> bool:
        server = scope.get("server")
        own = server[1] if server else None
        if port is None:
            # Without a port, Host means the scheme's default port (RFC 9110, section 7.2). A Unix socket has no port.
            return is_unix(scope) or own == _DEFAULT_PORTS.get(scope["scheme"])
        return own is not None and int(port) == own

    def _is_local_address(self, name: str, scope: Scope) -> bool:
        server = scope.get("server")
        if not self._is_beyond_loopback or not server:
            return False
        asked, local = _address(name.strip("[]")), _address(server[0])
        return asked is not None and asked == local

    def _add_full_name(self) -> None:
        with suppress(OSError, UnicodeError):
            name = socket.getfqdn().lower()
            # Some resolvers answer with an address, or with loopback's name for every machine.
            if _HOST.fullmatch(name) and _address(name) is None and not name.startswith("localhost"):
                self._names = {*self._names, name}


def machine_names() -> set[str]:
    """Return this machine's host name, the name's first label, and its name in mDNS. Send nothing to the network.

    Return an empty set if the host name is not valid, or begins with `localhost`.
    """
    name = socket.gethostname().lower().rstrip(".")
    if not _HOST.fullmatch(name) or name.startswith("localhost"):
        return set()
    short = name.partition(".")[0]
    return {name, short, f"{short}.local"}


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
