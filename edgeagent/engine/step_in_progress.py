"""The state of the running step for other threads: whether a command may interrupt it, and its expected time.

The engine's thread writes the fields. Other threads read them without a lock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from edgeagent.engine.sequence import Rank

# A step expected to take longer than this is worth interrupting for a cancel.
_LONG_S = 0.03
_LONG_TOKENS = 32  # the same limit in tokens, until a step was measured


@dataclass(slots=True)
class StepInProgress:
    """The running step of an engine. Between two steps, `is_long` is False and `expected_s` is 0.

    At least every second step runs to its end, however many commands arrive: the step after an interrupted one is never
    `is_long`, and no step is postponed twice in a row.
    """

    can_be_interrupted: bool
    # Whether the step is long and may be interrupted. `begin` sets this before it calls `has_command`. So if a thread
    # queues a command and then reads False here, the next `begin` of a long step sees the command. `begin` does not
    # call `has_command` if the step is not long, or if the step before was postponed.
    is_long: bool = False
    rank: Rank = Rank.BOOSTED  # of the step's most urgent prompt or stream; keeps its value until the next step
    expected_s: float = 0.0  # 0 if unknown
    _was_interrupted: bool = False
    _was_postponed: bool = False

    def gives_way_to(self, rank: Rank) -> bool:
        """Whether a new request of this rank should interrupt the step.

        A step of sequences that are computed ahead is short. What comes next probably begins with them, so it waits.
        """
        return self.is_long and rank < self.rank < Rank.AHEAD

    def begin(self, num_tokens: int, expected_s: float | None, rank: Rank, has_command: Callable[[], bool]) -> bool:
        """Begin a step, and return True if it may run now. `expected_s`: None if unknown.

        Return False if the step is postponed, because `is_long` is true and `has_command` reports a waiting command.
        Such a step has ended already, so `end` is not needed.
        """
        is_long = num_tokens > _LONG_TOKENS if expected_s is None else expected_s > _LONG_S
        self.rank = rank
        self.is_long = is_long and self.can_be_interrupted and not self._was_interrupted
        self.expected_s = expected_s or 0.0
        self._was_postponed = self.is_long and not self._was_postponed and has_command()
        if self._was_postponed:
            self.end()
        return not self._was_postponed

    def record(self, *, was_interrupted: bool) -> None:
        self._was_interrupted = was_interrupted

    def end(self) -> None:
        self.is_long, self.expected_s = False, 0.0
