"""Chooses the adapter of the next step. llama.cpp applies one adapter to a whole batch, so adapters take turns."""

from __future__ import annotations

from collections.abc import Sequence as Items

from edgeagent.engine.runner import Runner
from edgeagent.engine.sequence import Sequence

# A turn lasts at least this many times as long as a switch between adapters, and at least one step, but not longer than
# _MAX_TURN_S. llama.cpp plans its graphs again after a switch. Measured: 0.7 ms for a model of 5 M parameters, 3.5 ms
# for one of 0.6 B, whose steps take 40 ms.
_TIMES_SWITCH = 20
_MAX_TURN_S = 0.25
_WEIGHT = 0.2  # of the latest switch


class AdapterTurns:
    """Gives turns to the adapters that have sequences. The adapter that has waited longest is next.

    Adapters are named by their identities. "" means the model without an adapter, which takes turns like an adapter.
    """

    def __init__(self) -> None:
        self.current = ""
        self._applied = ""
        self._turn_s = self._switch_s = 0.0
        self._num_turns = self._num_steps = 0  # steps: of the current turn
        self._last_turns: dict[str, int] = {}

    def take(self, ready: Items[Sequence]) -> list[Sequence]:
        """Choose the adapter of the next step, set `current` to it, and return its sequences.

        `ready`: the sequences that can be computed.
        """
        adapters = {sequence.spec.adapter for sequence in ready}
        others = adapters - {self.current}
        if others and (self.current not in adapters or self._is_turn_over):
            self._num_turns += 1
            self._last_turns[self.current] = self._num_turns
            self._turn_s, self._num_steps = 0.0, 0
            # An adapter that had no turn yet comes first. If there are several, take the one with the oldest sequence.
            order = {sequence.spec.adapter: sequence.order for sequence in sorted(ready, key=lambda each: -each.order)}
            self.current = min(others, key=lambda each: (self._last_turns.get(each, 0), order[each]))
        return [sequence for sequence in ready if sequence.spec.adapter == self.current]

    def record(self, step_s: float, expected_s: float | None = None) -> float:
        """Add the time of a step to the current turn. Return the part of it that a switch took.

        `expected_s`: for the first step after a switch, how long it would have taken without the switch; None for other
        steps, or if this is unknown.
        """
        self._turn_s += step_s
        self._num_steps += 1
        if expected_s is None:
            return 0.0
        self._switch_s += _WEIGHT * (max(0.0, step_s - expected_s) - self._switch_s)
        return min(self._switch_s, max(0.0, step_s - expected_s))

    @property
    def _is_turn_over(self) -> bool:
        return self._num_steps > 0 and self._turn_s >= min(_TIMES_SWITCH * self._switch_s, _MAX_TURN_S)

    def apply(self, runner: Runner) -> bool:
        """Make the runner use the adapter whose turn it is. Return whether it used another one before."""
        if self._applied == self.current:
            return False
        runner.use_adapter(self.current)
        self._applied = self.current
        return True
