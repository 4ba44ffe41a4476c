"""How well the server predicts first tokens, and what that is worth when more requests arrive than it can answer."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from edgeagent.bench.client import BenchRequest, Trace
from edgeagent.bench.scenarios import (
    FEW_TOKENS,
    SHORT_PROMPT_TOKENS,
    Live,
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
AN_HOUR_MS = 3_600_000.0
LOAD = 2.0
"""How many times more requests arrive than the server can answer."""
WINDOW_S = 60.0
"""How long they arrive. The server is idle before, so the first ones are in time anyway: some 20 of a small model."""
NUM_FIRST = 50
"""The requests before those whose prediction counts."""
MAX_ERROR = 0.2
NUM_PREDICTED = 60
NUM_STREAMS = 4
EQUAL_TOKENS = 200
LEAST_TOKENS, MOST_TOKENS = 32, 512

CAPACITY = Metric("capacity", "requests/s", "as many at once as the server answers together", "neither")
ARRIVED = Metric("arrived", "requests", "while more arrive than can be answered", "neither")
ACCEPTED = Metric("accepted", "share", "of those that state their latency", "neither")
KEPT = Metric("kept", "share", f"of the accepted: first token within {TTFT_MS:.0f} ms", "higher")
GOODPUT = Metric("goodput", "requests/s", f"answered within {TTFT_MS:.0f} ms, latency stated", "higher")
UNSTATED = Metric("goodput unstated", "requests/s", "the same, without a latency in the requests", "higher")
IN_ORDER = Metric("goodput in order", "requests/s", "the same, in the order of arrival: a latency of an hour", "higher")
GAIN = Metric("gain", "x", "goodput, of that in the order of arrival", "higher")
REFUSAL = Metric("refusal", "ms", "until a request was refused")
PREDICTED = Metric("predicted", "share", f"first token within {MAX_ERROR:.0%} of what was predicted", "higher")
PREDICTED_UNSTATED = Metric("predicted unstated", "share", "the same, without a latency in the requests", "higher")
EARLY = Metric(
    "ended early",
    "share",
    "answers that ended before their limit, so that the end of their slot was unknown",
    "neither",
)
PREDICTED_ALONE = Metric("alone", "share", f"first token within {MAX_ERROR:.0%}, one request at a time", "higher")
PREDICTED_BESIDE = Metric("beside", "share", f"the same beside {NUM_STREAMS} streams", "higher")
EQUAL_ALONE = Metric("equal alone", "share", f"of equal requests, within {MAX_ERROR:.0%} of their median", "higher")
EQUAL_BESIDE = Metric("equal beside", "share", f"the same beside {NUM_STREAMS} streams", "higher")


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
    """Measure the server's capacity. Then send LOAD times as many requests: with a latency, without, and in order.

    A request's answer has `workload.max_tokens` tokens, or fewer if the model ends it before. In the end of each
    window, TTFT_MS are waited for the last first tokens, and all others are cancelled.
    """
    capacity = await _capacity(measured, workload, round_id)
    times = arrival_times(LOAD * capacity, WINDOW_S, f"{measured.prompts.seed} {round_id}")
    stated = await _arrive(measured, workload, times, f"stated {round_id}", TTFT_MS)
    plain = await _arrive(measured, workload, times, f"plain {round_id}", None)
    ordered = await _arrive(measured, workload, times, f"ordered {round_id}", AN_HOUR_MS)
    goodput, unstated, in_order = (arrived.num_kept / WINDOW_S for arrived in (stated, plain, ordered))
    num_accepted = len(times) - len(stated.refusals_ms)
    return {
        CAPACITY: [capacity],
        ARRIVED: [float(len(times))],
        ACCEPTED: [num_accepted / len(times)] if times else [],
        KEPT: [stated.num_kept / num_accepted] if num_accepted else [],
        GOODPUT: [goodput],
        UNSTATED: [unstated],
        IN_ORDER: [in_order],
        GAIN: [goodput / in_order] if in_order else [],
        REFUSAL: stated.refusals_ms,
        PREDICTED: share_predicted(stated.traces),
        PREDICTED_UNSTATED: share_predicted(plain.traces),
        EARLY: share_early(stated.traces, workload.max_tokens),
    }


def share_predicted(traces: Sequence[Trace]) -> list[float]:
    """Return the share of answers whose first token came as predicted, as a list of one value; empty without any."""
    pairs = [(trace.reported.get("edgeagent", {}).get("expected_ms"), _first_token_ms(trace)) for trace in traces]
    errors = [abs(expected_ms / first_ms - 1) for expected_ms, first_ms in pairs if expected_ms and first_ms]
    return [sum(error <= MAX_ERROR for error in errors) / len(errors)] if errors else []


def _first_token_ms(trace: Trace) -> float | None:
    """Return when the first token came, as the server measured it; None if it does not say."""
    return (trace.reported.get("edgeagent", {}).get("stages_ms") or {}).get("first_token")


def share_early(traces: Sequence[Trace], max_tokens: int) -> list[float]:
    """Return the share of whole answers with fewer than `max_tokens` tokens, as a list of one value."""
    lengths = [trace.counts.num_output for trace in traces if trace.counts]
    return [sum(length < max_tokens for length in lengths) / len(lengths)] if lengths else []


def share_equal(traces: Sequence[Trace]) -> list[float]:
    """Return the share of first tokens within MAX_ERROR of their median: the most that a prediction can reach."""
    times_ms = [first_ms for trace in traces if (first_ms := _first_token_ms(trace))]
    usual_ms = median(times_ms) if times_ms else 0.0
    return [sum(abs(usual_ms / each - 1) <= MAX_ERROR for each in times_ms) / len(times_ms)] if times_ms else []


async def predicted(measured: MeasuredServer, workload: Workload, round_id: str) -> Round:
    """Send requests of random lengths one after another, then equal ones: first alone, then beside NUM_STREAMS streams.

    Of each, the first NUM_FIRST do not count.
    """
    draws = random.Random(f"{measured.prompts.seed} {round_id}")

    async def ask(name: str) -> tuple[list[float], list[float]]:
        """Return the share of the random requests that came as predicted, and that of the equal ones."""
        traces = list[Trace]()
        async with opened(measured) as connection:
            for number in range(NUM_FIRST + 2 * NUM_PREDICTED):
                is_random = number < NUM_FIRST + NUM_PREDICTED
                num_tokens = round(LEAST_TOKENS * (MOST_TOKENS / LEAST_TOKENS) ** draws.random())
                prompt = measured.prompts.cold(f"{name} {number}", num_tokens if is_random else EQUAL_TOKENS)
                traces.append(Trace())
                await connection.ask(BenchRequest(prompt, FEW_TOKENS), traces[-1])
                await asyncio.sleep(draws.uniform(0.0, 0.1))  # a stream's step may just have begun, or end soon
        return share_predicted(traces[NUM_FIRST:-NUM_PREDICTED]), share_equal(traces[-NUM_PREDICTED:])

    alone, equal_alone = await ask(f"alone {round_id}")
    lanes = [Live() for _ in range(NUM_STREAMS)]
    async with tasks() as group:
        running = [
            group.create_task(live.run(measured, workload, f"stream {round_id} {lane}"))
            for lane, live in enumerate(lanes)
        ]
        for live in lanes:
            await live.reach(1)
        beside, equal_beside = await ask(f"beside {round_id}")
        for task in running:
            task.cancel()
    return {PREDICTED_ALONE: alone, EQUAL_ALONE: equal_alone, PREDICTED_BESIDE: beside, EQUAL_BESIDE: equal_beside}


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
    own = {"edgeagent": {"ttft_ms": ttft_ms}} if ttft_ms is not None else {}

    async def ask(trace: Trace, number: int) -> None:
        prompt = measured.prompts.cold(f"{name} {number}", SHORT_PROMPT_TOKENS)
        try:
            async with opened(measured) as connection:
                await connection.ask(BenchRequest(prompt, workload.max_tokens, own=own), trace)
        except Overloaded:
            if trace.first_event_s is None:  # otherwise it was accepted, and waited until its time was over
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
        "predicted",
        "first tokens as predicted",
        (PREDICTED_ALONE, EQUAL_ALONE, PREDICTED_BESIDE, EQUAL_BESIDE),
        predicted,
        is_once=True,
    ),
    Scenario(
        "promise",
        "more requests than the server can answer, with the latency that they need",
        (
            CAPACITY,
            ARRIVED,
            ACCEPTED,
            KEPT,
            GOODPUT,
            UNSTATED,
            IN_ORDER,
            GAIN,
            REFUSAL,
            PREDICTED,
            PREDICTED_UNSTATED,
            EARLY,
        ),
        promise,
        is_once=True,
    ),
)
