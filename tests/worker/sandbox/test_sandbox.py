"""The sandbox's parts: what each reports where the platform lacks it, and the filter's instructions, run by hand."""

from __future__ import annotations

import json
import platform
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from edgeagent.worker.sandbox import landlock, sandbox, seccomp
from edgeagent.worker.sandbox.seccomp import CHECKED, MACHINES, NEWEST_CALL, REFUSED, UNKNOWN

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")
# linux/seccomp.h and the numbers of the errors EACCES and ENOSYS
ALLOW, REFUSE, NO_CALL = 0x7FFF0000, 0x0005000D, 0x00050026


PID = 4242


def run_filter(code: bytes, architecture: int, number: int, arguments: tuple[int, ...] = ()) -> int:
    """Return the filter's answer to a system call, by executing its instructions."""
    instructions = [struct.unpack_from("=HBBI", code, at) for at in range(0, len(code), 8)]
    data = struct.pack("<IIQ6Q", number, architecture, 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6])
    word, at = 0, 0
    while True:
        operation, if_true, if_false, value = instructions[at]
        at += 1
        match operation:
            case 0x20:  # load a word; linux/bpf_common.h
                (word,) = struct.unpack_from("<I", data, value)
            case 0x54:  # and
                word &= value
            case 0x15:  # jump if equal
                at += if_true if word == value else if_false
            case 0x25:  # jump if greater
                at += if_true if word > value else if_false
            case 0x06:  # return
                return int(value)
            case _:
                raise AssertionError(f"an instruction {operation:#x}")


@pytest.mark.parametrize("name", ["x86_64", "aarch64"])
def test_the_named_calls_are_refused_and_no_others(name: str) -> None:
    machine = MACHINES[name]
    code = seccomp.make_filter(machine, PID)
    answers = {number: run_filter(code, machine.audit, number) for number in range(600)}
    named = {number: name for name, number in machine.numbers.items()}
    refused = {named[number] for number, answer in answers.items() if answer == REFUSE}
    assert refused - CHECKED.keys() == machine.numbers.keys() & set(REFUSED)
    unknown = [number for number, answer in answers.items() if answer == NO_CALL]
    assert unknown == [machine.numbers["clone3"], *range(NEWEST_CALL + 1, 600)]
    for number in (0x40000000, 0x40000001, 0x40000000 + 547, 0xFFFFFFFF):
        assert run_filter(code, machine.audit, number) == REFUSE
    assert run_filter(code, machine.audit ^ 1, 0) == REFUSE


def test_the_newest_call_lists_namespaces_and_is_refused() -> None:
    for machine in MACHINES.values():
        assert run_filter(seccomp.make_filter(machine, PID), machine.audit, NEWEST_CALL) == REFUSE


@pytest.mark.parametrize(
    ("call", "arguments", "answer"),
    [
        ("clone", (0x3D0F00,), ALLOW),  # a thread of the C library
        ("clone", (0x01200011,), REFUSE),  # fork
        ("clone", (0x4111,), REFUSE),  # vfork
        ("clone", (0x3D0F00 | 0x10000000,), REFUSE),
        ("socketpair", (1, 1), ALLOW),
        ("socketpair", (1, 0x80005), ALLOW),
        ("socketpair", (1, 2), REFUSE),
        ("socketpair", (1, 0x80003), REFUSE),
        ("socketpair", (16, 1), REFUSE),
        ("utimensat", (7, 0, 0x7FFF00001000, 0), ALLOW),
        ("utimensat", (7, 0x7FFF00001000), REFUSE),
        ("utimensat", (7, 0x100000000), REFUSE),
        ("kill", (PID, 6), ALLOW),
        ("kill", (0, 9), REFUSE),
        ("kill", (-1 & 0xFFFFFFFF, 9), REFUSE),
        ("kill", (-PID & 0xFFFFFFFF, 9), REFUSE),
        ("tgkill", (PID, PID + 3, 6), ALLOW),
        ("tgkill", (PID + 1, PID + 3, 6), REFUSE),
        ("prlimit64", (0, 7), ALLOW),
        ("prlimit64", (PID, 7), ALLOW),
        ("prlimit64", (1, 7), REFUSE),
        ("setpriority", (0, 0, 5), ALLOW),
        ("setpriority", (0, 1, 5), REFUSE),
        ("setpriority", (2, 0, 5), REFUSE),
        ("ioprio_set", (1, 0, 0), ALLOW),
        ("ioprio_set", (3, 0, 0), REFUSE),
        ("sched_setaffinity", (0, 8), ALLOW),
        ("sched_setaffinity", (PID + 1, 8), REFUSE),
        ("fcntl", (3, 1), ALLOW),
        ("fcntl", (3, 8, 1), REFUSE),
        ("fcntl", (3, 1026), REFUSE),
        ("ioctl", (3, 0x5401), ALLOW),
        ("ioctl", (3, 0x5412), REFUSE),
        ("ioctl", (3, 0x8902), REFUSE),
    ],
)
def test_arguments_decide(call: str, arguments: tuple[int, ...], answer: int) -> None:
    for machine in MACHINES.values():
        code = seccomp.make_filter(machine, PID)
        assert run_filter(code, machine.audit, machine.numbers[call], arguments) == answer


