"""Counts the cores to compute on: physical, fast cores that this process may use, within its CPU quota.

llama.cpp's threads wait for each other after every operation. So one thread that shares its core, runs on a slow core
or has used up its quota delays all others. The functions take the root of the file system and the platform as
arguments, so that tests can replace them.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path

import psutil

from edgeagent.usable import cpu_quota, read_line, read_number, usable_cpus

# Cores with less than this share of the fastest core's capacity are not used. On phones with three kinds of cores, the
# first two are used, and the efficient ones are not.
_MIN_CAPACITY_SHARE = 0.7


def num_usable_cores(
    root: Path = Path("/"),
    *,
    platform: str = sys.platform,
    allowed: frozenset[int] | None = None,
    sysctl: Callable[[str], int | None] | None = None,
) -> int:
    """Return how many threads to compute with, at least one.

    `allowed`: the logical CPUs that the process may run on; if None, the system is asked. `sysctl`: returns a value of
    macOS's kernel by its name.
    """
    if platform == "linux":
        cpus = performance_cpus(root, usable_cpus() if allowed is None else allowed)
        num_cores = num_physical_cores(root, cpus)
        quota = cpu_quota(root)
        return max(1, num_cores if quota is None else min(num_cores, math.ceil(quota)))
    if platform == "darwin":
        num_performance_cores = (sysctl or _read_sysctl)("hw.perflevel0.physicalcpu")
        if num_performance_cores:
            return num_performance_cores
    # On Windows efficient cores count too: Python has no call that tells them apart.
    return max(1, psutil.cpu_count(logical=False) or os.cpu_count() or 1)


def performance_cpus(root: Path, cpus: frozenset[int]) -> frozenset[int]:
    """Return those of the logical CPUs that are on fast cores; all if the system does not tell cores apart.

    Linux lists the fast CPUs of Intel processors in /sys/devices/cpu_core, and gives a cpu_capacity for Arm processors.
    """
    devices = root / "sys/devices"
    capacities = {cpu: read_number(devices / f"system/cpu/cpu{cpu}/cpu_capacity") for cpu in cpus}
    known = [capacity for capacity in capacities.values() if capacity is not None]
    if known and len(known) == len(cpus):
        return frozenset(
            cpu for cpu, capacity in capacities.items() if (capacity or 0) >= _MIN_CAPACITY_SHARE * max(known)
        )
    listed = read_line(devices / "cpu_core/cpus")
    return (parse_cpus(listed) & cpus or cpus) if listed else cpus


def num_physical_cores(root: Path, cpus: frozenset[int]) -> int:
    """Return on how many physical cores these logical CPUs are."""
    topology = [root / f"sys/devices/system/cpu/cpu{cpu}/topology" for cpu in cpus]
    siblings = {read_line(path / "core_cpus_list") or read_line(path / "thread_siblings_list") for path in topology}
    if siblings and None not in siblings:
        return len(siblings)
    return min(len(cpus), psutil.cpu_count(logical=False) or len(cpus))


def parse_cpus(text: str) -> frozenset[int]:
    """Return the numbers in a list such as "0-3,8"; an empty set if the text is not such a list."""
    try:
        bounds = [part.partition("-") for part in text.strip().split(",") if part]
        return frozenset(cpu for first, _, last in bounds for cpu in range(int(first), int(last or first) + 1))
    except ValueError:
        return frozenset()


def _read_sysctl(name: str) -> int | None:
    """Return the integer that macOS's sysctl has under this name; None if there is none."""
    value, size = ctypes.c_int(0), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
    try:
        status = ctypes.CDLL(None).sysctlbyname(name.encode(), ctypes.byref(value), ctypes.byref(size), None, 0)
    except (AttributeError, OSError):
        return None
    return int(value.value) if status == 0 else None
