"""Restricts a worker before it opens a model: no network, no programs, no privileges, no files that it does not need.

Model files are untrusted, and parsers have bugs. An attacker who takes over the worker should reach nothing but the
model, the conversation and a pipe. `enclose` returns the restrictions that took effect on the platform.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from edgeagent.worker.sandbox import landlock, seccomp

NO_NETWORK = "no-network"
NO_PROGRAMS = "no-programs"
NO_NEW_PRIVILEGES = "no-new-privileges"
READ_ONLY_FILES = "read-only files"

_MAX_OPEN_FILES = 4096
# Limit of threads in addition to those that already run, since Linux counts all threads of a user.
_MAX_MORE_THREADS = 4096
_OOM_SCORE, _MAX_OOM_SCORE = 500, 1000
_WAKE_TIMEOUT_S = 20.0
# Folders of programs, libraries, drivers and the system files that they read. Homes are not included.
_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/opt", "/nix/store", "/gnu/store", "/etc", "/proc", "/sys")
_DEVICES = ("null", "zero", "full", "random", "urandom")
# fmt: off
_GPU_DEVICES = (
    "dri", "nvidia*", "nvhost*", "nvmap", "nvgpu", "nvsciipc", "kfd", "dxg", "accel", "mali*", "kgsl*", "dma_heap",
)
# fmt: on
# With one of these, CUDA may be used: on a PC, in Windows' Linux (WSL), on a Jetson.
_CUDA_DEVICES = ("nvidiactl", "dxg", "nvmap")
# Drivers cache compiled kernels in these folders of the user's caches, and in ~/.nv; compiling them takes seconds.
_GPU_CACHES = ("nvidia", "mesa_shader_cache", "mesa_shader_cache_db", "radv_builtin_shaders64", "AMD")
# Source of these: capabilities(7), capset(2), include/uapi/linux/{capability,prctl}.h.
_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITY_VERSION_3 = 0x20080522
# A daemon that runs as root, for example in a container, must still read other users' models and lock memory.
_DAC_OVERRIDE, _DAC_READ_SEARCH, _IPC_LOCK = 1, 2, 14
_KEPT_CAPABILITIES = 1 << _DAC_OVERRIDE | 1 << _DAC_READ_SEARCH | 1 << _IPC_LOCK


def set_limits() -> None:
    """Limit a worker's use of the machine, as far as the platform supports it.

    There are no core files (they would hold prompts), no message queues and no realtime priority. Descriptors and
    threads are limited. If memory runs out, the system ends the worker before the daemon. Address space is not limited,
    since mapped models and GPU drivers reserve far more than they ever use.
    """
    if os.name == "posix":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _lower(resource.RLIMIT_NOFILE, _MAX_OPEN_FILES)
    if sys.platform == "linux":
        with contextlib.suppress(OSError, ValueError):
            num_threads = int(Path("/proc/loadavg").read_text(encoding="ascii").split()[3].partition("/")[2])
            _lower(resource.RLIMIT_NPROC, num_threads + _MAX_MORE_THREADS)
        _lower(resource.RLIMIT_MSGQUEUE, 0)
        _lower(resource.RLIMIT_RTPRIO, 0)
        with contextlib.suppress(OSError):
            score = Path("/proc/self/oom_score_adj")
            worse = min(_MAX_OOM_SCORE, int(score.read_text(encoding="ascii")) + _OOM_SCORE)
            score.write_text(f"{worse}\n", encoding="ascii")


def _lower(limit: int, value: int) -> None:
    """Lower a hard limit to `value` permanently; keep it if it is lower. Then set the soft limit to the hard limit."""
    import resource

    _, hard = resource.getrlimit(limit)
    value = value if hard == resource.RLIM_INFINITY else min(hard, value)
    resource.setrlimit(limit, (value, value))


def enclose(read: Iterable[Path], write: Iterable[Path]) -> tuple[str, ...]:
    """Permanently give up what a worker does not need; return the restrictions that took effect, in words.

    `read` are the model's files. `write` are the folders and files that the process may write to. Call this while the
    process has one thread. With more threads, access to files is not restricted, since Landlock restricts only the
    calling thread and the threads it starts. On systems other than Linux there are no restrictions, and the result is
    empty.
    """
    if sys.platform != "linux":
        return ()
    _wake_gpu()
    state: list[str] = []
    # If the kernel is too old or a container forbids a restriction, the worker runs without it. The status shows this.
    with contextlib.suppress(OSError):
        _give_up_privileges()
        state.append(NO_NEW_PRIVILEGES)
    with contextlib.suppress(OSError):
        if _num_threads() == 1:
            own = [*write, *_gpu_caches(), *_cuda_thread_names()]
            landlock.restrict(read=[*read, *_libraries()], write=own, devices=_devices())
            state.append(READ_ONLY_FILES)
    with contextlib.suppress(OSError):
        seccomp.refuse_calls(for_cuda=_may_use_cuda())
        state += [NO_NETWORK, NO_PROGRAMS]
    return tuple(sorted(state))


def enclose_renderer() -> None:
    """Permanently give up what a chat template's renderer does not need, as far as the platform supports it.

    Call this while the process has one thread.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError):
        _give_up_privileges()
    with contextlib.suppress(OSError):
        landlock.restrict(read=_libraries(), write=(), devices=_devices())
    with contextlib.suppress(OSError):
        seccomp.refuse_calls()


