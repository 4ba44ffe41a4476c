"""The local backend with stub workers: the contract of generate, bounds, deadlines, and random faults."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from edgeagent.backends.base import Backend
from edgeagent.backends.local import LocalBackend
from edgeagent.config import Config, EngineConfig
from edgeagent.errors import (
    BackendUnavailable,
    DeadlineUnreachable,
    EdgeAgentError,
    ModelNotFound,
    NotSupported,
    Overloaded,
    RequestTimeout,
    WorkerCrashed,
)
from edgeagent.store.library import Found
from edgeagent.types import (
    AnswerSoFar,
    ChatPrompt,
    Finished,
    FinishReason,
    GenerateRequest,
    MediaPlace,
    Message,
    Need,
    Queued,
    Sink,
    Started,
    Step,
    Target,
    TextDelta,
    WorkerState,
)
from edgeagent.worker.parent.pool.loading import ModelSource
from edgeagent.worker.parent.pool.pool import Pool
from tests.backends.reading import steps_of
from tests.fakes import FakeClock
from tests.media import RED, media
from tests.stub_worker import stub_command
from tests.worker.support import QUICK, WITHIN_S, eventually, found_at, request

Make = Callable[..., LocalBackend]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    made: list[LocalBackend] = []

    def make_one(
        *starts: str,
        parallel: int = 2,
        max_waiting: int = 3,
        clock: Callable[[], float] = time.monotonic,
        **fields: object,
    ) -> LocalBackend:
        config = Config(engine=EngineConfig(parallel=parallel, max_waiting=max_waiting))
        limits = replace(QUICK, **fields)  # type: ignore[arg-type]
        command = stub_command(tmp_path / "lives", *starts)
        pool = Pool(
            config,
            ModelSource(lambda _: found_at(Path("stub.gguf"), "stub"), lambda _: None),
            command=command,
            limits=limits,
        )
        made.append(LocalBackend(pool, clock=clock))
        return made[-1]

    yield make_one
    for backend in made:
        await backend.stop()


async def collect(backend: Backend, wanted: GenerateRequest) -> list[Step]:
    return [step async for step in steps_of(backend.generate, wanted)]


def text(steps: list[Step]) -> str:
    return "".join(delta.text for step in steps for delta in step.deltas if isinstance(delta, TextDelta))


def reason(steps: list[Step]) -> FinishReason:
    last = steps[-1].deltas[-1]
    assert isinstance(last, Finished)
    return last.reason


async def test_it_is_a_backend(make: Make) -> None:
    backend: Backend = make()
    await backend.start()
    steps = await collect(backend, request("answer 4"))
    assert text(steps) == "0 1 2 3 "
    assert isinstance(steps[0].deltas[0], Started)
    assert reason(steps) is FinishReason.STOP
    assert backend.models.default() == "stub"
    (status,) = backend.models.statuses()
    assert status.state is WorkerState.READY


async def test_start_does_not_wait_for_the_model_but_requests_do(make: Make) -> None:
    backend = make("creep 3")
    await backend.start()
    assert backend.models.statuses()[0].state is WorkerState.STARTING
    assert text(await collect(backend, request("answer 1"))) == "0 "


async def test_closing_the_generator_cancels_the_request(make: Make) -> None:
    backend = make()
    await backend.start()
    steps = steps_of(backend.generate, request("stream"))
    async for step in steps:
        if step.tokens:
            break
    await steps.aclose()
    await eventually(lambda: backend.estimate(request("")).num_live == 0)


async def test_cancelling_the_task_cancels_the_request_and_its_sink_gets_nothing_more(make: Make) -> None:
    class Counted(Sink):
        num_steps = 0

        def put(self, step: Step) -> None:
            self.num_steps += 1

    backend, sink = make(), Counted()
    await backend.start()
    task = asyncio.create_task(backend.generate(request("stream"), sink))
    await eventually(lambda: sink.num_steps > 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    num_steps = sink.num_steps
    await eventually(lambda: backend.estimate(request("")).num_live == 0)
    assert sink.num_steps == num_steps


async def test_a_client_that_is_gone_when_it_is_told_that_it_waits_leaves_nothing(make: Make) -> None:
    class Gone(Sink):
        def put(self, step: Step) -> None:
            raise ConnectionResetError

    backend = make(parallel=1)
    await backend.start()
    task = asyncio.create_task(collect(backend, request("wait")))
    await eventually(lambda: backend.estimate(request("")).num_live == 1)
    with pytest.raises(ConnectionResetError):
        await backend.generate(request("wait", "r2"), Gone())
    await eventually(lambda: backend.estimate(request("")).num_live == 1)
    backend.cancel("r1")
    await task


async def test_cancel_goes_on_to_the_end(make: Make) -> None:
    backend = make()
    await backend.start()
    got: list[Step] = []
    async for step in steps_of(backend.generate, request("stream")):
        got.append(step)
        if step.tokens:
            backend.cancel("r1")
    assert reason(got) is FinishReason.CANCELLED
    backend.cancel("r1")
    backend.cancel("nobody")


async def test_a_burst_is_counted_exactly(make: Make) -> None:
    backend = make(parallel=2, max_waiting=3)
    await backend.start()
    tasks = [asyncio.create_task(collect(backend, request("wait", f"r{index}"))) for index in range(20)]
    await eventually(lambda: sum(task.done() for task in tasks) >= 15)
    refused = [task for task in tasks if task.done()]
    assert len(refused) == 15
    for task in refused:
        error = task.exception()
        assert isinstance(error, Overloaded)
        assert error.retry_after_s is not None and error.retry_after_s >= 1
    assert backend.estimate(request("wait")).is_full
    for index in range(20):
        backend.cancel(f"r{index}")
    answers = await asyncio.gather(*(task for task in tasks if task not in refused))
    assert [reason(answer) for answer in answers] == [FinishReason.CANCELLED] * 5
    assert text(await collect(backend, request("answer 1"))) == "0 "


async def test_a_burst_is_counted_exactly_while_the_model_loads(make: Make) -> None:
    backend = make("creep 4", parallel=1, max_waiting=1)
    await backend.start()
    tasks = [asyncio.create_task(collect(backend, request("answer 1", f"r{index}"))) for index in range(8)]
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(result, list) for result in results) == 2
    assert sum(isinstance(result, Overloaded) for result in results) == 6


@pytest.mark.parametrize("start", ["ok", "stall"])
async def test_a_deadline_ends_the_request_running_or_waiting(make: Make, start: str) -> None:
    backend = make(start)
    await backend.start()
    with pytest.raises(RequestTimeout, match="deadline_ms, 50;") as late:
        await collect(backend, request("wait 1", timeout_s=0.05))
    assert late.value.late_stage in {"ok": ("load", "queue", "prefill"), "stall": ("load",)}[start]
    await eventually(lambda: backend.estimate(request("")).num_live == 0)


async def test_a_deadline_stops_the_work_even_if_nobody_reads(make: Make) -> None:
    backend = make()
    await backend.start()
    await collect(backend, request("answer 1"))
    steps = steps_of(backend.generate, request("stream", timeout_s=0.3))
    await anext(steps)
    await eventually(lambda: backend.estimate(request("")).num_live == 0)
    with pytest.raises(RequestTimeout) as late:
        async for _ in steps:
            pass
    assert late.value.late_stage == "decode"


async def test_a_deadline_leaves_what_ends_in_time_alone(make: Make) -> None:
    backend = make()
    await backend.start()
    assert text(await collect(backend, request("answer 2", timeout_s=60.0))) == "0 1 "


async def expected(backend: LocalBackend) -> float:
    """Start a backend. Return the predicted seconds to a first token once its worker's speed is known."""
    await backend.start()
    await eventually(lambda: backend.estimate(request("answer 1")).first_token_s is not None)
    first_token_s = backend.estimate(request("answer 1")).first_token_s
    assert first_token_s is not None
    return first_token_s


