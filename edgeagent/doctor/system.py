"""Reads facts of the machine: processor, GPUs, memory, compilers, folders and the port.

It changes and creates nothing, and does not disturb a running daemon. Tests can replace the root folder.
"""

from __future__ import annotations

import errno
import importlib.util
import itertools
import json
import os
import platform as platform_names
import re
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import psutil

from edgeagent.config import ServerConfig
from edgeagent.doctor.facts import Cpus, Folder, GpuVendor, Memory, Port, PortState, Tools
from edgeagent.runtime_file import local_url
from edgeagent.usable import file_system, port_user, processor_name, usable_cpus, usable_memory

ANSWER_TIMEOUT_S = 1.0
# The folder of cached prefixes may hold many files. Counting stops at this number.
_MAX_FILES = 100_000

DiskUsage = Callable[[Path], Any]


def look_at(path: Path, *, is_measured: bool = False, disk_usage: DiskUsage = shutil.disk_usage) -> Folder:
    """Return the facts about a folder. If it does not exist, they are those of the nearest parent that exists.

    If `is_measured`, the sizes of the files in it and in its subfolders are added up too, of up to _MAX_FILES files.
    """
    near = next((folder for folder in (path, *path.parents) if _exists(folder)), Path("/"))
    try:
        status = near.stat()
        usage = disk_usage(near)
    except OSError as error:
        return Folder(path, problem=error.strerror or str(error))
    is_there = near == path
    if not stat.S_ISDIR(status.st_mode):
        return Folder(path, problem=f"{near} is a file" if not is_there else "it is a file, not a folder")
    return Folder(
        path,
        is_there=is_there,
        is_writable=os.access(near, os.W_OK | os.X_OK) and not _is_read_only(near),
        owner=_user_name(status.st_uid),
        is_own=sys.platform == "win32" or status.st_uid == os.getuid(),
        mode=stat.S_IMODE(status.st_mode) if sys.platform != "win32" else 0o700,
        file_system=file_system(near),
        total_bytes=usage.total,
        free_bytes=usage.free,
        used_bytes=_size_of(path) if is_measured and is_there else 0,
    )


def look_at_port(server: ServerConfig, own_port: int | None) -> Port:
    """Return whether the configured address is free. If another program uses it, return which one.

    `own_port` is the port of the daemon that runs with this state folder; None if there is none.
    """
    state, holder = _port_state(server.host, server.port, own_port), ""
    if state == "taken":
        holder = port_user(server.port)
        if _is_edgeagent(server):
            state = "edgeagent"
    return Port(server.host, server.port, state, holder)


def _port_state(host: str, number: int, own_port: int | None) -> PortState:
    if number and number == own_port:
        return "ours"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host or None, number, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError:
        return "not ours"
    with closing(socket.socket(family, kind, protocol)) as listener:
        if sys.platform == "win32":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
        else:
            # Bind as the daemon does. The socket never listens, so no client can connect.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            if error.errno == errno.EACCES and sys.platform != "win32":
                return "not allowed"
            return "not ours" if error.errno == errno.EADDRNOTAVAIL else "taken"
    return "free"


def _is_edgeagent(server: ServerConfig) -> bool:
    """Whether an edgeagent daemon listens on the configured address. It is asked without a token."""
    url = local_url(server.host, server.port, is_encrypted=server.tls_certificate is not None)
    request = urllib.request.Request(f"{url}/version")  # noqa: S310 http or https
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=_unverified())
    )
    try:
        with opener.open(request, timeout=ANSWER_TIMEOUT_S) as answer:
            document = json.loads(answer.read(4096))
    except (OSError, ValueError, HTTPException):  # HTTPException: the program speaks another protocol
        return False
    return isinstance(document, dict) and "llama_cpp_python" in document


def _unverified() -> ssl.SSLContext:
    """Return a TLS context that accepts every certificate. Send no secret with it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass
    return True


def _is_read_only(path: Path) -> bool:
    if not hasattr(os, "statvfs"):
        return False
    with suppress(OSError):
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    return False


def _user_name(uid: int) -> str:
    if sys.platform == "win32":
        return ""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def _size_of(folder: Path) -> int:
    files = (Path(parent) / name for parent, _, names in os.walk(folder) for name in names)
    num_bytes = 0
    for file in itertools.islice(files, _MAX_FILES):
        with suppress(OSError):
            num_bytes += file.lstat().st_size
    return num_bytes


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
    shares = psutil.cpu_percent(0.25, percpu=True)
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


def read_processor() -> str:
    """Return the processor's name, or the nearest description that the system offers."""
    brand = _output("/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string").strip() if sys.platform == "darwin" else ""
    return brand or processor_name()


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
        nvidia_driver=_nvidia_driver(root),
        has_pip=importlib.util.find_spec("pip") is not None,
    )


def _nvidia_driver(root: Path) -> int:
    """Return the main number of the NVIDIA driver's version; 0 if there is none, or if it does not say."""
    for text in _read_all([root / "proc/driver/nvidia/version"]):
        if found := re.search(r"Kernel Module.*?\s(\d+)\.\d", text):
            return int(found.group(1))
    return 0


def _read_all(paths: Iterable[Path]) -> list[str]:
    texts = []
    for path in paths:
        with suppress(OSError):
            texts.append(path.read_text(encoding="ascii", errors="replace").strip())
    return texts


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5.0)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
