"""A real daemon under a process that plays systemd's part: it listens, starts the daemon, and gets its messages."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edgeagent.daemon.listeners import keep_watchdog
from edgeagent.daemon.state import ExitCode
from edgeagent.runtime_file import find_daemon
from tests.patience import patient

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="systemd is of Linux")
# What systemd does between fork and exec: the sockets get the descriptors from 3 on, and the variables its process id.
START = """
import os, sys
given = [int(each) for each in sys.argv[1].split(",")]
for place, descriptor in enumerate(given):
    os.dup2(descriptor, 3 + place, inheritable=True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=os.environ.get("LISTEN_FDS") or str(len(given)))
os.execv(sys.executable, [sys.executable, "-m", "edgeagent", "serve", *sys.argv[2:]])
"""


@contextlib.contextmanager
def started(listeners: list[socket.socket], notify: Path, *flags: str) -> Iterator[subprocess.Popen[str]]:
    # Copies with high numbers, since the daemon's descriptors from 3 on must be free for them.
    copies = [os.dup(each.fileno()) for each in listeners]
    numbers = ",".join(map(str, copies))
    environment = {**os.environ, "NOTIFY_SOCKET": str(notify), "WATCHDOG_USEC": "200000"}
    process = subprocess.Popen(
        [sys.executable, "-c", START, numbers, *flags],
        pass_fds=copies,
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    for copy in copies:
        os.close(copy)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def until_received(messages: socket.socket, message: str) -> None:
    while messages.recv(4096).decode() != message:
        pass


def test_the_first_request_starts_a_daemon_that_tells_its_state(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    unix_path, notify = tmp_path / "run" / "edgeagent.sock", tmp_path / "notify"
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.socket(socket.AF_UNIX) as unix,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as messages,
    ):
        messages.bind(str(notify))
        messages.settimeout(patient(60))
        unix.bind(str(unix_path))
        unix.listen()
        port = listener.getsockname()[1]
        state = tmp_path / "state"
        flags = ["builtin", "--flash-attention", "off", "--port", str(port), "--state-dir", str(state)]
        # A client that comes before the daemon waits in the queue of the socket.
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=patient(60))
        client.request("GET", "/version")
        with started([listener, unix], notify, *flags, "--unix", str(unix_path)) as process:
            # Read the messages from the start on: the daemon drops one if ten wait.
            until_received(messages, f"READY=1\nSTATUS=listening on http://127.0.0.1:{port}")
            assert client.getresponse().status == 200
            client.close()
            until_received(messages, "WATCHDOG=1")
            until_received(messages, "WATCHDOG=1")
            found = find_daemon(state)
            assert found is not None and (found.pid, found.port) == (process.pid, port)
            with socket.socket(socket.AF_UNIX) as local:
                local.connect(str(unix_path))
                local.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                assert local.recv(4096).startswith(b"HTTP/1.1 200")
            process.send_signal(signal.SIGTERM)
            until_received(messages, "STOPPING=1")
            assert process.wait(patient(30)) == ExitCode.OK
        # Both sockets stay open for the next client.
        assert unix_path.is_socket()
        socket.create_connection(("127.0.0.1", port)).close()


def test_a_socket_that_the_settings_do_not_name_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with started([listener], tmp_path / "none", "--port", "1", "--state-dir", str(tmp_path / "s")) as process:
            _, err = process.communicate(timeout=patient(30))
    assert process.returncode == ExitCode.WRONG_SETTING
    assert f"systemd listens on ('127.0.0.1', {port}) for this service, and the settings say ('127.0.0.1', 1)" in err


@pytest.mark.parametrize("given", ["a number that is none", "a number too high", "a file", "UDP", "a connection"])
def test_descriptors_that_do_not_listen_are_refused(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if given.startswith("a number"):
        monkeypatch.setenv("LISTEN_FDS", "two" if given == "a number that is none" else "99999999")
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
        socket.create_connection(listener.getsockname()) as client,
        listener.accept()[0] as connection,
        (tmp_path / "file").open("wb") as file,
    ):
        datagrams.bind(("127.0.0.1", 0))
        # Accept=yes in a unit gives a connection, which has the address of the settings.
        inherited: Any = {"a file": file, "UDP": datagrams, "a connection": connection}.get(given, listener)
        port = datagrams.getsockname()[1] if given == "UDP" else client.getpeername()[1]
        flags = ["--port", str(port), "--state-dir", str(tmp_path / "s")]
        with started([inherited], tmp_path / "none", *flags) as process:
            _, err = process.communicate(timeout=patient(30))
    assert process.returncode == ExitCode.WRONG_SETTING
    assert "promises sockets that listen" in err and "Traceback" not in err


def test_what_is_for_another_process_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgeagent.daemon.listeners import inherited_sockets, notify

    monkeypatch.setenv("LISTEN_PID", str(os.getppid()))
    monkeypatch.setenv("LISTEN_FDS", "1")
    assert inherited_sockets() == []
    # A socket that is gone, and none at all.
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere/notify")
    notify("READY=1")
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify("READY=1")


async def test_a_period_that_is_not_a_number_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as messages:
        messages.bind(str(tmp_path / "notify"))
        messages.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        for period in ("", "30s", "-1", "1e6"):
            caplog.clear()
            monkeypatch.setenv("WATCHDOG_USEC", period)
            await keep_watchdog()
            assert [record.getMessage().partition(" ")[0] for record in caplog.records] == [f"WATCHDOG_USEC={period}"]
        with pytest.raises(BlockingIOError):
            messages.recv(1)
