"""Loads that stall, fail, or need more memory than there is; quarantine."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from edgeagent.errors import BackendUnavailable, ModelLoadFailed, ModelOutOfMemory
from edgeagent.types import Tokenize, WorkerState
from edgeagent.worker.parent.supervision import channel as channel_module
from edgeagent.worker.parent.supervision.supervisor import MAX_SHORT_LOADS
from edgeagent.worker.protocol import LENGTH_BYTES, Submit, decode_to_worker
from tests.patience import patient
from tests.stub_worker import num_lives
from tests.worker.parent.supervision.stub_requests import submit
from tests.worker.support import QUICK, Make, eventually


async def test_requests_wait_while_the_model_loads_slowly(make: Make) -> None:
    supervisor = make("creep 5")
    supervisor.start()
    records = [submit(supervisor, "answer 1", f"r{index}") for index in range(3)]
    await eventually(lambda: supervisor.status().progress >= 0.2)
    assert supervisor.status().state is WorkerState.STARTING
    for record in records:
        assert (await record.end()).text == "0 "
    status = supervisor.status()
    assert (status.state, status.progress, status.cause) == (WorkerState.READY, 1.0, None)
    assert status.info is not None and status.info.name == "stub"
    assert status.pid is not None and psutil.pid_exists(status.pid)


async def test_a_request_is_told_how_long_it_waited_for_the_load(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Submit] = []
    send = channel_module.Channel.send_frame

    def recorded(self: channel_module.Channel, frame: bytes) -> None:
        if isinstance(message := decode_to_worker(frame[LENGTH_BYTES:]), Submit):
            sent.append(message)
        send(self, frame)

    monkeypatch.setattr(channel_module.Channel, "send_frame", recorded)
    supervisor, began_s = make("creep 3"), time.monotonic()
    await submit(supervisor, "answer 1").end()
    longest_ms = 1000 * (time.monotonic() - began_s)
    await submit(supervisor, "answer 1", "r2").end()
    first, second = (message.load_ms for message in sent)
    assert supervisor._worker.ready_at_s is not None
    assert first == 1000 * (supervisor._worker.ready_at_s - sent[0].accepted_at_s)
    assert 0 < first <= longest_ms
    assert second == 0


async def test_a_stalled_load_is_a_crash(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    supervisor = make("stall", "ok", limits=replace(QUICK, load_timeout_s=0.5))
    assert (await submit(supervisor, "answer 1").end()).text == "0 "
    assert "hung while loading: no progress for" in caplog.text


async def test_a_part_whose_trial_hangs_is_left_out(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    told: list[tuple[str, str]] = []

    def omit_part(part: str, cause: str) -> bool:
        told.append((part, cause))
        return True

    limits = replace(QUICK, load_timeout_s=0.5)
    supervisor = make("stall draft.gguf", "ok", limits=limits, omit_part=omit_part)
    assert (await submit(supervisor, "answer 1").end()).text == "0 "
    ((part, cause),) = told
    assert part == "draft.gguf" and cause.startswith("hung while loading")
    assert "stub is loaded again without draft.gguf" in caplog.text
    assert supervisor.status().num_restarts == 0


async def test_a_model_that_cannot_be_loaded_is_not_tried_again_at_once(make: Make, lives: Path) -> None:
    now = [100.0]
    supervisor = make("fail model_load_failed", "ok", clock=lambda: now[0])
    record = await submit(supervisor, "answer 1").end()
    assert isinstance(record.error, ModelLoadFailed)
    assert record.error.message == "the file is not to its liking"
    await eventually(lambda: supervisor.status().state is WorkerState.FAILED)
    with pytest.raises(ModelLoadFailed) as refusal:
        submit(supervisor, "answer 1")
    assert refusal.value.retry_after_s == QUICK.load_retry_s
    assert num_lives(lives) == 1
    now[0] += QUICK.load_retry_s
    assert (await submit(supervisor, "answer 1").end()).text == "0 "


async def test_a_load_that_ran_out_of_memory_is_tried_with_less(make: Make, lives: Path) -> None:
    supervisor = make("short 2")
    assert (await submit(supervisor, "answer 1").end()).text == "0 "
    assert num_lives(lives) == 3
    assert supervisor.status().num_restarts == 0, "it is no crash"


async def test_after_a_failure_a_load_is_tried_with_all_memory_again(make: Make, lives: Path) -> None:
    now = [100.0]
    supervisor = make("short 1", "fail model_load_failed", "short 1", clock=lambda: now[0])
    assert isinstance((await submit(supervisor, "answer 1").end()).error, ModelLoadFailed)
    now[0] += QUICK.load_retry_s
    assert (await submit(supervisor, "answer 1").end()).text == "0 "
    assert num_lives(lives) == 4, "the third load failed for want of memory, as the first one did"


async def test_a_load_that_never_has_enough_memory_fails_in_the_end(make: Make, lives: Path) -> None:
    supervisor = make("short 99")
    record = await submit(supervisor, "answer 1").end()
    assert isinstance(record.error, ModelOutOfMemory)
    assert num_lives(lives) == 1 + MAX_SHORT_LOADS


@pytest.mark.daily(1, seconds=0.7)
@pytest.mark.parametrize(
    ("start", "cause"),
    [
        ("die SIGSEGV", "SIGSEGV"),
        ("exit 0", "exit code 0"),
        ("raise", "ImportError: libcuda.so.1: cannot open shared object file"),
    ],
)
async def test_quarantine_after_three_crashes_and_one_try_after_it(
    make: Make, lives: Path, start: str, cause: str
) -> None:
    now = [100.0]
    supervisor = make(start, clock=lambda: now[0])
    record = await submit(supervisor, "answer 1").end()
    assert isinstance(record.error, BackendUnavailable)
    assert cause in record.error.message
    status = supervisor.status()
    assert status.state is WorkerState.QUARANTINED and cause in (status.cause or "")
    assert status.retry_after_s == QUICK.quarantine_s
    assert num_lives(lives) == QUICK.max_crashes
    with pytest.raises(BackendUnavailable):
        submit(supervisor, "answer 1")
    with pytest.raises(BackendUnavailable):
        await asyncio.wait_for(supervisor.ask(Tokenize("x")), patient(20))
    assert num_lives(lives) == QUICK.max_crashes, "no question starts a worker"
    now[0] += QUICK.quarantine_s
    assert isinstance((await submit(supervisor, "answer 1").end()).error, BackendUnavailable)
    assert num_lives(lives) == QUICK.max_crashes + 1
    assert supervisor.status().state is WorkerState.QUARANTINED
    supervisor.reload()
    assert isinstance((await submit(supervisor, "answer 1").end()).error, BackendUnavailable)
    assert num_lives(lives) == 2 * QUICK.max_crashes + 1, "a clean slate"


async def test_a_command_that_does_not_exist_is_a_crash_with_a_cause(make: Make) -> None:
    supervisor = make(limits=replace(QUICK, max_crashes=1))
    supervisor._command = ("/nonexistent/edgeagent-worker",)
    record = await submit(supervisor, "answer 1").end()
    assert isinstance(record.error, BackendUnavailable)
    assert "could not be started" in record.error.message
