"""A daemon with a fake backend, shared by the tests of a module; a module that needs another daemon defines its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from openai import AsyncOpenAI

from tests.api.services import Answering
from tests.backends.fake import echo
from tests.daemon.running import Running, running


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def daemon() -> AsyncIterator[Running]:
    async with running(Answering()) as daemon:
        yield daemon


@pytest.fixture
def backend(daemon: Running) -> Iterator[Answering]:
    """The daemon's backend, reset for each test."""
    backend = daemon.service
    assert isinstance(backend, Answering)
    backend.reset()
    backend.queries.clear()
    backend.requests.clear()
    backend.closed.clear()
    yield backend
    backend.script = echo
    assert backend.num_live == 0


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def client(daemon: Running) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="unused", max_retries=0) as client:
        yield client
