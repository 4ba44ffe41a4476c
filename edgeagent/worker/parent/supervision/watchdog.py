"""Decides when a worker counts as hung. Pure: the caller passes the time.

There is one rule. A worker owes certain pieces of work, each with a key that changes with every sign of progress. The
worker hangs if a key stays the same for too long. So a long answer is fine while tokens come.

There is one clock. A tick is the time between two checks, and counts only up to a limit, so a laptop's sleep or a stall
of the daemon does not end a worker. A limit applies to the worker's CPU time. Elapsed time may be three times as long,
since the worker may be stopped, starved by other programs, or waiting for a disk or a GPU.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from edgeagent.config import EngineConfig

# A worker that gets no CPU time (stopped, starved, waiting for a device) may take this many times as long.
_IDLE_FACTOR = 3.0


@dataclass(frozen=True, slots=True)
class SupervisionLimits:
    """The times that a supervisor waits for a worker, in seconds, and its other limits."""

    ping_interval_s: float = 1.0
    pong_timeout_s: float = 10.0
    hang_timeout_s: float = 30.0
    load_timeout_s: float = 300.0  # without progress; three times as long if the load gets no CPU time
    stop_grace_s: float = 2.0
    save_s: float = 0.0  # added to stop_grace_s, for a stopping worker to write its blocks to disk
    first_backoff_s: float = 0.5
    max_backoff_s: float = 30.0
    max_crashes: int = 3
    max_kills: int = 10  # more than one request survives, so that no single request causes a quarantine
    crash_window_s: float = 60.0  # a worker that is ready for this long makes up for earlier crashes
    quarantine_s: float = 300.0
    load_retry_s: float = 10.0
    look_interval_s: float = 5.0  # between checks of memory, unused models and files

    @classmethod
    def from_config(cls, engine: EngineConfig) -> SupervisionLimits:
        return cls(hang_timeout_s=engine.hang_timeout_s)


@dataclass(frozen=True, slots=True)
class Signs:
    """A worker process's CPU time since its start and its memory now, as reported by the operating system."""

    cpu_s: float = 0.0
    rss_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Owed:
    """A piece of work that the worker must get on with.

    - `key` changes with each sign of progress. `limit_s` is how many seconds of CPU time it may stay the same.
    - `words` begin the description of a hang, such as "one step took longer than".
    - `culprit` is the id of the request that causes the hang; "" if unknown.
    """

    words: str
    key: Hashable
    limit_s: float
    culprit: str = ""


@dataclass(frozen=True, slots=True)
class Hang:
    """Why a worker counts as hung, and the id of the request that caused it; "" if unknown.

    `is_idle`: the limit on elapsed time was reached before that on CPU time.
    """

    why: str
    culprit: str = ""
    is_idle: bool = False


class Watchdog:
    """Measures how long one process has not got on with what it owes. `interval_s` is the usual length of a tick."""

    def __init__(self, interval_s: float) -> None:
        self._max_tick_s = 2 * interval_s
        self._cpu_s: float | None = None
        self._waited: dict[Hashable, tuple[float, float]] = {}
        """Elapsed seconds and seconds of CPU time, by words and key."""

    def tick(self, elapsed_s: float, signs: Signs | None, owed: Iterable[Owed]) -> Hang | None:
        """Count the time since the last tick; return the hang if a limit is reached.

        Without `signs`, all of the time counts as CPU time.
        """
        all_s = min(elapsed_s, self._max_tick_s)
        busy_s = self._busy_s(all_s, signs)
        before, self._waited = self._waited, {}
        hang = None
        for each in owed:
            waited_s, computed_s = before.get((each.words, each.key), (0.0, 0.0))
            waited_s, computed_s = waited_s + all_s, computed_s + busy_s
            self._waited[each.words, each.key] = waited_s, computed_s
            if hang is None and computed_s >= each.limit_s:
                hang = Hang(f"{each.words} {each.limit_s:g} s", each.culprit)
            elif hang is None and waited_s >= _IDLE_FACTOR * each.limit_s:
                why = f"{each.words} {_IDLE_FACTOR * each.limit_s:g} s, with less than {each.limit_s:g} s of CPU time"
                hang = Hang(why, each.culprit, is_idle=True)
        return hang

    def _busy_s(self, all_s: float, signs: Signs | None) -> float:
        if signs is None:
            return all_s
        before, self._cpu_s = self._cpu_s, signs.cpu_s
        return 0.0 if before is None else min(all_s, max(0.0, signs.cpu_s - before))
