"""Where the client connects to."""

from __future__ import annotations

import pytest

from edgeagent.client.address import Address, is_loopback


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8127", "ws://127.0.0.1:8127/v1/responses"),
        ("http://127.0.0.1:8127/v1/", "ws://127.0.0.1:8127/v1/responses"),
        ("https://box.example/v1", "wss://box.example/v1/responses"),
        ("ws://localhost:1/v1/responses", "ws://localhost:1/v1/responses"),
        ("wss://box.example", "wss://box.example/v1/responses"),
    ],
)
def test_any_form_of_the_url_leads_to_the_responses_socket(url: str, expected: str) -> None:
    assert Address(url).websocket_url == expected


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("ws://127.0.0.1:1/x", True),
        ("ws://127.9.9.9/x", True),
        ("ws://[::1]:1/x", True),
        ("ws://localhost/x", True),
        ("ws://localhost.example/x", False),
        ("ws://10.0.0.1/x", False),
    ],
)
def test_loopback_is_told_from_the_network(url: str, expected: bool) -> None:
    assert is_loopback(url) is expected