def _wake_gpu() -> None:
    """Create NVIDIA's device files if they are missing.

    After a boot, these files are missing until a program uses the GPU. The driver then runs nvidia-modprobe, which
    creates them as root. In the sandbox, the driver cannot run it and would find no GPU. So run nvidia-modprobe here,
    before the sandbox is entered.
    """
    program = shutil.which("nvidia-modprobe", path="/usr/bin:/usr/sbin:/bin:/sbin")
    is_asleep = Path("/proc/driver/nvidia").exists() and not Path("/dev/nvidia-uvm").exists()
    if is_asleep and program is not None:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run([program, "-u", "-c=0"], timeout=_WAKE_TIMEOUT_S, check=False, stdout=sys.stderr)  # noqa: S603


def _num_threads() -> int:
    return sum(1 for _ in Path("/proc/self/task").iterdir())


def _libraries() -> Iterator[Path]:
    """Yield the folders of the interpreter, its packages, the system and the loader's search path."""
    yield from (Path(name) for name in _SYSTEM)
    yield from (Path(name) for name in {sys.prefix, sys.base_prefix, sys.exec_prefix})
    yield from (Path(name) for name in sys.path if name)
    for name in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep):
        if Path(name).is_absolute():
            yield Path(name)


def _may_use_cuda() -> bool:
    return any((Path("/dev") / name).exists() for name in _CUDA_DEVICES)


def _cuda_thread_names() -> Iterator[Path]:
    """Yield the folder that holds the names of this process's threads, if CUDA may be used.

    CUDA writes names there at its start. If it cannot write them, it finds no GPU. The folder stays open, so that the
    kernel keeps it when memory is short: Landlock's rule would not apply to a new folder.
    """
    if _may_use_cuda():
        threads = Path("/proc/self/task")
        os.open(threads, os.O_PATH | os.O_CLOEXEC)
        yield threads


def _devices() -> Iterator[Path]:
    yield from (Path("/dev") / name for name in _DEVICES)
    for pattern in _GPU_DEVICES:
        yield from Path("/dev").glob(pattern)


def _gpu_caches() -> Iterator[Path]:
    try:
        home = Path.home()
    except RuntimeError:
        return
    yield home / ".nv"
    caches = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    yield from (caches / name for name in _GPU_CACHES)


class _CapabilityHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _CapabilitySets(ctypes.Structure):
    _fields_ = [("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32)]


def _give_up_privileges() -> None:
    """Drop this thread's capabilities, except those for accessing files and locking memory.

    Also set no_new_privs, so that programs executed after this gain no capabilities. Raise OSError if a call fails.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    header, sets = _CapabilityHeader(_CAPABILITY_VERSION_3, 0), (_CapabilitySets * 2)()
    _check(libc.capget(ctypes.byref(header), sets))
    for index, kept in enumerate((_KEPT_CAPABILITIES, 0)):
        sets[index].effective &= kept
        sets[index].permitted &= kept
        sets[index].inheritable = 0
    _check(libc.capset(ctypes.byref(header), sets))


def _check(result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
