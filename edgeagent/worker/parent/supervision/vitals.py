"""The signs of life of one worker process: its pings and its reports, from its start to its end.

It tells when a worker counts as hung (watchdog has the limits); the supervisor acts on it.
"""

from __future__ import annotations

from edgeagent.types import WorkerStatus
from edgeagent.worker.parent.supervision.watchdog import LoadWatch, Owed, Patience, Pulse, Signs, StepWatch
from edgeagent.worker.protocol import LoadProgress, Ping, Pong, ProtocolError, StepResult


class Vitals:
    """One process's health."""

    def __init__(self, patience: Patience) -> None:
        self._pulse = Pulse(patience)
        self._load = LoadWatch(patience)
        self._steps = StepWatch(patience)
        self._nonce = 0
        self._is_pong_due = False
        self.status: WorkerStatus | None = None
        self.trying = ""  # the part of the model that is being tried, in words
        self.has_worked = False  # a step has ended

    @property
    def progress(self) -> float:
        """How much is loaded, 0 to 1."""
        return self._load.progress

    @property
    def culprit(self) -> str:
        """The request whose preparation hung the worker; empty if unknown."""
        return self._steps.culprit

    def on_load_progress(self, progress: LoadProgress) -> None:
        """Note how much is loaded, and what is tried."""
        self._load.advance(progress.fraction)
        self.trying = progress.trying

    def on_progress(self) -> None:
        """Note that the worker answered a request, in part or whole, or was idle and got one."""
        self._steps.on_progress()

    def on_steps(self, steps: StepResult) -> None:
        """Note the result of a step, or the start of a prompt's computation."""
        self._steps.on_progress()
        self.has_worked = self.has_worked or any(item.tokens for item in steps.items)

    def on_pong(self, pong: Pong) -> None:
        """Note an answer to a ping; raise ProtocolError for an unexpected one."""
        if not self._is_pong_due or pong.nonce != self._nonce:
            raise ProtocolError(f"a pong {pong.nonce} that was not asked for")
        self._is_pong_due = False
        self.status = pong.status
        self._steps.on_pong(pong.status)
        self.has_worked = self.has_worked or pong.status.num_steps > 0

    def ping(self) -> Ping | None:
        """Return the ping to send, None while one is not answered."""
        if self._is_pong_due:
            return None
        self._nonce += 1
        self._is_pong_due = True
        return Ping(self._nonce)

    def tick(self, elapsed_s: float, signs: Signs | None, owed: Owed | None) -> str | None:
        """Count time since the last tick; return why the worker is hung, or None.

        `signs` come from the operating system; `owed` is the process's open work, None while it is loading.
        """
        elapsed = self._pulse.beat(elapsed_s, signs)
        return self._load.tick(elapsed, signs) if owed is None else self._steps.tick(elapsed, owed)
