"""The machine's memory, temperature and battery, the memory of each worker, and whether another model fits.

What measures reads files: do it in a thread. Whether a model fits, and which one to unload first, is decided by pure
functions of sizes and times.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from edgeagent.fit.need import margin_bytes
from edgeagent.usable import usable_memory
from edgeagent.worker.protocol import FULL_POWER, Power

_MIN_FREE_SHARE = 0.03
_MIN_FREE_BYTES = 256 << 20
# The machine is too hot from this many °C below a sensor's critical temperature on. At the critical temperature the
# system slows its processors down.
_HOT_MARGIN = 3.0
# The share of a full battery from which on desktops warn: GNOME, KDE and Windows at 20 % or less.
_LOW_BATTERY_PERCENT = 20
_SERIOUS = 2  # of macOS's NSProcessInfoThermalState: the system asks programs to use less
UNPLUGGED = "unplugged"
_POWER = {
    "thermal": Power(0.5, "the machine is too hot"),
    "battery": Power(0.5, "the battery is nearly empty"),
    UNPLUGGED: Power(0.5, "the machine runs on its battery (load.on_battery)"),
}
_THERMAL = Path("/sys/class/thermal")
# By these, Linux lowers a processor's frequency when a zone is too hot: on many boards long before a critical
# temperature. A slowdown by the firmware, as on a Raspberry Pi, is not seen there.
_THROTTLES = ("Processor", "cpufreq-", "thermal-cpufreq-")
HOLD_S = 30.0
"""How long the workers use less after the machine was too hot: with all threads it would be so again in seconds."""


def power_under(pressure: str, on_battery: str = "full") -> Power:
    """Return how much of the machine the workers may use. `pressure`: the result of `read_pressure`."""
    return FULL_POWER if (pressure, on_battery) == (UNPLUGGED, "full") else _POWER.get(pressure, FULL_POWER)


def read_pressure(thermal: Path = _THERMAL) -> str:
    """Return the first that holds, or "".

    "memory": the machine is short of it. "thermal": it is too hot. "battery": it runs on a nearly empty battery.
    UNPLUGGED: it runs on a battery that has more.
    """
    memory = usable_memory()
    if memory.available < min(_MIN_FREE_BYTES, _MIN_FREE_SHARE * memory.total):
        return "memory"
    if _is_hot() or any(map(_is_throttled, _throttles(thermal))):
        return "thermal"
    battery = _sensors("sensors_battery")
    if not battery or battery.power_plugged is not False:
        return ""
    return "battery" if battery.percent <= _LOW_BATTERY_PERCENT else UNPLUGGED


@cache
def _throttles(thermal: Path) -> list[Path]:
    """Return the cooling devices by which Linux slows a processor down."""
    devices = []
    for device in thermal.glob("cooling_device*"):
        with suppress(OSError, ValueError):
            if (device / "type").read_text().startswith(_THROTTLES):
                devices.append(device)
    return devices


def _is_throttled(device: Path) -> bool:
    """Whether Linux slows a processor down by this device now, because of heat."""
    try:
        return int((device / "cur_state").read_text()) > 0
    except (OSError, ValueError):
        return False


def _is_hot() -> bool:
    if sys.platform == "darwin":
        return macos_thermal_state() >= _SERIOUS
    return any(
        sensor.critical and sensor.current >= sensor.critical - _HOT_MARGIN > 0
        for group in (_sensors("sensors_temperatures") or {}).values()
        for sensor in group
    )


def _sensors(name: str) -> Any:
    """Return the result of psutil's function; None if the system has no such sensors, or if reading them fails."""
    read = getattr(psutil, name, None)
    try:
        return None if read is None else read()
    except (OSError, RuntimeError, ValueError):  # some drivers' files have no numbers
        return None


