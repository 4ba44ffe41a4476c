"""F14: the machine is suspended and wakes: no worker counts as hung, streams continue, and no answer is lost."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from websockets.asyncio.client import ClientConnection, connect

from edgeagent.types import Tokenize
from tests.integration.conftest import Daemon, start_daemon, stop_daemon
from tests.patience import patient
from tests.worker.support import QUICK, Record, eventually, make_supervisor, request

LIMIT_S = 2.0
LONG = {"type": "response.create", "model": "builtin", "input": "Hello!", "max_output_tokens": 1500, "temperature": 0}
NIGHT_S = 8 * 3600.0


async def until(socket: ClientConnection, *kinds: str) -> dict[str, Any]:
    while True:
        event: dict[str, Any] = json.loads(await asyncio.wait_for(socket.recv(), patient(100)))
        if event["type"] in kinds:
            return event


@contextmanager
def asleep(daemon: Daemon) -> Iterator[None]:
    """Stop the daemon and its worker, as when the machine sleeps; then wake the daemon first, the worse order."""
    tree = [psutil.Process(daemon.process.pid), psutil.Process(daemon.worker_pid())]
    for process in reversed(tree):
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in tree:
            process.send_signal(signal.SIGCONT)


@pytest.mark.skipif(sys.platform == "win32", reason="SIGSTOP is POSIX's")
@pytest.mark.parametrize("nap_s", [LIMIT_S + 1, pytest.param(60.0, marks=[pytest.mark.slow, pytest.mark.timeout(300)])])
async def test_a_stream_goes_on_after_the_machine_slept(tmp_path: Path, nap_s: float) -> None:
    daemon = start_daemon(tmp_path / "state", "builtin", "--hang-timeout-s", str(LIMIT_S))
    worker = daemon.worker_pid()
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 60, "maxItems": 60}
    wrapped = {"type": "object", "properties": {"numbers": schema}, "required": ["numbers"]}
    text = {"format": {"type": "json_schema", "name": "numbers", "schema": wrapped, "strict": True}}
    async with connect(f"ws://127.0.0.1:{daemon.port}/v1/responses", ping_timeout=None) as socket:
        await socket.send(json.dumps({**LONG, "text": text}))
        await until(socket, "response.output_text.delta")
        with asleep(daemon):
            await asyncio.sleep(nap_s)
        end = await until(socket, "response.completed", "response.failed", "response.incomplete", "error")
        assert end["type"] in ("response.completed", "response.incomplete"), end
        assert "handovers" not in end["response"]["edgeagent"]
    assert daemon.worker_pid() == worker
    assert "hung" not in daemon.log.read_text()
    stop_daemon(daemon)


async def test_what_was_owed_when_the_machine_fell_asleep_is_no_hang(tmp_path: Path) -> None:
    slept_s = 0.0
    limits = replace(QUICK, hang_timeout_s=20.0)
    supervisor = make_supervisor(tmp_path / "lives", limits=limits, clock=lambda: time.monotonic() + slept_s)
    stream, deaf = Record(), Record()
    supervisor.submit(request("stream", "r1"), stream)
    supervisor.submit(request("deaf 1", "r2"), deaf)
    question = asyncio.create_task(supervisor.ask(Tokenize("wait")))
    await deaf.until(lambda record: bool(record.tokens))
    supervisor.cancel("r2")
    await eventually(lambda: supervisor._queries.sent_at_s is not None)
    slept_s = NIGHT_S
    num_tokens = len(stream.tokens)
    await stream.until(lambda record: len(record.tokens) > num_tokens + 50)
    status = supervisor.status()
    assert (status.num_restarts, status.cause) == (0, None)
    question.cancel()
    await supervisor.stop()
