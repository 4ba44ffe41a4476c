"""Chooses how many CPU threads a decode uses while other programs use the machine too.

llama.cpp's threads meet at a barrier after every operation and spin there. A thread that has lost its core to another
program makes all others wait, so two threads on one free core are several times slower than one. Therefore the number
of threads follows the number of cores that other programs leave free.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil

from edgeagent.usable import usable_cpus

# The time between two samples: much longer than the operating system's clock ticks (10 ms), but short enough that an
# answer of a few seconds gets the new number of threads.
_PERIOD_S = 0.5
# A thread is removed when other programs use more than half of a core. It is added again when three quarters are free.
_TAKE = 0.5
_TAKE_BACK = 0.25


@dataclass(frozen=True, slots=True)
class CpuSample:
    """CPU times at one moment, in seconds.

    `all_s` is the CPU time used so far by all programs on the CPUs that this process may use, `own_s` that of this
    process. Only differences between two samples have a meaning. `at_s` is the monotonic time of the sample.
    """

    at_s: float
    all_s: float
    own_s: float


def read_cpu() -> CpuSample:
    """Return the CPU times of this process, and of the CPUs that it may use."""
    each, usable = psutil.cpu_times(percpu=True), usable_cpus()
    # CPUs that are switched off have no times. Their numbers are unknown then, so all others count.
    counted = [each[cpu] for cpu in usable] if max(usable) < len(each) else each
    own = psutil.Process().cpu_times()
    return CpuSample(time.monotonic(), sum(map(_busy_s, counted)), own.user + own.system)


def _busy_s(times: Any) -> float:
    idle_s = times.idle + getattr(times, "iowait", 0.0)
    # The system counts the time of virtual machines (guest) in user time too. Subtract it, so that it counts once.
    total_s = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0)
    return float(total_s - idle_s)


class ThreadGovernor:
    """Chooses `num_threads`: one thread for each core that other programs leave free, 1 to `max_threads`.

    `num_cores`: how many logical CPUs this process may use; if None, the operating system is asked.
    """

    def __init__(
        self,
        max_threads: int,
        *,
        num_cores: int | None = None,
        sample: Callable[[], CpuSample] = read_cpu,
    ) -> None:
        self.max_threads = self._all_threads = max_threads
        """The number of threads while no other program uses the CPUs."""
        self._num_cores = num_cores or len(usable_cpus())
        self._sample = sample
        self._last = sample()
        self.num_threads = max_threads
        self._has_rested = False

    def limit(self, share: float) -> bool:
        """Use at most this share of the threads from now on, but at least one. Return whether `num_threads` changed."""
        self.max_threads = max(1, round(share * self._all_threads))
        before = self.num_threads
        self.num_threads = min(before, self.max_threads)
        return self.num_threads != before

    def rest(self) -> None:
        """Record that nothing is computed now.

        Another program that computed between two answers may have ended. If its time counted, the next answer would
        begin with too few threads. But cores that were idle meanwhile are free, so threads may be added.
        """
        self._has_rested = True

    def update(self, now_s: float) -> bool:
        """Measure the load, at most twice a second. Return whether `num_threads` changed. `now_s`: time.monotonic()."""
        if now_s - self._last.at_s < _PERIOD_S or self.max_threads == 1:
            return False
        sample = self._sample()
        elapsed_s = sample.at_s - self._last.at_s
        if elapsed_s < _PERIOD_S / 2:
            return False  # another thread has just measured the load
        others = ((sample.all_s - self._last.all_s) - (sample.own_s - self._last.own_s)) / elapsed_s
        before = self.num_threads
        least = before if self._has_rested else 1
        self._last, self._has_rested = sample, False
        self.num_threads = max(min(least, self.max_threads), self._choose(self._num_cores - others))
        return self.num_threads != before

    def _choose(self, free: float) -> int:
        fewest = math.floor(free + _TAKE_BACK)
        most = math.floor(free + _TAKE)
        # Between the two limits the number of threads does not change.
        return max(1, min(self.max_threads, max(fewest, min(self.num_threads, most))))
