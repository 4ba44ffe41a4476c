"""What the thread of a ResponseStore does: it reads and writes the database, and keeps what could not be written.

Only a daemon that stores responses imports this module, since SQLite takes 0.9 MB.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from edgeagent.conversation.database import ResponseDatabase
from edgeagent.conversation.history import (
    ConversationTurn,
    Limits,
    ListedConversation,
    MissingIds,
    StoredResponse,
    StoreResult,
)
from edgeagent.conversation.items import Item, ItemFormat
from edgeagent.errors import InvalidRequest, StoreError
from edgeagent.router.policy import strictest
from edgeagent.sqlite_files import DamagedError, LazyDatabase
from edgeagent.types import RouteMode

# The most responses, and their bytes, that wait in memory after a failed write. They are tried again at the next `add`
# and at `close`.
MAX_UNWRITTEN = 64
MAX_UNWRITTEN_BYTES = 64 << 20
WARN_EVERY_S = 60.0

logger = logging.getLogger(__name__)

T = TypeVar("T")


class ThreadState:
    """The state of the store's thread: the database once it is open, and responses not written yet.

    Other threads may only read `trouble`.
    """

    def __init__(self, path: Path | None, limits: Limits, clock: Callable[[], float], form: ItemFormat) -> None:
        self._database = LazyDatabase(lambda: ResponseDatabase(path, limits, clock, form), path)
        self._unwritten: OrderedDict[str, tuple[StoredResponse, bytes]] = OrderedDict()
        self._warned_at_s = -WARN_EVERY_S
        self._last_error = ""
        self.trouble: str | None = None

    def find(self, missing: MissingIds, partition: str) -> StoreResult:
        try:
            return self._find(missing, partition)
        except InvalidRequest as refusal:
            return StoreResult(refusal=refusal)

    def _find(self, missing: MissingIds, partition: str) -> StoreResult:
        previous = None
        if missing.previous_id is not None:
            previous = self.get(missing.previous_id, partition)
        items: dict[str, Item] = {}
        route: RouteMode | None = None
        if missing.item_ids:
            items, route = self._try(lambda database: database.find_items(missing.item_ids, partition), (items, route))
            wanted = frozenset(missing.item_ids)
            for response, _ in self._unwritten.values():
                if response.partition == partition:
                    those = {item.id: item for item in response.items if item.id in wanted}
                    items |= those
                    route = strictest(route, response.route if those else None)
        return StoreResult(previous, items, route)

    def get(self, response_id: str, partition: str) -> StoredResponse | None:
        if (unwritten := self._unwritten_of(response_id, partition)) is not None:
            return unwritten[0]
        return self._try(lambda database: database.get(response_id, partition), None)

    def add(self, response: StoredResponse, body: bytes) -> None:
        self._unwritten[response.id] = (response, body)
        self._write_waiting()
        sizes = [len(body) + response.num_bytes for response, body in self._unwritten.values()]
        while len(sizes) > 1 and (len(sizes) > MAX_UNWRITTEN or sum(sizes) > MAX_UNWRITTEN_BYTES):
            self._unwritten.popitem(last=False)
            del sizes[0]
        self._set_trouble()

    def body(self, response_id: str, partition: str) -> bytes | None:
        if (unwritten := self._unwritten_of(response_id, partition)) is not None:
            return unwritten[1]
        return self._try(lambda database: database.body(response_id, partition), None)

    def conversations(self, partition: str, limit: int) -> list[ListedConversation]:
        return self._try(lambda database: database.conversations(partition, limit), [])

    def conversation(self, root_id: str, partition: str) -> list[ConversationTurn]:
        return self._try(lambda database: database.conversation(root_id, partition), [])

    def remove(self, response_id: str, partition: str) -> bool:
        if self._unwritten_of(response_id, partition) is not None:
            del self._unwritten[response_id]
            self._set_trouble()
            return True
        is_removed = self._try(lambda database: database.remove(response_id, partition), None)
        if is_removed is None:
            raise StoreError(f"the stored response could not be deleted ({self._last_error}); delete it again later")
        return is_removed

    def close(self) -> None:
        # The disk may have room for the unwritten responses by now.
        self._write_waiting()
        self._database.close()

    def _write_waiting(self) -> None:
        for unwritten in list(self._unwritten.values()):
            if not self._try(partial(_write, *unwritten), False):
                break
            del self._unwritten[unwritten[0].id]

    def _set_trouble(self) -> None:
        count = len(self._unwritten)
        waiting = f"{count} stored response{'s' if count > 1 else ''} in memory only: {self._last_error}"
        self.trouble = waiting if count else None

    def _unwritten_of(self, response_id: str, partition: str) -> tuple[StoredResponse, bytes] | None:
        entry = self._unwritten.get(response_id)
        return entry if entry is not None and entry[0].partition == partition else None

    def _try(self, act: Callable[[ResponseDatabase], T], otherwise: T) -> T:
        """Return what `act` returns, or `otherwise` if the database fails."""
        try:
            return self._database.use(act)
        except (DamagedError, sqlite3.Error, OSError) as error:
            self._last_error = str(error)
            if time.monotonic() - self._warned_at_s >= WARN_EVERY_S:
                self._warned_at_s = time.monotonic()
                text = "stored responses cannot be read or written (%s); new ones stay in memory for now"
                logger.warning(text, error)
            return otherwise


def _write(response: StoredResponse, body: bytes, database: ResponseDatabase) -> bool:
    database.add(response, body)
    return True
