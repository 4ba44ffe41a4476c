"""The supervisor with stub workers over real pipes: answers, cancels, refusals and status."""

from __future__ import annotations

import errno
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from edgeagent.errors import InternalError, InvalidRequest, NotSupported, PayloadTooLarge
from edgeagent.types import FinishReason, Started, WorkerState, WorkerStatus
from edgeagent.worker.parent.supervision import refusals
from edgeagent.worker.parent.supervision.worker_run import WorkerRun
from tests.present import present
from tests.stub_worker import NUM_PROMPT_TOKENS, num_lives
from tests.worker.parent.supervision.stub_requests import kill, submit
from tests.worker.support import QUICK, Make, eventually


async def test_answers_in_order_and_ends_once(make: Make) -> None:
    supervisor = make()
    record = await submit(supervisor, "answer 5").end()
    assert record.text == "0 1 2 3 4 "
    assert record.tokens == [1000, 1001, 1002, 1003, 1004]
    assert record.deltas[0] == Started(NUM_PROMPT_TOKENS, 0)
    assert record.finished.reason is FinishReason.STOP
    assert supervisor.num_live == 0


async def test_between_two_workers_nothing_is_loaded(make: Make) -> None:
    supervisor = make("creep 1", "creep 1", limits=replace(QUICK, first_backoff_s=60.0, max_backoff_s=60.0))
    supervisor.start()
    for num_restarts in (1, 2):  # the second restart waits
        await eventually(lambda: supervisor.status().state is WorkerState.READY)
        kill(supervisor)
        await eventually(lambda: supervisor.status().num_restarts == num_restarts)  # noqa: B023
    assert (supervisor.status().state, supervisor.status().progress) == (WorkerState.STARTING, 0.0)


async def test_the_status_of_a_pong_is_shown(make: Make) -> None:
    supervisor = make()
    record = submit(supervisor, "wait 2")
    await eventually(lambda: (worker := supervisor.status().worker) is not None and worker.num_running == 1)
    supervisor.cancel("r1")
    assert (await record.end()).finished.reason is FinishReason.CANCELLED


async def test_a_request_the_worker_refuses_gets_its_error(make: Make) -> None:
    record = await submit(make(), "fail not_supported").end()
    assert isinstance(record.error, NotSupported)
    assert record.error.param == "prompt"


async def test_cancel_goes_on_to_the_workers_own_end(make: Make) -> None:
    supervisor = make()
    record = submit(supervisor, "stream")
    await record.until(lambda record: len(record.tokens) >= 2)
    supervisor.cancel("r1")
    supervisor.cancel("r1")
    assert (await record.end()).finished.reason is FinishReason.CANCELLED
    assert (await submit(supervisor, "answer 1", "r2").end()).text == "0 "
    assert supervisor.status().num_restarts == 0, "the worker ended it, not its own end"


async def test_cancel_of_a_waiting_request_needs_no_worker(make: Make, lives: Path) -> None:
    supervisor = make("stall")
    record = submit(supervisor, "answer 1")
    await eventually(lambda: num_lives(lives) == 1)
    supervisor.cancel("r1")
    assert record.finished.reason is FinishReason.CANCELLED


async def test_a_cancelled_request_keeps_its_place_until_the_worker_has_let_go_of_it(make: Make) -> None:
    supervisor = make()
    record = submit(supervisor, "stream")
    await record.until(lambda record: bool(record.tokens))
    supervisor.cancel("r1")
    assert supervisor.num_live == 1
    await eventually(lambda: supervisor.num_live == 0)
    assert supervisor.status().state is WorkerState.READY


async def test_unknown_ids_are_ignored(make: Make) -> None:
    supervisor = make()
    supervisor.cancel("nobody")
    assert (await submit(supervisor, "answer 1").end()).text == "0 "
    supervisor.cancel("r1")


async def test_two_live_requests_cannot_share_an_id(make: Make) -> None:
    supervisor = make()
    record = submit(supervisor, "stream")
    with pytest.raises(InvalidRequest, match="r1"):
        submit(supervisor, "answer 1")
    supervisor.cancel("r1")
    await record.end()