@LINUX
@pytest.mark.parametrize("machine", ["x86_64"])
def test_the_numbers_are_those_of_this_system(machine: str) -> None:
    headers = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
    if platform.machine() != machine or not headers.exists():
        pytest.skip("the numbers are not told here")
    told = dict(re.findall(r"#define __NR_(\w+) (\d+)", headers.read_text(encoding="ascii")))
    for name, number in MACHINES[machine].numbers.items():
        assert told.get(name) in (str(number), None), name


def test_every_call_is_known_on_some_machine() -> None:
    names = {*REFUSED, *CHECKED, *UNKNOWN}
    assert names == set().union(*(machine.numbers for machine in MACHINES.values()))
    for machine in MACHINES.values():
        assert len(set(machine.numbers.values())) == len(machine.numbers)


def test_another_platform_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert sandbox.enclose([], []) == ()


@LINUX
def test_an_architecture_without_a_filter_is_said_to_have_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(OSError, match="riscv64"):
        seccomp.refuse_calls()


@LINUX
def test_files_are_not_said_to_be_closed_to_threads_that_were_there_before() -> None:
    code = (
        "import threading; from edgeagent.worker.sandbox import sandbox; "
        "threading.Thread(target=threading.Event().wait, daemon=True).start(); "
        "print('read-only files' in sandbox.enclose([], []))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


@pytest.mark.parametrize("name", ["x86_64", "aarch64"])
def test_cuda_may_listen_and_nothing_more(name: str) -> None:
    machine = MACHINES[name]
    without, with_cuda = (seccomp.make_filter(machine, PID, for_cuda=for_cuda) for for_cuda in (False, True))
    listening = {"socket": (1, 0x80005), "bind": (3, 0x7FFF00001000, 20), "listen": (3, 16)}
    for call, arguments in listening.items():
        number = machine.numbers[call]
        assert run_filter(without, machine.audit, number, arguments) == REFUSE
        assert run_filter(with_cuda, machine.audit, number, arguments) == ALLOW
    for arguments in ((1, 1), (1, 2), (2, 1), (10, 1), (16, 3), (40, 1)):
        assert run_filter(with_cuda, machine.audit, machine.numbers["socket"], arguments) == REFUSE
    others = [number for call, number in machine.numbers.items() if call not in listening]
    for number in others:
        assert run_filter(with_cuda, machine.audit, number) == run_filter(without, machine.audit, number)


LIKE_CUDA = """
import json, os, socket, sys, threading
from pathlib import Path
from edgeagent.worker.sandbox import sandbox
sandbox._CUDA_DEVICES = ("null",) if sys.argv[1] == "cuda" else ()
sandbox.enclose([], [])

def attempt(do):
    try:
        do()
        return "done"
    except OSError as error:
        return type(error).__name__

def listen(kind, family=socket.AF_UNIX, address=f"\\0edgeagent-{os.getpid()}"):
    with socket.socket(family, kind) as listening:
        listening.bind(address)
        listening.listen(16)

def accept():
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(f"\\0edgeagent-{os.getpid()}")
        listening.listen(16)
        listening.setblocking(False)
        listening.accept()

def connect():
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect("\\0edgeagent-nobody")

def name_a_thread():
    names = []
    thread = threading.Thread(target=lambda: names.append(attempt(
        lambda: Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text("cuda"))))
    thread.start()
    thread.join()
    if names != ["done"]:
        raise PermissionError

print(json.dumps({
    "listen": attempt(lambda: listen(socket.SOCK_SEQPACKET)),
    "name a thread": attempt(name_a_thread),
    "accept": attempt(accept),
    "connect": attempt(connect),
    "listen at a path": attempt(lambda: listen(socket.SOCK_SEQPACKET, address=sys.argv[2])),
    "datagrams": attempt(lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).close()),
    "the network": attempt(lambda: listen(socket.SOCK_STREAM, socket.AF_INET, ("127.0.0.1", 0))),
}))
"""


@LINUX
@pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock")
@pytest.mark.parametrize("gpu", ["cuda", "none"])
def test_a_process_that_starts_as_cuda_does(gpu: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIKE_CUDA, gpu, str(tmp_path / "socket")]
    outcomes = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    may = {"listen", "name a thread"} if gpu == "cuda" else set()
    assert {name for name, outcome in outcomes.items() if outcome == "done"} == may
    assert {outcome for name, outcome in outcomes.items() if name not in may} == {"PermissionError"}


def test_drivers_caches_are_in_the_users_caches_and_not_in_a_folder_of_the_users_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for caches in (tmp_path / ".cache", tmp_path / "elsewhere"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(caches))
        found = set(sandbox._gpu_caches())
        assert {path.parent for path in found} == {tmp_path, caches}
        assert [path for path in found if path.parent == tmp_path] == [tmp_path / ".nv"]
