"""Fetches images from the addresses that clients name, if the owner allows their hosts (server.image_hosts).

An address may be an attack on what this machine can reach. So a host must be allowed by name, a host that only a
pattern allows must have public addresses, and redirects are not followed. Each address has its row in the egress ledger
before it is sent.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from urllib.parse import SplitResult, urlsplit
from weakref import WeakValueDictionary

from edgeagent.backends.remote.failures import Failure, Kind
from edgeagent.backends.remote.transport import get, tls_context
from edgeagent.egress import FETCH
from edgeagent.egress.ledger import Ledger
from edgeagent.errors import EdgeAgentError
from edgeagent.machine_policy import PolicyFile
from edgeagent.remotes import Tls
from edgeagent.types import MAX_MEDIA_BYTES

MAX_URL_CHARS = 2048
CONNECT_S = 5.0
TOTAL_S = 20.0
"""Timeout for one address, with the wait for its turn and all of its image."""
MAX_CONCURRENT, MAX_OF_CLIENT = 8, 4
"""The most images that are fetched at a time, for all clients and for one. Others wait."""
MAX_KEPT_BYTES = 32 << 20
KEPT_S = 600.0
"""How long an image is kept, since chat clients send a conversation's addresses again with each question."""
_PORTS = {"https": 443, "http": 80}
_HOST = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_.])?|[0-9a-f:.]+")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class ImageFetcher:
    """Fetches images for all clients of a daemon. Use it on the event loop's thread."""

    def __init__(self, hosts: Sequence[str], policy: PolicyFile, ledger: Ledger) -> None:
        """`hosts`: see ServerConfig.image_hosts. The policy may allow fewer of them."""
        self._hosts = tuple(hosts)
        self._policy = policy
        self._ledger = ledger
        self._contexts: dict[str | None, ssl.SSLContext] = {}  # by the policy's ca_file
        self._turns = asyncio.Semaphore(MAX_CONCURRENT)
        self._turns_of = WeakValueDictionary[str, asyncio.Semaphore]()  # by client
        self._kept: OrderedDict[tuple[str, str], tuple[float, bytes]] = OrderedDict()  # by client and address

    def why_not(self, url: str) -> str:
        """Return why an address may not be fetched, as the end of a sentence about it; "" if it may be."""
        try:
            parts = _parsed(url)
        except ValueError as error:
            return str(error)
        policy = self._policy.policy
        if why := self._policy.why_local:
            return f"is an address, and nothing may leave this machine: {why}"
        if policy.proxy is not None:
            return f"is an address, and images are not fetched through the proxy of the policy {self._policy.path}"
        if not _allowed(parts, self._hosts):
            return f"is an address of {parts.netloc[:200]}, which server.image_hosts does not allow"
        if policy.image_hosts is not None and not _allowed(parts, policy.image_hosts):
            return f"is an address of {parts.netloc[:200]}, which the machine's policy does not allow (image_hosts)"
        return ""

    async def fetch(
        self, urls: Iterable[str], client: str, count: Callable[[str, int], None]
    ) -> dict[str, bytes | str]:
        """Return for each address the bytes of its file, or why there are none, as the end of a sentence about it.

        `why_not` must be empty for each. `client`: who asked, for its turns and the ledger. `count` is told whenever
        more of an address has come, with the bytes that it has so far. The caller limits the bytes of all addresses
        together, by cancelling the call.
        """
        urls = list(dict.fromkeys(urls))
        fetched = await asyncio.gather(*(self._fetch_or_not(url, client, partial(count, url)) for url in urls))
        return dict(zip(urls, fetched, strict=True))

    async def _fetch_or_not(self, url: str, client: str, count: Callable[[int], None]) -> bytes | str:
        kept = self._kept.get((client, url))
        if kept is not None and kept[0] > time.monotonic():
            return kept[1]
        own_turns = self._turns_of.setdefault(client, asyncio.Semaphore(MAX_OF_CLIENT))
        try:
            async with asyncio.timeout(TOTAL_S), own_turns, self._turns:
                data = await self._fetch(url, client, count)
        except EdgeAgentError as error:  # of the ledger, or of the policy's CA file
            why = error.message
        except Failure as failure:
            why = failure.message
        except TimeoutError:
            why = f"it took more than {TOTAL_S:g} s, with the wait for its turn"
        else:
            self._keep((client, url), data)
            return data
        count(0)
        return f"cannot be fetched: {why}"

    def _keep(self, key: tuple[str, str], data: bytes) -> None:
        now_s = time.monotonic()
        self._kept[key] = now_s + KEPT_S, data
        self._kept.move_to_end(key)
        num_bytes = sum(len(each) for _, each in self._kept.values())
        while self._kept and (num_bytes > MAX_KEPT_BYTES or next(iter(self._kept.values()))[0] < now_s):
            _, (_, oldest) = self._kept.popitem(last=False)
            num_bytes -= len(oldest)

    async def _fetch(self, url: str, client: str, count: Callable[[int], None]) -> bytes:
        parts = _parsed(url)
        context = await self._context() if parts.scheme == "https" else None
        row = self._ledger.begin_own(FETCH, url, num_bytes=len(url), client=client)
        outcome = "failed"
        try:
            may_be = None if _allowed(parts, self._hosts) == "by name" else _is_public
            status, data = await get(
                row,
                url,
                context,
                connect_s=CONNECT_S,
                may_be=may_be,
                accept="image/*",
                max_bytes=MAX_MEDIA_BYTES,
                count=count,
            )
            _check_status(status)
            outcome = "completed"
            return data
        finally:
            self._ledger.end(row, outcome)

    async def _context(self) -> ssl.SSLContext:
        ca_file = self._policy.policy.ca_file
        if ca_file not in self._contexts:
            # In a thread: it reads all CAs of the system.
            self._contexts[ca_file] = await asyncio.to_thread(tls_context, Tls(ca_file=ca_file))
        return self._contexts[ca_file]


