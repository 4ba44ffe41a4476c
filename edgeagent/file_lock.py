"""Exclusive locks on open files. The kernel releases a lock when its process ends, so that no lock becomes stale."""

from __future__ import annotations

import sys
from pathlib import Path

if sys.platform == "win32":
    import msvcrt

    def try_lock(descriptor: int) -> bool:
        """Take the lock until the file is closed; return False if it is already held."""
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def try_lock(descriptor: int) -> bool:
        """Take the lock until the file is closed; return False if it is already held."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def holder(path: Path) -> int | None:
    """Return the id of the process that holds a file's lock; None if the lock is free or its holder is not known.

    The holder is known only on Linux, and only if it is in the same PID namespace as this process.

    This function does not try to take the lock. Otherwise a daemon that starts at the same moment would find the lock
    taken.
    """
    try:
        inode = path.stat().st_ino
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        match line.split():
            case [_, "FLOCK", _, "WRITE", pid, place, *_] if place.endswith(f":{inode}") and pid.isdecimal():
                return int(pid) or None  # 0: the process is in another namespace
    return None
