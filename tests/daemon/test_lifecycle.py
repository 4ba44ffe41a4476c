"""The daemon as a process: its output, its exit status, and what it leaves behind."""

from __future__ import annotations

import asyncio
import errno
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from edgeagent.config import Config, ServerConfig, TraceConfig
from edgeagent.daemon import lifecycle, listeners
from edgeagent.daemon.lifecycle import check_route
from edgeagent.daemon.listeners import bind
from edgeagent.daemon.state import ExitCode, StartError
from edgeagent.errors import ConfigError
from edgeagent.runtime_file import RUNTIME_FILE, Runtime, find_daemon, write_private
from edgeagent.types import ModelStatus
from tests.backends.fake import FakeBackend
from tests.daemon.fake_daemon import SlowToLoad
from tests.daemon.running import TOKEN, RecordingReporter
from tests.owner_key import OwnerKey
from tests.patience import patient

ROOT = Path(__file__).resolve().parents[2]
STOPPABLE = pytest.mark.skipif(os.name == "nt", reason="Windows cannot send these signals to a process")
MAX_RESIDENT_BYTES = 90 << 20


@contextmanager
def daemon(
    state_dir: Path, script: str = "echo", port: int = 0, output: int = subprocess.PIPE
) -> Iterator[subprocess.Popen[str]]:
    """Start a daemon process with a fake backend; kill it at the end if it still runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.daemon.fake_daemon", str(state_dir), str(port), script],
        cwd=ROOT,
        stdout=output,
        stderr=output,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def listening(process: subprocess.Popen[str], state_dir: Path) -> Runtime:
    """Wait until the daemon listens; return its runtime file's content."""
    assert "listening on" in first_line(process)
    found = find_daemon(state_dir)
    assert found is not None
    return found


def open_stream(found: Runtime) -> http.client.HTTPConnection:
    """Start a streamed answer and read its first event."""
    connection = http.client.HTTPConnection("127.0.0.1", found.port)
    body = json.dumps({"stream": True, "messages": [{"role": "user", "content": "hi"}]})
    connection.request("POST", "/v1/chat/completions", body, {"content-type": "application/json"})
    assert connection.getresponse().readline().startswith(b"data: ")
    return connection


def test_a_whole_life(tmp_path: Path) -> None:
    with daemon(tmp_path) as process:
        line = first_line(process)
        match = re.fullmatch(
            r"edgeagent \S+ listening on (http://127\.0\.0\.1:(\d+)) \(ws://127\.0\.0\.1:\2/v1/responses\)\n", line
        )
        assert match, line
        found = find_daemon(tmp_path)
        assert found is not None
        assert (found.url, found.pid, found.port) == (match[1], process.pid, int(match[2]))
        assert first_line(process) == "fake ready\n"
        with closing(http.client.HTTPConnection("127.0.0.1", found.port)) as connection:
            connection.request("GET", "/health")
            assert connection.getresponse().read() == b'{"status":"ok"}'
        assert psutil.Process(process.pid).memory_info().rss <= MAX_RESIDENT_BYTES
        assert found.token is not None and found.token not in " ".join(psutil.Process(process.pid).cmdline())
        with closing(http.client.HTTPConnection("127.0.0.1", found.port)) as connection:
            connection.request("POST", "/edgeagent/stop", headers={"authorization": f"Bearer {found.token}"})
            assert connection.getresponse().status == 202
        out, err = process.communicate(timeout=patient(30))
        assert (process.returncode, out, err) == (ExitCode.OK, "", "stopping\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["daemon.lock", "token"]


def test_a_runtime_file_that_is_lost_or_swapped_is_written_again(tmp_path: Path) -> None:
    with daemon(tmp_path) as process:
        found = listening(process, tmp_path)
        path = tmp_path / RUNTIME_FILE
        for content in (None, "", "{}", '{"pid": 1, "started_at_s": 0, "port": 1, "url": "", "version": ""}'):
            path.unlink()
            if content is not None:
                write_private(path, content.encode())
            deadline = time.monotonic() + 60
            while find_daemon(tmp_path) != found:
                assert time.monotonic() < deadline, content
                time.sleep(0.02)


@STOPPABLE
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, getattr(signal, "SIGHUP", signal.SIGTERM)])
def test_signals_end_it_in_peace(tmp_path: Path, number: signal.Signals) -> None:
    with daemon(tmp_path) as process:
        listening(process, tmp_path)
        process.send_signal(number)
        process.communicate(timeout=patient(30))
        assert process.returncode == ExitCode.OK
    assert not (tmp_path / "daemon.json").exists()


