"""Measures the machine's free memory and temperature, and each worker's memory. It reads files: do it in a thread."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import psutil

from edgeagent.usable import usable_memory

_MIN_FREE_SHARE = 0.03
_MIN_FREE_BYTES = 256 << 20
# The machine is too hot from this many °C below a sensor's critical temperature on. At the critical temperature the
# system slows its processors down.
_HOT_MARGIN = 3.0


def read_pressure() -> str:
    """Return "memory" if the machine is short of memory, "thermal" if it is too hot, else ""."""
    memory = usable_memory()
    if memory.available < min(_MIN_FREE_BYTES, _MIN_FREE_SHARE * memory.total):
        return "memory"
    read = getattr(psutil, "sensors_temperatures", None)  # not on every system
    try:
        sensors = {} if read is None else read()
    except (OSError, RuntimeError):
        return ""
    is_hot = any(
        sensor.critical and sensor.current >= sensor.critical - _HOT_MARGIN > 0
        for group in sensors.values()
        for sensor in group
    )
    return "thermal" if is_hot else ""


@dataclass(frozen=True, slots=True)
class Held:
    """The memory of one process.

    `mapped_bytes` is the part backed by files; None if the system does not report it. The system counts this part as
    available, although the process needs it.
    """

    rss_bytes: int
    mapped_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """The machine's memory, and the memory of some processes by process id. Processes that have ended are left out."""

    available_bytes: int
    total_bytes: int
    held: Mapping[int, Held] = field(default_factory=dict)


def read_memory(pids: Collection[int] = ()) -> Memory:
    """Return the memory of the machine and of the processes with these ids."""
    machine = usable_memory()
    held: dict[int, Held] = {}
    for pid in pids:
        try:
            info = psutil.Process(pid).memory_info()
        except psutil.Error:
            continue
        held[pid] = Held(info.rss, getattr(info, "shared", None))
    return Memory(machine.available, machine.total, held)
