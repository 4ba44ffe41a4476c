"""Applies the machine's policy to a remote: decides whether its hosts are allowed, and sets its CA and proxy."""

from __future__ import annotations

from urllib.parse import urlsplit

from msgspec.structs import replace

from edgeagent.machine_policy import MachinePolicy
from edgeagent.remotes import Remote
from edgeagent.remotes.check import host_of, is_loopback

_PORTS = {"https": 443, "http": 80}


def under(policy: MachinePolicy, remote: Remote) -> Remote:
    """Return a remote with the CA and the proxy that the policy sets.

    The proxy is not set if all endpoints of the remote are on this machine.
    """
    if policy.ca_file is not None:
        remote = replace(remote, tls=replace(remote.tls, ca_file=policy.ca_file))
    if policy.proxy is not None and not all(is_loopback(endpoint.url) for endpoint in remote.endpoints):
        remote = replace(remote, proxy=policy.proxy)
    return remote


def why_forbidden(policy: MachinePolicy, remote: Remote) -> str:
    """Return the rule of the policy that a remote breaks, in words; empty if the remote may be used."""
    for endpoint in remote.endpoints:
        if policy.remote_hosts is not None and not _is_allowed(endpoint.url, policy.remote_hosts):
            return f"{host_of(endpoint.url)} is not among its remote_hosts"
        if policy.ca_file is not None and endpoint.url.startswith("http:") and not is_loopback(endpoint.url):
            return f"{endpoint.url} is not encrypted, so its ca_file cannot be applied"
    return ""


def _is_allowed(url: str, hosts: tuple[str, ...]) -> bool:
    parts = urlsplit(url)
    host, port = (parts.hostname or "").rstrip("."), parts.port or _PORTS[parts.scheme]
    return any(_matches(host, port, allowed) for allowed in hosts)


def _matches(host: str, port: int, allowed: str) -> bool:
    parts = urlsplit(f"//{allowed}")
    name = (parts.hostname or "").rstrip(".")
    is_host = host.endswith(name[1:]) and len(host) >= len(name) if name.startswith("*.") else host == name
    return is_host and parts.port in (None, port)
