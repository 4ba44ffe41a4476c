"""What every route works with: the configuration, the service behind the wire, and the stored responses."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial

from starlette.requests import HTTPConnection

from edgeagent.api.gate.grants import Grants
from edgeagent.api.live_requests import LiveRequests
from edgeagent.api.ops.probe import Probe
from edgeagent.api.ops.pulls import Pulls
from edgeagent.api.responses.registry import LiveTurn, LiveTurns
from edgeagent.api.responses.storage.store import ResponseStore
from edgeagent.api.responses.turn import Turn
from edgeagent.api.wire.known_fields import WarningLog
from edgeagent.config import Config
from edgeagent.credentials import Keys


@dataclass(frozen=True, slots=True)
class Context:
    """One daemon's shared values. `stop` asks the daemon to drain and end; `num_connections` counts open sockets.

    `trouble` returns what is wrong with the daemon itself, None if nothing is.
    """

    config: Config
    service: LiveRequests
    history: ResponseStore
    probe: Probe
    stop: Callable[[], None]
    num_connections: Callable[[], int]
    keys: Keys
    grants: Grants
    trouble: Callable[[], str | None] = lambda: None
    turns: LiveTurns = field(default_factory=LiveTurns)
    pulls: Pulls = field(default_factory=Pulls)
    warnings: WarningLog = field(default_factory=WarningLog)
    started_at_s: float = field(default_factory=time.monotonic)
    started_unix_s: int = field(default_factory=lambda: int(time.time()))

    def holding(self, turn: Turn) -> AbstractContextManager[LiveTurn]:
        """Make a turn visible to requests for its id for as long as it runs here."""
        return self.turns.holding(turn, partial(self.service.cancel, turn.request.id))


def context_of(connection: HTTPConnection) -> Context:
    """Return the context of the application that serves a request or a WebSocket."""
    context: Context = connection.app.state.context
    return context
