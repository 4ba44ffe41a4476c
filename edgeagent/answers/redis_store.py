"""The store of kept answers at a Redis or Valkey server. Only a daemon that is configured for one imports it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from edgeagent.answers.redis_database import RedisDatabase, WayOut
from edgeagent.answers.seal import Seal
from edgeagent.answers.similar.events import Page
from edgeagent.answers.store import BUDGET_S, Database, T, ThreadStore
from edgeagent.config import AnswersConfig
from edgeagent.errors import ConfigError
from edgeagent.remotes.check import is_loopback
from edgeagent.runtime_file import read_private
from edgeagent.sqlite_files import LazyDatabase


class RedisStore(ThreadStore):
    """The answers at the server of `options.store`. Each machine with the same secret gives the answers of all.

    `state_dir`: the folder of the egress ledger. Raise ConfigError if the file of the password cannot be used.
    """

    kind = "redis"
    is_shared = True

    def __init__(
        self,
        options: AnswersConfig,
        seal: Seal,
        state_dir: Path,
        clock: Callable[[], float] = time.time,
        budget_s: float = BUDGET_S,
    ) -> None:
        address, file = options.store, options.store_password_file
        password = None if file is None else _password(file)
        way_out = WayOut(address, state_dir)
        database: LazyDatabase[Database] = LazyDatabase(
            lambda: RedisDatabase(options, seal.key_secret, way_out, password), None
        )
        super().__init__(database, seal, options, clock, budget_s)
        self.is_elsewhere = is_elsewhere(address)

    def _try(self, act: Callable[[Database], T], otherwise: T, *, writes: bool = False) -> T:
        def checked(database: Database) -> T:
            try:
                return act(database)
            except OSError:
                raise
            except Exception as error:  # anyone who may write there can write anything
                raise OSError(f"what the server has cannot be read: {error}") from None

        return super()._try(checked, otherwise, writes=writes)

    # The log of what machines learn of similar questions: an events.Log.

    async def append(self, name: str, content: bytes) -> None:
        await self._tell(lambda database: database.append_event(name, content))

    async def page(self, name: str, after: str, limit: int) -> Page | None:
        def read(database: Database) -> Page | None:
            assert isinstance(database, RedisDatabase)
            return Page(*database.events(name, after, limit))

        # Many events take longer than the budget of an answer, but no answer waits for them.
        return None if self._breaker.is_open(time.monotonic()) else await self._ask(read, None)

    async def turn_off(self, name: str) -> None:
        await self._tell(lambda database: database.turn_off(name))

    async def clear(self, name: str, content: bytes) -> None:
        await self._tell(lambda database: database.clear_events(name, content))

    async def _tell(self, act: Callable[[RedisDatabase], None]) -> None:
        def tell(database: Database) -> None:
            assert isinstance(database, RedisDatabase)
            act(database)

        if not self._breaker.is_open(time.monotonic()):
            await self._ask(tell, None)


def is_elsewhere(address: str) -> bool:
    """Whether answers leave this machine on the way to a store."""
    return not address.startswith("unix:") and not is_loopback(address)


def _password(file: Path) -> str:
    content = read_private(file)
    password = (content or b"").decode("utf-8", errors="replace").strip()
    if not password:
        raise ConfigError(f"answers.store_password_file: {file} has no password; write it there (chmod 600)")
    return password
