"""Counting, refusing and draining live requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from edgeagent.errors import (
    BackendUnavailable,
    DeadlineUnreachable,
    EdgeAgentError,
    ModelNotFound,
    Overloaded,
    RequestTimeout,
    WorkerCrashed,
)
from edgeagent.metrics import REGISTRY
from edgeagent.metrics.meter import Meter
from edgeagent.service.live_service import LiveService, _measures
from edgeagent.types import (
    AnswerSoFar,
    Finished,
    FinishReason,
    GenerateRequest,
    Need,
    Placement,
    Started,
    Step,
    Target,
    TextDelta,
    TextPrompt,
    Tier,
    Timings,
    Verdict,
)
from tests.backends.fake import FakeBackend, Gate, failing, finished
from tests.backends.reading import steps_of


def request(name: str) -> GenerateRequest:
    return GenerateRequest(name, "fake", TextPrompt("one two"))


def anonymous(asked: GenerateRequest) -> GenerateRequest:
    """Stand for a wire that knows nothing of its callers."""
    return asked


async def consume(steps: AsyncIterator[Step]) -> list[Step]:
    return [step async for step in steps]


async def test_steps_pass_and_are_counted() -> None:
    service = LiveService(FakeBackend(), anonymous)
    steps = await consume(steps_of(service.generate, request("a")))
    assert [delta for step in steps for delta in step.deltas][1:3] == [TextDelta("one"), TextDelta(" two")]
    assert (service.live.num_running, service.num_total) == (0, 1)


async def test_where_it_began_is_told_of_one_that_broke() -> None:
    placement = Placement("remote:gpu", "m", "queue_full")
    script = (Started(1, 0, placement=placement), WorkerCrashed("cut"))
    meters: list[Meter] = []
    service = LiveService(FakeBackend(lambda _: script), anonymous, lambda asked, meter, end: meters.append(meter))
    with pytest.raises(WorkerCrashed):
        await consume(steps_of(service.generate, request("a")))
    measures = _measures(request("a"), meters[0], "worker_crashed")
    assert (measures["served_by"], measures["reason"]) == ("remote:gpu", "queue_full")


async def test_each_end_is_told_once() -> None:
    ends: list[tuple[str, str, str]] = []

    def note(asked: GenerateRequest, meter: Meter, end: str) -> None:
        ends.append((asked.id, meter.model, end))

    await consume(steps_of(LiveService(FakeBackend(), anonymous, note).generate, request("a")))
    with pytest.raises(WorkerCrashed):
        await consume(
            steps_of(
                LiveService(FakeBackend(failing(WorkerCrashed("signal 9"))), anonymous, note).generate, request("b")
            )
        )
    with pytest.raises(ValueError, match="a bug"):
        await consume(
            steps_of(LiveService(FakeBackend(lambda _: (ValueError("a bug"),)), anonymous, note).generate, request("c"))
        )
    service = LiveService(FakeBackend(lambda _: (TextDelta("x"), Gate())), anonymous, note)
    steps = steps_of(service.generate, request("d"))
    await anext(steps)
    assert service.live.num_running == 1
    await steps.aclose()
    assert service.live.num_running == 0
    with pytest.raises(ModelNotFound):
        await consume(steps_of(service.generate, replace(request("e"), model="a client's words")))
    assert ends == [
        ("a", "fake", "stop"),
        ("b", "fake", "worker_crashed"),
        ("c", "fake", "internal_error"),
        ("d", "fake", "abandoned"),
        ("e", "fake", "model_not_found"),
    ]


async def test_a_request_that_is_too_large_now_is_refused_and_told_as_each_other() -> None:
    held, ends = list[int](), list[tuple[str, str]]()

    @contextmanager
    def hold(client: str, num_bytes: int) -> Iterator[None]:
        held.append(num_bytes)
        raise Overloaded("too many bytes")
        yield

    def note(asked: GenerateRequest, meter: Meter, end: str) -> None:
        ends.append((asked.id, end))

    service = LiveService(backend := FakeBackend(), anonymous, note, hold=hold)
    with pytest.raises(Overloaded):
        await consume(steps_of(service.generate, request("a")))
    first = request("b")
    with pytest.raises(Overloaded), service.holding(first, replace(first, id="c")):
        pass
    assert ends == [("a", "queue_full"), ("b", "queue_full"), ("c", "queue_full")]
    assert held[0] <= held[1] < 1.5 * held[0], "the prompt counts once"
    service.begin_drain()
    with pytest.raises(BackendUnavailable):
        await consume(steps_of(service.generate, request("d")))
    assert len(held) == 2 and not backend.requests


async def test_what_is_computed_ahead_has_no_latency() -> None:
    meters: list[Meter] = []
    service = LiveService(FakeBackend(), anonymous, lambda asked, meter, end: meters.append(meter))
    limited = replace(request("b"), is_ahead=True, timeout_s=1.0, need=Need(first_token_s=1.0))
    for asked in (request("a"), replace(request("b"), is_ahead=True), limited):
        await consume(steps_of(service.generate, asked))
    assert [meter.verdict is None for meter in meters] == [False, True, True]


@pytest.mark.parametrize(
    ("error", "waited_s", "is_late"),
    [
        (DeadlineUnreachable.predicted(2.0, 1e-9), 0.0, False),
        (DeadlineUnreachable.predicted(2.0, 1e-9), 0.5, True),
        (DeadlineUnreachable.passed(1e-9), 0.0, True),
        (RequestTimeout.passed(1e-9), 0.0, True),
    ],
)
async def test_what_is_refused_at_once_is_no_late_answer(error: EdgeAgentError, waited_s: float, is_late: bool) -> None:
    """However long the refusal took. One that has waited, or until its limit had passed, was late."""
    model, limit_s = f"refused {type(error).__name__} {waited_s} {is_late}", waited_s + 1e-9
    service = LiveService(FakeBackend(lambda _: (error,), models=(model,)), anonymous)
    limit = {"timeout_s": limit_s} if isinstance(error, RequestTimeout) else {"need": Need(first_token_s=limit_s)}
    with pytest.raises(type(error)) as caught:
        await consume(steps_of(service.generate, replace(request("a"), model=model, waited_s=waited_s, **limit)))
    assert caught.value is error
    labels = {"model": model, "tier": "interactive", "served_by": "local", "outcome": "queue"}
    assert bool(REGISTRY.get_sample_value("edgeagent_answers_total", labels)) is is_late
    assert error.late_stage == ("queue" if is_late else "")


@pytest.mark.parametrize(
    ("limit", "first_token_s", "stage"),
    [({}, 3.0, "queue"), ({"need": Need(first_token_s=90.0)}, 90.0, ""), ({"timeout_s": 90.0}, 3.0, "queue")],
)
async def test_the_wait_before_it_came_counts_as_its_own(
    limit: dict[str, Any], first_token_s: float, stage: str
) -> None:
    """The backend gets what is left of the request's limits. It is judged by the limits that it was sent with."""
    backend, meters = FakeBackend(), list[Meter]()
    service = LiveService(backend, anonymous, lambda asked, meter, end: meters.append(meter))
    steps = await consume(steps_of(service.generate, replace(request("a"), waited_s=30.0, **limit)))
    assert backend.requests[0].latest_first_token_s == (60.0 if limit else None)
    finished_one = steps[-1].deltas[-1]
    assert isinstance(finished_one, Finished) and finished_one.timings.queue_ms >= 30_000
    assert finished_one.timings.verdict == Verdict(Tier.INTERACTIVE, Target(first_token_s, 0.2), stage)
    assert meters[0].first_s is not None and meters[0].first_s - meters[0].began_s >= 30.0


