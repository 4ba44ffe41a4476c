"""When a worker counts as hung, and when a dead one is replaced. Pure: told the time, they answer.

Progress is what matters, not time: a long answer is fine while tokens come. Silence is counted in ticks, each of which
counts little, so that a laptop's sleep or a stall of the daemon itself condemns nobody.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass

from edgeagent.config import EngineConfig
from edgeagent.types import WorkerStatus

_HANG_FACTOR = 20.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a supervisor waits for what. Seconds."""

    ping_interval_s: float = 1.0
    pong_timeout_s: float = 10.0
    hang_timeout_s: float = 30.0
    load_timeout_s: float = 300.0
    stop_grace_s: float = 2.0
    first_backoff_s: float = 0.5
    max_backoff_s: float = 30.0
    max_crashes: int = 3
    crash_window_s: float = 60.0
    quarantine_s: float = 300.0
    load_retry_s: float = 10.0
    look_interval_s: float = 2.0  # at the files of a quarantined model

    @classmethod
    def from_config(cls, engine: EngineConfig) -> Patience:
        """Return the patience that the user configured."""
        return cls(hang_timeout_s=engine.hang_timeout_s, load_timeout_s=engine.load_timeout_s)


class LoadWatch:
    """Watches a loading worker: the progress must rise."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._silence_s = 0.0
        self.progress = 0.0

    def advance(self, fraction: float) -> None:
        """Note how much is loaded (0 to 1)."""
        # A fraction that is no number compares false.
        if fraction > self.progress:
            self.progress = min(fraction, 1.0)
            self._silence_s = 0.0

    def tick(self, elapsed_s: float) -> str | None:
        """Count time since the last tick; return why the worker is hung, or None."""
        self._silence_s += min(elapsed_s, 2 * self._patience.ping_interval_s)
        if self._silence_s < self._patience.load_timeout_s:
            return None
        return f"hung while loading: no progress for {self._patience.load_timeout_s:g} s at {self.progress:.0%}"


class StepWatch:
    """Watches a ready worker: it answers pings, its steps end while it has requests, and so does preparing a prompt."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._silence_s = 0.0
        self._stall_s = 0.0
        self._busy_s = 0.0
        self._preparing_since_s = 0.0  # the worker's own clock: a name for what it prepares, not compared with ours
        self._preparing_s = 0.0
        self._num_steps = 0
        self._step_times_s: deque[float] = deque(maxlen=32)

    def on_pong(self, status: WorkerStatus) -> None:
        """Note a sign of life and how many steps were done."""
        self._silence_s = 0.0
        num_done = status.num_steps - self._num_steps
        if num_done > 0:
            self._step_times_s.append(self._busy_s / num_done)
            self._stall_s = self._busy_s = 0.0
        self._num_steps = status.num_steps
        if status.preparing_since_s != self._preparing_since_s:
            self._preparing_since_s, self._preparing_s = status.preparing_since_s, 0.0

    def on_progress(self) -> None:
        """Note that the worker answered a request, in part or whole, or was idle and got one."""
        self._silence_s = self._stall_s = 0.0

    def step_limit_s(self) -> float:
        """Return the longest a step may take: the configured time, or 20 times the usual step."""
        usual_s = statistics.median(self._step_times_s) if self._step_times_s else 0.0
        return max(self._patience.hang_timeout_s, _HANG_FACTOR * usual_s)

    def tick(self, elapsed_s: float, *, is_busy: bool) -> str | None:
        """Count time since the last tick; return why the worker is hung, or None."""
        counted_s = min(elapsed_s, 2 * self._patience.ping_interval_s)
        self._silence_s += counted_s
        self._stall_s = self._stall_s + counted_s if is_busy else 0.0
        self._busy_s = self._busy_s + counted_s if is_busy else 0.0
        self._preparing_s = self._preparing_s + counted_s if self._preparing_since_s else 0.0
        if self._silence_s >= self._patience.pong_timeout_s:
            return f"hung: no sign of life for {self._patience.pong_timeout_s:g} s"
        if self._stall_s >= self.step_limit_s():
            return f"hung: one step took longer than {self.step_limit_s():g} s"
        if self._preparing_s >= self._patience.hang_timeout_s:
            return f"hung: one prompt took longer than {self._patience.hang_timeout_s:g} s to prepare"
        return None


@dataclass(frozen=True, slots=True)
class Restart:
    """Start a new worker after a delay."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Start no worker for this model until somebody asks after that time."""

    duration_s: float


class RestartPolicy:
    """Decides what follows a crash: a restart with growing delay, or quarantine after several in a short time.

    1. A worker that had been up for a whole crash window clears the record.
    2. The third crash (`max_crashes`) within the window, or the first after a quarantine: quarantine. So does the third
       in a row that hung before a step of it ended: hangs take longer than the window to notice.
    3. The first crash of a worker that had been ready: restart at once.
    4. Else: restart after 0.5, 1, 2 … 30 s.
    """

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._crashes: list[float] = []
        self._num_delayed = 0
        self._num_hung_at_once = 0  # in a row
        self._is_on_probation = False

    def on_crash(self, now_s: float, ready_for_s: float | None, *, hung_at_once: bool = False) -> Restart | Quarantine:
        """Judge a crash; `ready_for_s` is how long the worker had been ready, None if it never was."""
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
        delay_s: float = patience.first_backoff_s * 2.0 ** min(self._num_delayed - 1, 30)
        return Restart(min(delay_s, patience.max_backoff_s))
