"""Decides when a worker counts as hung. Pure: the caller passes the time.

Progress is what matters, not time: a long answer is fine while tokens come. A wait is counted in ticks, each of which
counts little, so that a laptop's sleep or a stall of the daemon itself ends no worker. Two limits hold: one for the
time in which the worker computed, and one several times as long for all time, in which it may have been stopped,
starved by other programs, or waiting for a disk or a GPU.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass

from edgeagent.config import EngineConfig
from edgeagent.types import WorkerStatus

_HANG_FACTOR = 20.0
# A worker without CPU time (stopped, starved, waiting for a device) may take this many times as long.
_IDLE_FACTOR = 3.0
# The longest step that a worker may report; the worker may be hostile.
_MAX_EXPECTED_S = 60.0
# Bytes of memory that count as progress of a load from a slow disk.
_LOADED_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Patience:
    """The limits of a supervisor's waiting, in seconds."""

    ping_interval_s: float = 1.0
    pong_timeout_s: float = 10.0
    hang_timeout_s: float = 30.0
    max_prompt_bytes: int = 1 << 30  # of memory, to prepare one prompt or to answer one question about text
    load_timeout_s: float = 300.0
    stop_grace_s: float = 2.0
    save_s: float = 0.0  # more than that, for a stopping worker to write its blocks to disk
    first_backoff_s: float = 0.5
    max_backoff_s: float = 30.0
    max_crashes: int = 3
    max_kills: int = 20  # more than a request survives, so that one request cannot end the model's service
    crash_window_s: float = 60.0
    quarantine_s: float = 300.0
    load_retry_s: float = 10.0
    look_interval_s: float = 2.0  # at the files of a quarantined model

    @classmethod
    def from_config(cls, engine: EngineConfig) -> Patience:
        """Return the patience that the user configured."""
        return cls(hang_timeout_s=engine.hang_timeout_s, load_timeout_s=engine.load_timeout_s)


@dataclass(frozen=True, slots=True)
class Signs:
    """A worker's process, as the operating system sees it."""

    cpu_s: float = 0.0
    rss_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Elapsed:
    """The time since the last tick, as far as it counts: `all_s`, in `busy_s` of which the worker computed."""

    all_s: float
    busy_s: float


class Pulse:
    """Turns ticks into elapsed time."""

    def __init__(self, patience: Patience) -> None:
        self._max_tick_s = 2 * patience.ping_interval_s
        self._cpu_s: float | None = None

    def beat(self, elapsed_s: float, signs: Signs | None) -> Elapsed:
        """Return the part of a tick that counts; without signs of the process all of it counts as computing."""
        all_s = min(elapsed_s, self._max_tick_s)
        if signs is None:
            return Elapsed(all_s, all_s)
        before, self._cpu_s = self._cpu_s, signs.cpu_s
        return Elapsed(all_s, 0.0 if before is None else min(all_s, max(0.0, signs.cpu_s - before)))


class Wait:
    """How long one thing has been waited for; the time restarts when the thing changes or is None."""

    def __init__(self) -> None:
        self._thing: object = None
        self._all_s = self._busy_s = 0.0

    def add(self, thing: object, elapsed: Elapsed) -> None:
        """Count a tick of waiting for a thing."""
        if thing is None or thing != self._thing:
            self._thing, self._all_s, self._busy_s = thing, 0.0, 0.0
        if thing is not None:
            self._all_s += elapsed.all_s
            self._busy_s += elapsed.busy_s

    def overrun(self, limit_s: float) -> str | None:
        """Return the limit that is reached, in words; None if none is."""
        if self._busy_s >= limit_s:
            return f"{limit_s:g} s"
        if self._all_s >= _IDLE_FACTOR * limit_s:
            return f"{_IDLE_FACTOR * limit_s:g} s, with hardly any CPU time"
        return None


class Growth:
    """How much memory a process took since one thing began, at the latest look.

    Cached blocks do not count. Freed blocks are not subtracted: the process may keep their memory for other use.
    """

    def __init__(self) -> None:
        self._thing: object = None
        self._last: tuple[int, int] | None = None
        self._base = (0, 0)

    def add(self, thing: object, own_bytes: int, cache_bytes: int) -> int:
        """Note a process's own memory and its blocks; return how much came with a thing (None: with nothing)."""
        now = (own_bytes, cache_bytes)
        if thing is None or thing != self._thing:
            self._thing, self._base = thing, self._last or now
        self._last = now
        own, cache = self._base
        return 0 if thing is None else own_bytes - own - max(0, cache_bytes - cache)


