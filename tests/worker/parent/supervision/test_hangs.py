"""Workers that hang: the supervisor notices each kind of hang and replaces the worker."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import psutil
import pytest

from edgeagent.errors import WorkerCrashed
from edgeagent.types import FinishReason, Tokenize
from edgeagent.worker.parent.supervision import channel as channel_module
from tests.patience import patient
from tests.worker.parent.supervision.stub_requests import kill, submit
from tests.worker.support import QUICK, Make, eventually


async def test_a_frozen_worker_is_noticed_and_killed(make: Make) -> None:
    supervisor = make(limits=replace(QUICK, pong_timeout_s=0.5, stop_grace_s=0.05))
    record = submit(supervisor, "freeze 1")
    await record.until(lambda record: bool(record.tokens))
    pid = supervisor.status().pid
    assert isinstance((await record.end()).error, WorkerCrashed)
    assert record.error is not None and "no sign of life" in record.error.message
    assert (await submit(supervisor, "answer 1", "r2").end()).text == "0 "
    assert pid is not None and not psutil.pid_exists(pid)


async def test_requests_need_not_wait_for_a_condemned_worker_to_die(make: Make) -> None:
    supervisor = make(limits=replace(QUICK, pong_timeout_s=0.3, stop_grace_s=60.0))
    record = submit(supervisor, "freeze 1 | answer 2")
    await record.until(lambda record: bool(record.tokens))
    await eventually(lambda: "hung" in (supervisor.status().cause or ""))
    pid = supervisor.status().pid
    assert pid is not None and psutil.pid_exists(pid)
    assert supervisor._channel is not None
    assert supervisor._channel._on_message is None, "nothing more is heard of it"
    kill(supervisor)
    assert (await record.end()).text == "0 1 "


async def test_a_question_need_not_wait_for_a_condemned_worker_to_die(make: Make) -> None:
    supervisor = make(limits=replace(QUICK, pong_timeout_s=0.3, stop_grace_s=60.0))
    record = submit(supervisor, "freeze 1 | answer 2")
    await record.until(lambda record: bool(record.tokens))
    with pytest.raises(WorkerCrashed, match="hung"):
        await asyncio.wait_for(supervisor.ask(Tokenize("x")), patient(20))
    kill(supervisor)
    assert (await record.end()).text == "0 1 "


async def test_a_condemned_worker_is_asked_for_nothing_and_its_cause_is_the_hang(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(channel_module.Channel, "stop", lambda *args: asked.append(args))
    supervisor = make(limits=replace(QUICK, pong_timeout_s=0.3))
    record = submit(supervisor, "freeze 1 | answer 2")
    assert (await record.end()).text == "0 1 "
    assert asked == []
    assert (supervisor.status().cause or "").startswith("hung: no sign of life")
    monkeypatch.undo()


async def test_a_killed_worker_needed_no_killing(make: Make) -> None:
    supervisor = make()
    record = submit(supervisor, "stream")
    await record.until(lambda record: bool(record.tokens))
    kill(supervisor)
    await eventually(lambda: supervisor.status().num_restarts == 1)
    assert "cannot be killed" not in (supervisor.status().cause or "")
    supervisor.cancel("r1")
    assert (await record.end()).finished.reason is FinishReason.CANCELLED


async def test_a_step_that_does_not_end_is_noticed_though_pings_are_answered(make: Make) -> None:
    supervisor = make(limits=replace(QUICK, hang_timeout_s=0.3))
    record = await submit(supervisor, "deaf 1").end()
    assert isinstance(record.error, WorkerCrashed)
    assert "one step took longer" in record.error.message


async def test_a_request_that_ignores_its_cancel_is_noticed_beside_one_that_runs(make: Make) -> None:
    supervisor = make(limits=replace(QUICK, hang_timeout_s=0.3))
    stream, deaf = submit(supervisor, "stream"), submit(supervisor, "deaf 1", "r2")
    await deaf.until(lambda record: bool(record.tokens))
    supervisor.cancel("r2")
    assert (await deaf.end()).finished.reason is FinishReason.CANCELLED
    await eventually(lambda: "did not end within" in (supervisor.status().cause or ""))
    num_tokens = len(stream.tokens)
    await stream.until(lambda record: len(record.tokens) > num_tokens)
    assert stream.tokens == list(range(1000, 1000 + len(stream.tokens)))


async def test_a_cancel_ends_at_once_though_the_worker_is_in_a_long_step(make: Make) -> None:
    supervisor = make(limits=replace(QUICK, hang_timeout_s=3600.0))
    deaf = submit(supervisor, "deaf 1")
    await deaf.until(lambda record: bool(record.tokens))
    supervisor.cancel("r1")
    end = (await deaf.end()).finished
    assert (end.reason, end.usage.num_output_tokens) == (FinishReason.CANCELLED, 1)
    assert (supervisor.num_live, supervisor.status().num_restarts) == (1, 0), "the worker has it still"


async def test_requests_whose_preparation_hangs_do_not_cost_the_model_its_place(make: Make) -> None:
    supervisor = make(limits=replace(QUICK, hang_timeout_s=0.3))
    for index in range(QUICK.max_crashes + 1):
        stuck = submit(supervisor, "prepare", f"r{index}")
        assert isinstance((await stuck.end()).error, WorkerCrashed)
        assert (await submit(supervisor, "answer 1", f"other{index}").end()).text == "0 "


async def test_a_prompt_that_is_prepared_for_ever_is_noticed_beside_a_stream(make: Make) -> None:
    supervisor = make(limits=replace(QUICK, hang_timeout_s=0.3))
    stream, stuck = submit(supervisor, "stream"), submit(supervisor, "prepare", "r2")
    assert isinstance((await stuck.end()).error, WorkerCrashed)
    assert stuck.error is not None and "preparing one prompt" in stuck.error.message
    assert stuck.error.num_delivered_tokens == 0
    # It is tried once, and the stream beside it continues.
    num_tokens = len(stream.tokens)
    await stream.until(lambda record: len(record.tokens) > num_tokens)
    assert supervisor.status().num_restarts == 1
    supervisor.cancel("r1")
    assert (await stream.end()).finished.reason is FinishReason.CANCELLED