def _check_status(status: int) -> None:
    if 300 <= status < 400:
        raise Failure(Kind.REDIRECT, "it leads to another address, and redirects are not followed", status=status)
    if status != 200:
        raise Failure(Kind.REJECTED, f"its server answered with the status {status}", status=status)


def _parsed(url: str) -> SplitResult:
    """Return the parts of an address; raise ValueError if it is malformed, as the end of a sentence about it."""
    if len(url) > MAX_URL_CHARS or not url.isascii() or any(char <= " " or char in "\\\x7f" for char in url):
        raise ValueError(f"must be an address of at most {MAX_URL_CHARS} characters of ASCII without blanks")
    parts = urlsplit(url)  # or ValueError
    host, _ = parts.hostname or "", parts.port
    if parts.scheme not in _PORTS or not _HOST.fullmatch(host) or "@" in parts.netloc:
        raise ValueError("must be an address http://host/path or https://host/path, without a user name")
    return parts


def _allowed(parts: SplitResult, hosts: Sequence[str]) -> str:
    """Return how an address is allowed, "by name" or "by a pattern"; "" if it is not."""
    found = {how for entry in hosts if (how := _matches(parts, entry))}
    return "by name" if "by name" in found else next(iter(found), "")


def _matches(parts: SplitResult, entry: str) -> str:
    allowed = urlsplit(f"//{entry}")
    host, name = (parts.hostname or "").rstrip("."), (allowed.hostname or "").rstrip(".")
    default = _PORTS[parts.scheme]
    if (parts.port or default) != (allowed.port or default):
        return ""
    if host == name:
        return "by name"
    is_address = ":" in host or host.replace(".", "").isdecimal()
    is_like = name == "*" or (name.startswith("*.") and host.endswith(name[1:]))
    return "by a pattern" if is_like and not is_address else ""


def _is_public(host: str, address: str) -> bool:
    """Whether a host that a pattern allows may have this address: not on this machine, nor in a private network."""
    del host
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        # These lead to the IPv4 address in them.
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo and ip.teredo[1])
        ip = inner or (ipaddress.IPv4Address(int(ip) & 0xFFFF_FFFF) if ip in _NAT64 else ip)
    return ip.is_global and not ip.is_multicast
