"""The store of kept answers: what the cache asks of one, and the two that a thread owns: in a SQLite file, at a server.

A store never delays an answer by more than its `budget_s`, and never fails one: what cannot be read counts as not
found, and what cannot be written is not kept. A damaged file is set aside, and a new one begun.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Awaitable, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from edgeagent import metrics
from edgeagent.answers.answer import ID_CHARS, Answer, decode, encode
from edgeagent.answers.database import AnswerDatabase, Row
from edgeagent.answers.seal import Seal
from edgeagent.config import AnswersConfig
from edgeagent.errors import StoreError
from edgeagent.sqlite_files import DamagedError, LazyDatabase

logger = logging.getLogger(__name__)

T = TypeVar("T")
BUDGET_S = 0.05
"""How long an answer waits for the store. A read takes 0.1 ms; a busy disk or a network may take far longer."""
PATIENCE_S = ContextVar("PATIENCE_S", default=0.0)
"""How long a task waits for the store if that is longer than the budget: one that warms the cache has time."""
_MAX_USES = 64  # uses of kept answers that are written together
_MAX_WRITES = 256  # answers that wait for a slow store; a further one is not kept


@dataclass(frozen=True, slots=True)
class Listed:
    """A kept answer in the owner's list. `question`: how its last message begins. `age_s`: since it was made."""

    id: str
    partition: str
    model: str
    question: str
    text: str
    age_s: float
    num_uses: int
    num_bytes: int


class TooSlow(Exception):
    """The store did not answer within its budget, or did not in the last seconds and is not asked."""


def is_young(created_s: float, now_s: float, max_age_s: float) -> bool:
    """Whether an answer may still be given. One of a time far ahead may not: the clock was wrong then."""
    return abs(now_s - created_s) <= max_age_s


class Store(Protocol):
    """Where answers are kept. All methods are called in the event loop; none but `get` raises anything but StoreError.

    `trouble`: why it keeps nothing at the moment; None if it does. `kind`: "sqlite", for example. `is_shared`: other
    machines may keep answers there. `is_elsewhere`: answers leave this machine.
    """

    kind: str
    is_shared: bool
    is_elsewhere: bool

    @property
    def trouble(self) -> str | None: ...

    @property
    def num_answers(self) -> int | None:
        """How many answers are kept; None if that is not known."""

    @property
    def num_bytes(self) -> int | None:
        """The space that they take; None if that is not known."""

    async def start(self) -> None:
        """Open it. What fails is tried again later."""

    async def get(self, key: bytes, *, is_use: bool = True) -> Answer | None:
        """Return the answer that is kept under a key; None if there is none, or none that is young enough.

        `is_use`: count this as a use of the answer. Raise TooSlow if that takes too long.
        """

    def put(self, key: bytes, answer: Answer) -> None:
        """Keep an answer, in the background."""

    async def listed(self, partition: str | None, limit: int, offset: int = 0) -> list[Listed]:
        """Return the answers of a partition, or of all if it is None, the last used first."""

    async def forget(self, partition: str | None) -> int:
        """Forget all answers, or those of a partition. Return how many."""

    async def forget_one(self, answer_id: str, partition: str | None) -> bool:
        """Forget one answer. Return False if there is none with this id in the partition (None: in any)."""

    async def close(self) -> None:
        """Write what waits, and release everything."""


class Breaker:
    """Counts how often a store did not answer in time, and says whether to ask it. It is pure; times are monotonic.

    After `most` times in a row it is left alone for `rest_s`. Then one call tries it.
    """

    def __init__(self, most: int = 3, rest_s: float = 5.0) -> None:
        self._most, self._rest_s = most, rest_s
        self._num_failed = 0
        self._open_until_s = 0.0

    def is_open(self, now_s: float) -> bool:
        """Whether the store is left alone."""
        return now_s < self._open_until_s

    def note(self, now_s: float, *, has_answered: bool) -> None:
        """Record how a call ended."""
        self._num_failed = 0 if has_answered else self._num_failed + 1
        if self._num_failed >= self._most:
            self._open_until_s = now_s + self._rest_s


