"""Whether a soak was flat: growth over its looks, compared with limits. It knows neither clients nor daemons.

Caches fill first, and killed workers start with empty caches. So growth is measured in the second half, in which no
worker is killed: the lowest look of its last third minus the lowest of its first third. The lowest counts because an
allocator returns freed memory in waves; if a third is shorter than such a wave, the figure only informs. What is held
after all clients have gone is compared with the start. No KV cell may be in use once the cache is purged.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tests.integration.leaks import Holdings

# The length of a third of the second half at which its lowest look lies between two waves.
MIN_THIRD_S = 60.0


@dataclass(slots=True)
class Look:
    """The memory held, the tiers' blocks, and the worst /health lag and first-token times since the last look."""

    at_s: float
    held: Holdings
    num_blocks: int
    worst_lag_s: float
    first_token_s: list[float]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the verdict; without a limit it only informs."""

    name: str
    value: float
    limit: float | None = None

    @property
    def is_kept(self) -> bool:
        return self.limit is None or self.value <= self.limit

    def __str__(self) -> str:
        limit = "" if self.limit is None else f"at most {self.limit:g}"
        return f"{self.name:44} {self.value:10.4g}  {limit:14} {'' if self.is_kept else 'NOT FLAT'}".rstrip()


def judge(looks: Sequence[Look], lags_s: Sequence[float], before: Holdings, after: Holdings) -> list[Line]:
    """Return the lines of the verdict; every line with a limit must meet it."""
    later = looks[len(looks) // 2 :]
    first = [value for look in later for value in look.first_token_s]
    hours = (later[-1].at_s - later[0].at_s) / 3600 if len(later) > 1 else 0.0
    daemon, worker = [look.held.daemon_mib for look in later], [look.held.worker_mib for look in later]
    is_long = hours * 3600 / 3 >= MIN_THIRD_S
    per_hour = 1.5 / hours if hours else 0.0
    return [
        Line("daemon's memory, growth in MiB", growth(daemon), 4.0),
        Line("daemon's memory, MiB an hour", growth(daemon) * per_hour),
        Line("daemon's memory at rest, MiB more than before", after.daemon_mib - before.daemon_mib, 8.0),
        Line("worker's memory, growth in MiB", growth(worker), max(8.0, min(worker) * 0.1) if is_long else None),
        Line("worker's memory, MiB an hour", growth(worker) * per_hour),
        Line("worker's memory, least and", min(worker)),
        Line("worker's memory, most in MiB", max(worker)),
        # At any point of its wave.
        Line("worker's memory at rest, MiB more than before", after.worker_mib - before.worker_mib),
        Line("KV cells in use, median", statistics.median(look.held.num_cells_used for look in later)),
        Line("KV cells in use at the end, cache forgotten", after.num_cells_used, 0.0),
        Line("blocks in memory and on disk, growth", growth([float(look.num_blocks) for look in later])),
        Line("daemon's descriptors more than before", after.daemon_descriptors - before.daemon_descriptors, 0.0),
        Line("worker's descriptors more than before", after.worker_descriptors - before.worker_descriptors, 0.0),
        # A thread pool that was not full before.
        Line("daemon's threads more than before", after.daemon_threads - before.daemon_threads, 2.0),
        Line("connections left", max(0, after.num_connections), 0.0),
        Line("requests left", after.num_live, 0.0),
        # These times come from a machine that does other work too.
        Line("/health, p99 in s", percentile(lags_s, 0.99), 0.25),
        Line("/health, latest in s", max(lags_s, default=0.0), 1.0),
        Line("first token, p50 in s", percentile(first, 0.5)),
        Line("first token, p99 in s", percentile(first, 0.99)),
        Line("first token, last third over first third", drift(first), 1.5),
    ]


def growth(values: Sequence[float]) -> float:
    """Return the last third's lowest value minus the first third's; 0 if there are too few values."""
    third = len(values) // 3
    return min(values[-third:]) - min(values[:third]) if third else 0.0


def drift(values: Sequence[float]) -> float:
    """Return the last third's median divided by the first third's; 1 if there are too few values."""
    third = len(values) // 3
    if third < 10:
        return 1.0
    return statistics.median(values[-third:]) / statistics.median(values[:third])


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of the values does not exceed; 0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