@pytest.mark.parametrize("kind", ["need", "timeout_s"])
async def test_what_is_predicted_to_miss_its_limit_is_refused_until_the_worker_has_idled(make: Make, kind: str) -> None:
    """After idling, one may show that the machine is faster now."""
    clock = FakeClock()
    backend = make("rated 10", clock=clock)
    first_token_s = await expected(backend)

    def limited(limit_s: float) -> GenerateRequest:
        limit = {"need": Need(first_token_s=limit_s)} if kind == "need" else {"timeout_s": limit_s}
        return request("answer 1", **limit)

    with pytest.raises(DeadlineUnreachable, match="the first token is expected in") as refused:
        await collect(backend, limited(0.15 * first_token_s))
    assert refused.value.expected_s == first_token_s
    assert backend.estimate(request("")).num_live == 0
    assert text(await collect(backend, limited(100 * first_token_s))) == "0 "
    clock.advance(150)
    assert text(await collect(backend, limited(0.15 * first_token_s))) == "0 "


async def test_a_request_that_still_waits_at_its_limit_is_not_computed(make: Make) -> None:
    backend = make(parallel=1)
    await backend.start()
    await collect(backend, request("answer 1"))  # so that it is loaded
    running = asyncio.create_task(collect(backend, request("wait")))
    await eventually(lambda: backend.estimate(request("")).num_live == 1)
    got: list[Step] = []
    with pytest.raises(DeadlineUnreachable, match="had to come within 50 ms, and the request still waited") as late:
        async for step in steps_of(
            backend.generate, request("wait", "r2", need=Need(first_token_s=0.05), timeout_s=WITHIN_S)
        ):
            got.append(step)
    assert got == [Step((Queued(1),))]
    assert late.value.late_stage == "queue"
    await eventually(lambda: backend.estimate(request("")).num_live == 1)
    backend.cancel("r1")
    assert reason(await running) is FinishReason.CANCELLED


