"""The sandbox's parts: what each says where the platform cannot, and the filter's instructions, run by hand."""

from __future__ import annotations

import struct
import subprocess
import sys

import pytest

from edgeagent.worker import sandbox, seccomp

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")
ALLOW, REFUSE = seccomp._ALLOW, seccomp._REFUSE


def run_filter(code: bytes, architecture: int, number: int) -> int:
    """Return what the filter answers to a system call: a machine for the four instructions that it has."""
    instructions = [struct.unpack_from("=HBBI", code, at) for at in range(0, len(code), 8)]
    word, at = 0, 0
    while True:
        operation, if_true, if_false, value = instructions[at]
        at += 1
        match operation:
            case seccomp._LOAD:
                word = {0: number, 4: architecture}[value]
            case seccomp._JUMP_EQUAL:
                at += if_true if word == value else if_false
            case seccomp._JUMP_GREATER_EQUAL:
                at += if_true if word >= value else if_false
            case seccomp._RETURN:
                return int(value)
            case _:
                raise AssertionError(f"an instruction {operation:#x}")


@pytest.mark.parametrize("name", ["x86_64", "aarch64"])
def test_the_named_calls_are_refused_and_no_others(name: str) -> None:
    machine = seccomp._MACHINES[name]
    numbers = sorted(machine.calls.values())
    code = seccomp._filter(machine.audit, numbers)
    refused = [number for number in range(600) if run_filter(code, machine.audit, number) == REFUSE]
    assert refused == numbers
    assert run_filter(code, machine.audit, 0x40000000 + 1) == REFUSE
    assert run_filter(code, machine.audit ^ 1, 0) == REFUSE


def test_another_platform_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert sandbox.enclose([], []) == ()


@LINUX
def test_an_architecture_without_a_filter_is_said_to_have_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seccomp.platform, "machine", lambda: "riscv64")
    with pytest.raises(OSError, match="riscv64"):
        seccomp.refuse_calls()


@LINUX
def test_files_are_not_said_to_be_closed_to_threads_that_were_there_before() -> None:
    code = (
        "import threading; from edgeagent.worker import sandbox; "
        "threading.Thread(target=threading.Event().wait, daemon=True).start(); "
        "print('read-only files' in sandbox.enclose([], []))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
