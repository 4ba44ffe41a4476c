"""The values that all routes share: the configuration, the service, and the state of the wire protocols."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.requests import HTTPConnection

from edgeagent.api.responses.state import Responses
from edgeagent.api.wire.known_fields import WarningLog
from edgeagent.config import Config
from edgeagent.credentials.keys import Keys
from edgeagent.service.live_service import LiveService
from edgeagent.service.probe import Probe
from edgeagent.store.hub.background import Pulls


@dataclass(frozen=True, slots=True)
class Context:
    """The values that all routes of one daemon share.

    `stop` asks the daemon to finish its live requests and end. `num_connections` returns how many connections clients
    have open. `trouble` returns what is wrong with the daemon itself, or None. `started_at_s` is the daemon's start by
    time.monotonic, and `started_unix_s` the same by time.time.
    """

    config: Config
    service: LiveService
    responses: Responses
    probe: Probe
    stop: Callable[[], None]
    num_connections: Callable[[], int]
    keys: Keys
    pulls: Pulls
    trouble: Callable[[], str | None] = lambda: None
    warnings: WarningLog = field(default_factory=WarningLog)
    started_at_s: float = field(default_factory=time.monotonic)
    started_unix_s: int = field(default_factory=lambda: int(time.time()))


def context_of(connection: HTTPConnection) -> Context:
    """Return the context of the application that serves a request or a WebSocket."""
    context: Context = connection.app.state.context
    return context
