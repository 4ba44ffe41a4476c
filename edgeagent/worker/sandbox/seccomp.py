"""Sets a Linux seccomp filter: the kernel permanently refuses some system calls of this process.

Source: seccomp(2), include/uapi/linux/{seccomp,filter,audit}.h. The bindings on PyPI need libseccomp and are not
maintained. A filter that compares numbers needs only five kinds of instruction. `system_calls` lists the refused calls,
with the reasons.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

from edgeagent.worker.sandbox.system_calls import (
    CHECKED,
    CHECKED_FOR_CUDA,
    MACHINES,
    NEWEST_CALL,
    OWN_ID,
    OWN_PROCESS,
    REFUSED,
    UNKNOWN,
    Check,
    Machine,
)

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