@pytest.mark.parametrize(
    ("limit", "error"), [({"need": Need(first_token_s=3.0)}, DeadlineUnreachable), ({"timeout_s": 3.0}, RequestTimeout)]
)
async def test_what_has_waited_too_long_is_late_and_not_computed(
    limit: dict[str, Any], error: type[EdgeAgentError]
) -> None:
    backend = FakeBackend(models=(model := f"waited {error.__name__}",))
    asked = replace(request("a"), model=model, waited_s=3.0, **limit)
    with pytest.raises(error, match="3000"):
        await consume(steps_of(LiveService(backend, anonymous).generate, asked))
    assert backend.requests == []
    labels = {"model": model, "tier": "interactive", "served_by": "local", "outcome": "queue"}
    assert REGISTRY.get_sample_value("edgeagent_answers_total", labels) == 1


async def test_an_answer_that_was_generated_ahead_is_judged_as_the_client_gets_it() -> None:
    service = LiveService(FakeBackend(models=(model := "ahead",)), anonymous)
    so_far = AnswerSoFar("one two three", num_tokens=3, tokens=(1, 2, 3))
    asked = replace(request("a"), model=model, so_far=so_far)
    target, unwaited = Target(3.0, 0.2), dict.fromkeys(("load", "render", "cache", "prefill"), 0.0)
    computed = Timings(1.0, 2.0, 3.0, 4.0, 5.0, first_token_ms=15.0, decode_ms=800.0, expected_ms=123.0)
    for waited_s, stage in ((0.0, ""), (9.0, "queue")):
        end = service.give(replace(asked, waited_s=waited_s), replace(finished(), timings=computed))
        assert end.timings.verdict == Verdict(Tier.INTERACTIVE, target, stage)
        assert end.timings.stages_before_first_token_ms == {"queue": 1000 * waited_s, **unwaited}
        assert (end.timings.first_token_ms, end.timings.decode_ms) == (1000 * waited_s, 0.0)
        assert end.timings.expected_ms is None
    labels = {"model": model, "tier": "interactive", "served_by": "local"}
    assert REGISTRY.get_sample_value("edgeagent_answers_total", labels | {"outcome": "met"}) == 1
    assert REGISTRY.get_sample_value("edgeagent_first_token_seconds_count", labels) == 2
    assert REGISTRY.get_sample_value("edgeagent_decode_tokens_total", {"model": model}) is None
    assert service.live.num_running == 0


