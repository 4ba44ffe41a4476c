"""Tracks the signs of life of one worker process from start to end: its pongs and its other messages.

This module decides when the worker counts as hung, by the limits in watchdog. The supervisor then ends the worker.
"""

from __future__ import annotations

from edgeagent.types import WorkerStatus
from edgeagent.worker.parent.supervision.watchdog import (
    LoadWatch,
    PendingWork,
    Pulse,
    Signs,
    StepWatch,
    SupervisionLimits,
)
from edgeagent.worker.protocol import LoadProgress, Ping, Pong, ProtocolError, StepResult


class Vitals:
    """The signs of life of one worker process.

    `status` is the WorkerStatus in its latest pong; None before the first pong.
    """

    def __init__(self, limits: SupervisionLimits) -> None:
        self._pulse = Pulse(limits)
        self._load = LoadWatch(limits)
        self._steps = StepWatch(limits)
        self._nonce = 0
        self._is_pong_due = False
        self.status: WorkerStatus | None = None
        self.tried_part = ""  # a description of the part of the model that is being tried
        self.has_worked = False  # a step has ended

    @property
    def progress(self) -> float:
        """The loaded fraction of the model, 0 to 1."""
        return self._load.progress

    @property
    def culprit(self) -> str:
        """The id of the request whose preparation hung the worker; empty if unknown."""
        return self._steps.culprit

    def on_load_progress(self, progress: LoadProgress) -> None:
        """Record how much is loaded, and which part is tried next."""
        self._load.advance(progress.fraction)
        self.tried_part = progress.part

    def on_progress(self) -> None:
        """Restart the waits for a pong and for a step.

        Call this when the worker has answered a request, in part or whole, and when it gets a request while idle.
        """
        self._steps.on_progress()

    def on_steps(self, steps: StepResult) -> None:
        """Record a StepResult as progress. If it has tokens, a step has ended."""
        self._steps.on_progress()
        self.has_worked = self.has_worked or any(item.tokens for item in steps.items)

    def on_pong(self, pong: Pong) -> None:
        """Record the answer to a ping; raise ProtocolError for an unexpected one."""
        if not self._is_pong_due or pong.nonce != self._nonce:
            raise ProtocolError(f"an unexpected pong {pong.nonce}")
        self._is_pong_due = False
        self.status = pong.status
        self._steps.on_pong(pong.status)
        self.has_worked = self.has_worked or pong.status.num_steps > 0

    def ping(self) -> Ping | None:
        """Make the next ping for the caller to send; return None while the previous ping is unanswered."""
        if self._is_pong_due:
            return None
        self._nonce += 1
        self._is_pong_due = True
        return Ping(self._nonce)

    def tick(self, elapsed_s: float, signs: Signs | None, pending: PendingWork | None) -> str | None:
        """Count the time since the last tick; return why the worker counts as hung, or None.

        `signs` come from the operating system. `pending` is the worker's open work; None while it is loading.
        """
        elapsed = self._pulse.beat(elapsed_s, signs)
        return self._load.tick(elapsed, signs) if pending is None else self._steps.tick(elapsed, pending)
