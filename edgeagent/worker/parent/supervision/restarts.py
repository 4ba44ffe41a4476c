"""Decides when a dead worker is replaced. Pure: the caller passes the time."""

from __future__ import annotations

from dataclasses import dataclass

from edgeagent.errors import EdgeAgentError
from edgeagent.worker.parent.supervision.live_requests import EndKind
from edgeagent.worker.parent.supervision.watchdog import SupervisionLimits


@dataclass(frozen=True, slots=True)
class WorkerEnd:
    """How and why a worker ended.

    - `ready_for_s`: how long the worker had been ready; None if it never was.
    - `error` is set if the model cannot be loaded.
    - `is_short_of_memory`: the load ran out of memory, and the next one may use less.
    - `omitted_part`: what the next load leaves out, because its trial ended the process or hung; "" for nothing. See
      `LoadProgress.part`.
    - `has_culprit`: one request caused the end, and it fails. The model is not at fault.
    """

    cause: str
    kind: EndKind = EndKind.CRASHED
    ready_for_s: float | None = None
    error: EdgeAgentError | None = None
    is_short_of_memory: bool = False
    omitted_part: str = ""
    has_culprit: bool = False


@dataclass(frozen=True, slots=True)
class Restart:
    """Start a new worker after a delay."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Start no worker for this model for `duration_s`; after that, wait for a request."""

    duration_s: float


class RestartPolicy:
    """Decides what follows a crash: a restart with a growing delay, or quarantine after several crashes.

    1. If the worker had been ready for a whole crash window, forget earlier crashes.
    2. Quarantine after the third crash (`max_crashes`) within the window, or after the first one that follows a
       quarantine. Also quarantine after the third worker in a row that hung before it finished a step. No window
       applies to such hangs, because noticing a hang can take longer than the window.
    3. After the first crash of a worker that had been ready, restart at once.
    4. After any other crash, restart after 0.5, 1, 2 … 30 s.
    5. A kill of a ready worker from outside, or its end by a request that is known, is not the model's fault.
       Restart at once, then after 0.5, 1, 2 … s.
       But quarantine after `max_kills` kills within the window.
    """

    def __init__(self, limits: SupervisionLimits) -> None:
        self._limits = limits
        self._crashes: list[float] = []
        self._kills: list[float] = []
        self._num_delayed = 0
        self._num_hung_at_once = 0  # in a row
        self._is_on_probation = False

    def on_end(self, now_s: float, end: WorkerEnd, *, has_worked: bool) -> Restart | Quarantine:
        """Return what follows a worker's end. `has_worked`: the worker had finished a step."""
        if end.kind is EndKind.KILLED or end.has_culprit:
            return self.on_kill(now_s, end.ready_for_s)
        hung_at_once = end.kind is EndKind.HUNG and not has_worked
        return self.on_crash(now_s, end.ready_for_s, hung_at_once=hung_at_once)

    def on_crash(self, now_s: float, ready_for_s: float | None, *, hung_at_once: bool = False) -> Restart | Quarantine:
        """Return what follows a crash. See WorkerEnd for `ready_for_s`.

        `hung_at_once`: the worker hung before it finished a step.
        """
        limits = self._limits
        self._num_hung_at_once = self._num_hung_at_once + 1 if hung_at_once else 0
        if self._num_hung_at_once >= limits.max_crashes:
            self._is_on_probation = True
            return Quarantine(limits.quarantine_s)
        if ready_for_s is not None and ready_for_s >= limits.crash_window_s:  # 1
            self._crashes.clear()
            self._num_delayed, self._is_on_probation = 0, False
        self._crashes = [at_s for at_s in self._crashes if now_s - at_s < limits.crash_window_s] + [now_s]
        if self._is_on_probation or len(self._crashes) >= limits.max_crashes:  # 2
            self._is_on_probation = True
            return Quarantine(limits.quarantine_s)
        if ready_for_s is not None and len(self._crashes) == 1 and self._num_delayed == 0:  # 3
            return Restart(0.0)
        self._num_delayed += 1  # 4
        return self._restart_after(self._num_delayed)

    def on_kill(self, now_s: float, ready_for_s: float | None) -> Restart | Quarantine:
        """Return what follows a kill from outside. A kill during the load (`ready_for_s` is None) counts as a crash."""
        # A kill during the load counts as a crash: the model may need more memory than the machine has.
        if ready_for_s is None:
            return self.on_crash(now_s, None)
        limits = self._limits
        self._kills = [at_s for at_s in self._kills if now_s - at_s < limits.crash_window_s] + [now_s]
        if len(self._kills) >= limits.max_kills:  # 5
            self._is_on_probation = True
            return Quarantine(limits.quarantine_s)
        return Restart(0.0) if len(self._kills) == 1 else self._restart_after(len(self._kills) - 1)

    def _restart_after(self, num_tries: int) -> Restart:
        delay_s: float = self._limits.first_backoff_s * 2.0 ** min(num_tries - 1, 30)
        return Restart(min(delay_s, self._limits.max_backoff_s))
