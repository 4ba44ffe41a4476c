"""Counting, refusing and draining live requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from msgspec.structs import replace

from edgeagent.api.live_requests import LiveRequests, _measures
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
    live = LiveRequests(FakeBackend())
    steps = await consume(live.generate(request("a")))
    assert [delta for step in steps for delta in step.deltas][1:3] == [TextDelta("one"), TextDelta(" two")]
    assert (live.num_live, live.num_total) == (0, 1)


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
    await consume(LiveRequests(backend).generate(replace(request("a"), route=RouteMode.PREFER_REMOTE)))
    assert [(asked.num_hops, asked.route) for asked in backend.requests] == [(num_hops, route)]


async def test_where_it_began_is_told_of_one_that_broke() -> None:
    placement = Placement("remote:gpu", "m", "queue_full")
    script = (Started(1, 0, placement=placement), WorkerCrashed("cut"))
    meters: list[Meter] = []
    live = LiveRequests(FakeBackend(lambda _: script), lambda asked, meter, end: meters.append(meter))
    with pytest.raises(WorkerCrashed):
        await consume(live.generate(request("a")))
    measures = _measures(request("a"), meters[0], "worker_crashed")
    assert (measures["served_by"], measures["reason"]) == ("remote:gpu", "queue_full")


async def test_each_end_is_told_once() -> None:
    ends: list[tuple[str, str, str]] = []

    def note(asked: GenerateRequest, meter: Meter, end: str) -> None:
        ends.append((asked.id, meter.model, end))

    await consume(LiveRequests(FakeBackend(), note).generate(request("a")))
    with pytest.raises(WorkerCrashed):
        await consume(LiveRequests(FakeBackend(failing(WorkerCrashed("signal 9"))), note).generate(request("b")))
    with pytest.raises(ValueError, match="a bug"):
        await consume(LiveRequests(FakeBackend(lambda _: (ValueError("a bug"),)), note).generate(request("c")))
    live = LiveRequests(FakeBackend(lambda _: (TextDelta("x"), Gate())), note)
    steps = live.generate(request("d"))
    await anext(steps)
    assert live.num_live == 1
    await steps.aclose()
    assert live.num_live == 0
    with pytest.raises(ModelNotFound):
        await consume(live.generate(replace(request("e"), model="a client's words")))
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
    live = LiveRequests(backend)
    running = asyncio.create_task(consume(live.generate(request("a"))))
    await gate.reached.wait()
    live.begin_drain()
    with pytest.raises(BackendUnavailable) as refused:
        await consume(live.generate(request("b")))
    assert refused.value.retry_after_s
    await live.wait_idle(0.0)
    assert live.num_live == 1
    live.cancel_all()
    await live.wait_idle(60.0)
    assert live.num_live == 0
    assert backend.cancelled == ["a"]
    assert len(await running) == 2


async def test_an_end_is_waited_for_but_not_that_of_what_hangs() -> None:
    gate = Gate()
    live = LiveRequests(FakeBackend(lambda _: (TextDelta("x"), gate, finished())))
    hanging = live.generate(request("hangs"))
    await anext(hanging)
    for name in ("hangs", "ended"):
        live.accepted(name)
    waiting = asyncio.create_task(live.wait_delivered(60.0))
    await asyncio.sleep(0)
    live.delivered("ended")
    live.accepted("next")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    live.delivered("next")
    await waiting
    await hanging.aclose()
