"""Deletes cached prompts while the daemon serves: in the memory of its workers, and on disk."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

from edgeagent import cache_folder
from edgeagent.errors import InternalError, ModelNotFound, NotSupported, WorkerCrashed
from edgeagent.service.service import Service
from edgeagent.types import PurgeCache, WorkerState


async def purge_cache(service: Service, folder: Path, client: str | None) -> None:
    """Delete the cached prompts of one client ("" is the owner), or of all clients if `client` is None.

    Running requests continue. `folder` is the cache's folder on disk. Raise InternalError if a file in it cannot be
    removed. Errors of Models.ask are raised too, except for models that are a remote's, or gone by then.
    """
    for status in service.models.statuses():
        if status.state is WorkerState.READY:
            # A remote's model has no cache here. The memory of a worker that has ended is gone.
            with suppress(NotSupported, ModelNotFound, WorkerCrashed):
                await service.models.ask(status.name, PurgeCache(client))
    try:
        # This also deletes blocks that no worker has: those of other models, settings and processes.
        await asyncio.to_thread(cache_folder.purge, folder, client)
    except OSError as error:
        raise InternalError(f"cannot remove everything from {folder}: {error.strerror}") from None
