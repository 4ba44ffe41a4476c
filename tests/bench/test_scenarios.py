"""The scenarios against the daemon's own server with a fake backend: their requests, and the basis of their numbers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from edgeagent.bench import scenarios
from edgeagent.bench.client import Counts, Server, Trace
from edgeagent.bench.scenarios import (
    FEW_TOKENS,
    ITL,
    LENGTH,
    RATE,
    SCENARIOS,
    Live,
    MeasuredServer,
    Metric,
    Prompts,
    Round,
    Workload,
    all_rate,
    live_rate,
)
from edgeagent.client import Address
from edgeagent.errors import BackendUnavailable, Overloaded
from edgeagent.types import ChatPrompt, GenerateRequest, Started, TextDelta, Tier
from tests.backends.fake import Act, FakeBackend, Gate, finished
from tests.daemon.running import running

WORKLOAD = Workload(prompt_tokens=200, max_tokens=20, parallel=3)
EXPLAINS = [metric for scenario in SCENARIOS.values() for metric in scenario.metrics if metric.better == "neither"]


@asynccontextmanager
async def measured_server(backend: FakeBackend, transport: str = "ws") -> AsyncIterator[MeasuredServer]:
    async with running(backend) as daemon:
        yield MeasuredServer(Server(Address(daemon.url), transport, "fake"), Prompts(1, "A"))  # type: ignore[arg-type]


def prompt_of(request: GenerateRequest) -> str:
    assert isinstance(request.prompt, ChatPrompt)
    return request.prompt.messages[-1].content


def all_present(samples: Round, metrics: Iterable[Metric]) -> bool:
    """Whether each metric has samples, positive where they are times or rates."""
    return all(
        samples[metric] and all(value > 0 or metric.better == "neither" for value in samples[metric])
        for metric in metrics
    )


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenarios, "REALTIME_EVERY_S", 0.01)


@pytest.mark.parametrize("transport", ["ws", "http"])
@pytest.mark.parametrize("name", sorted(SCENARIOS))
async def test_a_round_gives_what_the_scenario_promises(name: str, transport: str) -> None:
    scenario = SCENARIOS[name]
    async with measured_server(FakeBackend(), transport) as measured:
        if scenario.prepare is not None:
            await scenario.prepare(measured, WORKLOAD)
        samples = await scenario.round(measured, WORKLOAD, "0")
    assert set(samples) == set(scenario.metrics)
    # The fake answers a long prompt so fast that the live streams may have no gap meanwhile.
    optional = {scenarios.ITL_DURING, scenarios.WORST_ITL}
    assert all_present(samples, set(scenario.metrics) - optional), samples


async def test_decode_counts_what_came() -> None:
    async with measured_server(FakeBackend()) as measured:
        samples = await scenarios.decode(measured, WORKLOAD, "0")
    assert samples[LENGTH] == [20]
    assert samples[scenarios.PER_EVENT] == [1]
    assert len(samples[ITL]) == 19


async def test_an_answer_of_one_event_has_no_rate() -> None:
    backend = FakeBackend(lambda _: (Started(5, 0), TextDelta("no"), finished(output=1)))
    async with measured_server(backend) as measured:
        samples = await scenarios.decode(measured, WORKLOAD, "0")
    assert samples[RATE] == []
    assert samples[LENGTH] == [1]


async def test_ttft_asks_a_new_prompt_each_round_and_warm_ones_that_differ_at_their_end() -> None:
    backend = FakeBackend()
    async with measured_server(backend) as measured:
        for round_id in ("0", "1"):
            await scenarios.ttft(measured, WORKLOAD, round_id)
    per_round = 1 + scenarios.NUM_WARM_REQUESTS
    prompts = [prompt_of(request) for request in backend.requests]
    assert len(set(prompts)) == len(prompts) == 2 * per_round
    firsts = [prompt.split()[0] for prompt in prompts]
    assert len({firsts[0], firsts[per_round], firsts[1]}) == 3, "each cold prompt, and the warm ones, begin differently"
    assert len(set(firsts[1:per_round] + firsts[per_round + 1 :])) == 1, "warm prompts begin alike"
    assert {request.max_tokens for request in backend.requests} == {FEW_TOKENS}


async def test_a_turn_has_a_second_prompt_behind_the_first() -> None:
    """A conversation is mostly turns behind what is cached, so a setting is chosen by them too."""
    backend = FakeBackend()
    async with measured_server(backend) as measured:
        for round_id in "01":
            await SCENARIOS["turn"].round(measured, WORKLOAD, round_id)
    prompts = [prompt_of(request) for request in backend.requests]
    cold, warm, *streams = prompts[: 2 + WORKLOAD.parallel]
    assert len(streams) == WORKLOAD.parallel and cold not in streams
    assert cold != warm and cold.split()[:-8] == warm.split()[:-8]
    assert prompts[2 + WORKLOAD.parallel].split()[0] != cold.split()[0], "each round has its own"


async def test_parallel_asks_at_the_same_time() -> None:
    gates = [Gate() for _ in range(WORKLOAD.parallel)]
    waiting = iter(gates)

    def script(request: GenerateRequest) -> Iterable[Act]:
        yield from (Started(5, 0), TextDelta("a"), next(waiting), TextDelta("b"), finished())

    backend = FakeBackend(script)
    async with measured_server(backend) as measured:
        round_ = asyncio.create_task(scenarios.parallel(measured, WORKLOAD, "0"))
        await asyncio.gather(*(gate.reached.wait() for gate in gates))
        assert backend.num_live == WORKLOAD.parallel
        for gate in gates:
            gate.opened.set()
        samples = await round_
    assert len(samples[scenarios.TTFT]) == WORKLOAD.parallel
    assert len({prompt_of(request) for request in backend.requests}) == WORKLOAD.parallel


async def test_one_refusal_ends_a_parallel_round_with_its_own_error() -> None:
    def script(request: GenerateRequest) -> Iterable[Act]:
        yield Overloaded("the queue is full")

    async with measured_server(FakeBackend(script)) as measured:
        with pytest.raises(Overloaded, match="the queue is full"):
            await scenarios.parallel(measured, WORKLOAD, "0")


async def test_hol_sends_the_long_prompt_when_all_streams_live_and_ends_them_all() -> None:
    """The long prompt's answer waits at a gate until each live stream has sent five more tokens."""
    gate, meanwhile = Gate(), [0, 0]
    num_live_when_long_came = []

    def script(request: GenerateRequest) -> Iterable[Act]:
        if request.max_tokens == FEW_TOKENS:
            num_live_when_long_came.append(backend.num_live - 1)
            yield from (gate, Started(200, 0), TextDelta("first"), finished(output=1))
            return
        lane = len([known for known in backend.requests if known.max_tokens == request.max_tokens]) - 1
        yield Started(5, 0)
        while True:
            if gate.reached.is_set():
                meanwhile[lane] += 1
                if min(meanwhile) >= 5:
                    gate.opened.set()
            yield TextDelta("x")

    backend = FakeBackend(script)
    async with measured_server(backend) as measured:
        samples = await scenarios.hol(measured, WORKLOAD, "0")
        await backend.until(lambda fake: fake.num_live == 0)
    assert num_live_when_long_came == [WORKLOAD.parallel - 1]
    assert len(samples[scenarios.ITL_BEFORE]) >= (WORKLOAD.parallel - 1) * (scenarios.NUM_EVENTS_BEFORE - 1)
    assert len(samples[scenarios.ITL_DURING]) >= WORKLOAD.parallel - 1
    assert len(samples[scenarios.WORST_ITL]) == WORKLOAD.parallel - 1
    assert max(samples[scenarios.WORST_ITL]) == max(samples[scenarios.ITL_DURING])
    assert samples[scenarios.BEGUN] == [0]


