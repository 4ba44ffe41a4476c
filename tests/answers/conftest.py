"""The file of a model, for caches that look whether it changes, and a real server that keeps answers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from edgeagent.types import MemoryKind
from tests.answers.redis_server import PROGRAMS, RedisServer
from tests.conftest import TinyModel


@pytest.fixture
def model_file(tiny_model: TinyModel, tmp_path: Path) -> Path:
    """Return the path of a copy of a tiny model, which a test may replace."""
    return Path(shutil.copy(tiny_model(MemoryKind.FULL_ATTENTION), tmp_path / "fake.gguf"))


@pytest.fixture(scope="module", params=PROGRAMS or ("",), ids=lambda program: Path(program).name)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Yield a running server of each kind that is installed."""
    server = RedisServer(tmp_path_factory.mktemp("redis"), program=request.param)
    yield server
    server.stop()


@pytest.fixture
def empty(server: RedisServer) -> RedisServer:
    """Return the server without any content."""
    with server.client() as client:
        client.flushall()
    return server
