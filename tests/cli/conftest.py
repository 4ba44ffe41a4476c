"""A scripted daemon beside a synchronous test: the WebSocket stub of the client's tests, in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.client.daemon_stub import Act, DaemonStub, running_stub

StartStub = Callable[..., DaemonStub]


@contextmanager
def _stub_in_thread(*script: Act) -> Iterator[DaemonStub]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    manager = running_stub(*script)
    try:
        yield asyncio.run_coroutine_threadsafe(manager.__aenter__(), loop).result()
    finally:
        asyncio.run_coroutine_threadsafe(manager.__aexit__(None, None, None), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def start_stub() -> Iterator[StartStub]:
    """Return a function from a script to a stub that plays it until the test ends."""
    with ExitStack() as stack:
        yield lambda *script: stack.enter_context(_stub_in_thread(*script))
