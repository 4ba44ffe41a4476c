"""Sets a Linux seccomp filter: the kernel permanently refuses some system calls of this process.

Source: seccomp(2), include/uapi/linux/{seccomp,filter,audit}.h. The bindings on PyPI need libseccomp and are not
maintained. A filter that compares numbers needs only five kinds of instruction.

The calls are refused by a deny list: a call that is not on it is allowed, unless it is newer than this file. Newer
calls fail as if the kernel did not have them, which programs must handle anyway. Whole classes of calls are refused,
each because of what an intruder could do with it. A list of allowed calls was rejected: GPU drivers use undocumented
calls (NVIDIA's driver is closed source). The list might lack one of these, and so break machines that we cannot test.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from dataclasses import dataclass

OWN_ID = -1  # stands for the process's id
OWN_PROCESS = -2  # stands for the process's id and for 0, which means "this process" (for signals, a whole group)
# The highest call number in Linux 6.19.
NEWEST_CALL = 470


@dataclass(frozen=True, slots=True)
class Check:
    """A condition on the lower 32 bits of an argument: after masking, they must equal one of the `values`.

    With `refuses`, they must equal none of the `values`. With `is_upper_half`, the condition is on the upper 32 bits,
    which the kernel uses only for 64-bit arguments such as pointers. `argument` counts from 0. `values` may include
    OWN_ID and OWN_PROCESS.
    """

    argument: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF
    is_upper_half: bool = False
    refuses: bool = False


@dataclass(frozen=True, slots=True)
class Machine:
    """An architecture: its audit number, and the numbers of this module's calls. Calls that it lacks are left out."""

    audit: int
    numbers: dict[str, int]


_CLASSES = {
    # Landlock protects the content of files. It does not protect their owners, modes, times and attributes, and it does
    # not cover watching a folder or opening a file by its handle.
    "files": "chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat setxattr lsetxattr fsetxattr setxattrat "
    "removexattr lremovexattr fremovexattr removexattrat utime utimes futimesat file_setattr inotify_init "
    "inotify_init1 inotify_add_watch fanotify_init fanotify_mark name_to_handle_at open_by_handle_at",
    # Socket pairs, which are connected only to each other, are still allowed (below).
    "sockets": "socket connect bind listen accept accept4",
    "processes": "fork vfork execve execveat ptrace process_vm_readv process_vm_writev process_madvise "
    "process_mrelease kcmp pidfd_open pidfd_send_signal pidfd_getfd",
    # IPC objects of the user's other processes, whose numbers or names can be guessed.
    "messages": "shmget shmat shmctl shmdt semget semop semctl semtimedop msgget msgsnd msgrcv msgctl mq_open "
    "mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr",
    "namespaces": "unshare setns mount umount2 pivot_root chroot open_tree open_tree_attr move_mount fsopen fsconfig "
    "fsmount fspick mount_setattr listns",
    # Parts of the kernel with a history of security holes, which no model needs.
    "kernel": "bpf perf_event_open userfaultfd add_key request_key keyctl io_uring_setup io_uring_enter "
    "io_uring_register init_module finit_module delete_module kexec_load kexec_file_load reboot memfd_secret "
    "modify_ldt personality quotactl quotactl_fd acct swapon swapoff syslog iopl ioperm uselib vhangup",
}
REFUSED = tuple(name for names in _CLASSES.values() for name in names.split())

# Fails as if the kernel did not have it. The C library then starts threads with `clone`, whose flags a filter can see.
UNKNOWN = ("clone3",)

