"""What all routes share: the configuration, the service, and the state of the Responses API."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from starlette.requests import HTTPConnection

from edgeagent.api.gate.body_limit import InFlight
from edgeagent.api.responses.items import decode_items, encode_items
from edgeagent.config import Config
from edgeagent.conversation.compaction import EarlySummaries
from edgeagent.conversation.items import ItemFormat
from edgeagent.conversation.store import FILE, ResponseStore, stored_limits
from edgeagent.credentials.keys import Keys, Scope
from edgeagent.credentials.links import Links
from edgeagent.metrics.slo import SloLedger
from edgeagent.service.live_service import LiveService
from edgeagent.service.probe import Probe
from edgeagent.store.hub.background import Pulls

if TYPE_CHECKING:
    from edgeagent.answers.answers import Answers  # a daemon without it does not load it

# The file of stored responses keeps items in the JSON form of the wire.
ITEM_FORMAT = ItemFormat(encode_items, decode_items)
# How long `close` waits for background responses to end, twice at most. The drain has cancelled them before.
TASKS_S = 0.5


class Responses:
    """The state of the Responses API in one daemon: the store, early summaries, and tasks in the background."""

    def __init__(self, store: ResponseStore) -> None:
        self.store = store
        self.early_summaries = EarlySummaries()
        self._tasks: set[asyncio.Task[object]] = set()

    @classmethod
    def of(cls, config: Config, folder: Path | None) -> Self:
        """Return the state. Its file in `folder` is opened when the first response is stored or asked for.

        Without a folder, or with `forget`, the responses are kept in memory only.
        """
        path = folder / FILE if folder is not None and not config.forget else None
        return cls(ResponseStore(ITEM_FORMAT, path, stored_limits(config.server)))

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


@dataclass(frozen=True, slots=True)
class Context:
    """The values that all routes of one daemon share.

    `stop` asks the daemon to finish its live requests and end. `trouble` returns what is wrong with the daemon itself,
    or None. `slo` is the ledger of latency targets. `links`: the one-time links for browsers, with the scopes of their
    tokens. `kiosk_links`: those for the page of a kiosk, with its token. `in_flight` counts the bytes that clients have
    sent, until their requests end, and those that they do not read; the server counts there too. `kept`: the bytes of
    what their WebSockets may continue. `answers`: the cache of answers; None if it is off. `connections`: those that
    clients have open; the server adds and removes them. `kiosk_pages`: how many pages of the kiosk each client shows.
    `started_at_s` is the daemon's start by time.monotonic, and `started_unix_s` the same by time.time.
    """

    config: Config
    service: LiveService
    responses: Responses
    probe: Probe
    stop: Callable[[], None]
    trouble: Callable[[], str | None]
    keys: Keys
    pulls: Pulls
    in_flight: InFlight
    kept: InFlight
    slo: SloLedger
    answers: Answers | None = None
    links: Links[frozenset[Scope]] = field(default_factory=Links)
    kiosk_links: Links[str] = field(default_factory=Links)
    connections: set[Any] = field(default_factory=set)
    kiosk_pages: Counter[str] = field(default_factory=Counter)
    started_at_s: float = field(default_factory=time.monotonic)
    started_unix_s: int = field(default_factory=lambda: int(time.time()))


def context_of(connection: HTTPConnection) -> Context:
    """Return the context of the application that serves a request or a WebSocket."""
    context: Context = connection.app.state.context
    return context