async def test_hol_with_a_model_that_answers_nothing_fails_instead_of_asking_for_ever() -> None:
    backend = FakeBackend(lambda _: (Started(5, 0), finished(output=0)))
    async with measured_server(backend) as measured:
        with pytest.raises(BackendUnavailable, match="an empty answer"):
            await scenarios.hol(measured, WORKLOAD, "0")


async def test_mixed_sends_realtime_requests_on_time_until_each_batch_job_has_ended() -> None:
    """The batch jobs beside the others wait at a gate until more realtime requests than the fewest have been sent."""
    gate, num_jobs = Gate(), WORKLOAD.parallel // 2
    jobs, asked = [], []

    def script(request: GenerateRequest) -> Iterable[Act]:
        yield Started(200, 50)
        if request.tier is Tier.BATCH:
            jobs.append(request)
            if len(jobs) > 2 * num_jobs:
                yield gate
        elif request.tier is Tier.REALTIME:
            asked.append(request)
            if len(asked) > scenarios.NUM_REALTIME_ALONE + scenarios.NUM_REALTIME + 2:
                gate.opened.set()
        else:
            yield from iter(lambda: TextDelta("x"), None)
        yield from (TextDelta("a"), finished(prompt=200, cached=50, output=1))

    backend = FakeBackend(script)
    async with measured_server(backend) as measured:
        measured = replace(measured, server=replace(measured.server, kind="edgeagent"))
        samples = await scenarios.mixed(measured, WORKLOAD, "0")
        await backend.until(lambda fake: fake.num_live == 0)
    assert len(samples[scenarios.ALONE]) == scenarios.NUM_REALTIME_ALONE
    assert len(samples[scenarios.REALTIME]) > scenarios.NUM_REALTIME + 1
    assert len(samples[scenarios.STREAM_ITL]) == WORKLOAD.parallel
    assert samples[scenarios.JOBS_ALONE][0] > 0 < samples[scenarios.JOBS][0]