_THREAD = 0x10000
_NEW_NAMESPACES = 0x7E020000
_UNIX, _STREAM, _SEQPACKET, _TYPE = 1, 1, 5, 0xF
_SET_OWNER, _SET_SIGNAL, _SET_OWNER_EX, _SET_LEASE, _NOTIFY = 8, 10, 15, 1024, 1026
_TERMINAL_INPUT, _TERMINAL_SELECT = 0x5412, 0x541C
_SET_FLAGS, _SET_FLAGS_32, _SET_ATTRIBUTES = 0x40086602, 0x40046602, 0x401C5820
_SET_OWNERS = 0x8901, 0x8902
_OWN, _OWN_ID = (OWN_PROCESS,), (OWN_ID,)
CHECKED: dict[str, tuple[Check, ...]] = {
    # Threads may be created, but no processes and no namespaces.
    "clone": (Check(0, (_THREAD,), mask=_THREAD | _NEW_NAMESPACES),),
    # Datagram pairs are refused, because a datagram socket may send to any path.
    "socketpair": (Check(0, (_UNIX,)), Check(1, (_STREAM, _SEQPACKET), mask=_TYPE)),
    # Times may be set on open files, but not on paths. The disk cache records the last use of blocks this way.
    "utimensat": (Check(1, (0,)), Check(1, (0,), is_upper_half=True)),
    "kill": (Check(0, _OWN_ID),),
    "tkill": (Check(0, _OWN_ID),),
    "tgkill": (Check(0, _OWN_ID),),
    "rt_sigqueueinfo": (Check(0, _OWN_ID),),
    "rt_tgsigqueueinfo": (Check(0, _OWN_ID),),
    "prlimit64": (Check(0, _OWN),),
    "setpriority": (Check(0, (0,)), Check(1, _OWN)),
    "ioprio_set": (Check(0, (1,)), Check(1, _OWN)),
    "migrate_pages": (Check(0, _OWN),),
    "move_pages": (Check(0, _OWN),),
    # A thread may set its own scheduling (id 0). llama.cpp sets that of other threads only if configured to pin them.
    "sched_setaffinity": (Check(0, _OWN),),
    "sched_setscheduler": (Check(0, _OWN),),
    "sched_setparam": (Check(0, _OWN),),
    "sched_setattr": (Check(0, _OWN),),
    # These could send signals to others through a file's owner, make others wait for leases, or watch folders.
    "fcntl": (Check(1, (_SET_OWNER, _SET_SIGNAL, _SET_OWNER_EX, _SET_LEASE, _NOTIFY), refuses=True),),
    # These could type into a terminal, or set attributes and owners of files.
    "ioctl": (
        Check(
            1,
            (_TERMINAL_INPUT, _TERMINAL_SELECT, _SET_FLAGS, _SET_FLAGS_32, _SET_ATTRIBUTES, *_SET_OWNERS),
            refuses=True,
        ),
    ),
}

# What CUDA needs in addition. At its start it makes a listening socket, through which processes can share GPU memory.
# Without the socket it finds no GPU (seen with driver 580). No connection can be accepted or made.
CHECKED_FOR_CUDA: dict[str, tuple[Check, ...]] = {
    "socket": (Check(0, (_UNIX,)), Check(1, (_SEQPACKET,), mask=_TYPE)),
    "bind": (),
    "listen": (),
}