class LoadWatch:
    """Watches a loading worker: its progress must rise, or its memory must grow."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._wait = Wait()
        self._num_signs = 1
        self._rss_bytes = 0
        self.progress = 0.0

    def advance(self, fraction: float) -> None:
        """Note how much is loaded (0 to 1)."""
        # NaN compares false.
        if fraction > self.progress:
            self.progress = min(fraction, 1.0)
            self._num_signs += 1

    def tick(self, elapsed: Elapsed, signs: Signs | None = None) -> str | None:
        """Count time since the last tick; return why the worker is hung, or None."""
        if signs is not None and signs.rss_bytes >= self._rss_bytes + _LOADED_BYTES:
            self._rss_bytes = signs.rss_bytes
            self._num_signs += 1
        self._wait.add(self._num_signs, elapsed)
        overrun = self._wait.overrun(self._patience.load_timeout_s)
        return overrun and f"hung while loading: no progress for {overrun} at {self.progress:.0%}"


@dataclass(frozen=True, slots=True)
class Owed:
    """What is expected of a ready worker: steps while it `is_busy`, an end since a cancel, an answer since a question.

    The times only name what is waited for; they are not compared with the clock.
    """

    is_busy: bool = False
    cancelled_at_s: float | None = None
    asked_at_s: float | None = None


class StepWatch:
    """Watches a ready worker: it answers pings, its steps end while it has requests, and so does preparing a prompt.

    What prepares a prompt is bounded in memory too.
    """

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._silence, self._step, self._prompt, self._cancel, self._question = (Wait() for _ in range(5))
        self._prompt_growth, self._question_growth = Growth(), Growth()
        self._num_pongs = self._num_signs = 1
        self._busy_s = 0.0
        self._status = WorkerStatus()
        self._step_times_s: deque[float] = deque(maxlen=32)
        self.culprit = ""  # the request whose preparation hung the worker

    def on_pong(self, status: WorkerStatus) -> None:
        """Note an answer to a ping and the number of steps done."""
        self._num_pongs += 1
        num_done = status.num_steps - self._status.num_steps
        if num_done > 0:
            self._step_times_s.append(self._busy_s / num_done)
            self._busy_s = 0.0
            self._num_signs += 1
        self._status = status

    def on_progress(self) -> None:
        """Note that the worker answered a request, in part or whole, or was idle and got one."""
        self._num_pongs += 1
        self._num_signs += 1

    def step_limit_s(self) -> float:
        """Return the longest a step may take: the configured time, or 20 times the usual or the expected one."""
        usual_s = statistics.median(self._step_times_s) if self._step_times_s else 0.0
        told_s = self._status.step_expected_s
        expected_s = min(told_s, _MAX_EXPECTED_S) if told_s > 0 else 0.0
        return max(self._patience.hang_timeout_s, _HANG_FACTOR * usual_s, _HANG_FACTOR * expected_s)

    def tick(self, elapsed: Elapsed, owed: Owed) -> str | None:
        """Count time since the last tick; return why the worker is hung, or None."""
        self._busy_s = self._busy_s + elapsed.all_s if owed.is_busy else 0.0
        step_limit_s, limit_s = self.step_limit_s(), self._patience.hang_timeout_s
        # The worker's own clock names what it prepares.
        preparing_s = self._status.preparing_since_s or None
        for wait, thing, most_s, words in (
            (self._silence, self._num_pongs, self._patience.pong_timeout_s, "no sign of life for"),
            (self._step, self._num_signs if owed.is_busy else None, step_limit_s, "one step took longer than"),
            (self._prompt, preparing_s, limit_s, "preparing one prompt took longer than"),
            (self._cancel, owed.cancelled_at_s, step_limit_s, "a cancelled request did not end within"),
            (self._question, owed.asked_at_s, limit_s, "a question about text took longer than"),
        ):
            wait.add(thing, elapsed)
            if overrun := wait.overrun(most_s):
                self.culprit = self._status.preparing_id if wait is self._prompt else ""
                return f"hung: {words} {overrun}"
        cache_bytes = cache.num_bytes if (cache := self._status.memory_cache) else 0
        for growth, thing, words in (
            (self._prompt_growth, preparing_s, "preparing one prompt"),
            (self._question_growth, owed.asked_at_s, "a question about text"),
        ):
            if growth.add(thing, self._status.own_bytes, cache_bytes) > self._patience.max_prompt_bytes:
                self.culprit = self._status.preparing_id if growth is self._prompt_growth else ""
                return f"{words} took more than {self._patience.max_prompt_bytes >> 20} MiB of memory"
        return None