@STOPPABLE
def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    with daemon(tmp_path, "endless") as process:
        found = listening(process, tmp_path)
        with closing(open_stream(found)):
            process.send_signal(signal.SIGTERM)
            assert process.stderr is not None
            assert process.stderr.readline() == "stopping, waiting for 1 live request (a second signal ends it)\n"
            assert process.poll() is None
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", found.port))
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=patient(30))
        assert process.returncode == ExitCode.OK
    assert not (tmp_path / "daemon.json").exists()


def test_a_killed_daemon_is_not_found_and_not_in_the_way(tmp_path: Path) -> None:
    with daemon(tmp_path) as process:
        listening(process, tmp_path)
        process.kill()
        process.wait()
        assert (tmp_path / "daemon.json").exists()
        assert find_daemon(tmp_path) is None
    with daemon(tmp_path) as process:
        assert listening(process, tmp_path).pid == process.pid


def test_one_daemon_for_a_folder(tmp_path: Path) -> None:
    with daemon(tmp_path) as first:
        found = listening(first, tmp_path)
        with daemon(tmp_path) as second:
            out, err = second.communicate(timeout=patient(30))
        assert (second.returncode, out) == (ExitCode.ALREADY_RUNNING, "")
        assert re.search(rf"process {found.pid}, since [-0-9: ]+, {found.url}", err)
        assert find_daemon(tmp_path) == found


