"""Checks whether the machine itself is short of memory, or too hot. This reads files: do it in a thread."""

from __future__ import annotations

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
