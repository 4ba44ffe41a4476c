"""How the policy restricts a remote."""

from __future__ import annotations

import pytest

from edgeagent.machine_policy import CLOSED, MachinePolicy, under, why_forbidden
from edgeagent.remotes import EndpointConfig, Remote, Tls
from edgeagent.remotes.check import checked


def remote(*urls: str, **fields: object) -> Remote:
    return checked(Remote("gpu", tuple(map(EndpointConfig, urls)), plaintext=True, **fields))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "hosts", "is_allowed"),
    [
        ("https://gpu.example", ("gpu.example",), True),
        ("https://GPU.Example", ("gpu.example",), True),
        ("https://gpu.example", ("GPU.example",), True),
        ("https://gpu.example.", ("gpu.example",), True),
        ("https://gpu.example:8443", ("gpu.example",), True),
        ("https://gpu.example:8443", ("gpu.example:8443",), True),
        ("https://gpu.example:8443", ("gpu.example:443",), False),
        ("https://gpu.example", ("gpu.example:443",), True),
        ("http://gpu.example", ("gpu.example:443",), False),
        ("http://gpu.example", ("gpu.example:80",), True),
        ("https://gpu.example", ("other.example", "gpu.example"), True),
        ("https://a.gpu.example", ("gpu.example",), False),
        ("https://evilgpu.example", ("*.gpu.example",), False),
        ("https://gpu.example.evil.example", ("gpu.example", "*.gpu.example"), False),
        ("https://a.gpu.example", ("*.gpu.example",), True),
        ("https://a.b.gpu.example", ("*.gpu.example",), True),
        ("https://gpu.example", ("*.gpu.example",), False),
        ("https://10.0.0.5", ("10.0.0.5",), True),
        ("https://10.0.0.55", ("10.0.0.5",), False),
        ("http://[::1]:8000", ("[::1]:8000",), True),
        ("http://[::1]:8001", ("[::1]:8000",), False),
        ("http://127.0.0.1:1", (), False),
    ],
)
def test_a_host_is_on_the_list_or_not(url: str, hosts: tuple[str, ...], is_allowed: bool) -> None:
    why = why_forbidden(MachinePolicy(remote_hosts=hosts), remote(url))
    assert (why == "") == is_allowed
    assert is_allowed or why.endswith("is not among its remote_hosts")


def test_every_endpoint_must_be_allowed() -> None:
    policy = MachinePolicy(remote_hosts=("a.example", "b.example"))
    assert why_forbidden(policy, remote("https://a.example", "https://b.example")) == ""
    assert "c.example" in why_forbidden(policy, remote("https://a.example", "https://c.example"))
    assert why_forbidden(CLOSED, remote("https://a.example"))


def test_the_ca_of_the_policy_takes_the_place_of_the_remotes_own() -> None:
    policy = MachinePolicy(ca_file="/etc/ca.pem")
    mine = remote("https://gpu.example", tls=Tls(ca_file="/home/me/ca.pem", pin="ab" * 32))
    assert under(policy, mine).tls == Tls(ca_file="/etc/ca.pem", pin="ab" * 32)
    assert "is not encrypted" in why_forbidden(policy, remote("http://gpu.example"))
    assert why_forbidden(policy, remote("http://127.0.0.1:8000")) == ""
    assert under(MachinePolicy(), mine) == mine


def test_the_proxy_of_the_policy_is_for_what_is_on_other_machines() -> None:
    policy = MachinePolicy(proxy="http://proxy.example:3128")
    assert under(policy, remote("https://gpu.example", proxy="http://mine.example")).proxy == policy.proxy
    assert under(policy, remote("http://127.0.0.1:1", "https://gpu.example")).proxy == policy.proxy
    assert under(policy, remote("http://127.0.0.1:1", "http://localhost:2")).proxy is None
