"""Judges whether a soak was flat, which means that the daemon's memory and other resources did not grow.

Caches fill first, and killed workers start with empty caches. So growth is measured in the second half, in which no
worker is killed. It is the lowest value in the last third of that half minus the lowest value in the first third. The
lowest value is used because an allocator returns freed memory in waves. If a third is shorter than such a wave, the
figure has no limit.

The resources held after all clients have gone are compared with those at the start. After the cache is purged, no KV
cell may be in use.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tests.integration.leaks import Holdings

# The minimum length of a third of the second half. A shorter one may lie within a single wave of the allocator.
MIN_THIRD_S = 60.0


@dataclass(slots=True)
class Look:
    """One measurement: the resources held, and the blocks in host memory and on disk.

    `worst_lag_s` and `first_token_s` cover the time since the last look: the slowest /health answer, and the times to
    the first token.
    """

    at_s: float
    held: Holdings
    num_blocks: int
    worst_lag_s: float
    first_token_s: list[float]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the verdict. If `limit` is None, the line only informs."""

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
    """Return the lines of the verdict. The soak was flat if every line is within its limit."""
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
        # Without a limit, since this value is taken at any point of the allocator's wave.
        Line("worker's memory at rest, MiB more than before", after.worker_mib - before.worker_mib),
        Line("KV cells in use, median", statistics.median(look.held.num_cells_used for look in later)),
        Line("KV cells in use at the end, cache forgotten", after.num_cells_used, 0.0),
        Line("blocks in memory and on disk, growth", growth([float(look.num_blocks) for look in later])),
        Line("daemon's descriptors more than before", after.daemon_descriptors - before.daemon_descriptors, 0.0),
        Line("worker's descriptors more than before", after.worker_descriptors - before.worker_descriptors, 0.0),
        # A thread pool may have been smaller before.
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
    """Return the lowest value of the last third minus the lowest value of the first third; 0 if there are too few."""
    third = len(values) // 3
    return min(values[-third:]) - min(values[:third]) if third else 0.0


def drift(values: Sequence[float]) -> float:
    """Return the median of the last third divided by the median of the first third; 1 if there are too few values."""
    third = len(values) // 3
    if third < 10:
        return 1.0
    return statistics.median(values[-third:]) / statistics.median(values[:third])


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile: the share `share` (0 to 1) of the values does not exceed it. Return 0 without values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