# From 424 on, a call has the same number on every architecture.
_SHARED = {
    "pidfd_send_signal": 424, "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428,
    "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_open": 434, "clone3": 435,
    "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442, "quotactl_fd": 443, "memfd_secret": 447,
    "process_mrelease": 448, "fchmodat2": 452, "setxattrat": 463, "removexattrat": 466, "open_tree_attr": 467,
    "file_setattr": 469, "listns": 470,
}  # fmt: skip
# Source: the kernel's arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.
MACHINES = {
    "x86_64": Machine(0xC000003E, _SHARED | {
        "chmod": 90, "fchmod": 91, "fchmodat": 268, "chown": 92, "fchown": 93, "lchown": 94, "fchownat": 260,
        "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190, "removexattr": 197, "lremovexattr": 198,
        "fremovexattr": 199, "utime": 132, "utimes": 235, "futimesat": 261, "inotify_init": 253, "inotify_init1": 294,
        "inotify_add_watch": 254, "fanotify_init": 300, "fanotify_mark": 301, "name_to_handle_at": 303,
        "open_by_handle_at": 304, "socket": 41, "connect": 42, "bind": 49, "listen": 50, "accept": 43, "accept4": 288,
        "fork": 57, "vfork": 58, "execve": 59, "execveat": 322, "ptrace": 101, "process_vm_readv": 310,
        "process_vm_writev": 311, "kcmp": 312, "migrate_pages": 256, "move_pages": 279, "shmget": 29, "shmat": 30,
        "shmctl": 31, "shmdt": 67, "semget": 64, "semop": 65, "semctl": 66, "semtimedop": 220, "msgget": 68,
        "msgsnd": 69, "msgrcv": 70, "msgctl": 71, "mq_open": 240, "mq_unlink": 241, "mq_timedsend": 242,
        "mq_timedreceive": 243, "mq_notify": 244, "mq_getsetattr": 245, "unshare": 272, "setns": 308, "mount": 165,
        "umount2": 166, "pivot_root": 155, "chroot": 161, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323,
        "add_key": 248, "request_key": 249, "keyctl": 250, "init_module": 175, "finit_module": 313,
        "delete_module": 176, "kexec_load": 246, "kexec_file_load": 320, "reboot": 169, "modify_ldt": 154,
        "personality": 135, "quotactl": 179, "acct": 163, "swapon": 167, "swapoff": 168, "syslog": 103, "iopl": 172,
        "ioperm": 173, "uselib": 134, "vhangup": 153, "clone": 56, "socketpair": 53, "utimensat": 280, "kill": 62,
        "tkill": 200, "tgkill": 234, "rt_sigqueueinfo": 129, "rt_tgsigqueueinfo": 297, "prlimit64": 302,
        "setpriority": 141, "ioprio_set": 251, "sched_setaffinity": 203, "sched_setscheduler": 144,
        "sched_setparam": 142, "sched_setattr": 314, "fcntl": 72, "ioctl": 16,
    }),
    "aarch64": Machine(0xC00000B7, _SHARED | {
        "fchmod": 52, "fchmodat": 53, "fchown": 55, "fchownat": 54, "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7,
        "removexattr": 14, "lremovexattr": 15, "fremovexattr": 16, "inotify_init1": 26, "inotify_add_watch": 27,
        "fanotify_init": 262, "fanotify_mark": 263, "name_to_handle_at": 264, "open_by_handle_at": 265, "socket": 198,
        "connect": 203, "bind": 200, "listen": 201, "accept": 202, "accept4": 242, "execve": 221, "execveat": 281,
        "ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "migrate_pages": 238,
        "move_pages": 239, "shmget": 194, "shmat": 196, "shmctl": 195, "shmdt": 197, "semget": 190, "semop": 193,
        "semctl": 191, "semtimedop": 192, "msgget": 186, "msgsnd": 189, "msgrcv": 188, "msgctl": 187, "mq_open": 180,
        "mq_unlink": 181, "mq_timedsend": 182, "mq_timedreceive": 183, "mq_notify": 184, "mq_getsetattr": 185,
        "unshare": 97, "setns": 268, "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51, "bpf": 280,
        "perf_event_open": 241, "userfaultfd": 282, "add_key": 217, "request_key": 218, "keyctl": 219,
        "init_module": 105, "finit_module": 273, "delete_module": 106, "kexec_load": 104, "kexec_file_load": 294,
        "reboot": 142, "personality": 92, "quotactl": 60, "acct": 89, "swapon": 224, "swapoff": 225, "syslog": 116,
        "vhangup": 58, "clone": 220, "socketpair": 199, "utimensat": 88, "kill": 129, "tkill": 130, "tgkill": 131,
        "rt_sigqueueinfo": 138, "rt_tgsigqueueinfo": 240, "prlimit64": 261, "setpriority": 140, "ioprio_set": 30,
        "sched_setaffinity": 122, "sched_setscheduler": 119, "sched_setparam": 118, "sched_setattr": 274, "fcntl": 25,
        "ioctl": 29,
    }),
}  # fmt: skip


_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SET_FILTER, _ALL_THREADS = 1, 1
_ALLOW, _REFUSE, _NO_CALL = 0x7FFF0000, 0x00050000 | errno.EACCES, 0x00050000 | errno.ENOSYS
# Classic BPF: load a word, mask it, compare and jump, return.
_LOAD, _AND, _JUMP_EQUAL, _JUMP_GREATER, _RETURN = 0x20, 0x54, 0x15, 0x25, 0x06
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET, _ARGUMENTS_OFFSET, _ARGUMENT_BYTES = 0, 4, 16, 8
_OTHER_ABI = 0x40000000  # x86-64's x32 calls

