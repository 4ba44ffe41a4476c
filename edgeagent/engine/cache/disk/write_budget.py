"""The state that all processes with the same folder share: the store's time, and how many bytes may still be written.

A small file beside the blocks keeps both over a restart. The store's time measures the ages of blocks, and never goes
back. While a process runs, the store's time follows a clock that cannot be set. Over a restart, it advances as the wall
clock did, but by at most `max_gap_s`. So a wrong wall clock can neither expire all blocks nor keep them forever.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

from edgeagent import cache_folder
from edgeagent.engine.cache.disk.files import Files
from edgeagent.engine.cache.disk.retention import LITTLE_LEFT
from edgeagent.errors import ConfigError
from edgeagent.file_lock import try_lock
from edgeagent.runtime_file import read_private

_HOUR_S = 3600.0
# A process takes its share of the allowance in pieces of this size. If it is killed, at most one piece is lost.
_GRANT_PART = 1 / 32
# The year 2242. A later time in the state file is not believed.
_NO_TIME_S = 2.0**33
_LOCK_TRIES, _LOCK_WAIT_S = 50, 0.01


def steady_clock_s() -> float:
    """Return the seconds of a clock that cannot be set. Where possible, it also runs while the machine sleeps."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


@dataclass(frozen=True, slots=True)
class _SharedState:
    now_s: float
    wall_s: float
    allowance_bytes: float
    allowance_at_s: float
    read_bytes_per_s: float


class WriteBudget:
    """The store's time, and the allowance of bytes to write.

    Only the disk's thread may call methods. Any thread may read attributes and properties.
    """

    def __init__(
        self,
        files: Files,
        *,
        bytes_per_hour: int,
        max_gap_s: float,
        clock: Callable[[], float] = steady_clock_s,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`bytes_per_hour`: 0 means no limit. `max_gap_s`: how many seconds blocks can age at most over a restart."""
        self._files = files
        self._bytes_per_hour = bytes_per_hour
        self._max_gap_s = max_gap_s
        self._clock = clock
        self._wall = wall
        self._base_s = wall() - clock()
        self._granted_bytes = 0.0
        # The part of the hour's bytes that was left when the file was last read, and the store's time of that read.
        self._allowance_left, self._looked_at_s = 1.0, 0.0
        self._latest: _SharedState | None = None  # this process's latest, used if the file cannot be read
        self.name_trouble: str | None = None
        """An error message if a folder has the name of the state file or of the lock file; else None."""
        self.read_bytes_per_s = 0.0

    @property
    def now_s(self) -> float:
        """The store's time in seconds."""
        return self._base_s + self._clock()

    @property
    def left_now(self) -> float:
        """The unused part of the hour's allowance, 0 to 1, as far as this process knows."""
        if not self._bytes_per_hour:
            return 1.0
        return min(1.0, self._allowance_left + max(0.0, self.now_s - self._looked_at_s) / _HOUR_S)

    @property
    def allowance_trouble(self) -> str | None:
        """A message for the status if at most LITTLE_LEFT of the hour's allowance is left; else None."""
        if self.left_now > LITTLE_LEFT:
            return None
        return (
            f"{1 - self.left_now:.0%} of the {self._bytes_per_hour / 2**20:,.0f} MiB that may be written in an "
            "hour are used (cache.max_bytes_per_hour): only important prefixes are written now, the others wait"
        )

    def open(self) -> bool:
        """Read the state file, so that the store's time continues from the time that was saved there.

        Return False if there is no valid file. The ages of blocks are then unknown.
        """
        state = self._read()
        if state is None:
            return False
        gap_s = min(max(0.0, self._wall() - state.wall_s), self._max_gap_s)
        self._base_s = state.now_s + gap_s - self._clock()
        self.read_bytes_per_s = state.read_bytes_per_s
        return True

    def save(self) -> None:
        """Save the store's time, and give unused bytes back to the allowance that processes share.

        Do nothing if another process keeps the lock. Raise OSError if the file cannot be written.
        """
        with self._locked() as is_locked:
            if is_locked:
                self._renew_grant(0.0)

    def is_possible(self, num_bytes: int) -> bool:
        """Whether `num_bytes` are within the allowance of a whole hour. If not, they can never be written."""
        return self._bytes_per_hour == 0 or num_bytes <= self._bytes_per_hour

    def take(self, num_bytes: int) -> bool:
        """Count `num_bytes` as written and return True; return False if they may not be written now.

        Raise OSError if the shared state cannot be saved.
        """
        if self._bytes_per_hour == 0:
            return True
        if self._granted_bytes < num_bytes:
            with self._locked() as is_locked:
                if is_locked:
                    self._renew_grant(max(num_bytes, self._bytes_per_hour * _GRANT_PART))
        if self._granted_bytes < num_bytes:
            return False
        self._granted_bytes -= num_bytes
        return True

    def _renew_grant(self, wanted_bytes: float) -> None:
        """Update the shared state on disk: give this process's unused bytes back, then take up to `wanted_bytes`.

        The bytes taken are this process's grant: it may write them without reading the file again. Call this
        method within `_locked`. Raise OSError if the file cannot be written.
        """
        state = self._read() or self._latest
        limit, now_s = float(self._bytes_per_hour), self.now_s
        if state is None:
            level = limit
        else:
            if state.now_s > now_s:
                self._base_s += state.now_s - now_s
                now_s = state.now_s
            refill = max(0.0, now_s - state.allowance_at_s) * limit / _HOUR_S
            level = min(limit, max(0.0, state.allowance_bytes) + refill)
        level = min(limit, level + self._granted_bytes)
        granted_bytes = min(level, wanted_bytes)
        state = _SharedState(now_s, self._wall(), level - granted_bytes, now_s, self.read_bytes_per_s)
        self._write(state)
        # Only after the write: if it fails, nothing is taken, since other processes would not know of the grant.
        self._latest, self._granted_bytes = state, granted_bytes
        if limit:
            self._allowance_left, self._looked_at_s = level / limit, now_s

    def _read(self) -> _SharedState | None:
        try:
            fields = json.loads(read_private(self._files.folder / cache_folder.STATE_FILE) or b"")
            state = _SharedState(**{name: float(fields[name]) for name in _SharedState.__slots__})
        except (ConfigError, OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        has_times = max(state.now_s, state.wall_s, state.allowance_at_s) < _NO_TIME_S
        return state if has_times and all(0 <= value < math.inf for value in asdict(state).values()) else None

    def _write(self, state: _SharedState) -> None:
        name = cache_folder.temporary_name()
        file = self._files.create(name)
        try:
            with file:
                self._files.write(file, [json.dumps(asdict(state)).encode()])
            self._files.rename(name, cache_folder.STATE_FILE)
            self.name_trouble = None
        except OSError as error:
            with contextlib.suppress(OSError):
                self._files.remove(name)
            if not isinstance(error, IsADirectoryError):
                raise
            self.name_trouble = self._files.in_the_way(cache_folder.STATE_FILE)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[bool]:
        """Hold the folder's lock and yield True. Yield False if another process keeps the lock for half a second.

        If a folder has the lock file's name, no process can lock; then yield True without a lock. At worst, processes
        then overwrite each other's state.
        """
        try:
            descriptor = self._files.open_lock()
        except IsADirectoryError:
            yield True
            self.name_trouble = self._files.in_the_way(cache_folder.LOCK_FILE)
            return
        try:
            for _ in range(_LOCK_TRIES):
                if try_lock(descriptor):
                    yield True
                    return
                time.sleep(_LOCK_WAIT_S)
            yield False
        finally:
            os.close(descriptor)
