"""A4: the daemon listens on loopback alone; other addresses take a flag, a token and TLS."""

from __future__ import annotations

import pytest

from edgeagent.backends.fake import FakeBackend
from edgeagent.config import Config, ServerConfig
from tests.daemon.running import TOKEN, running
from tests.robust.raw import get


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.0.0.53", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("*", False),
        ("", False),
        ("192.168.1.2", False),
        ("localhost.evil.example", False),
        ("example.com", False),
    ],
)
def test_is_loopback(host: str, expected: bool) -> None:
    assert ServerConfig(host=host).is_loopback is expected


async def test_other_machines_always_need_the_token() -> None:
    server = ServerConfig(host="0.0.0.0", allowed_hosts=("box.example",))
    async with running(FakeBackend(), Config(server=server)) as daemon:
        assert (await get(daemon, "Host: box.example")).status == 401
        assert (await get(daemon, "Host: box.example", f"Authorization: Bearer {TOKEN}")).status == 200
        assert (await get(daemon, "Host: 0.0.0.0:{port}", f"Authorization: Bearer {TOKEN}")).status == 403