async def test_a_request_with_a_slot_learns_that_it_will_miss_its_target(make: Make) -> None:
    backend = make("rated 10")
    first_token_s = await expected(backend)
    late = await collect(backend, request("answer 1", target=Target(0.9 * first_token_s, 1.0)))
    assert late[0] == Step((Queued(0, first_token_s),))
    assert text(late) == "0 "
    in_time = await collect(backend, request("answer 1", "r2", target=Target(WITHIN_S, 1.0)))
    assert isinstance(in_time[0].deltas[0], Started)


async def test_only_what_can_be_in_time_is_due_in_the_worker(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that goes on after a crash stays due: its client waits for the next token, not for the first one."""
    backend = make("rated 10")
    first_token_s = await expected(backend)
    submit, due_s = backend.models.submit, list[float]()

    def noted(request: GenerateRequest, *rest: Any) -> None:
        assert request.target is not None and request.target.token_s == 1.0
        due_s.append(request.target.first_token_s)
        submit(request, *rest)

    monkeypatch.setattr(backend.models, "submit", noted)
    for target_s in (WITHIN_S, 0.5 * first_token_s):
        await collect(backend, request("answer 1", target=Target(target_s, 1.0)))
    so_far = AnswerSoFar("0 ", num_tokens=1)
    limited = request("answer 1", target=Target(0.5 * first_token_s, 1.0))
    async for _ in steps_of(backend.generate, limited, None, so_far):
        pass
    assert due_s == [WITHIN_S, math.inf, 0.5 * first_token_s]


async def test_a_slow_reader_delays_nobody_and_loses_nothing(make: Make) -> None:
    backend = make()
    await backend.start()
    slow = steps_of(backend.generate, request("answer 500"))
    first = await anext(slow)
    assert text(await collect(backend, request("answer 500", "r2"))) == "".join(f"{i} " for i in range(500))
    steps = [first, *[step async for step in slow]]
    assert text(steps) == "".join(f"{i} " for i in range(500))


async def test_errors_come_out_of_the_generator(make: Make) -> None:
    backend = make()
    with pytest.raises(BackendUnavailable):
        await collect(backend, request("answer 1"))
    await backend.start()
    with pytest.raises(ModelNotFound):
        await collect(backend, request("answer 1", model="other"))
    with pytest.raises(ModelNotFound):
        backend.estimate(request("", model="other"))
    got: list[Step] = []
    with pytest.raises(WorkerCrashed) as caught:
        async for step in steps_of(backend.generate, request("die SIGSEGV 3")):
            got.append(step)
    assert text(got) == "0 1 2 "
    assert caught.value.num_delivered_tokens == 3


async def test_a_burst_of_kills_loses_no_waiting_request(make: Make) -> None:
    backend = make(max_crashes=100, max_waiting=60)
    await backend.start()
    kills = [asyncio.create_task(collect(backend, request("die SIGKILL | answer 1", "killer")))]
    waits = [asyncio.create_task(collect(backend, request("begin | answer 2", f"r{index}"))) for index in range(20)]
    for answer in await asyncio.gather(*waits, *kills):
        assert reason(answer) is FinishReason.STOP


async def test_what_the_next_worker_computes_of_a_dead_one_s_requests_is_known_to_be_cached(make: Make) -> None:
    backend, dying = make(), request("die SIGKILL | answer 1")
    await backend.start()
    await collect(backend, request("answer 1"))
    await collect(backend, dying)
    backend.estimate(request(""))
    forecast = backend._traffic_of(backend.models.model("")).forecast
    assert forecast._num_known_bytes(dying)
    assert not forecast._num_known_bytes(request("answer 1"))


async def test_stop_ends_every_generator(make: Make) -> None:
    backend = make()
    await backend.start()
    tasks = [asyncio.create_task(collect(backend, request("stream", f"r{index}"))) for index in range(3)]
    await eventually(lambda: backend.estimate(request("")).num_live == 3)
    await backend.stop()
    for answer in await asyncio.gather(*tasks):
        assert reason(answer) is FinishReason.CANCELLED
    with pytest.raises(BackendUnavailable):
        await collect(backend, request("answer 1"))


ENDING = ("answer 3", "answer 30", "fail internal_error", "begin | answer 2", "die SIGKILL 1")
ENDLESS = ("stream", "wait 1", "wait", "deaf")
FAULTS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGSTOP)
MAX_FAULTS = 8


@pytest.mark.daily(1, seconds=0.6)
@pytest.mark.parametrize("seed", range(4))
async def test_every_accepted_request_ends_once_under_random_faults(make: Make, seed: int) -> None:
    """Crashes, freezes, cancels, closes and deadlines at random: each request ends exactly once."""
    chance = random.Random(seed)
    backend = make(parallel=4, max_waiting=8, max_crashes=10_000, pong_timeout_s=0.5, stop_grace_s=0.05)
    await backend.start()
    clients = [asyncio.create_task(act_as_client(backend, f"c{index}", chance)) for index in range(40)]
    num_faults = 0
    while not all(client.done() for client in clients):
        await asyncio.sleep(0.01)
        (status,) = backend.models.statuses()
        if status.state is WorkerState.READY and status.pid and num_faults < MAX_FAULTS and chance.random() < 0.3:
            with contextlib.suppress(ProcessLookupError):  # it has just died, and the supervisor has not noticed yet
                os.kill(status.pid, chance.choice(FAULTS))
            num_faults += 1
    for client in clients:
        await client
    await eventually(lambda: backend.estimate(request("")).num_live == 0)


async def act_as_client(backend: LocalBackend, request_id: str, chance: random.Random) -> None:
    """Send a request, perhaps leave or cancel it midway, and check its steps."""
    for _ in range(chance.randrange(20)):
        await asyncio.sleep(0.002)
    if chance.random() < 0.6:
        wanted = request(chance.choice(ENDING), request_id, timeout_s=chance.choice((None, 0.05)))
    else:
        wanted = request(chance.choice(ENDLESS), request_id, timeout_s=chance.choice((0.05, 0.5)))
    steps = steps_of(backend.generate, wanted)
    num_before_cancel = chance.randrange(1, 12)
    got: list[Step] = []
    tokens: list[int] = []
    try:
        async for step in steps:
            assert not got or not isinstance(got[-1].deltas[-1], Finished), "a step after the end"
            got.append(step)
            tokens += step.tokens
            if len(got) == num_before_cancel:
                if chance.random() < 0.5:
                    await steps.aclose()
                    return
                backend.cancel(request_id)
        assert isinstance(got[-1].deltas[-1], Finished)
    except Overloaded:
        assert not got
    except EdgeAgentError as error:
        assert not got or not isinstance(got[-1].deltas[-1], Finished), "an error after the end"
        if isinstance(error, WorkerCrashed):
            assert error.num_delivered_tokens == len(tokens)
    finally:
        backend.cancel(request_id)
        assert tokens == list(range(1000, 1000 + len(tokens))), "a token lost or repeated"


async def test_an_estimate_says_what_is_in_the_way(make: Make) -> None:
    backend = make(crash_window_s=60.0)
    await backend.start()
    loading = backend.estimate(request("answer 1"))
    assert (loading.obstacle, loading.strain) == ("", "loading")
    assert text(await collect(backend, request("answer 1"))) == "0 "
    ready = backend.estimate(request("answer 1"))
    assert (ready.obstacle, ready.strain, ready.num_live, ready.is_full) == ("", "", 0, False)
    with pytest.raises(ModelNotFound):
        backend.estimate(request("answer 1", model="other"))
    context = backend.models.statuses()[0].info
    assert context is not None
    assert backend.estimate(request("x" * (17 * context.context_length))).obstacle == "context_too_long"


async def test_an_answer_is_whole_if_its_model_is_unloaded_before_it_is_read(tmp_path: Path) -> None:
    def find(name: str) -> Found:
        return found_at(Path(f"{name}.gguf"), name)

    pool = Pool(
        Config(), ModelSource(find, lambda _: None, offer=find), command=stub_command(tmp_path / "lives"), limits=QUICK
    )
    backend = LocalBackend(pool)

    class LateSink(Sink):
        """A client for which the end of the answer comes after the pool has looked for unused models."""

        def put(self, step: Step) -> None:
            if step.deltas and isinstance(step.deltas[-1], Finished):
                pool.unload_expired()
            steps.append(step)

        async def room(self) -> None:
            raise AssertionError("a local backend cannot pause")

    steps: list[Step] = []
    await backend.start()
    asked = structs.replace(request("answer 3", model=await pool.locate("other")), keep_alive_s=0.0)
    await backend.generate(asked, LateSink())
    with pytest.raises(ModelNotFound):
        backend.models.find("other")
    assert text(steps) == "0 1 2 "
    assert reason(steps) is FinishReason.STOP
    await backend.stop()


def shown(*messages: Message) -> GenerateRequest:
    return GenerateRequest("r1", "", ChatPrompt(messages, media=(media(RED),)))


async def test_an_image_that_the_model_does_not_read(make: Make) -> None:
    """A new one is refused before the model computes anything. An earlier one is a note, and a warning says so."""
    backend = make()
    await backend.start()
    place = (MediaPlace(0, 0),)
    new = shown(Message("user", "answer 1", media=place))
    with pytest.raises(NotSupported, match=r"stub reads only text \(.*\), and the last message has images"):
        await collect(backend, new)
    assert text(await collect(backend, request("answer 1"))) == "0 "
    assert backend.estimate(new).obstacle == "media"
    earlier = shown(Message("user", "What is this?", media=place), Message("user", "answer 1"))
    assert backend.estimate(earlier).obstacle == ""
    steps = await collect(backend, earlier)
    started = steps[0].deltas[0]
    assert isinstance(started, Started) and started.warnings == (
        "images of earlier messages are left out, because the model does not read them",
    )
    assert text(steps) == "0 "
    assert backend.estimate(earlier).strain == "media", "a remote that reads images would be the better choice"