async def within(budget_s: float, breaker: Breaker, asked: Callable[[], Awaitable[T]]) -> T:
    """Return what `asked` returns. Raise TooSlow if it takes longer than `budget_s`, or if the breaker is open.

    If the task has a longer PATIENCE_S, that is the limit.
    """
    if breaker.is_open(time.monotonic()):
        raise TooSlow
    try:
        async with asyncio.timeout(max(budget_s, PATIENCE_S.get())):
            found = await asked()
    except TimeoutError:
        breaker.note(time.monotonic(), has_answered=False)
        raise TooSlow from None
    breaker.note(time.monotonic(), has_answered=True)
    return found


class Database(Protocol):
    """Where a ThreadStore keeps answers, sealed. Its methods may raise sqlite3.Error, DamagedError or OSError."""

    num_answers: int
    num_bytes: int

    def get(self, key: bytes) -> tuple[bytes, float] | None:
        """Return what is sealed under a key, and when it was created (time.time); None if there is nothing."""

    def note_uses(self, uses: Collection[bytes]) -> None:
        """Count a use of each of these keys, in this order."""

    def put(self, key: bytes, partition: str, model: str, sealed: bytes, created_s: float) -> None:
        """Keep an answer, in place of one with the same key. Then forget the least recently used over the limit."""

    def rows(self, partition: str | None, limit: int, offset: int = 0) -> list[Row]:
        """Return the answers of a partition, or of all if it is None, the last used first."""

    def remove(self, key: bytes, partition: str | None = None) -> int:
        """Forget one answer, by its key or its id, if it is in the partition (None: in any). Return how many went."""

    def remove_older(self, than_s: float) -> int:
        """Forget all that were created before a time of time.time(). Return how many."""

    def remove_all(self, partition: str | None) -> int:
        """Forget all answers, or those of one partition. Return how many."""

    def close(self) -> None:
        """Release everything."""


