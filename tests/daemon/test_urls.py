"""The URLs at which this machine reaches a daemon."""

from __future__ import annotations

import pytest

from edgeagent.runtime_file import bracketed, local_url


@pytest.mark.parametrize(
    ("host", "written"),
    [
        ("box.example", "box.example"),
        ("box.example:80", "box.example:80"),
        ("192.0.2.7", "192.0.2.7"),
        ("::1", "[::1]"),
        ("0:0:0:0:0:0:0:1", "[::1]"),
        ("[::1]", "[::1]"),
    ],
)
def test_only_an_ipv6_address_gets_brackets(host: str, written: str) -> None:
    assert bracketed(host) == written


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("", "http://127.0.0.1:8127"),
        ("0.0.0.0", "http://127.0.0.1:8127"),
        ("::", "http://[::1]:8127"),
        ("fd00::2", "http://[fd00::2]:8127"),
        ("localhost", "http://localhost:8127"),
    ],
)
def test_a_server_on_every_address_is_reached_on_loopback(host: str, url: str) -> None:
    assert local_url(host, 8127, is_encrypted=False) == url
    assert local_url(host, 8127, is_encrypted=True) == url.replace("http:", "https:")
