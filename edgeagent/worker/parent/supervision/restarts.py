"""Decides when a dead worker is replaced. Pure."""

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
    """Counts the ends of a model's workers in a row, and decides what follows each.

    There are two counters. The first one has the ends that are the model's fault: crashes, hangs, and kills during a
    load, which may need more memory than the machine has. The second one has the ends that are not: kills of a ready
    worker from outside, and ends by a known request.

    1. A worker that was ready for a whole crash window makes up for earlier ends. But a worker that hung before it
       finished a step does not, because noticing a hang can take longer than the window.
    2. When a counter reaches its limit (`max_crashes`, `max_kills`), the model is quarantined. After a quarantine, one
       more such end is enough.
    3. The first end of a ready worker is followed by a restart at once, others by one after 0.5, 1, 2 … 30 s.
    """

    def __init__(self, limits: SupervisionLimits) -> None:
        self._limits = limits
        self._num_crashes = self._num_kills = 0

    def on_end(self, end: WorkerEnd, *, has_worked: bool) -> Restart | Quarantine:
        """Return what follows a worker's end. `has_worked`: the worker had finished a step."""
        limits = self._limits
        was_ready = end.ready_for_s is not None
        hung_at_once = end.kind is EndKind.HUNG and not has_worked
        if (end.ready_for_s or 0.0) >= limits.crash_window_s and not hung_at_once:  # 1
            self._num_crashes = self._num_kills = 0
        is_excused = end.has_culprit or (end.kind is EndKind.KILLED and was_ready)
        self._num_kills += is_excused
        self._num_crashes += not is_excused
        num, most = (self._num_kills, limits.max_kills) if is_excused else (self._num_crashes, limits.max_crashes)
        if num >= most:  # 2
            return Quarantine(limits.quarantine_s)
        num_delayed = num - 1 if was_ready else num  # 3
        if num_delayed == 0:
            return Restart(0.0)
        return Restart(min(limits.first_backoff_s * 2.0 ** (num_delayed - 1), limits.max_backoff_s))