def test_the_rate_of_batch_jobs_is_of_what_was_computed_until_the_last_has_ended() -> None:
    done = Trace(texts=[11.0, 12.0], num_chars=[1, 1], counts=Counts(100, 20, 20))
    assert scenarios.Jobs(10.0, [done, Trace()]).rate == 50
    assert scenarios.Jobs(10.0, [Trace()]).rate == 0


def test_live_gaps_are_those_that_have_a_part_in_the_time_asked_for() -> None:
    live = Live([Trace(sent_s=0, texts=[1, 2, 3, 7]), Trace(sent_s=7.5, texts=[8, 9])])
    assert live.gaps_ms(2.5, 6) == [1000, 4000]
    assert live.gaps_ms(0, 100) == [1000, 1000, 4000, 1000], "from one answer to the next there is no gap"
    assert live.num_events == 6
    assert (live.num_begun(2.5, 6), live.num_begun(2.5, 8)) == (0, 1)


def test_the_rate_of_many_streams() -> None:
    """Two streams with 10 and 5 events per second, two tokens each; both are live from 1.0 to 2.0 s."""
    fast = Trace(sent_s=0, texts=[0.5 + i / 10 for i in range(21)], num_chars=[1] * 21, counts=Counts(1, 0, 42))
    slow = Trace(sent_s=0, texts=[1.0 + i / 5 for i in range(6)], num_chars=[1] * 6, counts=Counts(1, 0, 12))
    assert live_rate([fast, slow]) == pytest.approx([30])
    assert all_rate([fast, slow]) == pytest.approx([54 / 2.5])


def test_streams_that_were_never_live_together_have_no_common_rate() -> None:
    early = Trace(texts=[1.0, 2.0], num_chars=[1, 1], counts=Counts(1, 0, 2))
    late = Trace(texts=[3.0, 4.0], num_chars=[1, 1], counts=Counts(1, 0, 2))
    assert live_rate([early, late]) == []
    assert live_rate([early, Trace(counts=Counts(1, 0, 0))]) == []
    assert all_rate([Trace()]) == []


def test_every_metric_explains_itself_once() -> None:
    for scenario in SCENARIOS.values():
        names = [metric.name for metric in scenario.metrics]
        assert len(set(names)) == len(names)
        assert all(metric.meaning and metric.unit for metric in scenario.metrics)
    assert EXPLAINS
