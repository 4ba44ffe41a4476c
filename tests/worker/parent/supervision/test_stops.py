"""Stops: requests and processes end, whatever the worker does."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import psutil
import pytest

from edgeagent.errors import BackendUnavailable, ModelLoadFailed
from edgeagent.types import FinishReason, WorkerState
from tests.worker.parent.supervision.stub_requests import submit
from tests.worker.support import QUICK, Make, eventually


async def test_stop_ends_requests_and_process(make: Make) -> None:
    supervisor = make()
    streaming, deaf = submit(supervisor, "stream"), submit(supervisor, "deaf 1", "r2")
    await deaf.until(lambda record: bool(record.tokens))
    pid = supervisor.status().pid
    await supervisor.stop()
    for record in (streaming, deaf):
        assert record.finished.reason is FinishReason.CANCELLED
    assert pid is not None and not psutil.pid_exists(pid)
    assert supervisor.status().state is WorkerState.STOPPED
    with pytest.raises(BackendUnavailable, match="stopping"):
        submit(supervisor, "answer 1", "r3")
    await supervisor.stop()


async def test_stop_kills_a_worker_that_ignores_everything(make: Make) -> None:
    supervisor = make("deaf", ignore_sigterm=True, limits=replace(QUICK, stop_grace_s=0.05))
    supervisor.start()
    await eventually(lambda: supervisor.status().state is WorkerState.READY)
    pid = supervisor.status().pid
    await supervisor.stop()
    assert pid is not None and not psutil.pid_exists(pid)


@pytest.mark.parametrize("save_s", [0.0, 20.0])
async def test_a_worker_that_is_asked_to_stop_may_write_its_prompts_to_disk(
    make: Make, save_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    supervisor = make("saving", limits=replace(QUICK, stop_grace_s=0.05, save_s=save_s))
    supervisor.start()
    await eventually(lambda: supervisor.status().state is WorkerState.READY)
    await supervisor.stop()
    assert ("3.0 MiB of prompts were not written to disk" in caplog.text) == (save_s > 0)


@pytest.mark.parametrize("delay_steps", [0, 1, 3, 10])
async def test_stop_at_any_moment_of_a_start_leaves_nothing(make: Make, delay_steps: int) -> None:
    supervisor = make("creep 3")
    record = submit(supervisor, "answer 1")
    for _ in range(delay_steps):
        await asyncio.sleep(0)
    await supervisor.stop()
    assert record.num_ends == 1
    assert not [child for child in psutil.Process().children() if "stub_worker" in " ".join(child.cmdline())]


async def test_a_closed_pipe_ends_the_worker(make: Make) -> None:
    supervisor = make()
    supervisor.start()
    await eventually(lambda: supervisor.status().state is WorkerState.READY)
    channel = supervisor._channel
    assert channel is not None and channel._stdin is not None
    channel._stdin.close()
    await eventually(lambda: channel.returncode == 0)


async def test_a_failing_preparation_fails_the_requests(make: Make) -> None:
    supervisor = make()

    async def prepare() -> object:
        raise ModelLoadFailed("the file is truncated")

    supervisor._prepare = prepare  # type: ignore[assignment]
    record = await submit(supervisor, "answer 1").end()
    assert isinstance(record.error, ModelLoadFailed)
    assert supervisor.status().cause == "the file is truncated"
