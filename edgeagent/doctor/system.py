"""Reads facts of the machine: processor, GPUs, memory and compilers. Tests can replace the root folder."""

from __future__ import annotations

import platform as platform_names
import shutil
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

from edgeagent.doctor.facts import Cpus, GpuVendor, Memory, Tools
from edgeagent.usable import usable_cpus, usable_memory

_PROGRAM_TIMEOUT_S = 5.0
_LOAD_S = 0.25
# PCI vendor ids.
_VENDORS: dict[str, GpuVendor] = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel"}
_CPU_ROWS = ("flags", "Features", "isa")
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]


def read_memory() -> Memory:
    """Return the memory that this process may use, and the swap."""
    machine = usable_memory()
    try:
        swap = psutil.swap_memory()
    except (OSError, RuntimeError):  # /proc/vmstat is closed in some containers
        return Memory(machine.total, machine.available)
    return Memory(machine.total, machine.available, swap.total, swap.free)


def read_cpus() -> Cpus:
    """Return how many CPUs this process may use, and how many of them are busy. This takes a quarter of a second."""
    usable = usable_cpus()
    shares = psutil.cpu_percent(_LOAD_S, percpu=True)
    # CPUs that are switched off are not listed. Their numbers are unknown then, so all others count.
    counted = [shares[cpu] for cpu in usable] if max(usable) < len(shares) else shares
    return Cpus(len(usable), sum(counted) / 100)


def cpu_flags(root: Path = Path("/"), platform: str = sys.platform) -> frozenset[str]:
    """Return the instruction sets that the system reports, in lower case; empty if it does not report them."""
    if platform == "darwin":
        return _flags_of_sysctl(_output("/usr/sbin/sysctl", "machdep.cpu", "hw.optional"))
    with suppress(OSError):
        lines = (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        rows = [line.partition(":") for line in lines]
        return frozenset(flag.lower() for name, _, row in rows if name.strip() in _CPU_ROWS for flag in row.split())
    return frozenset()


def _flags_of_sysctl(text: str) -> frozenset[str]:
    """Return the CPU flags in the output of macOS's sysctl, in lower case.

    On Intel, a row lists the flags. On Apple silicon, each flag has a row, with the value 1 if the CPU has it.
    """
    found: set[str] = set()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if "features" in name:
            found |= {word.lower() for word in value.split()}
        elif value.strip() == "1":
            found.add(name.rpartition(".")[2].lower())
    return frozenset(found)


def processor_name(root: Path = Path("/")) -> str:
    """Return the processor's name, or the nearest description that the system offers."""
    with suppress(OSError):
        for line in (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    if sys.platform == "darwin":
        name = _output("/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string").strip()
        if name:
            return name
    return platform_names.processor() or platform_names.machine() or "an unknown processor"


def gpus(root: Path = Path("/"), platform: str = sys.platform, machine: str | None = None) -> frozenset[GpuVendor]:
    """Return the vendors of this machine's GPUs. No driver's library is loaded for this."""
    found: set[GpuVendor] = set()
    if platform == "darwin":
        return frozenset({"apple"} if (machine or platform_names.machine()) == "arm64" else ())
    if platform == "win32":
        return frozenset({"nvidia"} if shutil.which("nvidia-smi") else ())
    if (root / "proc/driver/nvidia/version").exists() or any((root / "dev").glob("nvidia[0-9]*")):
        found.add("nvidia")
    if (root / "dev/kfd").exists():
        found.add("amd")
    for vendor in _read_all((root / "sys/class/drm").glob("card*/device/vendor")):
        if vendor in _VENDORS:
            found.add(_VENDORS[vendor])
    return frozenset(found)


def tools(root: Path = Path("/")) -> Tools:
    """Return which tools for compiling llama.cpp this machine has."""
    return Tools(
        python=sys.executable,
        is_checkout=(_PACKAGE_ROOT / "packaging" / "setup_env.py").is_file() and (_PACKAGE_ROOT / "Makefile").is_file(),
        has_cuda=shutil.which("nvcc") is not None or (root / "usr/local/cuda/bin/nvcc").exists(),
        has_rocm=shutil.which("hipconfig") is not None or (root / "opt/rocm/bin/hipconfig").exists(),
    )


def _read_all(paths: Iterable[Path]) -> list[str]:
    texts = []
    for path in paths:
        with suppress(OSError):
            texts.append(path.read_text(encoding="ascii", errors="replace").strip())
    return texts


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROGRAM_TIMEOUT_S)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
