"""The laboratory's scenarios against the daemon's own server with a fake backend."""

from __future__ import annotations

import asyncio
import statistics
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import pytest

from edgeagent.api.responses.socket.connection import ANNOUNCE_S
from edgeagent.bench.client import Counts, Trace
from edgeagent.bench.scenarios import Workload
from edgeagent.errors import DeadlineUnreachable, NotSupported, Overloaded
from edgeagent.types import GenerateRequest, Queued, Started, TextDelta
from tests.backends.fake import Act, FakeBackend, Gate, finished
from tests.bench.test_scenarios import all_present, measured_server, prompt_of
from tests.peer.laboratory import SCENARIOS, overheads, promises
from tests.peer.laboratory.overheads import DELIVERY, IDLE_BYTES, IDLE_FIRST, IDLE_OPENING, TTFT_OVERHEAD
from tests.peer.laboratory.promises import arrival_times, share_early, share_predicted

WORKLOAD = Workload(prompt_tokens=200, max_tokens=20, parallel=3, connections=40)


@pytest.mark.daily(7, seconds=0.2)
@pytest.mark.parametrize("transport", ["ws", "http"])
@pytest.mark.parametrize("name", ["beginnings", "chat", "connect", "conversations", "copying", "overhead", "speculate"])
async def test_a_round_gives_what_the_scenario_promises(name: str, transport: str) -> None:
    scenario = SCENARIOS[name]
    async with measured_server(FakeBackend(), transport) as measured:
        if scenario.prepare is not None:
            await scenario.prepare(measured, WORKLOAD)
        samples = await scenario.round(measured, WORKLOAD, "0")
    assert set(samples) == set(scenario.metrics)
    # The fake reports a prompt time that exceeds the whole answer's time.
    assert all_present(samples, set(scenario.metrics) - {TTFT_OVERHEAD}), samples


