"""Runs a whole measurement: the rounds of all scenarios.

If two servers are compared, their rounds alternate (A B B A), so that a drift of the machine affects both alike. If a
round fails, the finished rounds are kept.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from edgeagent.bench.client import BenchRequest, Server, Trace, connection_to
from edgeagent.bench.scenarios import (
    FEW_TOKENS,
    MeasuredServer,
    Metric,
    Prompts,
    Round,
    Scenario,
    TokenCounting,
    Workload,
    fit_token_counting,
)
from edgeagent.errors import EdgeAgentError

Progress = Callable[[str, int, int], None]
"""Called with the stage, the number of finished rounds, and the total number of rounds."""

PROBE_WORDS = (16, 80)


@dataclass(slots=True)
class Measurement:
    """The rounds of one scenario: a list for each server. If a server failed, `failure` says why rounds are missing."""

    scenario: Scenario
    rounds: list[list[Round]]
    failure: str | None = None

    def samples(self, metric: Metric, server: int) -> list[list[float]]:
        """Return a metric's samples on one server, as one list for each round. `server` is the server's index."""
        return [each.get(metric, []) for each in self.rounds[server]]


@dataclass(slots=True)
class Run:
    """The settings of a measurement, and its results in `measurements`.

    `is_complete` is True once all scenarios have run, including those that failed.
    """

    servers: Sequence[Server]
    scenarios: Sequence[Scenario]
    workload: Workload
    num_rounds: int
    seed: int
    measurements: list[Measurement] = field(default_factory=list)
    is_complete: bool = False

    def num_rounds_of(self, scenario: Scenario) -> int:
        return 1 if scenario.is_once else self.num_rounds

    def num_total_rounds(self, scenarios: Sequence[Scenario]) -> int:
        """Return how many rounds these scenarios take on all servers together."""
        return sum(self.num_rounds_of(scenario) for scenario in scenarios) * len(self.servers)


async def measure(run: Run, progress: Progress) -> None:
    """Measure all scenarios, and append the results to `run.measurements`.

    If a server fails in a scenario, record the failure and continue with the next scenario. Raise EdgeAgentError if a
    server does not answer the short requests before the first scenario.
    """
    total = run.num_total_rounds(run.scenarios)
    done = 0
    progress("first answers", done, total)
    labels = (chr(ord("A") + index) for index in range(len(run.servers)))
    measured_servers = [
        MeasuredServer(server, Prompts(run.seed, label, await measure_token_counting(server, run.seed)))
        for label, server in zip(labels, run.servers, strict=True)
    ]
    for scenario in run.scenarios:
        measurement = Measurement(scenario, [[] for _ in measured_servers])
        run.measurements.append(measurement)
        progress(scenario.name, done, total)
        try:
            if scenario.prepare is not None:
                for measured in measured_servers:
                    await scenario.prepare(measured, run.workload)
            for number in range(run.num_rounds_of(scenario)):
                async for _ in measure_round(measurement, measured_servers, run.workload, number):
                    done += 1
                    progress(scenario.name, done, total)
        except EdgeAgentError as error:
            measurement.failure = error.message
            done = run.num_total_rounds([each.scenario for each in run.measurements])
    run.is_complete = True


async def measure_round(
    measurement: Measurement, servers: Sequence[MeasuredServer], workload: Workload, number: int
) -> AsyncIterator[None]:
    """Measure a scenario's round on each server, in the opposite order of the round before. Yield after each server.

    Raise EdgeAgentError if a server fails.
    """
    turns = list(zip(servers, measurement.rounds, strict=True))
    for measured, rounds in turns if number % 2 == 0 else reversed(turns):
        rounds.append(await measurement.scenario.round(measured, workload, str(number)))
        yield


def speeds(measurement: Measurement) -> list[tuple[float, float]]:
    """Return a pair of 1 and the speed of the second server as a multiple of the first's, for each round.

    The speed is the geometric mean over all metrics. Metrics without a sample on one of the servers are left out.
    """
    metrics = [metric for metric in measurement.scenario.metrics if metric.better != "neither"]
    found = []
    for first, second in zip(*measurement.rounds, strict=False):
        logs = []
        for metric in metrics:
            if first.get(metric) and second.get(metric):
                ratio = median(second[metric]) / median(first[metric])
                logs.append(math.log(ratio if metric.better == "higher" else 1 / ratio))
        if logs:
            found.append((1.0, math.exp(sum(logs) / len(logs))))
    return found


async def measure_token_counting(server: Server, seed: int) -> TokenCounting:
    """Measure how a server counts tokens, with two short requests. The requests also warm the server up."""
    prompts, counted = Prompts(seed, "size"), []
    async with connection_to(server) as connection:
        for num_words in PROBE_WORDS:
            trace = Trace()
            await connection.ask(BenchRequest(prompts.cold("size", num_words), FEW_TOKENS), trace)
            assert trace.counts is not None, "a connection raises where the server does not count"
            counted.append(trace.counts.num_prompt)
    (few, many), (few_tokens, many_tokens) = PROBE_WORDS, counted
    return fit_token_counting(few, few_tokens, many, many_tokens)