_Instruction = tuple[int, int, int, int]  # operation, jump if true, jump if false, value


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def refuse_calls(*, for_cuda: bool = False) -> None:
    """Make the kernel refuse the calls listed in `system_calls` for all threads of this process and its children.

    With `for_cuda`, the calls that CUDA needs are allowed. The caller must have set no_new_privs. Raise OSError if the
    kernel refuses the filter, or if this module has no filter for the architecture.
    """
    machine = MACHINES.get(platform.machine())
    if machine is None:
        raise OSError(f"no seccomp filter is known for {platform.machine()}")
    instructions = make_filter(machine, os.getpid(), for_cuda=for_cuda)
    program = _Program(len(instructions) // 8, instructions)
    libc = ctypes.CDLL(None, use_errno=True)
    number = ctypes.c_long(_SECCOMP[platform.machine()])
    if libc.syscall(number, _SET_FILTER, _ALL_THREADS, ctypes.byref(program)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def make_filter(machine: Machine, pid: int, *, for_cuda: bool = False) -> bytes:
    """Return the bytes of the filter's instructions for the process with the id `pid`.

    The filter refuses what `system_calls` lists, calls newer than NEWEST_CALL, and calls of another ABI. It allows all
    other calls. With `for_cuda`, it also allows the calls in CHECKED_FOR_CUDA.
    """
    code: list[_Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE_OFFSET),
        (_JUMP_EQUAL, 1, 0, machine.audit),
        (_RETURN, 0, 0, _REFUSE),
        (_LOAD, 0, 0, _NUMBER_OFFSET),
        (_JUMP_GREATER, 0, 3, NEWEST_CALL),
        (_JUMP_GREATER, 0, 1, _OTHER_ABI - 1),
        (_RETURN, 0, 0, _REFUSE),
        (_RETURN, 0, 0, _NO_CALL),
    ]
    checked = CHECKED | (CHECKED_FOR_CUDA if for_cuda else {})
    for name in (name for name in REFUSED if name not in checked):
        code += _if_called(machine, name, [(_RETURN, 0, 0, _REFUSE)])
    for name in UNKNOWN:
        code += _if_called(machine, name, [(_RETURN, 0, 0, _NO_CALL)])
    for name, checks in checked.items():
        steps = [step for check in checks for step in _check(check, pid)]
        code += _if_called(machine, name, [*steps, (_RETURN, 0, 0, _ALLOW)])
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def _if_called(machine: Machine, name: str, steps: list[_Instruction]) -> list[_Instruction]:
    """Return instructions that run `steps` for this call and skip them for all others. The steps end in a return."""
    number = machine.numbers.get(name)
    return [] if number is None else [(_JUMP_EQUAL, 0, len(steps), number), *steps]


def _check(check: Check, pid: int) -> list[_Instruction]:
    """Return instructions that refuse the call if its argument fails the check, and else go on to what follows."""
    own = {OWN_ID: (pid,), OWN_PROCESS: (0, pid)}
    values = [value for each in check.values for value in own.get(each, (each,))]
    # Both architectures are little-endian.
    offset = _ARGUMENTS_OFFSET + _ARGUMENT_BYTES * check.argument + (4 if check.is_upper_half else 0)
    steps: list[_Instruction] = [(_LOAD, 0, 0, offset)]
    if check.mask != 0xFFFFFFFF:
        steps.append((_AND, 0, 0, check.mask))
    for place, value in enumerate(values):
        num_behind = len(values) - 1 - place
        # After a match, jump to the refusal if the check `refuses` its values, else behind the refusal.
        steps.append((_JUMP_EQUAL, num_behind + (0 if check.refuses else 1), 0, value))
    if check.refuses:
        steps[-1] = (_JUMP_EQUAL, 0, 1, values[-1])
    steps.append((_RETURN, 0, 0, _REFUSE))
    return steps
