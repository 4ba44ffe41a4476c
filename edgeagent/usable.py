"""What this process may use of the machine: CPUs, CPU time and memory within its limits, file systems, and ports.

The functions take the root of the file system as an argument, so that tests can replace it.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath

import psutil


@dataclass(frozen=True, slots=True)
class UsableMemory:
    """The memory that this process and the others of its control groups may use, and the part that is free."""

    total: int
    available: int


def usable_memory(root: Path = Path("/")) -> UsableMemory:
    """Return the machine's memory, or less if a control group limits it, as a container's limit does."""
    machine = psutil.virtual_memory()
    total, available = int(machine.total), int(machine.available)
    for limit, used in _memory_limits(root, total):
        total, available = min(total, limit), min(available, max(0, limit - used))
    return UsableMemory(total, available)


def usable_cpus() -> frozenset[int]:
    """Return the numbers of the logical CPUs that this process may run on."""
    if sys.platform != "win32" and hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return how many CPUs the process's control groups let it use, maybe a fraction; None without a limit."""
    quotas = [_quota_v2(folder) for folder in _groups_v2(root)]
    quotas += [_quota_v1(folder) for folder in _groups_v1(root, "cpu")]
    return min((quota for quota in quotas if quota is not None), default=None)


# File systems of other machines. Locks and mapped files may not work there, and reading is slow.
NETWORK_FILE_SYSTEMS = ("nfs", "cifs", "smb", "afs", "ceph", "glusterfs", "fuse.sshfs", "9p", "lustre")


def file_system(folder: Path) -> str:
    """Return the kind of the file system that a folder is on, in lower case; empty if that is not known."""
    with suppress(OSError):
        mounts = {Path(mount.mountpoint): mount.fstype for mount in psutil.disk_partitions(all=True)}
        resolved = folder.resolve()
        return next((mounts[parent] for parent in (resolved, *resolved.parents) if parent in mounts), "").lower()
    return ""


def _memory_limits(root: Path, total: int) -> Iterator[tuple[int, int]]:
    """Yield (limit, used bytes) of each control group with a limit below `total`, the machine's memory.

    Cached files do not count as used: they can be dropped.
    """
    files = [(folder, "memory.max", "memory.current", "inactive_file") for folder in _groups_v2(root)]
    files += [
        (folder, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        for folder in _groups_v1(root, "memory")
    ]
    for folder, limit_name, used_name, cached_name in files:
        limit = read_number(folder / limit_name)
        if limit is not None and 0 < limit < total:
            used = read_number(folder / used_name)
            rows = (line.split() for line in (read_line(folder / "memory.stat") or "").splitlines())
            cached = next((int(row[1]) for row in rows if len(row) == 2 and row[0] == cached_name), 0)
            yield limit, max(0, (used or 0) - cached)


def _groups_v2(root: Path) -> list[Path]:
    """Return the folders of the process's control group and of the groups above it."""
    mounts = root / "sys/fs/cgroup"
    paths = [path for controllers, path in _memberships(root) if not controllers and path]
    return [folder for path in paths for mount in (mounts, mounts / "unified") for folder in _upwards(mount, path)]


def _groups_v1(root: Path, controller: str) -> list[Path]:
    """Return such folders of the first version of control groups, for one controller."""
    mounts = root / "sys/fs/cgroup"
    found = [(names, path) for names, path in _memberships(root) if controller in names.split(",")]
    return [
        folder
        for names, path in found
        for mount in {mounts / names, mounts / controller}
        for folder in _upwards(mount, path)
    ]


def _memberships(root: Path) -> list[tuple[str, str]]:
    rows = [line.split(":", 2) for line in (read_line(root / "proc/self/cgroup") or "").splitlines()]
    return [(row[1], row[2]) for row in rows if len(row) == 3]


def _upwards(mount: Path, path: str) -> list[Path]:
    """Return a control group's folder and its parents up to the mount. In a container, only the mount may exist."""
    inside = PurePosixPath(path.lstrip("/"))
    return [mount / inside, *(mount / parent for parent in inside.parents)]


def _quota_v2(folder: Path) -> float | None:
    quota, _, period = (read_line(folder / "cpu.max") or "").partition(" ")
    return int(quota) / int(period) if quota.isdecimal() and period.strip().isdecimal() and int(period) else None


def _quota_v1(folder: Path) -> float | None:
    quota, period = read_number(folder / "cpu.cfs_quota_us"), read_number(folder / "cpu.cfs_period_us")
    return quota / period if quota and period and quota > 0 else None


def read_line(path: Path) -> str | None:
    """Return the text of a file of the kernel, without white space around it; None if it is empty or unreadable."""
    try:
        return path.read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None


def read_number(path: Path) -> int | None:
    """Return the number in such a file; None if there is none."""
    try:
        return int(read_line(path) or "")
    except ValueError:
        return None


def processor_name(root: Path = Path("/")) -> str:
    """Return the processor's name. If the system does not report it, return its type, such as aarch64."""
    for line in (read_line(root / "proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def port_user(port: int) -> str:
    """Return which program listens on a TCP port: its name, process id and start; "" if the system does not show it."""
    with suppress(psutil.Error, OSError):
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return f"{psutil.Process(connection.pid).name()}, {process_text(connection.pid)}"
    return ""


def process_text(pid: int) -> str:
    """Return a process as text: "process 7, since 2026-11-28 10:30". A process that has ended has no start."""
    with suppress(psutil.Error):
        started = datetime.fromtimestamp(psutil.Process(pid).create_time())
        return f"process {pid}, since {started:%Y-%m-%d %H:%M}"
    return f"process {pid}"
