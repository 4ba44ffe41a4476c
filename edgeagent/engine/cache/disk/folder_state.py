"""What a folder of blocks keeps over restarts: its time, how many bytes may still be written, and the rate of reads."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from edgeagent import cache_folder
from edgeagent.cache_folder import SavedState
from edgeagent.engine.cache.disk.files import Files

LITTLE_LEFT = 0.25
"""If at most this part of the hour's allowance is left, blocks of importance NORMAL wait, and the status says so."""
_HOUR_S = 3600.0
# The state is saved when this part of the hour's bytes was written. If the process is killed, no more is forgotten.
_SAVED_PART = 1 / 32
# An hour's bytes without a limit, so that all of the allowance is left when a limit is set.
_UNLIMITED = 2.0**60


def steady_clock_s() -> float:
    """Return the seconds of a clock that cannot be set. Where possible, it also runs while the machine sleeps."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


class FolderState:
    """The folder's time, its allowance of bytes to write, and the rate of reads. See SavedState.

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
        self.bytes_per_hour = bytes_per_hour
        self.read_bytes_per_s = 0.0
        self.name_trouble: str | None = None
        """An error message if a folder has the name of the state file; else None."""
        self._files = files
        self._max_gap_s = max_gap_s
        self._clock = clock
        self._wall = wall
        self._base_s = wall() - clock()
        # How many bytes could be written at a time of the folder.
        self._allowance = _UNLIMITED, self.now_s
        self._unsaved_bytes = 0

    @property
    def now_s(self) -> float:
        return self._base_s + self._clock()

    @property
    def _left_bytes(self) -> float:
        num_bytes, at_s = self._allowance
        limit = float(self.bytes_per_hour) or _UNLIMITED
        return min(limit, num_bytes + max(0.0, self.now_s - at_s) * limit / _HOUR_S)

    @property
    def allowance_left(self) -> float:
        """The unused part of the hour's allowance, 0 to 1."""
        return self._left_bytes / self.bytes_per_hour if self.bytes_per_hour else 1.0

    @property
    def allowance_trouble(self) -> str | None:
        """A message for the status if at most LITTLE_LEFT of the hour's allowance is left; else None."""
        left = self.allowance_left
        if left > LITTLE_LEFT:
            return None
        return (
            f"{1 - left:.0%} of the {self.bytes_per_hour / 2**20:,.0f} MiB that this model may write in an hour are "
            "used (cache.max_bytes_per_hour): only important prefixes are written now, the others wait"
        )

    def open(self) -> bool:
        """Read the state file, so that the folder's time continues from the time that was saved there.

        Return False if there is no valid file. The ages of blocks are then unknown.
        """
        state = cache_folder.read_state(self._files.folder)
        if state is None:
            return False
        self._base_s = state.now_after(self._wall(), self._max_gap_s) - self._clock()
        self._allowance = state.allowance_bytes, state.allowance_at_s
        self.read_bytes_per_s = state.read_bytes_per_s
        return True

    def save(self) -> None:
        """Write the state file. Raise OSError if that fails."""
        now_s, name = self.now_s, cache_folder.temporary_name()
        state = SavedState(now_s, self._wall(), self._left_bytes, now_s, self.read_bytes_per_s)
        file = self._files.create(name)
        try:
            with file:
                self._files.write(file, [cache_folder.encode_state(state)])
            self._files.rename(name, cache_folder.STATE_FILE)
            self.name_trouble = None
        except OSError as error:
            with contextlib.suppress(OSError):
                self._files.remove(name)
            if not isinstance(error, IsADirectoryError):
                raise
            self.name_trouble = self._files.in_the_way(cache_folder.STATE_FILE)
        self._unsaved_bytes = 0

    def is_possible(self, num_bytes: int) -> bool:
        """Whether `num_bytes` are within the allowance of a whole hour. If not, they can never be written."""
        return self.bytes_per_hour == 0 or num_bytes <= self.bytes_per_hour

    def take(self, num_bytes: int) -> bool:
        """Count `num_bytes` as written and return True; return False if they may not be written now.

        Raise OSError if the state cannot be saved.
        """
        left_bytes = self._left_bytes
        if self.bytes_per_hour == 0:
            return True
        if left_bytes < num_bytes:
            return False
        self._allowance = left_bytes - num_bytes, self.now_s
        self._unsaved_bytes += num_bytes
        if self._unsaved_bytes > self.bytes_per_hour * _SAVED_PART:
            self.save()
        return True
