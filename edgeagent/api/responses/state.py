"""What the Responses API keeps: stored responses, and responses that are generated in the background."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Self

from edgeagent.api.responses.items.as_json import decode_items, encode_items
from edgeagent.config import Config
from edgeagent.conversation.items import ItemFormat
from edgeagent.conversation.store import FILE, ResponseStore, stored_limits

# The file of stored responses keeps items in the JSON form of the wire.
ITEM_FORMAT = ItemFormat(encode_items, decode_items)
# How long `close` waits for background responses to end, twice at most. The drain has cancelled them before.
TASKS_S = 0.5


class Responses:
    """The state of the Responses API in one daemon: the store, and the tasks of background responses."""

    def __init__(self, store: ResponseStore) -> None:
        self.store = store
        self._tasks: set[asyncio.Task[object]] = set()

    @classmethod
    def of(cls, config: Config, folder: Path | None) -> Self:
        """Return the state. Its file in `folder` is opened when the first response is stored or asked for.

        Without a folder, or with `forget`, the responses are kept in memory only.
        """
        path = folder / FILE if folder is not None and not config.forget else None
        return cls(ResponseStore(ITEM_FORMAT, path, stored_limits(config.server)))

    @property
    def trouble(self) -> str | None:
        """Why responses wait in memory for their file, for example a full disk; None if none waits."""
        return self.store.trouble

    def carry_on(self, work: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine in the background. It does not end when a client disconnects."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Wait TASKS_S seconds for background responses to end, cancel the others, and release the file."""
        try:
            if self._tasks:
                _, unended = await asyncio.wait(self._tasks, timeout=TASKS_S)
                for task in unended:
                    task.cancel()
                if unended:
                    await asyncio.wait(unended, timeout=TASKS_S)
        finally:
            await self.store.close()
