"""Decides when a worker counts as hung. Pure: the caller passes the time.

A worker hangs if it makes no progress: a long answer is fine while tokens come. A tick is the time between two checks,
and it counts only up to a limit. So a laptop's sleep or a stall of the daemon itself does not end a worker.

There are two limits. One is for the worker's CPU time. The other is for elapsed time and is three times as long, since
the worker may be stopped, may get no CPU time because of other programs, or may wait for a disk or a GPU.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass

from edgeagent.config import EngineConfig
from edgeagent.types import WorkerStatus

_HANG_FACTOR = 20.0
# A worker that gets no CPU time (stopped, starved, waiting for a device) may take this many times as long.
_IDLE_FACTOR = 3.0
# The limit of the expected step time that a worker reports. A hostile worker may report any value.
_MAX_EXPECTED_S = 60.0
# Memory growth that counts as progress when loading from a slow disk, in bytes.
_LOADED_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class SupervisionLimits:
    """The times that a supervisor waits for a worker, in seconds, and its other limits."""

    ping_interval_s: float = 1.0
    pong_timeout_s: float = 10.0
    hang_timeout_s: float = 30.0
    max_prompt_bytes: int = 1 << 30  # memory growth for preparing one prompt or answering one question about text
    load_timeout_s: float = 300.0  # without progress; three times as long if the load gets no CPU time
    stop_grace_s: float = 2.0
    save_s: float = 0.0  # added to stop_grace_s, for a stopping worker to write its blocks to disk
    first_backoff_s: float = 0.5
    max_backoff_s: float = 30.0
    max_crashes: int = 3
    max_kills: int = 20  # more kills than one request survives, so that no single request causes a quarantine
    crash_window_s: float = 60.0
    quarantine_s: float = 300.0
    load_retry_s: float = 10.0
    look_interval_s: float = 2.0  # between checks of memory, unused models and files

    @classmethod
    def from_config(cls, engine: EngineConfig) -> SupervisionLimits:
        """Return the default limits, with the user's timeout for hangs."""
        return cls(hang_timeout_s=engine.hang_timeout_s)


@dataclass(frozen=True, slots=True)
class Signs:
    """A worker process's CPU time since its start and its memory now, as reported by the operating system."""

    cpu_s: float = 0.0
    rss_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Elapsed:
    """The length of a tick, in seconds. `busy_s` is the part of `all_s` in which the worker used the CPU."""

    all_s: float
    busy_s: float


class Pulse:
    """Measures the elapsed time and the CPU time of each tick."""

    def __init__(self, limits: SupervisionLimits) -> None:
        self._max_tick_s = 2 * limits.ping_interval_s
        self._cpu_s: float | None = None

    def beat(self, elapsed_s: float, signs: Signs | None) -> Elapsed:
        """Return the length of a tick of `elapsed_s` seconds, but at most two ping intervals.

        If `signs` is None, all of the tick counts as CPU time.
        """
        all_s = min(elapsed_s, self._max_tick_s)
        if signs is None:
            return Elapsed(all_s, all_s)
        before, self._cpu_s = self._cpu_s, signs.cpu_s
        return Elapsed(all_s, 0.0 if before is None else min(all_s, max(0.0, signs.cpu_s - before)))


class WaitTimer:
    """How long the supervisor has waited for an event, such as the end of a step. Any key can identify the event."""

    def __init__(self) -> None:
        self._key: object = None
        self._all_s = self._busy_s = 0.0

    def add(self, key: object, elapsed: Elapsed) -> None:
        """Add a tick to the time waited for `key`. If the last tick had another key, begin at zero.

        If `key` is None, nothing is waited for, and the time is zero.
        """
        if key is None or key != self._key:
            self._key, self._all_s, self._busy_s = key, 0.0, 0.0
        if key is not None:
            self._all_s += elapsed.all_s
            self._busy_s += elapsed.busy_s

    def overrun(self, limit_s: float) -> str | None:
        """Return the reached limit in words, such as "30 s"; None if no limit is reached.

        `limit_s` is the limit of CPU time. The limit of elapsed time is three times as long.
        """
        if self._busy_s >= limit_s:
            return f"{limit_s:g} s"
        if self._all_s >= _IDLE_FACTOR * limit_s:
            return f"{_IDLE_FACTOR * limit_s:g} s, with hardly any CPU time"
        return None


class Growth:
    """How much a process's memory has grown since a task began, such as preparing one prompt.

    Growth of the cached blocks is subtracted. If the blocks shrink, nothing is added, since the process may reuse their
    memory.
    """

    def __init__(self) -> None:
        self._key: object = None
        self._last: tuple[int, int] | None = None
        self._base = (0, 0)

    def add(self, key: object, own_bytes: int, cache_bytes: int) -> int:
        """Record a process's own memory and its cached blocks, in bytes. Return the growth since the task began.

        `key` identifies the task. If it is None, no task is running, and the growth is 0.
        """
        now = (own_bytes, cache_bytes)
        if key is None or key != self._key:
            self._key, self._base = key, self._last or now
        self._last = now
        own, cache = self._base
        return 0 if key is None else own_bytes - own - max(0, cache_bytes - cache)


