"""The supervisor with stub workers over real pipes: every way to start, answer, misbehave and die."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from edgeagent.errors import (
    BackendUnavailable,
    InvalidRequest,
    ModelChanged,
    ModelLoadFailed,
    ModelOutOfMemory,
    NotSupported,
    PayloadTooLarge,
    WorkerCrashed,
)
from edgeagent.types import (
    Finished,
    FinishReason,
    Handover,
    Interrupted,
    Started,
    TextDelta,
    Tokenize,
    WorkerState,
    WorkerStatus,
)
from edgeagent.worker.parent.supervision import channel as channel_module
from edgeagent.worker.parent.supervision import refusals
from edgeagent.worker.parent.supervision.channel import FloodLimit
from edgeagent.worker.parent.supervision.supervisor import MAX_SHORT_LOADS, Supervisor
from edgeagent.worker.parent.supervision.vitals import Vitals
from edgeagent.worker.protocol import Load, Submit
from tests.stub_worker import NUM_PROMPT_TOKENS, SECRET, num_lives
from tests.worker.support import QUICK, Make, Record, eventually, request


def kill(supervisor: Supervisor, number: int = signal.SIGKILL) -> None:
    pid = supervisor.status().pid
    assert pid is not None
    os.kill(pid, number)


def submit(supervisor: Supervisor, text: str, request_id: str = "r1") -> Record:
    record = Record()
    supervisor.submit(request(text, request_id), record)
    return record


async def test_answers_in_order_and_ends_once(make: Make) -> None:
    supervisor = make()
    record = await submit(supervisor, "answer 5").end()
    assert record.text == "0 1 2 3 4 "
    assert record.tokens == [1000, 1001, 1002, 1003, 1004]
    assert record.deltas[0] == Started(NUM_PROMPT_TOKENS, 0)
    assert record.finished.reason is FinishReason.STOP
    assert supervisor.num_live == 0


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


async def test_between_two_workers_nothing_is_loaded(make: Make) -> None:
    supervisor = make("creep 1", "creep 1", patience=replace(QUICK, first_backoff_s=60.0, max_backoff_s=60.0))
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


async def test_an_abandoned_request_is_cancelled_and_its_late_frames_dropped(make: Make) -> None:
    supervisor = make()
    record = submit(supervisor, "stream")
    await record.until(lambda record: bool(record.tokens))
    supervisor.abandon("r1")
    num_steps = len(record.steps)
    assert supervisor.num_live == 1, "its place is taken until the worker has let go of it"
    await eventually(lambda: supervisor.num_live == 0)
    assert len(record.steps) == num_steps
    assert supervisor.status().state is WorkerState.READY


async def test_unknown_ids_are_ignored(make: Make) -> None:
    supervisor = make()
    supervisor.cancel("nobody")
    supervisor.abandon("nobody")
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


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("die SIGSEGV 2", "SIGSEGV (invalid memory access)"),
        ("die SIGBUS 2", "SIGBUS"),
        ("die SIGILL 2", "SIGILL"),
        ("exit 0 2", "exit code 0 without being asked to stop"),
        ("exit 3 2", "exit code 3"),
        ("assert", "SIGABRT (aborted): ggml.c:1234: GGML_ASSERT(n_tokens > 0) failed"),
        ("terminate", "SIGABRT (aborted): C++ exception std::runtime_error"),
        ("raise", "exit code 1: RuntimeError at stub_worker.py:"),
    ],
)
async def test_a_request_that_kills_again_ends_with_the_named_cause(make: Make, text: str, cause: str) -> None:
    supervisor = make()
    record = await submit(supervisor, text).end()
    assert isinstance(record.error, WorkerCrashed)
    assert cause in record.error.message
    assert SECRET not in record.error.message
    assert record.error.num_delivered_tokens == len(record.tokens) > 0
    assert cause in (supervisor.status().cause or "")
    assert (await submit(supervisor, "answer 1", "r2").end()).text == "0 "
    assert supervisor.status().num_restarts == 2


@pytest.mark.parametrize("num_delivered", [0, 2])
async def test_a_request_goes_on_with_the_next_worker(make: Make, lives: Path, num_delivered: int) -> None:
    record = await submit(make(), f"die SIGKILL {num_delivered} | answer 5").end()
    assert record.error is None
    assert (record.text, record.tokens) == ("0 1 2 3 4 ", [1000, 1001, 1002, 1003, 1004])
    assert num_lives(lives) == 2
    timings = record.finished.timings
    assert timings.handovers == (Handover("local", "local", num_delivered, "worker_killed"),)
    assert timings.first_token_ms > 0


async def test_half_of_an_item_is_not_given_out_twice(make: Make) -> None:
    record = await submit(make(), "parts | answer 2").end()
    assert (record.text, record.tokens) == ("0 1 ", [1000, 1001])


async def test_the_one_that_kills_takes_nobody_along(make: Make) -> None:
    supervisor = make()
    streams = [submit(supervisor, "linger 2 | linger 1 | answer 4", f"r{index}") for index in range(4)]
    for stream in streams:
        await stream.until(lambda record: len(record.tokens) == 2)
    waiting = submit(supervisor, "begin | answer 1", "waiting")
    killer = await submit(supervisor, "die SIGSEGV 1", "killer").end()
    assert isinstance(killer.error, WorkerCrashed) and killer.error.num_delivered_tokens == 1
    for stream in streams:
        assert (await stream.end()).text == "0 1 2 3 "
        assert stream.finished.timings.handovers[0].num_tokens == 2
    assert (await waiting.end()).text == "0 "


@pytest.mark.parametrize(("number", "num_lives"), [(signal.SIGSEGV, 5), (signal.SIGKILL, 10), (signal.SIGTERM, 10)])
async def test_a_stream_that_goes_on_each_time_outlives_some_workers_but_not_all(
    make: Make, number: int, num_lives: int
) -> None:
    supervisor = make(patience=replace(QUICK, max_crashes=100, max_kills=100))
    record = submit(supervisor, "linger 1")
    for num_tokens in range(1, num_lives + 1):
        await record.until(lambda record, num=num_tokens: len(record.tokens) == num)  # type: ignore[misc]
        kill(supervisor, number)
    assert isinstance((await record.end()).error, WorkerCrashed)
    assert record.tokens == list(range(1000, 1000 + num_lives))


async def test_what_is_killed_from_outside_before_a_token_is_tried_again(make: Make, lives: Path) -> None:
    record = await submit(make(), " | ".join(["die SIGKILL"] * 4 + ["answer 2"])).end()
    assert record.text == "0 1 "
    assert [handover.reason for handover in record.finished.timings.handovers] == ["worker_killed"] * 4
    assert num_lives(lives) == 5


async def test_what_is_killed_each_time_ends_with_the_cause(make: Make, lives: Path) -> None:
    supervisor = make()
    record = await submit(supervisor, "die SIGKILL").end()
    assert isinstance(record.error, WorkerCrashed)
    assert "SIGKILL (killed from outside; out of memory?)" in record.error.message
    assert num_lives(lives) == 10


async def test_a_model_whose_workers_are_killed_all_the_time_is_left_alone(make: Make, lives: Path) -> None:
    supervisor = make(patience=replace(QUICK, max_kills=4))
    assert (await submit(supervisor, "die SIGKILL").end()).error is not None
    await eventually(lambda: supervisor.status().state is WorkerState.QUARANTINED)
    assert num_lives(lives) == 4


async def test_a_changed_file_cannot_go_on_with_what_it_began(make: Make) -> None:
    supervisor = make()
    identities = iter(("one", "two"))

    async def prepare() -> Load:
        return Load("stub", "/stub.gguf", None, b"{}", next(identities))

    supervisor._prepare = prepare
    begun, fresh = submit(supervisor, "wait 2"), submit(supervisor, "begin | answer 1", "r2")
    await fresh.until(lambda record: bool(record.deltas))
    kill(supervisor)
    assert isinstance((await begun.end()).error, ModelChanged)
    assert begun.error is not None and begun.error.num_delivered_tokens == 2
    assert (await fresh.end()).text == "0 "


async def test_a_reload_replaces_the_worker_under_its_streams(make: Make, lives: Path) -> None:
    supervisor = make()
    record = submit(supervisor, "wait 2 | answer 3")
    await record.until(lambda record: len(record.tokens) == 2)
    supervisor.reload()
    supervisor.reload()
    assert (await record.end()).text == "0 1 2 "
    assert record.finished.timings.handovers[0].reason == "worker_replaced"
    status = supervisor.status()
    assert (status.state, status.num_restarts, status.cause) == (WorkerState.READY, 0, None)
    assert num_lives(lives) == 2


async def test_a_replayed_request_starts_once_for_its_reader(make: Make) -> None:
    supervisor = make()
    record = submit(supervisor, "begin | answer 2")
    await record.until(lambda record: bool(record.deltas))
    kill(supervisor)
    assert (await record.end()).text == "0 1 "
    assert [type(delta) for delta in record.deltas] == [Started, Interrupted, TextDelta, TextDelta, Finished]


async def test_a_request_that_kills_twice_is_not_replayed_again(make: Make, lives: Path) -> None:
    record = await submit(make(), "die SIGSEGV").end()
    assert isinstance(record.error, WorkerCrashed)
    assert record.error.num_delivered_tokens == 0
    assert num_lives(lives) == 2


async def test_a_cancelled_request_ends_as_cancelled_when_its_worker_dies(make: Make) -> None:
    supervisor = make()
    deaf = submit(supervisor, "deaf 2")
    await deaf.until(lambda record: len(record.tokens) == 2)
    supervisor.cancel("r1")
    killer = submit(supervisor, "die SIGKILL 1 | answer 2", "r2")
    assert (await deaf.end()).finished.reason is FinishReason.CANCELLED
    assert deaf.finished.usage.num_output_tokens == 2
    assert (await killer.end()).text == "0 1 "


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("garbage", "broke the protocol"),
        ("oversized", "1073741824 bytes"),
        ("wrong-id", "somebody-else"),
        ("after-end", "not live"),
        ("two-ends", "after its end"),
        ("wrong-pong", "pong 4000000"),
        ("flood", "flood"),
        ("close-output", "closed its output"),
    ],
)
async def test_a_worker_that_breaks_the_protocol_is_replaced(
    make: Make, text: str, words: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_module, "OUTPUT_GRACE_S", 0.01)
    supervisor = make(flood=FloodLimit(max_frames=500, period_s=60.0))
    bystander = submit(supervisor, "wait | answer 1", "r0")
    submit(supervisor, f"{text} | answer 1")
    assert (await bystander.end()).text == "0 ", "it had no output and is replayed"
    assert supervisor.status().num_restarts == 1
    assert words in caplog.text


@pytest.mark.parametrize("start", ["garbage", "early", "belated"])
async def test_a_worker_that_breaks_the_protocol_while_loading_is_replaced(
    make: Make, lives: Path, start: str, caplog: pytest.LogCaptureFixture
) -> None:
    supervisor = make(start, "ok")
    assert (await submit(supervisor, "answer 1").end()).text == "0 "
    assert num_lives(lives) == 2
    assert "broke the protocol" in caplog.text


async def test_a_frozen_worker_is_noticed_and_killed(make: Make) -> None:
    supervisor = make(patience=replace(QUICK, pong_timeout_s=0.5, stop_grace_s=0.05))
    record = submit(supervisor, "freeze 1")
    await record.until(lambda record: bool(record.tokens))
    pid = supervisor.status().pid
    assert isinstance((await record.end()).error, WorkerCrashed)
    assert record.error is not None and "no sign of life" in record.error.message
    assert (await submit(supervisor, "answer 1", "r2").end()).text == "0 "
    assert pid is not None and not psutil.pid_exists(pid)


async def test_requests_need_not_wait_for_a_condemned_worker_to_die(make: Make) -> None:
    supervisor = make(patience=replace(QUICK, pong_timeout_s=0.3, stop_grace_s=60.0))
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
    supervisor = make(patience=replace(QUICK, pong_timeout_s=0.3, stop_grace_s=60.0))
    record = submit(supervisor, "freeze 1 | answer 2")
    await record.until(lambda record: bool(record.tokens))
    with pytest.raises(WorkerCrashed, match="hung"):
        await asyncio.wait_for(supervisor.ask(Tokenize("x")), 20)
    kill(supervisor)
    assert (await record.end()).text == "0 1 "


async def test_a_condemned_worker_is_asked_for_nothing_and_its_cause_is_the_hang(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(channel_module.Channel, "stop", lambda *args: asked.append(args))
    supervisor = make(patience=replace(QUICK, pong_timeout_s=0.3))
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


async def test_a_tick_is_as_long_as_the_time_since_the_last(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    elapsed_s: list[float] = []
    tick = Vitals.tick

    def recorded(self: Vitals, elapsed: float, *args: Any) -> str | None:
        elapsed_s.append(elapsed)
        return tick(self, elapsed, *args)

    monkeypatch.setattr(Vitals, "tick", recorded)
    supervisor = make()
    began_s = time.monotonic()
    await submit(supervisor, "answer 3").end()
    await eventually(lambda: len(elapsed_s) >= 3)
    assert 0 < sum(elapsed_s) <= time.monotonic() - began_s


async def test_a_refusal_is_a_sign_of_life(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(Vitals, "on_progress", lambda _: seen.append("progress"))
    supervisor = make()
    stream = submit(supervisor, "stream")
    await stream.until(lambda record: bool(record.tokens))
    seen.clear()
    refused = await submit(supervisor, "fail not_supported", "r2").end()
    assert isinstance(refused.error, NotSupported)
    assert seen == ["progress"]
    supervisor.cancel("r1")
    await stream.end()


async def test_a_request_is_told_how_long_it_waited_for_the_load(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Submit] = []
    send = channel_module.Channel.send

    def recorded(self: channel_module.Channel, message: Any) -> None:
        if isinstance(message, Submit):
            sent.append(message)
        send(self, message)

    monkeypatch.setattr(channel_module.Channel, "send", recorded)
    supervisor, began_s = make("creep 3"), time.monotonic()
    await submit(supervisor, "answer 1").end()
    longest_ms = 1000 * (time.monotonic() - began_s)
    await submit(supervisor, "answer 1", "r2").end()
    first, second = (message.load_ms for message in sent)
    assert supervisor._life.ready_at_s is not None
    assert first == 1000 * (supervisor._life.ready_at_s - sent[0].accepted_at_s)
    assert 0 < first <= longest_ms
    assert second == 0


async def test_the_status_of_each_pong_is_looked_through_for_trouble_of_the_disk(make: Make) -> None:
    supervisor, noted = make(), list[Any]()
    supervisor._disk_trouble.note = lambda status, now_s: noted.append(status)  # type: ignore[method-assign]
    supervisor.start()
    await eventually(lambda: len(noted) >= 2)
    assert all(isinstance(status, WorkerStatus) for status in noted)


async def test_a_step_that_does_not_end_is_noticed_though_pings_are_answered(make: Make) -> None:
    supervisor = make(patience=replace(QUICK, hang_timeout_s=0.3))
    record = await submit(supervisor, "deaf 1").end()
    assert isinstance(record.error, WorkerCrashed)
    assert "one step took longer" in record.error.message


async def test_a_request_that_ignores_its_cancel_is_noticed_beside_one_that_runs(make: Make) -> None:
    supervisor = make(patience=replace(QUICK, hang_timeout_s=0.3))
    stream, deaf = submit(supervisor, "stream"), submit(supervisor, "deaf 1", "r2")
    await deaf.until(lambda record: bool(record.tokens))
    supervisor.cancel("r2")
    assert (await deaf.end()).finished.reason is FinishReason.CANCELLED
    assert "did not end within" in (supervisor.status().cause or "")
    num_tokens = len(stream.tokens)
    await stream.until(lambda record: len(record.tokens) > num_tokens)
    assert stream.tokens == list(range(1000, 1000 + len(stream.tokens)))


async def test_a_prompt_that_is_prepared_for_ever_is_noticed_beside_a_stream(make: Make) -> None:
    supervisor = make(patience=replace(QUICK, hang_timeout_s=0.3))
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


async def test_a_stalled_load_is_a_crash(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    supervisor = make("stall", "ok", patience=replace(QUICK, load_timeout_s=0.5))
    assert (await submit(supervisor, "answer 1").end()).text == "0 "
    assert "hung while loading: no progress for" in caplog.text


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


async def test_a_load_that_never_has_enough_memory_fails_in_the_end(make: Make, lives: Path) -> None:
    supervisor = make("short 99")
    record = await submit(supervisor, "answer 1").end()
    assert isinstance(record.error, ModelOutOfMemory)
    assert num_lives(lives) == 1 + MAX_SHORT_LOADS


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
        await asyncio.wait_for(supervisor.ask(Tokenize("x")), 20)
    assert num_lives(lives) == QUICK.max_crashes, "no question starts a worker"
    now[0] += QUICK.quarantine_s
    assert isinstance((await submit(supervisor, "answer 1").end()).error, BackendUnavailable)
    assert num_lives(lives) == QUICK.max_crashes + 1
    assert supervisor.status().state is WorkerState.QUARANTINED
    supervisor.reload()
    assert isinstance((await submit(supervisor, "answer 1").end()).error, BackendUnavailable)
    assert num_lives(lives) == 2 * QUICK.max_crashes + 1, "a clean slate"


async def test_a_command_that_does_not_exist_is_a_crash_with_a_cause(make: Make) -> None:
    supervisor = make(patience=replace(QUICK, max_crashes=1))
    supervisor._command = ("/nonexistent/edgeagent-worker",)
    record = await submit(supervisor, "answer 1").end()
    assert isinstance(record.error, BackendUnavailable)
    assert "could not be started" in record.error.message


async def test_the_stderr_of_a_talkative_worker_is_bounded(make: Make) -> None:
    supervisor = make("stderr 1000000")
    assert (await submit(supervisor, "answer 1").end()).text == "0 "
    assert supervisor._channel is not None
    assert 0 < len(supervisor._channel.stderr_tail()) <= 16 << 10


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
    supervisor = make("deaf", ignore_sigterm=True, patience=replace(QUICK, stop_grace_s=0.05))
    supervisor.start()
    await eventually(lambda: supervisor.status().state is WorkerState.READY)
    pid = supervisor.status().pid
    await supervisor.stop()
    assert pid is not None and not psutil.pid_exists(pid)


@pytest.mark.parametrize("save_s", [0.0, 20.0])
async def test_a_worker_that_is_asked_to_stop_may_write_its_prompts_to_disk(
    make: Make, save_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    supervisor = make("saving", patience=replace(QUICK, stop_grace_s=0.05, save_s=save_s))
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
