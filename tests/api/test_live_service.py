"""Counting, refusing and draining live requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from edgeagent.api.live_service import LiveService, _measures
from edgeagent.api.wire.request_id import begin_request
from edgeagent.errors import BackendUnavailable, ModelNotFound, WorkerCrashed
from edgeagent.metrics.meter import Meter
from edgeagent.types import GenerateRequest, Placement, RouteMode, Started, Step, TextDelta, TextPrompt
from tests.backends.fake import FakeBackend, Gate, failing, finished


def request(name: str) -> GenerateRequest:
    return GenerateRequest(name, "fake", TextPrompt("one two"))


async def consume(steps: AsyncIterator[Step]) -> list[Step]:
    return [step async for step in steps]


async def test_steps_pass_and_are_counted() -> None:
    service = LiveService(FakeBackend())
    steps = await consume(service.generate(request("a")))
    assert [delta for step in steps for delta in step.deltas][1:3] == [TextDelta("one"), TextDelta(" two")]
    assert (service.live.num_running, service.num_total) == (0, 1)


@pytest.mark.parametrize(
    ("told", "num_hops", "route"),
    [
        ((), 0, RouteMode.PREFER_REMOTE),
        ((b"1",), 1, RouteMode.PREFER_REMOTE),
        ((b"2",), 2, RouteMode.LOCAL_ONLY),
        ((b"1", b"9999"), 2, RouteMode.LOCAL_ONLY),
        ((b"-1",), 2, RouteMode.LOCAL_ONLY),
        ((b"9" * 5000,), 2, RouteMode.LOCAL_ONLY),
    ],
)
async def test_a_request_does_not_go_round(told: tuple[bytes, ...], num_hops: int, route: RouteMode) -> None:
    backend = FakeBackend()
    begin_request([(b"host", b"x"), *((b"x-edgeagent-hops", value) for value in told)])
    await consume(LiveService(backend).generate(replace(request("a"), route=RouteMode.PREFER_REMOTE)))
    assert [(asked.num_hops, asked.route) for asked in backend.requests] == [(num_hops, route)]


async def test_where_it_began_is_told_of_one_that_broke() -> None:
    placement = Placement("remote:gpu", "m", "queue_full")
    script = (Started(1, 0, placement=placement), WorkerCrashed("cut"))
    meters: list[Meter] = []
    service = LiveService(FakeBackend(lambda _: script), lambda asked, meter, end: meters.append(meter))
    with pytest.raises(WorkerCrashed):
        await consume(service.generate(request("a")))
    measures = _measures(request("a"), meters[0], "worker_crashed")
    assert (measures["served_by"], measures["reason"]) == ("remote:gpu", "queue_full")


async def test_each_end_is_told_once() -> None:
    ends: list[tuple[str, str, str]] = []

    def note(asked: GenerateRequest, meter: Meter, end: str) -> None:
        ends.append((asked.id, meter.model, end))

    await consume(LiveService(FakeBackend(), note).generate(request("a")))
    with pytest.raises(WorkerCrashed):
        await consume(LiveService(FakeBackend(failing(WorkerCrashed("signal 9"))), note).generate(request("b")))
    with pytest.raises(ValueError, match="a bug"):
        await consume(LiveService(FakeBackend(lambda _: (ValueError("a bug"),)), note).generate(request("c")))
    service = LiveService(FakeBackend(lambda _: (TextDelta("x"), Gate())), note)
    steps = service.generate(request("d"))
    await anext(steps)
    assert service.live.num_running == 1
    await steps.aclose()
    assert service.live.num_running == 0
    with pytest.raises(ModelNotFound):
        await consume(service.generate(replace(request("e"), model="a client's words")))
    assert ends == [
        ("a", "fake", "stop"),
        ("b", "fake", "worker_crashed"),
        ("c", "fake", "internal_error"),
        ("d", "fake", "abandoned"),
        ("e", "fake", "model_not_found"),
    ]


async def test_draining() -> None:
    gate = Gate()
    backend = FakeBackend(lambda _: (TextDelta("x"), gate, finished()))
    service = LiveService(backend)
    running = asyncio.create_task(consume(service.generate(request("a"))))
    await gate.reached.wait()
    service.begin_drain()
    with pytest.raises(BackendUnavailable) as refused:
        await consume(service.generate(request("b")))
    assert refused.value.retry_after_s
    await service.live.wait_idle(0.0)
    assert service.live.num_running == 1
    service.cancel_all()
    await service.live.wait_idle(60.0)
    assert service.live.num_running == 0
    assert backend.cancelled == ["a"]
    assert len(await running) == 2
