"""Further scenarios for `edgeagent bench`'s measurements: caches, conversations, connections, speculation, overload."""

from __future__ import annotations

from edgeagent.bench import scenarios
from tests.peer.laboratory import caches, chats, overheads, promises, speculation

SCENARIOS = scenarios.SCENARIOS | {
    scenario.name: scenario
    for module in (overheads, caches, chats, speculation, promises)
    for scenario in module.SCENARIOS
}