async def test_what_cannot_be_encoded_is_the_clients_mistake(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = make()
    with pytest.raises(InvalidRequest):
        submit(supervisor, "lone surrogate \ud800")
    monkeypatch.setattr(refusals, "MAX_FRAME_TO_WORKER_BYTES", 1000)
    with pytest.raises(PayloadTooLarge, match="1000"):
        submit(supervisor, "x" * 1000)
    assert supervisor.num_live == 0


async def test_a_tick_is_as_long_as_the_time_since_the_last(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    elapsed_s: list[float] = []
    tick = WorkerRun.tick

    def recorded(self: WorkerRun, elapsed: float, *args: Any) -> Any:
        elapsed_s.append(elapsed)
        return tick(self, elapsed, *args)

    monkeypatch.setattr(WorkerRun, "tick", recorded)
    supervisor = make()
    began_s = time.monotonic()
    await submit(supervisor, "answer 3").end()
    await eventually(lambda: len(elapsed_s) >= 3)
    assert 0 < sum(elapsed_s) <= time.monotonic() - began_s


async def test_a_worker_outlives_a_moment_without_descriptors(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its use of resources cannot be read then. A client's connections can take every descriptor of the daemon."""
    num_refused = 0

    def refuse(_: psutil.Process) -> object:
        nonlocal num_refused
        num_refused += 1
        raise OSError(errno.EMFILE, "Too many open files")

    supervisor = make()
    stream = submit(supervisor, "stream")
    await stream.until(lambda record: bool(record.tokens))
    with monkeypatch.context() as scarce:
        scarce.setattr(psutil.Process, "oneshot", refuse)
        await eventually(lambda: num_refused >= 3)
    assert (await submit(supervisor, "answer 3", "r2").end()).text == "0 1 2 "
    assert (supervisor.status().state, supervisor.status().num_restarts) == (WorkerState.READY, 0)
    supervisor.cancel("r1")
    await stream.end()


async def test_a_bug_in_the_supervisor_leaves_no_process(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = make()
    await submit(supervisor, "answer 1").end()
    pid = supervisor.status().pid
    assert pid is not None
    monkeypatch.setattr(WorkerRun, "tick", lambda *_: 1 / 0)
    await eventually(lambda: supervisor.status().state is WorkerState.FAILED and supervisor.status().pid is None)
    assert not psutil.pid_exists(pid)


async def test_a_reload_loads_the_model_while_a_failed_supervisor_still_ends_its_worker(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor = make(ignore_sigterm=True)
    stream = submit(supervisor, "stream")
    await stream.until(lambda record: bool(record.tokens))
    pid = present(supervisor.status().pid)
    with monkeypatch.context() as faulty:
        faulty.setattr(WorkerRun, "tick", lambda *_: 1 / 0)
        assert isinstance((await stream.end()).error, InternalError)
    assert supervisor.status().state is WorkerState.FAILED
    supervisor.reload()
    supervisor.reload()
    assert supervisor.status().state is WorkerState.STARTING
    assert (await submit(supervisor, "answer 2", "r2").end()).text == "0 1 "
    assert present(supervisor.status().pid) != pid
    assert not psutil.pid_exists(pid)


async def test_a_refusal_is_a_sign_of_life(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(WorkerRun, "on_progress", lambda _: seen.append("progress"))
    supervisor = make()
    stream = submit(supervisor, "stream")
    await stream.until(lambda record: bool(record.tokens))
    seen.clear()
    refused = await submit(supervisor, "fail not_supported", "r2").end()
    assert isinstance(refused.error, NotSupported)
    assert seen == ["progress"]
    supervisor.cancel("r1")
    await stream.end()


async def test_the_status_of_each_pong_is_looked_through_for_trouble_of_the_disk(make: Make) -> None:
    supervisor, noted = make(), list[Any]()
    supervisor._disk_trouble.note = lambda status, now_s: noted.append(status)  # type: ignore[method-assign]
    supervisor.start()
    await eventually(lambda: len(noted) >= 2)
    assert all(isinstance(status, WorkerStatus) for status in noted)


async def test_the_stderr_of_a_talkative_worker_is_bounded(make: Make) -> None:
    supervisor = make("stderr 1000000")
    assert (await submit(supervisor, "answer 1").end()).text == "0 "
    assert supervisor._channel is not None
    assert 0 < len(supervisor._channel.stderr_tail()) <= 16 << 10
