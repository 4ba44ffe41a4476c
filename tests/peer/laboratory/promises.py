"""The scenario in which more requests arrive than the server can answer, with and without a latency that they state."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from edgeagent.bench.client import BenchRequest, Trace
from edgeagent.bench.scenarios import (
    SHORT_PROMPT_TOKENS,
    MeasuredServer,
    Metric,
    Round,
    Scenario,
    Workload,
    opened,
    tasks,
)
from edgeagent.errors import Overloaded

TTFT_MS = 2000.0
LOAD = 2.0
"""How many times more requests arrive than the server can answer."""
WINDOW_S = 20.0
NUM_FIRST = 50
"""The requests before those whose prediction counts."""
MAX_ERROR = 0.2

CAPACITY = Metric("capacity", "requests/s", "as many at once as the server answers together", "neither")
ARRIVED = Metric("arrived", "requests", "while more arrive than can be answered", "neither")
ACCEPTED = Metric("accepted", "share", "of those that state their latency", "neither")
KEPT = Metric("kept", "share", f"of the accepted: first token within {TTFT_MS:.0f} ms", "higher")
GOODPUT = Metric("goodput", "requests/s", f"answered within {TTFT_MS:.0f} ms, latency stated", "higher")
WITHOUT = Metric("goodput without", "requests/s", "the same, without a latency in the requests", "higher")
GAIN = Metric("gain", "x", "goodput, of that without a stated latency", "higher")
REFUSAL = Metric("refusal", "ms", "until a request was refused")
PREDICTED = Metric("predicted", "share", f"first token within {MAX_ERROR:.0%} of what was predicted", "higher")


@dataclass(slots=True)
class Arrivals:
    """The requests that arrived in one window, and when those that were refused were told."""

    traces: list[Trace] = field(default_factory=list)
    refusals_ms: list[float] = field(default_factory=list)

    @property
    def num_kept(self) -> int:
        """The number of requests whose first token came in time."""
        return sum(ttft_ms <= TTFT_MS for trace in self.traces for ttft_ms in trace.ttft_ms)


def arrival_times(rate: float, window_s: float, seed: str) -> list[float]:
    """Return the seconds at which requests arrive at random, independently of each other (a Poisson process)."""
    draws, at_s, times = random.Random(seed), 0.0, []
    while (at_s := at_s + draws.expovariate(rate)) < window_s:
        times.append(at_s)
    return times


async def promise(measured: MeasuredServer, workload: Workload, round_id: str) -> Round:
    """Measure the server's capacity. Then send LOAD times as many requests, first with a stated latency, then without.

    A request's answer has `workload.max_tokens` tokens. In the end of each window, TTFT_MS are waited for the last
    first tokens, and all others are cancelled.
    """
    capacity = await _capacity(measured, workload, round_id)
    times = arrival_times(LOAD * capacity, WINDOW_S, f"{measured.prompts.seed} {round_id}")
    stated = await _arrive(measured, workload, times, f"stated {round_id}", TTFT_MS)
    plain = await _arrive(measured, workload, times, f"plain {round_id}", None)
    goodput, without = (arrived.num_kept / WINDOW_S for arrived in (stated, plain))
    num_accepted = len(times) - len(stated.refusals_ms)
    return {
        CAPACITY: [capacity],
        ARRIVED: [float(len(times))],
        ACCEPTED: [num_accepted / len(times)] if times else [],
        KEPT: [stated.num_kept / num_accepted] if num_accepted else [],
        GOODPUT: [goodput],
        WITHOUT: [without],
        GAIN: [goodput / without] if without else [],
        REFUSAL: stated.refusals_ms,
        PREDICTED: share_predicted(stated.traces),
    }


def share_predicted(traces: Sequence[Trace]) -> list[float]:
    """Return the share of answers whose first token came as predicted, as a list of one value; empty without any."""
    errors = [
        abs(trace.first_token_ms / trace.expected_ms - 1)
        for trace in traces
        if trace.expected_ms and trace.first_token_ms is not None
    ]
    return [sum(error <= MAX_ERROR for error in errors) / len(errors)] if errors else []


async def _capacity(measured: MeasuredServer, workload: Workload, round_id: str) -> float:
    """Return the requests/s that are answered if `workload.parallel` run at all times, after NUM_FIRST of them."""
    names = iter(range(NUM_FIRST))

    async def lane() -> None:
        async with opened(measured) as connection:
            for name in names:
                prompt = measured.prompts.cold(f"capacity {round_id} {name}", SHORT_PROMPT_TOKENS)
                await connection.ask(BenchRequest(prompt, workload.max_tokens), Trace())

    began_s = time.perf_counter()
    async with tasks() as group:
        for _ in range(workload.parallel):
            group.create_task(lane())
    return NUM_FIRST / (time.perf_counter() - began_s)


async def _arrive(
    measured: MeasuredServer, workload: Workload, times: Sequence[float], name: str, ttft_ms: float | None
) -> Arrivals:
    arrived = Arrivals([Trace() for _ in times])

    async def ask(trace: Trace, number: int) -> None:
        prompt = measured.prompts.cold(f"{name} {number}", SHORT_PROMPT_TOKENS)
        try:
            async with opened(measured) as connection:
                await connection.ask(BenchRequest(prompt, workload.max_tokens, ttft_ms=ttft_ms), trace)
        except Overloaded:
            arrived.refusals_ms.append(1000 * (time.perf_counter() - trace.sent_s))

    began_s = time.perf_counter()
    async with tasks() as group:
        running = []
        for number, (trace, at_s) in enumerate(zip(arrived.traces, times, strict=True)):
            await asyncio.sleep(max(0.0, began_s + at_s - time.perf_counter()))
            running.append(group.create_task(ask(trace, number)))
        await asyncio.sleep(max(0.0, began_s + WINDOW_S + TTFT_MS / 1000 - time.perf_counter()))
        for task in running:
            task.cancel()
    return arrived


SCENARIOS = (
    Scenario(
        "promise",
        "more requests than the server can answer, with the latency that they need",
        (CAPACITY, ARRIVED, ACCEPTED, KEPT, GOODPUT, WITHOUT, GAIN, REFUSAL, PREDICTED),
        promise,
        is_once=True,
    ),
)
