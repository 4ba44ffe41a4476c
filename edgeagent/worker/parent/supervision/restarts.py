"""Decides when a dead worker is replaced. Pure: the caller passes the time."""

from __future__ import annotations

from dataclasses import dataclass

from edgeagent.errors import EdgeAgentError
from edgeagent.worker.parent.supervision.live_requests import Fate
from edgeagent.worker.parent.supervision.watchdog import Patience


@dataclass(frozen=True, slots=True)
class Death:
    """A worker's end. `ready_for_s`: how long it had been ready, None if it never was.

    `error` is set if the worker itself reported that it cannot load the model. `is_short_of_memory`: the load ran out
    of memory, and another may take less. `left_out`: what ended the process when it was tried, in
    words; the next load goes without it.
    """

    cause: str
    fate: Fate = Fate.CRASHED
    ready_for_s: float | None = None
    error: EdgeAgentError | None = None
    is_short_of_memory: bool = False
    left_out: str = ""


@dataclass(frozen=True, slots=True)
class Restart:
    """Start a new worker after a delay."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Start no worker for this model for that time; then wait for a request."""

    duration_s: float


class RestartPolicy:
    """Decides what follows a crash: a restart with growing delay, or quarantine after several in a short time.

    1. A worker that had been up for a whole crash window clears the record.
    2. The third crash (`max_crashes`) within the window, or the first after a quarantine: quarantine. So does the third
       in a row that hung before a step of it ended: hangs take longer than the window to notice.
    3. The first crash of a worker that had been ready: restart at once.
    4. Else: restart after 0.5, 1, 2 … 30 s.
    5. A ready worker that was killed from outside says nothing about the model: restart at once, then after 0.5, 1,
       2 … s. But `max_kills` of them within the window: quarantine.
    """

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._crashes: list[float] = []
        self._kills: list[float] = []
        self._num_delayed = 0
        self._num_hung_at_once = 0  # in a row
        self._is_on_probation = False

    def on_end(self, now_s: float, death: Death, *, has_worked: bool) -> Restart | Quarantine:
        """Judge a worker's end; `has_worked`: whether a step of it had ended."""
        if death.fate is Fate.KILLED:
            return self.on_kill(now_s, death.ready_for_s)
        hung_at_once = death.fate is Fate.HUNG and not has_worked
        return self.on_crash(now_s, death.ready_for_s, hung_at_once=hung_at_once)

    def on_crash(self, now_s: float, ready_for_s: float | None, *, hung_at_once: bool = False) -> Restart | Quarantine:
        """Judge a crash, as `on_end`."""
        patience = self._patience
        self._num_hung_at_once = self._num_hung_at_once + 1 if hung_at_once else 0
        if self._num_hung_at_once >= patience.max_crashes:
            self._is_on_probation = True
            return Quarantine(patience.quarantine_s)
        if ready_for_s is not None and ready_for_s >= patience.crash_window_s:  # 1
            self._crashes.clear()
            self._num_delayed, self._is_on_probation = 0, False
        self._crashes = [at_s for at_s in self._crashes if now_s - at_s < patience.crash_window_s] + [now_s]
        if self._is_on_probation or len(self._crashes) >= patience.max_crashes:  # 2
            self._is_on_probation = True
            return Quarantine(patience.quarantine_s)
        if ready_for_s is not None and len(self._crashes) == 1 and self._num_delayed == 0:  # 3
            return Restart(0.0)
        self._num_delayed += 1  # 4
        return self._restart_after(self._num_delayed)

    def on_kill(self, now_s: float, ready_for_s: float | None) -> Restart | Quarantine:
        """Judge an end from outside, as `on_end`."""
        if ready_for_s is None:  # a model that needs more memory than the machine has never becomes ready
            return self.on_crash(now_s, None)
        patience = self._patience
        self._kills = [at_s for at_s in self._kills if now_s - at_s < patience.crash_window_s] + [now_s]
        if len(self._kills) >= patience.max_kills:  # 5
            self._is_on_probation = True
            return Quarantine(patience.quarantine_s)
        return Restart(0.0) if len(self._kills) == 1 else self._restart_after(len(self._kills) - 1)

    def _restart_after(self, num_tries: int) -> Restart:
        delay_s: float = self._patience.first_backoff_s * 2.0 ** min(num_tries - 1, 30)
        return Restart(min(delay_s, self._patience.max_backoff_s))
