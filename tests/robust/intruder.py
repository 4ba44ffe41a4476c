"""The real worker under an intruder's control: for each JSON prompt it tries attacks, and answers with their outcomes.

`python -P -m tests.robust.intruder` replaces `python -P -m edgeagent.worker.child.process`; with a number as an
argument it becomes that user first. The JSON prompt names the targets of the attacks. The model answers any other
prompt.

The same attacks run without a sandbox, possibly as root, to show that each is a real one. So none may do harm if it is
not refused: its target is something that exists already, something that does not exist, or the given victim.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import platform
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from edgeagent.errors import InvalidRequest
from edgeagent.types import GenerateRequest, TextPrompt
from edgeagent.worker.child import process
from edgeagent.worker.child.generator.host import Host
from edgeagent.worker.child.generator.prepared_request import PreparedRequest
from edgeagent.worker.protocol import Delivered
from edgeagent.worker.sandbox import sandbox
from edgeagent.worker.sandbox.seccomp import MACHINES

_CREATE_PRIVATE = 0o1600
_NEW_USER, _NEW_NETWORK, _CHILD_SIGNAL = 0x10000000, 0x40000000, 17
_REMOVE, _SEIZE, _PROCESS_KEYRING = 0, 0x4206, -2
_KEEP_CAPABILITIES = 8
_NO_PROCESS = (1 << 22) + 1  # process ids are at most 1 << 22
_libc = ctypes.CDLL(None, use_errno=True)
_Attempts = dict[str, Callable[[], object]]


def attempts(port: int, folder: str, secret: str, model: str, victim: int, socket_path: str) -> _Attempts:
    """Return the attacks by name; `victim` is another process of the same user."""
    return {
        "connect": lambda: socket.create_connection(("127.0.0.1", port), timeout=5).close(),
        "resolve and send": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", port)),
        "unix socket": lambda: socket.socket(socket.AF_UNIX).close(),
        "datagram to a path": lambda: _pair(socket.SOCK_DGRAM)[0].sendto(b"x", socket_path),
        "stream pair": lambda: _pair(socket.SOCK_STREAM),
        "write a file": lambda: Path(folder, "planted").write_text("x"),
        "read a secret": lambda: Path(secret).read_text(),
        "list a folder": lambda: list(Path(folder).iterdir()),
        "read the daemon's environment": lambda: Path(f"/proc/{os.getppid()}/environ").read_bytes(),
        "read the model": lambda: Path(model).read_bytes(),
        "start a thread": lambda: _run(threading.Thread(target=int)),
        "be as nice as ever": lambda: os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0)),
        **_files(folder, secret, model),
        **_processes(victim),
        **_messages(),
        **_kernel(),
    }


def _files(folder: str, secret: str, model: str) -> _Attempts:
    return {
        "change the model": lambda: Path(model).open("r+b").close(),
        "open a secret to all": lambda: Path(secret).chmod(0o644),
        "open the model to all": lambda: os.fchmod(os.open(model, os.O_RDONLY), 0o666),
        "give a secret away": lambda: os.chown(secret, os.getuid(), os.getgid()),
        "mark a secret": lambda: os.setxattr(secret, "user.mark", b"x"),
        "mark the model": lambda: os.setxattr(os.open(model, os.O_RDONLY), "user.mark", b"x"),
        "unmark a secret": lambda: os.removexattr(secret, "user.mark"),
        "date a secret": lambda: os.utime(secret, (1, 1)),
        "watch a folder": lambda: _check(_libc.inotify_init1(0)),
        "find a secret's handle": lambda: _handle(secret),
        "own a file's signals": lambda: fcntl.fcntl(os.open(model, os.O_RDONLY), fcntl.F_SETOWN, os.getppid()),
        "lease the model": lambda: fcntl.fcntl(os.open(model, os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_RDLCK),
        "delete the model": lambda: Path(model).unlink(),
    }


def _processes(victim: int) -> _Attempts:
    limits = resource.prlimit(os.getpid(), resource.RLIMIT_CPU)
    return {
        "run a program": lambda: subprocess.run([sys.executable, "-c", "0"], check=True),
        "run a program from memory": lambda: _execute(os.memfd_create("program")),
        "start a process": lambda: os.waitpid(_fork(), 0),
        "start a process in a user namespace": lambda: _clone(_NEW_USER | _CHILD_SIGNAL),
        "start a process by clone3": _clone3,
        "leave for a user namespace": lambda: _check(_libc.unshare(_NEW_USER)),
        "leave for a network namespace": lambda: _check(_libc.unshare(_NEW_NETWORK)),
        "signal the daemon": lambda: os.kill(os.getppid(), 0),
        "signal another": lambda: os.kill(victim, 0),
        "signal a group": lambda: os.kill(0, 0),
        "signal another's thread": lambda: _call("tgkill", victim, victim, 0),
        "hold another": lambda: os.pidfd_open(victim),
        "limit another": lambda: resource.prlimit(victim, resource.RLIMIT_CPU, limits),
        "slow another": lambda: os.setpriority(os.PRIO_PROCESS, victim, 19),
        "slow a group": lambda: os.setpriority(os.PRIO_PGRP, _NO_PROCESS, 0),
        "slow another's disk": lambda: _call("ioprio_set", 1, victim, 3 << 13),
        "pin another": lambda: os.sched_setaffinity(victim, os.sched_getaffinity(0)),
        "reschedule another": lambda: os.sched_setscheduler(victim, os.SCHED_BATCH, os.sched_param(0)),
        "read another's memory": lambda: _call("process_vm_readv", victim, None, 0, None, 0, 0),
        "trace another": lambda: _call("ptrace", _SEIZE, victim, None, None),
        "move another's memory": lambda: _call("move_pages", victim, 0, None, None, None, 0),
    }


def _messages() -> _Attempts:
    return {
        "share memory": lambda: _libc.shmctl(_check(_libc.shmget(0, 4096, _CREATE_PRIVATE)), _REMOVE, None),
        "make a message queue": lambda: _libc.msgctl(_check(_libc.msgget(0, _CREATE_PRIVATE)), _REMOVE, None),
        "make semaphores": lambda: _libc.semctl(_check(_libc.semget(0, 1, _CREATE_PRIVATE)), 0, _REMOVE),
        "open a named queue": lambda: _call("mq_open", b"edgeagent-none", os.O_RDWR, 0, None),
    }


def _kernel() -> _Attempts:
    page = ctypes.create_string_buffer(256)
    return {
        "submit by a ring": lambda: _call("io_uring_setup", 1, page),
        "handle faults": lambda: _call("userfaultfd", 1),
        "load a filter": lambda: _call("bpf", 0, page, 64),
        "count events": lambda: _call("perf_event_open", page, 0, -1, -1, 0),
        "keep a key": lambda: _call("add_key", b"user", b"edgeagent", b"x", 1, _PROCESS_KEYRING),
        "mount": lambda: _check(_libc.mount(b"none", b"/nowhere/edgeagent", b"tmpfs", 0, None)),
        "mount anew": lambda: _call("fsopen", b"tmpfs", 0),
        "use a call that is newer": lambda: _check(_libc.syscall(ctypes.c_long(600))),
    }


def _check(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def _call(name: str, *arguments: object) -> int:
    return _check(_libc.syscall(ctypes.c_long(MACHINES[platform.machine()].numbers[name]), *arguments))


def _pair(kind: int) -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, kind)


def _run(thread: threading.Thread) -> None:
    thread.start()
    thread.join()


def _fork() -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    return pid


def _clone(flags: int) -> None:
    pid = _call("clone", flags, None, None, None, None)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _clone3() -> None:
    arguments = (ctypes.c_uint64 * 8)(0, 0, 0, 0, _CHILD_SIGNAL)
    pid = _call("clone3", arguments, ctypes.sizeof(arguments))
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _execute(program: int) -> None:
    os.write(program, b"no program")
    os.execve(program, ["program"], {})


def _handle(path: str) -> None:
    handle = (ctypes.c_uint32 * 64)(128)
    _call("name_to_handle_at", -100, path.encode(), handle, ctypes.byref(ctypes.c_int()), 0)


def _outcome(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    except Exception as error:
        return type(error).__name__
    return "done"


_prepare = Host.prepare


def intrude(host: Host, request: GenerateRequest, delivered: Delivered) -> PreparedRequest:
    """Try every attack; the refusal's message holds the outcomes and the environment."""
    assert isinstance(request.prompt, TextPrompt)
    if not request.prompt.text.startswith("{"):
        return _prepare(host, request, delivered)
    tried = attempts(**json.loads(request.prompt.text))
    outcomes = {name: _outcome(attempt) for name, attempt in tried.items()}
    secrets = [name for name in os.environ if "TOKEN" in name or "KEY" in name]
    about = {"outcomes": outcomes, "secrets": secrets, "user": os.getuid()}
    raise InvalidRequest(json.dumps(about))


def become(user: int) -> None:
    """Become an ordinary user that may still read all files, since the interpreter may be in root's home."""
    os.setgroups([])
    os.setresgid(user, user, user)
    _check(_libc.prctl(_KEEP_CAPABILITIES, 1, 0, 0, 0))
    os.setresuid(user, user, user)
    header = sandbox._CapabilityHeader(sandbox._CAPABILITY_VERSION_3, 0)
    sets = (sandbox._CapabilitySets * 2)()
    sets[0].effective = sets[0].permitted = 1 << sandbox._DAC_READ_SEARCH
    _check(_libc.capset(ctypes.byref(header), sets))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        become(int(sys.argv[1]))
    Host.prepare = intrude  # type: ignore[method-assign,assignment]
    os._exit(process.main())