class LoadWatch:
    """Watches a loading worker. Its loaded fraction or its memory must grow within the time limit."""

    def __init__(self, limits: SupervisionLimits) -> None:
        self._limits = limits
        self._wait = WaitTimer()
        self._num_signs = 1
        self._rss_bytes = 0
        self.progress = 0.0

    def advance(self, fraction: float) -> None:
        """Record the loaded fraction (0 to 1)."""
        # NaN, from a hostile worker, compares false.
        if fraction > self.progress:
            self.progress = min(fraction, 1.0)
            self._num_signs += 1

    def tick(self, elapsed: Elapsed, signs: Signs | None = None) -> str | None:
        """Count the time since the last tick; return why the worker counts as hung, or None."""
        if signs is not None and signs.rss_bytes >= self._rss_bytes + _LOADED_BYTES:
            self._rss_bytes = signs.rss_bytes
            self._num_signs += 1
        self._wait.add(self._num_signs, elapsed)
        overrun = self._wait.overrun(self._limits.load_timeout_s)
        return overrun and f"hung while loading: no progress for {overrun} at {self.progress:.0%}"


@dataclass(frozen=True, slots=True)
class PendingWork:
    """What a ready worker must still do.

    - `is_busy`: it must compute steps or embeddings.
    - `cancelled_at_s`: when the oldest unanswered cancel was sent; None if there is none.
    - `asked_at_s`: when the open quick query was sent, that is, not an Embed or a Rerank; None if there is none.

    The times only identify the cancel and the query. They are not compared with the clock.
    """

    is_busy: bool = False
    cancelled_at_s: float | None = None
    asked_at_s: float | None = None


class StepWatch:
    """Watches a ready worker. It must answer pings, and finish steps, prompts, cancels and quick queries in time.

    While it prepares a prompt or answers a quick query, its memory may grow only up to a limit. See PendingWork.
    """

    def __init__(self, limits: SupervisionLimits) -> None:
        self._limits = limits
        self._silence, self._step, self._prompt, self._cancel, self._question = (WaitTimer() for _ in range(5))
        self._prompt_growth, self._question_growth = Growth(), Growth()
        self._num_pongs = self._num_signs = 1
        self._busy_s = 0.0
        self._status = WorkerStatus()
        self._step_times_s: deque[float] = deque(maxlen=32)
        self.culprit = ""  # the id of the request whose preparation hung the worker

    def on_pong(self, status: WorkerStatus) -> None:
        """Record the status from the answer to a ping. It shows whether steps have ended since the previous ping."""
        self._num_pongs += 1
        num_done = status.num_steps - self._status.num_steps
        if num_done > 0:
            self._step_times_s.append(self._busy_s / num_done)
            self._busy_s = 0.0
            self._num_signs += 1
        self._status = status

    def on_progress(self) -> None:
        """Restart the waits for a pong and for a step.

        Call this when the worker has answered a request, in part or whole, and when it gets a request while idle.
        """
        self._num_pongs += 1
        self._num_signs += 1

    def step_limit_s(self) -> float:
        """Return how many seconds a step may take.

        This is the longest of three times: the configured limit, 20 times the usual time of a step, and 20 times the
        time that the worker expects for the running step.
        """
        usual_s = statistics.median(self._step_times_s) if self._step_times_s else 0.0
        told_s = self._status.step_expected_s
        expected_s = min(told_s, _MAX_EXPECTED_S) if told_s > 0 else 0.0
        return max(self._limits.hang_timeout_s, _HANG_FACTOR * usual_s, _HANG_FACTOR * expected_s)

    def tick(self, elapsed: Elapsed, pending: PendingWork) -> str | None:
        """Count the time since the last tick; return why the worker counts as hung, or None.

        A worker also counts as hung if one prompt or query takes too much memory. If the preparation of a prompt is
        the cause, `culprit` is the id of its request afterwards; otherwise it is "".
        """
        self._busy_s = self._busy_s + elapsed.all_s if pending.is_busy else 0.0
        step_limit_s, limit_s = self.step_limit_s(), self._limits.hang_timeout_s
        # The start time, by the worker's clock, identifies the prompt that is being prepared.
        preparing_s = self._status.preparing_since_s or None
        for wait, key, most_s, words in (
            (self._silence, self._num_pongs, self._limits.pong_timeout_s, "no sign of life for"),
            (self._step, self._num_signs if pending.is_busy else None, step_limit_s, "one step took longer than"),
            (self._prompt, preparing_s, limit_s, "preparing one prompt took longer than"),
            (self._cancel, pending.cancelled_at_s, step_limit_s, "a cancelled request did not end within"),
            (self._question, pending.asked_at_s, limit_s, "a question about text took longer than"),
        ):
            wait.add(key, elapsed)
            if overrun := wait.overrun(most_s):
                # Without other streams, no step ends while a prompt is prepared. The wait for the step is a little
                # longer, since the worker says later than the request was sent that it prepares it.
                is_prompt = wait is self._prompt or (wait is self._step and self._prompt.overrun(limit_s / 2))
                self.culprit = self._status.preparing_id if is_prompt else ""
                words = "preparing one prompt took longer than" if is_prompt else words
                return f"hung: {words} {overrun}"
        cache_bytes = cache.num_bytes if (cache := self._status.memory_cache) else 0
        for growth, key, words in (
            (self._prompt_growth, preparing_s, "preparing one prompt"),
            (self._question_growth, pending.asked_at_s, "a question about text"),
        ):
            if growth.add(key, self._status.own_bytes, cache_bytes) > self._limits.max_prompt_bytes:
                self.culprit = self._status.preparing_id if growth is self._prompt_growth else ""
                return f"{words} took more than {self._limits.max_prompt_bytes >> 20} MiB of memory"
        return None