def macos_thermal_state() -> int:
    """Return macOS's thermal state: 0 nominal, 1 fair, 2 serious, 3 critical. Not tried on a Mac.

    It is `NSProcessInfo.processInfo.thermalState`, called through the Objective-C runtime.
    """
    try:
        objc = ctypes.CDLL("/usr/lib/libobjc.dylib")
        ctypes.CDLL("/System/Library/Frameworks/Foundation.framework/Foundation")
        objc.objc_getClass.restype = objc.sel_registerName.restype = ctypes.c_void_p
        send = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(("objc_msgSend", objc))
        info = send(objc.objc_getClass(b"NSProcessInfo"), objc.sel_registerName(b"processInfo"))
        return int(send(info, objc.sel_registerName(b"thermalState")) or 0)
    except (OSError, AttributeError):
        return 0


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
        except (psutil.Error, OSError):
            continue
        held[pid] = Held(info.rss, getattr(info, "shared", None))
    return Memory(machine.available, machine.total, held)


@dataclass(frozen=True, slots=True)
class ResidentModel:
    """A model with a worker, or with memory reserved for a worker that is about to start. `pid` is None until then.

    - `needed_bytes`: the model's predicted memory, including `weights_bytes` for its files.
    - `is_loading`: it does not use all of `needed_bytes` yet.
    - `why_staying`: why it cannot be unloaded now; empty if it can.
    - `may_leave_later`: it can be unloaded once it has no requests.
    """

    name: str
    pid: int | None
    needed_bytes: int
    weights_bytes: int
    idle_s: float
    is_loading: bool = False
    why_staying: str = ""
    may_leave_later: bool = False


@dataclass(frozen=True, slots=True)
class Devices:
    """The total memory of the GPUs that have their own memory, and how much of it the loaded models use."""

    total_bytes: int = 0
    used_bytes: int = 0

    @property
    def free_bytes(self) -> int:
        """About how many bytes are free. A tenth of the memory is left for the driver and the desktop."""
        return max(0, int(0.9 * self.total_bytes) - self.used_bytes)


def free_bytes(memory: Memory, residents: Sequence[ResidentModel], devices: Devices = Devices()) -> int:
    """Return how many bytes another model may use.

    This is the free memory of the machine and of `devices`, minus a margin, minus the mapped files of loaded models,
    and minus the memory that loading models still need.
    """
    free = memory.available_bytes + devices.free_bytes - margin_bytes(memory.total_bytes)
    for resident in residents:
        held = None if resident.pid is None else memory.held.get(resident.pid)
        if resident.is_loading:
            free -= max(0, resident.needed_bytes - (0 if held is None else held.rss_bytes))
        if held is not None:
            free -= min(resident.weights_bytes, held.rss_bytes) if held.mapped_bytes is None else held.mapped_bytes
    return max(0, free)


def first_to_leave(residents: Sequence[ResidentModel]) -> ResidentModel | None:
    """Return the least recently used model among those that can be unloaded; None if there is none."""
    unloadable = (resident for resident in residents if not resident.why_staying)
    return max(unloadable, key=lambda resident: resident.idle_s, default=None)


def describe_refusal(name: str, needed_bytes: int, free: int, residents: Sequence[ResidentModel]) -> str:
    """Return the message for a model that does not fit into memory, with the sizes."""
    others = "; ".join(
        f"{resident.name} takes {_size(resident.needed_bytes)} and {resident.why_staying}" for resident in residents
    )
    return (
        f"there is no room for {name}: it needs about {_size(needed_bytes)} of memory, and {_size(free)} are free"
        f"{f' ({others})' if others else ''}"
    )


def describe_limit(name: str, max_loaded: int, residents: Sequence[ResidentModel]) -> str:
    """Return the message for a model that would exceed the limit of loaded models."""
    others = "; ".join(f"{resident.name} {resident.why_staying}" for resident in residents)
    return (
        f"{name} cannot be loaded now: at most {max_loaded} models are loaded at a time (load.max_models), and {others}"
    )


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB"