def test_a_taken_port(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as squatter:
        port = squatter.getsockname()[1]
        with daemon(tmp_path, port=port) as process:
            out, err = process.communicate(timeout=patient(30))
        assert (process.returncode, out) == (ExitCode.PORT_TAKEN, "")
        assert f"port {port} on 127.0.0.1 is taken by {psutil.Process().name()}, process {os.getpid()}, since" in err
        assert "--port" in err
        # Clients find no daemon, so they do not send their token to the program that holds the port.
        assert find_daemon(tmp_path) is None


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with daemon(tmp_path, "unfindable") as process:
        out, err = process.communicate(timeout=patient(30))
    assert (process.returncode, out) == (ExitCode.WRONG_SETTING, "")
    assert err == "error: there is no model at /nowhere.gguf; pull one with `edgeagent pull`\n"


def test_a_damaged_model_is_told_once_and_by_the_exit_status(tmp_path: Path) -> None:
    with daemon(tmp_path, "unloadable") as process:
        out, err = process.communicate(timeout=patient(60))
    # The output does not report listening, because the files were checked first.
    assert (process.returncode, out) == (ExitCode.WRONG_SETTING, "")
    assert err == "error: fake cannot be served: tensor 3 lies outside the file\n"
    assert not (tmp_path / "daemon.json").exists()


def test_a_load_that_fails_leaves_its_error_alone(tmp_path: Path) -> None:
    with daemon(tmp_path, "unfit") as process:
        out, err = process.communicate(timeout=patient(60))
    assert process.returncode == ExitCode.FAILED
    assert "listening on" in out
    assert err == "error: fake cannot be served: the context takes more memory than is free\n"


def test_a_machine_that_keeps_all_to_itself_refuses_what_would_leave(tmp_path: Path) -> None:
    def why_not(**options: Any) -> str:
        with pytest.raises(ConfigError) as refused:
            check_route(Config(route="local_only", **options))
        check_route(Config(**options))  # auto keeps requests here while there is no remote, and no more
        return refused.value.message

    images, collector = ServerConfig(image_hosts=("127.0.0.1:8080", "*")), "http://collector.invalid:4318"
    assert "but server.image_hosts names an address that is not localhost or loopback; remove" in why_not(server=images)
    assert "but trace.endpoint names an address that is not" in why_not(trace=TraceConfig(collector))
    near = ServerConfig(image_hosts=("localhost:8080", "[::1]"))
    check_route(Config(route="local_only", trace=TraceConfig("http://127.0.0.1:4318"), server=near))
    command = ["serve", "--route", "local_only", "--trace-endpoint", collector, "--port", "0"]
    process = subprocess.run(
        [sys.executable, "-m", "edgeagent", *command, "--state-dir", str(tmp_path / "state")],
        capture_output=True,
        timeout=patient(60),
        check=False,
    )
    assert process.returncode == ExitCode.WRONG_SETTING and b"trace.endpoint names" in process.stderr


def test_progress_and_failure_are_told(tmp_path: Path) -> None:
    with daemon(tmp_path, "slow") as process:
        assert process.stderr is not None
        lines = [process.stderr.readline().rstrip() for _ in range(5)]
        loading = [f"fake: loading {share}%" for share in (25, 50, 75)]
        assert lines == [*loading, "fake: checking the model", "fake failed: signal 9"]
        assert process.poll() is None


def test_where_it_listens_is_told_before_how_far_the_load_is(tmp_path: Path) -> None:
    class Stopping(RecordingReporter):
        def failed(self, model: ModelStatus) -> None:
            super().failed(model)
            signal.raise_signal(signal.SIGTERM)

    reporter, config = Stopping(), Config(state_dir=tmp_path, server=ServerConfig(port=0))
    with listeners.listening(config.server) as found:
        asyncio.run(lifecycle._run(config, found, OwnerKey(TOKEN), reporter, lambda _: SlowToLoad()))
    told = [event.split()[0] for event in reporter.events]
    assert told[:2] == ["listening", "loading"]
    assert told[-2:] == ["failed", "stopping"]


def test_a_load_that_a_stop_ends_is_told_no_more(tmp_path: Path) -> None:
    class Stopping(RecordingReporter):
        def loading(self, model: ModelStatus) -> None:
            super().loading(model)
            signal.raise_signal(signal.SIGTERM)

    reporter, config = Stopping(), Config(state_dir=tmp_path, server=ServerConfig(port=0))
    with listeners.listening(config.server) as found:
        asyncio.run(lifecycle._run(config, found, OwnerKey(TOKEN), reporter, lambda _: SlowToLoad()))
    assert [event.split()[0] for event in reporter.events].count("loading") == 1


def test_a_daemon_that_is_stopped_before_it_listens_does_not_say_that_it_listens(tmp_path: Path) -> None:
    class Stopped(SlowToLoad):
        async def start(self) -> None:
            await super().start()
            signal.raise_signal(signal.SIGINT)

    reporter, config = RecordingReporter(), Config(state_dir=tmp_path, server=ServerConfig(port=0))
    with listeners.listening(config.server) as found:
        asyncio.run(lifecycle._run(config, found, OwnerKey(TOKEN), reporter, lambda _: Stopped()))
    assert [event.split()[0] for event in reporter.events] == ["stopping"]
    assert not (tmp_path / RUNTIME_FILE).exists()


@pytest.mark.parametrize("host", ["256.1.1.1", "nowhere.invalid", "192.0.2.1"])
def test_an_address_that_is_not_ours(host: str) -> None:
    with pytest.raises(StartError, match="cannot listen on") as refused:
        bind(host, 0)
    assert refused.value.exit_code is ExitCode.FAILED


@pytest.mark.skipif(os.name == "nt", reason="Windows says the same of a port that is taken")
def test_a_port_for_others_is_not_said_to_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(StartError, match="needs more rights; choose one above 1023") as caught:
        bind("127.0.0.1", 80)
    assert caught.value.exit_code == ExitCode.PORT_TAKEN


def test_a_port_can_be_bound_again_at_once() -> None:
    with closing(bind("127.0.0.1", 0)) as first:
        port = first.getsockname()[1]
        with closing(socket.create_connection(("127.0.0.1", port))) as client:
            accepted, _ = first.accept()
            accepted.close()
            client.recv(1)
    with closing(bind("127.0.0.1", port)):
        pass


@STOPPABLE
def test_a_pipe_that_nobody_reads_holds_nothing_up(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, b"x")
    os.set_blocking(writing, True)
    try:
        with daemon(tmp_path, output=writing) as process:
            while (found := find_daemon(tmp_path)) is None:
                assert process.poll() is None
                time.sleep(0.02)
            connection = http.client.HTTPConnection("127.0.0.1", found.port)
            connection.request("GET", "/health")
            assert connection.getresponse().status == 200
            connection.close()
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 0
    finally:
        os.close(reading)
        os.close(writing)


class SlowToEnd(FakeBackend):
    """A backend whose workers write their caches until `written` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.ending, self.written = asyncio.Event(), asyncio.Event()

    async def stop(self) -> None:
        self.ending.set()
        await self.written.wait()


async def test_a_second_signal_ends_the_wait_for_workers_that_write_their_caches() -> None:
    for is_written in (True, False):
        backend, stop = SlowToEnd(), lifecycle.StopRequest()
        stop.request()
        ending = asyncio.create_task(lifecycle._end(backend, stop))
        await backend.ending.wait()
        await asyncio.sleep(0.2)
        assert not ending.done()
        if is_written:
            backend.written.set()
        else:
            stop.request()
        await asyncio.wait_for(ending, patient(30))
