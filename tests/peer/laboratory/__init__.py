"""Further scenarios for `edgeagent bench`'s measurements: caches, conversations, connections and speculation."""

from __future__ import annotations

from edgeagent.bench import scenarios
from tests.peer.laboratory import caches, chats, overheads, speculation

SCENARIOS = scenarios.SCENARIOS | {
    scenario.name: scenario for module in (overheads, caches, chats, speculation) for scenario in module.SCENARIOS
}
