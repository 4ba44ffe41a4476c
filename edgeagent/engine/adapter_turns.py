"""Chooses the adapter of the next step. llama.cpp applies one adapter to a whole batch, so adapters take turns."""

from __future__ import annotations

from collections.abc import Sequence as Items

from edgeagent.engine.runner import Runner
from edgeagent.engine.scheduler import BatchPart, Scheduler
from edgeagent.engine.sequence import Sequence
from edgeagent.engine.speculation.proposals import Proposals

# A turn lasts about this long, and at least one step. A switch between adapters costs 0.7 ms for a model of 5 M
# parameters, and 3.5 ms for one of 0.6 B, whose steps take 40 ms (measured).
TURN_S = 0.01


class AdapterTurns:
    """Gives turns to the adapters that have sequences. The adapter that has waited longest is next.

    Adapters are named by their identities. "" means the model without an adapter, which takes turns like an adapter.
    """

    def __init__(self) -> None:
        self.current = ""
        self._applied = ""
        self._turn_s = 0.0
        self._num_turns = 0
        self._last_turns: dict[str, int] = {}

    def take(self, ready: Items[Sequence]) -> list[Sequence]:
        """Choose the adapter of the next step, set `current` to it, and return its sequences.

        `ready`: the sequences that can be computed.
        """
        adapters = {sequence.spec.adapter for sequence in ready}
        others = adapters - {self.current}
        if others and (self.current not in adapters or self._turn_s >= TURN_S):
            self._num_turns += 1
            self._last_turns[self.current] = self._num_turns
            self._turn_s = 0.0
            # An adapter that had no turn yet comes first. If there are several, take the one with the oldest sequence.
            order = {sequence.spec.adapter: sequence.order for sequence in sorted(ready, key=lambda each: -each.order)}
            self.current = min(others, key=lambda each: (self._last_turns.get(each, 0), order[each]))
        return [sequence for sequence in ready if sequence.spec.adapter == self.current]

    def record(self, step_s: float) -> None:
        """Add the time of a step to the current turn."""
        self._turn_s += step_s

    def plan(
        self,
        running: Items[Sequence],
        scheduler: Scheduler,
        proposals: Proposals,
        num_cells: int,
        num_others: int = 0,
    ) -> list[BatchPart]:
        """Choose the adapter of the next step, and return the batch of its sequences.

        Nothing is drafted for sequences with an adapter. `num_cells`: KV cells in use. `num_others`: how many side
        contexts compute between the steps. Each of them counts as one more turn.
        """
        chosen = self.take(running)
        drafts = proposals.propose([] if self.current else chosen, num_cells)
        if len(chosen) == len(running):
            return scheduler.plan(chosen, drafts, num_cells, num_turns=1 + num_others)
        num_turns = num_others + len({sequence.spec.adapter for sequence in running})
        others = (sequence for sequence in running if sequence.spec.adapter != self.current)
        others_decode = any(sequence.is_decoding for sequence in others)
        return scheduler.plan(chosen, drafts, num_cells, num_turns=num_turns, others_decode=others_decode)

    def apply(self, runner: Runner) -> None:
        """Make the runner use the adapter whose turn it is."""
        if self._applied != self.current:
            runner.use_adapter(self.current)
            self._applied = self.current