@pytest.mark.slow(seconds=7)
async def test_more_arrive_than_can_be_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second request that states its latency is refused, and every fourth one told to wait, and then refused.

    Without a stated latency, and in the order of arrival, none is answered in time.
    """
    monkeypatch.setattr(promises, "WINDOW_S", 0.5)
    monkeypatch.setattr(promises, "TTFT_MS", 1000.0)
    asked: Counter[bool] = Counter()

    def script(request: GenerateRequest) -> Iterable[Act]:
        is_stated = request.need.first_token_s == 1.0
        asked[is_stated] += 1
        if is_stated and asked[True] % 2:
            raise Overloaded("the first token would come too late")
        if is_stated and asked[True] % 4 == 0:
            gate = Gate()
            asyncio.get_running_loop().call_later(2 * ANNOUNCE_S, gate.opened.set)
            yield from (Queued(1), gate, DeadlineUnreachable.passed(1.0))
            return
        if asked[False] > promises.NUM_FIRST:
            yield Gate()
        yield from (Started(5, 0), TextDelta("a"), finished())

    async with measured_server(FakeBackend(script)) as measured:
        measured = replace(measured, server=replace(measured.server, kind="edgeagent"))
        samples = await SCENARIOS["promise"].round(measured, WORKLOAD, "0")
    assert 0 < samples[promises.ACCEPTED][0] < 1
    num_accepted = samples[promises.ACCEPTED][0] * samples[promises.ARRIVED][0]
    assert samples[promises.KEPT][0] * num_accepted == pytest.approx(samples[promises.GOODPUT][0] * 0.5)
    assert samples[promises.KEPT][0] == pytest.approx(0.5, abs=0.2), "one that was told to wait was accepted"
    assert (samples[promises.UNSTATED], samples[promises.IN_ORDER], samples[promises.GAIN]) == ([0.0], [0.0], [])
    assert len(samples[promises.REFUSAL]) == samples[promises.ARRIVED][0] - round(num_accepted)


async def test_equal_requests_show_what_a_prediction_can_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promises, "NUM_FIRST", 1)
    monkeypatch.setattr(promises, "NUM_PREDICTED", 3)
    backend = FakeBackend()
    async with measured_server(backend) as measured:
        samples = await SCENARIOS["predicted"].round(measured, WORKLOAD, "0")
    assert set(samples) == set(SCENARIOS["predicted"].metrics)
    assert samples[promises.PREDICTED_ALONE] == samples[promises.PREDICTED_BESIDE] == [], "the fake predicts nothing"
    assert len(samples[promises.EQUAL_ALONE]) == len(samples[promises.EQUAL_BESIDE]) == 1
    short = [request for request in backend.requests if request.max_tokens == 2]
    assert len({prompt_of(request) for request in short}) == len(short) >= 14


def test_arrivals_are_independent_and_repeatable() -> None:
    times = arrival_times(50.0, 20.0, "1")
    assert times == arrival_times(50.0, 20.0, "1")
    assert len(times) == pytest.approx(1000, rel=0.1)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert statistics.stdev(gaps) == pytest.approx(statistics.mean(gaps), rel=0.1), "exponential, so both are equal"


def test_a_prediction_counts_if_it_is_a_fifth_off() -> None:
    pairs = [(100.0, 84.0), (100.0, 124.0), (100.0, 126.0), (100.0, 82.0), (None, 5.0)]
    traces = [
        Trace(reported={"edgeagent": {"expected_ms": expected, "stages_ms": {"first_token": first}}})
        for expected, first in pairs
    ]
    assert share_predicted(traces) == [0.5]
    assert share_predicted([]) == []


def test_answers_that_end_early_are_counted() -> None:
    traces = [Trace(counts=counts) for counts in (Counts(9, 0, 20), Counts(9, 0, 19), None)]
    assert share_early(traces, 20) == [0.5]
    assert share_early([Trace()], 20) == []


async def test_connect_counts_connecting_where_it_is_new() -> None:
    backend = FakeBackend()
    async with measured_server(backend) as measured:
        samples = await overheads.connect(measured, WORKLOAD, "0")
    assert [len(values) for values in samples.values()] == [overheads.NUM_CONNECTS] * 4
    assert len(backend.requests) == 2 * overheads.NUM_CONNECTS


async def test_overhead_is_what_the_server_s_own_prompt_time_leaves() -> None:
    async with measured_server(FakeBackend()) as measured:
        samples = await overheads.overhead(measured, WORKLOAD, "0")
    # The fake reports 8 ms for every prompt.
    assert all(value > -8.0 for value in samples[TTFT_OVERHEAD])
    assert len(samples[TTFT_OVERHEAD]) == len(samples[DELIVERY]) > 1


@pytest.mark.skipif(sys.platform != "linux", reason="the daemon tells its memory where there is /proc")
async def test_idle_sockets_are_opened_measured_and_closed() -> None:
    async with measured_server(FakeBackend()) as measured:
        samples = await overheads.idle(measured, WORKLOAD, "0")
    assert len(samples[IDLE_BYTES]) == len(samples[IDLE_FIRST]) == 1
    assert len(samples[IDLE_OPENING]) == WORKLOAD.connections


async def test_idle_is_of_websockets() -> None:
    async with measured_server(FakeBackend(), "http") as measured:
        with pytest.raises(NotSupported):
            await overheads.idle(measured, WORKLOAD, "0")


@pytest.mark.parametrize("transport", ["ws", "http"])
async def test_speculate_asks_for_each_number_of_drafts_and_never_twice_the_same(transport: str) -> None:
    backend = FakeBackend()
    async with measured_server(backend, transport) as measured:
        measured = replace(measured, server=replace(measured.server, kind="edgeagent"))
        await SCENARIOS["speculate"].round(measured, WORKLOAD, "0")
    asked = [(prompt_of(request), request.draft_tokens) for request in backend.requests]
    assert len({prompt for prompt, _ in asked}) == len(asked)
    assert Counter(drafts for _, drafts in asked) == {0: 4 + 4 * 3, 1: 4, 3: 4, 8: 4, None: 4 + 4 * 3}
