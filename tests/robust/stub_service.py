"""The daemon's own router, backend and pool, with a scripted worker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from edgeagent.backends.local import LocalBackend
from edgeagent.config import Config, EngineConfig
from edgeagent.router.router import Router
from edgeagent.types import WorkerState
from edgeagent.worker.parent.pool.loading import ModelSource
from edgeagent.worker.parent.pool.pool import Pool
from tests.stub_worker import stub_command
from tests.worker.support import QUICK, eventually, found_at


@asynccontextmanager
async def stub_service(lives: Path, *starts: str, parallel: int = 2, max_waiting: int = 3) -> AsyncIterator[Router]:
    """Run a service whose worker follows the text of each request; it is ready when yielded."""
    config = Config(engine=EngineConfig(parallel=parallel, max_waiting=max_waiting))
    pool = Pool(
        config,
        ModelSource(lambda _: found_at(Path("stub.gguf"), "stub"), lambda _: None),
        command=stub_command(lives, *starts),
        limits=QUICK,
    )
    router = Router([LocalBackend(pool)])
    await router.start()
    try:
        await eventually(
            lambda: bool(router.models.statuses()) and router.models.statuses()[0].state is WorkerState.READY
        )
        yield router
    finally:
        await router.stop()
