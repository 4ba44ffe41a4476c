"""The stored responses of all connections. One thread owns their file, so that the event loop never waits for a disk.

If the file cannot be used, only deletions fail. A response that cannot be read counts as not found. A response that
cannot be written waits in memory. If too many or too large ones wait, the oldest are lost. A damaged file is renamed,
and a warning is logged.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakSet

from edgeagent.config import ServerConfig
from edgeagent.conversation.history import (
    ConnectionHistory,
    ConversationTurn,
    Limits,
    ListedConversation,
    MissingIds,
    StoredResponse,
    StoreResult,
)
from edgeagent.conversation.items import ItemFormat
from edgeagent.freed_memory import MUCH_BYTES, FreedMemory

if TYPE_CHECKING:
    from edgeagent.conversation.store_thread import ThreadState

FILE = "responses.sqlite3"

T = TypeVar("T")


def stored_limits(server: ServerConfig) -> Limits:
    return Limits(max_bytes=server.max_stored_bytes, max_age_s=server.max_stored_days * 86400.0)


class ResponseStore:
    """The stored responses in a file, or in memory if `path` is None. The file is opened at its first use.

    `form`: how items are written. The methods must be called in the event loop.
    """

    def __init__(
        self,
        form: ItemFormat,
        path: Path | None = None,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path, self._limits, self._clock, self._form = path, limits or Limits(), clock, form
        self._state: ThreadState | None = None  # made by the thread, at the first use
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="responses")
        self._histories: WeakSet[ConnectionHistory] = WeakSet()
        self._freed = FreedMemory()
        self._is_closed = False

    @property
    def trouble(self) -> str | None:
        """Why responses wait in memory for their file, and how many; None if no response waits."""
        return None if self._state is None else self._state.trouble

    def new_history(self) -> ConnectionHistory:
        """Return the history of a new connection. `remove` removes responses from this history too."""
        history = ConnectionHistory()
        self._histories.add(history)
        return history

    async def find(self, missing: MissingIds, partition: str) -> StoreResult:
        """Return the previous response and the items that `missing` names, if this partition has them.

        The result is a refusal if too much must be read.
        """
        if not missing:
            return StoreResult()
        result = await self._ask(lambda state: state.find(missing, partition))
        if result.previous is not None and result.previous.num_bytes >= MUCH_BYTES:
            self._freed.plan()
        return result

    async def get(self, response_id: str, partition: str) -> StoredResponse | None:
        """Return a response of this partition, even if it failed; None if there is no such response.

        Raise InvalidRequest if its conversation is too long.
        """
        return await self._ask(lambda state: state.get(response_id, partition))

    def add(self, response: StoredResponse, body: bytes) -> asyncio.Future[None]:
        """Store a response and its JSON, unless it is not storable. The future is done after the write.

        If the file cannot be written, the future is done without an error, and the response waits in memory (see
        `trouble`). The write continues even if the caller is cancelled.
        """
        if not response.is_storable:
            done = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done
        return asyncio.shield(self._ask(lambda state: state.add(response, body)))

    async def body(self, response_id: str, partition: str) -> bytes | None:
        """Return the JSON of a response of this partition; None if there is no such response."""
        return await self._ask(lambda state: state.body(response_id, partition))

    async def conversations(self, partition: str, limit: int) -> list[ListedConversation]:
        """Return this partition's conversations in the file, the last continued first."""
        return await self._ask(lambda state: state.conversations(partition, limit))

    async def conversation(self, root_id: str, partition: str) -> list[ConversationTurn]:
        """Return a response of this partition and all that continue it; [] if there is no such response in the file.

        Raise InvalidRequest if they are too long.
        """
        return await self._ask(lambda state: state.conversation(root_id, partition))

    async def remove(self, response_id: str, partition: str) -> bool:
        """Delete a response of this partition, also from every connection's history. Return False if there is none.

        Raise StoreError if the file cannot be changed.
        """
        is_removed = await self._ask(lambda state: state.remove(response_id, partition))
        if is_removed:
            for history in self._histories:
                history.forget(response_id)
        return is_removed

    async def close(self) -> None:
        """Finish earlier calls, try to write the waiting responses, and release the file.

        Afterwards only `close` may be called.
        """
        if not self._is_closed:
            self._is_closed = True
            await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
            self._thread.shutdown(wait=False)

    def _ask(self, act: Callable[[ThreadState], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._thread, self._do, act)

    def _do(self, act: Callable[[ThreadState], T]) -> T:
        if self._state is None:
            from edgeagent.conversation.store_thread import ThreadState  # only now, for SQLite takes 0.9 MB

            self._state = ThreadState(self._path, self._limits, self._clock, self._form)
        return act(self._state)

    def _close(self) -> None:
        if self._state is not None:
            self._state.close()
