"""The signs of life of one worker process: its pings and what it says of itself, from its start to its end.

It knows when a worker counts as hung (watchdog has the limits), not what is done about that.
"""

from __future__ import annotations

from edgeagent.types import WorkerStatus
from edgeagent.worker.protocol import Ping, Pong, ProtocolError, Steps
from edgeagent.worker.watchdog import LoadWatch, Patience, StepWatch


class Vitals:
    """What is known of one process's health."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._load = LoadWatch(patience)
        self._steps = StepWatch(patience)
        self._nonce = 0
        self._is_pong_due = False
        self.status: WorkerStatus | None = None
        self.has_worked = False  # ended a step, as far as is known

    @property
    def progress(self) -> float:
        """How much is loaded, 0 to 1."""
        return self._load.progress

    def on_load_progress(self, fraction: float) -> None:
        """Note how much is loaded."""
        self._load.advance(fraction)

    def on_progress(self) -> None:
        """Note that the worker answered a request, in part or whole, or was idle and got one."""
        self._steps.on_progress()

    def on_steps(self, steps: Steps) -> None:
        """Note what a step brought, or that a prompt's computation begins."""
        self._steps.on_progress()
        self.has_worked = self.has_worked or any(item.tokens for item in steps.items)

    def on_pong(self, pong: Pong) -> None:
        """Note an answer to a ping; raise ProtocolError for one that was not asked for."""
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

    def tick(self, elapsed_s: float, *, is_loading: bool, is_busy: bool) -> str | None:
        """Count time since the last tick; return why the worker is hung, or None."""
        return self._load.tick(elapsed_s) if is_loading else self._steps.tick(elapsed_s, is_busy=is_busy)

    def overdue(self, now_s: float, cancelled_at_s: float | None, asked_at_s: float | None) -> str | None:
        """Return why the worker is hung that owes an end since a cancel, or an answer since a question; or None."""
        limit_s = self._steps.step_limit_s()
        if cancelled_at_s is not None and now_s - cancelled_at_s >= limit_s:
            return f"hung: a cancelled request did not end within {limit_s:g} s"
        limit_s = self._patience.hang_timeout_s
        if asked_at_s is not None and now_s - asked_at_s >= limit_s:
            return f"hung: a question about text took longer than {limit_s:g} s"
        return None
