"""Which of several addresses of a name is connected to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from edgeagent.backends.remote import network


async def test_a_failure_hides_no_connection_that_succeeds_in_the_same_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    connection, come = object(), asyncio.Event()

    async def connect(address: str, port: int) -> Any:
        if address == "192.0.2.1":
            come.set()
        await come.wait()
        if address in ("192.0.2.2", "192.0.2.3"):
            return connection
        raise ConnectionRefusedError

    monkeypatch.setattr(network, "_connect", connect)
    monkeypatch.setattr(network, "_STAGGER_S", 0.0)
    monkeypatch.setattr(network, "_close_late", lambda task: None)
    for good in ("192.0.2.2", "192.0.2.3"):
        come.clear()
        addresses = [good, *(f"198.51.100.{last}" for last in range(8)), "192.0.2.1"]
        assert await network._connect_first(addresses, 9) is connection