@pytest.mark.parametrize(
    ("served_by", "named", "stage"),
    [("local", "prefill", "prefill"), ("remote:gpu", "", "remote"), ("edgeagent", "", "unknown")],
)
async def test_an_error_names_the_stage_in_which_the_time_was_over(served_by: str, named: str, stage: str) -> None:
    error = RequestTimeout.passed(1.0, served_by=served_by)
    error.late_stage = named
    service = LiveService(FakeBackend(lambda _: (Started(1, 0), error), models=(model := f"late {stage}",)), anonymous)
    with pytest.raises(RequestTimeout) as raised:
        await consume(steps_of(service.generate, replace(request("a"), model=model)))
    assert raised.value.late_stage == stage
    labels = {"model": model, "tier": "interactive", "served_by": "local", "outcome": stage}
    assert REGISTRY.get_sample_value("edgeagent_answers_total", labels) == 1


async def test_draining() -> None:
    gate = Gate()
    backend = FakeBackend(lambda _: (TextDelta("x"), gate, finished()))
    service = LiveService(backend, anonymous)
    running = asyncio.create_task(consume(steps_of(service.generate, request("a"))))
    await gate.reached.wait()
    service.begin_drain()
    with pytest.raises(BackendUnavailable) as refused:
        await consume(steps_of(service.generate, request("b")))
    assert refused.value.retry_after_s
    await service.live.wait_idle(0.0)
    assert service.live.num_running == 1
    service.cancel_all()
    await service.live.wait_idle(60.0)
    assert service.live.num_running == 0
    assert backend.cancelled == ["a"]
    assert len(await running) == 2


async def test_draining_waits_for_no_answer_that_no_client_has_asked_for() -> None:
    gates = {"summary": Gate(), "prefill": Gate()}
    backend = FakeBackend(lambda asked: (Started(1, 0), gates[asked.id], finished()))
    service = LiveService(backend, anonymous)
    ahead = replace(request("summary"), is_ahead=True)
    asked = (ahead, replace(ahead, id="prefill", prefill_only=True))
    running = [asyncio.create_task(consume(steps_of(service.generate, each))) for each in asked]
    for gate in gates.values():
        await gate.reached.wait()
    service.begin_drain()
    assert backend.cancelled == ["summary"]
    await running[0]
    assert service.live.num_running == 1
    service.cancel_all()
    await running[1]


async def test_a_load_that_a_stop_cancels_has_loaded_nothing() -> None:
    service = LiveService(FakeBackend(lambda _: (Started(1, 0), finished(FinishReason.CANCELLED))), anonymous)
    with pytest.raises(BackendUnavailable, match="the daemon is stopping"):
        await service.load("fake", "load-1", keep_alive_s=60.0)
    assert await LiveService(FakeBackend(), anonymous).load("fake", "load-2", keep_alive_s=60.0) == "fake"
