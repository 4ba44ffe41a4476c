"""A daemon with two models, for the modules of this folder that define no other."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from edgeagent.config import Config, StoreConfig
from tests.api.services import Answering
from tests.daemon.running import Running, running


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def daemon(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    folder = tmp_path_factory.mktemp("ollama")
    config = Config(model="fake", state_dir=folder, store=StoreConfig(models_dir=folder / "models"))
    async with running(Answering(models=("fake", "org/repo:Q4_K_M")), config) as daemon:
        yield daemon
