"""Rounds: two servers in alternation, a failure that stops only its scenario, and the results kept on interrupt."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from edgeagent.bench.client import Server
from edgeagent.bench.measure import Run, measure, measure_token_counting
from edgeagent.bench.scenarios import (
    COLD_PROMPT,
    ENDLESS,
    ITL,
    RATE,
    SCENARIOS,
    MeasuredServer,
    Round,
    Scenario,
    Workload,
)
from edgeagent.client import Address
from edgeagent.errors import BackendUnavailable, ContextLengthExceeded
from edgeagent.types import GenerateRequest
from tests.backends.fake import Act, FakeBackend, echo
from tests.daemon.running import running

WORKLOAD = Workload(prompt_tokens=100, max_tokens=10, parallel=2)

DEFAULT = [scenario for scenario in SCENARIOS.values() if scenario.is_usual]


def silent(label: str, done: int, total: int) -> None:
    pass


class Rounds:
    """A scenario that records which server is measured, and fails or stops at given rounds."""

    def __init__(self, stop_at: int | None = None, fail_at: int | None = None) -> None:
        self.log: list[tuple[str, str]] = []
        self.stopped = asyncio.Event()
        self._stop_at, self._fail_at = stop_at, fail_at
        self.scenario = Scenario("turns", "who comes when", (RATE, ITL), self._round, self._prepare)

    async def _prepare(self, measured: MeasuredServer, workload: Workload) -> None:
        self.log.append((measured.prompts.server_label, "prepare"))

    async def _round(self, measured: MeasuredServer, workload: Workload, round_id: str) -> Round:
        self.log.append((measured.prompts.server_label, round_id))
        if len(self.log) == self._stop_at:
            self.stopped.set()
            await asyncio.Event().wait()
        if len(self.log) == self._fail_at:
            raise BackendUnavailable("the plug was pulled")
        return {RATE: [float(len(self.log))], ITL: []}


def run_of(url: str, *scenarios: Scenario, num_servers: int = 1, num_rounds: int = 2) -> Run:
    servers = [Server(Address(url), "http", "fake") for _ in range(num_servers)]
    return Run(servers, list(scenarios), WORKLOAD, num_rounds, seed=1)


async def test_two_servers_take_turns() -> None:
    rounds, told = Rounds(), []
    async with running(FakeBackend()) as daemon:
        run = run_of(daemon.url, rounds.scenario, num_servers=2, num_rounds=3)
        await measure(run, lambda *progress: told.append(progress))
    turns = [(server, str(number)) for number, servers in enumerate(("AB", "BA", "AB")) for server in servers]
    assert rounds.log == [("A", "prepare"), ("B", "prepare"), *turns]
    (measurement,) = run.measurements
    assert measurement.samples(RATE, 0) == [[3.0], [6.0], [7.0]]
    assert measurement.samples(RATE, 1) == [[4.0], [5.0], [8.0]]
    assert measurement.samples(ITL, 1) == [[], [], []]
    assert run.is_complete
    assert told[0] == ("first answers", 0, 6)
    assert [done for _, done, _ in told[1:]] == [0, 1, 2, 3, 4, 5, 6]


async def test_a_failure_stops_one_scenario_and_keeps_its_rounds() -> None:
    failing, following, told = Rounds(fail_at=3), Rounds(), []
    async with running(FakeBackend()) as daemon:
        run = run_of(daemon.url, failing.scenario, following.scenario, num_rounds=4)
        await measure(run, lambda *progress: told.append(progress[1:]))
    first, second = run.measurements
    assert (len(first.rounds[0]), first.failure) == (1, "the plug was pulled")
    assert (len(second.rounds[0]), second.failure) == (4, None)
    assert told[-1] == (8, 8)


async def test_what_is_measured_stays_when_it_is_cut_short() -> None:
    rounds = Rounds(stop_at=6)
    async with running(FakeBackend()) as daemon:
        run = run_of(daemon.url, rounds.scenario, num_servers=2, num_rounds=9)
        measuring = asyncio.create_task(measure(run, silent))
        await rounds.stopped.wait()
        measuring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await measuring
    (measurement,) = run.measurements
    assert [len(rounds) for rounds in measurement.rounds] == [1, 2]
    assert not run.is_complete


async def test_the_real_scenarios_one_after_another() -> None:
    async with running(FakeBackend()) as daemon:
        run = run_of(daemon.url, *DEFAULT, num_servers=2, num_rounds=1)
        await measure(run, silent)
    assert [measurement.scenario.name for measurement in run.measurements] == [scenario.name for scenario in DEFAULT]
    assert not any(measurement.failure for measurement in run.measurements)


async def test_a_prompt_too_long_for_the_server_fails_its_scenarios_alone() -> None:
    def script(request: GenerateRequest) -> Iterable[Act]:
        acts = list(echo(request))
        if len(acts) > 2 and request.max_tokens == 2 and len(str(request.prompt)) > 2500:
            yield ContextLengthExceeded("the prompt has more tokens than the context")
        yield from acts

    async with running(FakeBackend(script)) as daemon:
        run = run_of(daemon.url, SCENARIOS["ttft"], SCENARIOS["decode"])
        run.workload = Workload(prompt_tokens=600, max_tokens=10, parallel=2)
        await measure(run, silent)
    failed, decoded = run.measurements
    assert failed.failure is not None and "more tokens than the context" in failed.failure
    assert decoded.failure is None


async def test_a_server_that_does_not_answer_is_an_error() -> None:
    with pytest.raises(BackendUnavailable, match="cannot be reached"):
        await measure(run_of("http://127.0.0.1:1", SCENARIOS["decode"]), silent)


async def test_prompts_come_out_as_long_as_asked() -> None:
    """The fake counts words; the instruction's length is what the prompt has beside its filler words."""
    backend = FakeBackend()
    async with running(backend) as daemon:
        counting = await measure_token_counting(Server(Address(daemon.url), "http", "fake"), 1)
        run = run_of(daemon.url, SCENARIOS["ttft"], num_rounds=1)
        run.workload = Workload(prompt_tokens=300, max_tokens=10, parallel=2)
        await measure(run, silent)
    assert (counting.tokens_per_word, counting.num_fixed_tokens) == (1.0, 1 + len(ENDLESS.split()))
    assert run.measurements[0].rounds[0][0][COLD_PROMPT] == [300]
