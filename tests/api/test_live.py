"""Counting, refusing and draining live requests, and what is measured of each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from edgeagent import metrics
from edgeagent.api.live import LiveRequests
from edgeagent.backends.fake import FakeBackend, Gate, failing, finished
from edgeagent.errors import BackendUnavailable, WorkerCrashed
from edgeagent.types import GenerateRequest, Step, TextDelta, TextPrompt


def request(name: str) -> GenerateRequest:
    return GenerateRequest(name, "fake", TextPrompt("one two"))


def sample(name: str, **labels: str) -> float:
    return metrics.REGISTRY.get_sample_value(name, labels) or 0.0


async def consume(steps: AsyncIterator[Step]) -> list[Step]:
    return [step async for step in steps]


async def test_steps_pass_and_are_counted() -> None:
    live = LiveRequests(FakeBackend())
    before = sample("edgeagent_requests_total", end="stop"), sample("edgeagent_output_tokens_total")
    steps = await consume(live.generate(request("a")))
    assert [delta for step in steps for delta in step.deltas][1:3] == [TextDelta("one"), TextDelta(" two")]
    assert (live.num_live, live.num_total) == (0, 1)
    assert sample("edgeagent_requests_total", end="stop") == before[0] + 1
    assert sample("edgeagent_output_tokens_total") == before[1] + 2
    assert sample("edgeagent_stage_seconds_count", stage="prefill") > 0


async def test_ends_are_told_apart() -> None:
    gate = Gate()
    live = LiveRequests(FakeBackend(failing(WorkerCrashed("signal 9"))))
    crashed, abandoned = (sample("edgeagent_requests_total", end=end) for end in ("worker_crashed", "abandoned"))
    with pytest.raises(WorkerCrashed):
        await consume(live.generate(request("a")))
    live = LiveRequests(FakeBackend(lambda _: (TextDelta("x"), gate)))
    steps = live.generate(request("b"))
    await anext(steps)
    assert (live.num_live, sample("edgeagent_live_requests")) == (1, 1)
    await steps.aclose()
    assert (live.num_live, sample("edgeagent_live_requests")) == (0, 0)
    assert sample("edgeagent_requests_total", end="worker_crashed") == crashed + 1
    assert sample("edgeagent_requests_total", end="abandoned") == abandoned + 1


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
    assert not await live.wait_idle(0.0)
    live.cancel_all()
    assert await live.wait_idle(60.0)
    assert backend.cancelled == ["a"]
    assert len(await running) == 2
