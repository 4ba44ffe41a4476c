"""Linux's seccomp filter, called directly: system calls that a process refuses itself for good.

Source: seccomp(2), include/uapi/linux/{seccomp,filter,audit}.h. The bindings on PyPI need libseccomp and are not
maintained; a filter that only names calls is a dozen instructions. It does not know why a call is refused.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Sequence
from dataclasses import dataclass

_SET_FILTER, _ALL_THREADS = 1, 1
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EACCES
# Classic BPF: load a word, compare and jump, return.
_LOAD, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET = 0, 4
_OTHER_ABI = 0x40000000  # x86-64's x32 calls


@dataclass(frozen=True, slots=True)
class _Machine:
    """An architecture: its audit number, its seccomp call, and the calls that are refused by name."""

    audit: int
    seccomp: int
    calls: dict[str, int]


# New calls have one number everywhere from 424 on.
_SHARED = {
    "io_uring_setup": 425,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_getfd": 438,
}
# fmt: off
_MACHINES = {
    "x86_64": _Machine(0xC000003E, 317, _SHARED | {
        "socket": 41, "execve": 59, "execveat": 322, "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311,
        "bpf": 321, "perf_event_open": 298, "userfaultfd": 323, "add_key": 248, "request_key": 249, "keyctl": 250,
        "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "setns": 308, "unshare": 272,
        "init_module": 175, "finit_module": 313, "delete_module": 176, "kexec_load": 246, "reboot": 169,
    }),
    "aarch64": _Machine(0xC00000B7, 277, _SHARED | {
        "socket": 198, "execve": 221, "execveat": 281, "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271,
        "bpf": 280, "perf_event_open": 241, "userfaultfd": 282, "add_key": 217, "request_key": 218, "keyctl": 219,
        "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51, "setns": 268, "unshare": 97,
        "init_module": 105, "finit_module": 273, "delete_module": 106, "kexec_load": 104, "reboot": 142,
    }),
}
# fmt: on


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def refuse_calls() -> None:
    """Refuse all threads of this process sockets, programs, other processes' memory and the kernel's inner doors.

    Needs no_new_privs. Raise OSError where the kernel or the architecture has no filter. socketpair stays: it connects
    to nobody.
    """
    machine = _MACHINES.get(platform.machine())
    if machine is None:
        raise OSError(f"no seccomp filter is known for {platform.machine()}")
    instructions = _filter(machine.audit, sorted(machine.calls.values()))
    program = _Program(len(instructions) // 8, instructions)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(ctypes.c_long(machine.seccomp), _SET_FILTER, _ALL_THREADS, ctypes.byref(program)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _filter(audit: int, numbers: Sequence[int]) -> bytes:
    """Return the instructions: foreign architectures and the named calls are refused, all else is allowed."""
    jumps = [(_JUMP_EQUAL, number) for number in numbers]
    jumps.append((_JUMP_GREATER_EQUAL, _OTHER_ABI))
    code = [
        (_LOAD, 0, 0, _ARCHITECTURE_OFFSET),
        (_JUMP_EQUAL, 0, len(jumps) + 2, audit),  # another one: on to the refusal
        (_LOAD, 0, 0, _NUMBER_OFFSET),
    ]
    # From each jump to the refusal, past the jumps behind it and the allowance.
    code += [(jump, len(jumps) - index, 0, value) for index, (jump, value) in enumerate(jumps)]
    code += [(_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _REFUSE)]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)
