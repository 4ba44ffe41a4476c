"""Workers that die or break the protocol: the next worker continues some of their requests, and others fail."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from edgeagent.config import EngineConfig
from edgeagent.errors import ModelChanged, WorkerCrashed
from edgeagent.types import Finished, FinishReason, Handover, Interrupted, Started, TextDelta, WorkerState
from edgeagent.worker.parent.supervision import channel as channel_module
from edgeagent.worker.parent.supervision.channel import FloodLimit
from edgeagent.worker.protocol import Load
from tests.stub_worker import SECRET, num_lives
from tests.worker.parent.supervision.stub_requests import kill, submit
from tests.worker.support import QUICK, Make, eventually


@pytest.mark.daily(3, seconds=0.5)
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


@pytest.mark.daily(1, seconds=0.7)
@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGTERM])
async def test_a_stream_that_goes_on_each_time_outlives_some_workers_but_not_all(make: Make, number: int) -> None:
    supervisor = make(limits=replace(QUICK, max_crashes=100, max_kills=100))
    record = submit(supervisor, "linger 1")
    for num_tokens in range(1, 6):
        await record.until(lambda record, num=num_tokens: len(record.tokens) == num)  # type: ignore[misc]
        kill(supervisor, number)
    assert isinstance((await record.end()).error, WorkerCrashed)
    assert record.tokens == list(range(1000, 1005))


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
    assert num_lives(lives) == 5


async def test_a_model_whose_workers_are_killed_all_the_time_is_left_alone(make: Make, lives: Path) -> None:
    supervisor = make(limits=replace(QUICK, max_kills=4))
    assert (await submit(supervisor, "die SIGKILL").end()).error is not None
    await eventually(lambda: supervisor.status().state is WorkerState.QUARANTINED)
    assert num_lives(lives) == 4


async def test_a_changed_file_cannot_go_on_with_what_it_began(make: Make) -> None:
    supervisor = make()
    identities = iter(("one", "two"))

    async def prepare() -> Load:
        return Load("stub", "/stub.gguf", None, EngineConfig(), next(identities))

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


@pytest.mark.daily(4, seconds=0.3)
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("garbage", "broke the protocol"),
        ("oversized", "1073741824 bytes"),
        ("wrong-id", "unknown-request"),
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
