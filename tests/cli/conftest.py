"""A scripted daemon beside a synchronous test: the WebSocket stub of the client's tests, in a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.cli.threads import in_thread
from tests.client.daemon_stub import DaemonStub, running_stub

StartStub = Callable[..., DaemonStub]


@pytest.fixture
def start_stub() -> Iterator[StartStub]:
    """Return a function from a script to a stub that plays it until the test ends."""
    with ExitStack() as stack:
        yield lambda *script: stack.enter_context(in_thread(running_stub(*script)))