class ThreadStore:
    """The answers in a database, which a thread opens and owns."""

    kind = "sqlite"
    is_shared = False
    is_elsewhere = False

    def __init__(
        self,
        database: LazyDatabase[Database],
        seal: Seal,
        options: AnswersConfig,
        clock: Callable[[], float] = time.time,
        budget_s: float = BUDGET_S,
    ) -> None:
        self._seal, self._options, self._clock = seal, options, clock
        self._budget_s = budget_s
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="answers")
        self._breaker = Breaker()
        self._database = database  # the thread's
        self._uses: list[bytes] = []  # the thread's
        self._writes: set[asyncio.Future[None]] = set()
        self._is_closed = False
        self._is_unwritable = False  # the thread's
        self.trouble: str | None = None
        self.num_answers: int | None = 0
        self.num_bytes: int | None = 0

    async def start(self) -> None:
        with suppress(TooSlow):
            oldest_s = self._oldest_s
            await self._within(lambda: self._try(lambda database: database.remove_older(oldest_s), 0))

    async def get(self, key: bytes, *, is_use: bool = True) -> Answer | None:
        return await self._within(lambda: self._get(key, is_use=is_use))

    def put(self, key: bytes, answer: Answer) -> None:
        if not self._is_closed and len(self._writes) < _MAX_WRITES:
            write = self.run(lambda: self._put(key, answer))
            self._writes.add(write)
            write.add_done_callback(self._writes.discard)

    async def listed(self, partition: str | None, limit: int, offset: int = 0) -> list[Listed]:
        none: list[Listed] = []

        def read(database: Database) -> list[Listed]:
            return [self._listed(row) for row in self._flushed(database).rows(partition, limit, offset)]

        return await self._ask(read, none)

    async def forget(self, partition: str | None) -> int:
        return await self._must(lambda database: database.remove_all(partition))

    async def forget_one(self, answer_id: str, partition: str | None) -> bool:
        try:
            key = bytes.fromhex(answer_id)
        except ValueError:
            return False
        is_id = len(answer_id) == ID_CHARS
        return is_id and bool(await self._must(lambda database: database.remove(key, partition)))

    def note_uses(self, keys: list[bytes]) -> None:
        """Count a use of each of these answers, in the background."""
        if not self._is_closed:
            self._thread.submit(self._note_uses, keys)

    async def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            await self.run(self._close)
            self._thread.shutdown(wait=False)

    def run(self, act: Callable[[], T]) -> asyncio.Future[T]:
        """Run a function in the store's thread, which may wait for a disk."""
        return asyncio.get_running_loop().run_in_executor(self._thread, act)

    async def _within(self, act: Callable[[], T]) -> T:
        return await within(self._budget_s, self._breaker, lambda: self.run(act))

    async def _ask(self, act: Callable[[Database], T], otherwise: T) -> T:
        return await self.run(lambda: self._try(act, otherwise))

    async def _must(self, act: Callable[[Database], int]) -> int:
        done = await self.run(lambda: self._try(act, -1))
        if done < 0:
            raise StoreError(f"answers could not be deleted ({self.trouble}); try again later")
        return done

    @property
    def _oldest_s(self) -> float:
        return self._clock() - self._options.max_age_s

    # What follows runs in the thread.

    def _get(self, key: bytes, *, is_use: bool) -> Answer | None:
        found = self._try(lambda database: database.get(key), None)
        if found is None:
            return None
        sealed, created_s = found
        now_s, max_age_s = self._clock(), self._options.max_age_s
        answer = self._opened(key, sealed) if is_young(created_s, now_s, max_age_s) else None
        if answer is None or not is_young(answer.created_s, now_s, max_age_s):
            self._try(lambda database: database.remove(key), 0)
            return None
        self._note_uses([key] if is_use else [])
        return answer

    def _note_uses(self, keys: list[bytes]) -> None:
        self._uses.extend(keys)
        if len(self._uses) >= _MAX_USES:
            self._try(self._flushed, None, writes=True)

    def _put(self, key: bytes, answer: Answer) -> None:
        content = encode(answer)
        # A daemon that ends does not wait for a server that does not answer.
        if content is None or (self._is_closed and self.trouble is not None):
            return
        sealed = self._seal.seal(key, content)
        self._try(
            lambda database: self._flushed(database).put(key, answer.partition, answer.model, sealed, answer.created_s),
            None,
            writes=True,
        )

    def _opened(self, key: bytes, sealed: bytes) -> Answer | None:
        content = self._seal.open(key, sealed)
        return None if content is None else decode(content)

    def _listed(self, row: Row) -> Listed:
        answer = self._opened(row.key, row.sealed)
        return Listed(
            row.key.hex()[:ID_CHARS],
            row.partition if answer is None else answer.partition,
            row.model if answer is None else answer.model,
            "" if answer is None else answer.question,
            "" if answer is None else answer.text,
            max(0.0, self._clock() - row.created_s),
            row.num_uses,
            row.num_bytes,
        )

    def _flushed(self, database: Database) -> Database:
        """Write the uses that wait, and return the database. If that fails, they are not counted."""
        if self._uses:
            uses, self._uses = self._uses, []
            database.note_uses(uses)
        return database

    def _try(self, act: Callable[[Database], T], otherwise: T, *, writes: bool = False) -> T:
        """Return what `act` returns, or `otherwise` if the database fails.

        `writes`: it keeps something. On a full disk that fails while reading goes on, so only a write ends the trouble.
        """
        try:
            result = self._database.use(act)
        except (DamagedError, sqlite3.Error, OSError) as error:
            if self.trouble is None:
                logger.warning("answers cannot be kept or read: %s", error)
            self.trouble, self._is_unwritable = str(error), writes and isinstance(error, sqlite3.Error)
            return otherwise
        if writes or not self._is_unwritable:
            self.trouble, self._is_unwritable = None, False
        self._count()
        return result

    def _count(self) -> None:
        if (database := self._database.opened) is not None:
            self.num_answers, self.num_bytes = database.num_answers, database.num_bytes
            metrics.answer_cache_entries.set(self.num_answers)
            metrics.answer_cache_bytes.set(self.num_bytes)

    def _close(self) -> None:
        self._try(self._flushed, None)
        self._database.close()


class EmbeddedStore(ThreadStore):
    """The answers in a SQLite file, or in memory if `path` is None."""

    def __init__(
        self,
        path: Path | None,
        seal: Seal,
        options: AnswersConfig,
        clock: Callable[[], float] = time.time,
        budget_s: float = BUDGET_S,
    ) -> None:
        database: LazyDatabase[Database] = LazyDatabase(lambda: AnswerDatabase(path, options.max_bytes), path)
        super().__init__(database, seal, options, clock, budget_s)
