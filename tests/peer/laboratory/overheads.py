"""Scenarios that measure what a server adds to the model's work: connections, latency, and memory."""

from __future__ import annotations

import asyncio
import contextlib
import re
from contextlib import AsyncExitStack

from edgeagent.bench.client import Trace, connection_to
from edgeagent.bench.scenarios import (
    FEW_TOKENS,
    SHORT_PROMPT_TOKENS,
    MeasuredServer,
    Metric,
    Round,
    Scenario,
    Workload,
    answer,
    joined,
    opened,
    tasks,
)
from edgeagent.errors import BackendUnavailable, NotSupported
from tests.peer.laboratory.pages import read_page

NUM_REQUESTS = 8
ANSWER_TOKENS = 16
OPENED_AT_ONCE = 32
SETTLE_S = 1.0
NUM_CONNECTS = 4

TTFT_OVERHEAD = Metric("TTFT beyond prefill", "ms", "request sent to first text, less the server's own prompt time")
DELIVERY = Metric("delivery", "ms", "of one event, from the engine into the socket, as the server measures it")


async def overhead(measured: MeasuredServer, _: Workload, round_id: str) -> Round:
    """Send short prompts, one after another, on an open connection of an otherwise idle server."""
    async with opened(measured) as connection:
        traces = [
            await answer(
                connection, measured.prompts.cold(f"overhead {round_id} {turn}", SHORT_PROMPT_TOKENS), ANSWER_TOKENS
            )
            for turn in range(NUM_REQUESTS)
        ]
    return {
        TTFT_OVERHEAD: joined(_ttft_overhead_ms(trace) for trace in traces),
        DELIVERY: joined(_delivery_ms(trace) for trace in traces),
    }


def _ttft_overhead_ms(trace: Trace) -> list[float]:
    """Return the time to the first text minus the server's prefill time, as a list of one value; empty if unknown."""
    prefill_ms = trace.reported.get("timings", {}).get("prompt_ms")
    return [ttft_ms - prefill_ms for ttft_ms in trace.ttft_ms] if prefill_ms is not None else []


def _delivery_ms(trace: Trace) -> list[float]:
    """Return the time that the delivery of an event took, as a list of one value, or empty if unknown."""
    delivery_ms = (trace.reported.get("edgeagent", {}).get("stages_ms") or {}).get("delivery")
    return [delivery_ms] if delivery_ms is not None else []


IDLE_BYTES = Metric("memory each", "KiB", "the daemon's growth, for each open WebSocket")
IDLE_OPENING = Metric("opening", "ms", "of one WebSocket, while many open")
IDLE_FIRST = Metric("TTFT meanwhile", "ms", "of a short request on one more WebSocket")


async def idle(measured: MeasuredServer, workload: Workload, round_id: str) -> Round:
    """Open many WebSockets, and measure the memory and the opening time of each.

    Then measure the TTFT of a short request on one more connection, while the idle ones stay open. The server's memory
    is read from /metrics. Raise NotSupported if the server is not measured over the WebSocket, and BackendUnavailable
    if it does not report its memory.
    """
    if measured.server.transport != "ws":
        raise NotSupported("`idle` opens WebSockets, so it measures only an edgeagent")
    _allow_descriptors(workload.connections + 256)
    openings: list[float] = []
    limit, is_open, is_over = asyncio.Semaphore(OPENED_AT_ONCE), asyncio.Semaphore(0), asyncio.Event()

    async def hold() -> None:
        async with AsyncExitStack() as stack:
            async with limit:
                connection = await stack.enter_async_context(connection_to(measured.server))
            openings.append(connection.opening_ms)
            is_open.release()
            await is_over.wait()

    async with opened(measured) as connection, tasks() as group:
        before = await _resident_bytes(measured)
        for _ in range(workload.connections):
            group.create_task(hold())
        for _ in range(workload.connections):
            await is_open.acquire()
        await asyncio.sleep(SETTLE_S)
        after = await _resident_bytes(measured)
        trace = await answer(connection, measured.prompts.cold(f"idle {round_id}", SHORT_PROMPT_TOKENS), ANSWER_TOKENS)
        is_over.set()
    return {
        IDLE_BYTES: [(after - before) / workload.connections / 1024],
        IDLE_OPENING: openings,
        IDLE_FIRST: trace.ttft_ms,
    }


async def _resident_bytes(measured: MeasuredServer) -> float:
    text = (await read_page(measured.server, "/metrics")).decode()
    found = re.search(r"^process_resident_memory_bytes (\S+)", text, re.MULTILINE)
    if found is None:
        raise BackendUnavailable(f"{measured.server.address.url} does not report its memory; its system has no /proc")
    return float(found[1])


def _allow_descriptors(wanted: int) -> None:
    """Increase this process's limit of open files to `wanted`, or to the highest value that the system allows.

    Do nothing if the limit is high enough or cannot be changed.
    """
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


NEW_EVENT = Metric("new: first event", "ms", "connecting included")
NEW_FIRST = Metric("new: first token", "ms", "connecting included")
OPEN_EVENT = Metric("open: first event", "ms", "on a connection that has been used")
OPEN_FIRST = Metric("open: first token", "ms", "on a connection that has been used")


async def connect(measured: MeasuredServer, _: Workload, round_id: str) -> Round:
    """Open several connections one after another, and send two short prompts on each.

    The times of the first prompt include opening the connection.
    """
    samples: dict[Metric, list[float]] = {NEW_EVENT: [], NEW_FIRST: [], OPEN_EVENT: [], OPEN_FIRST: []}
    for turn in range(NUM_CONNECTS):
        async with connection_to(measured.server) as connection:
            for event, first in ((NEW_EVENT, NEW_FIRST), (OPEN_EVENT, OPEN_FIRST)):
                prompt = measured.prompts.cold(f"{event.name} {round_id} {turn}", SHORT_PROMPT_TOKENS // 2)
                trace = await answer(connection, prompt, FEW_TOKENS)
                opening_ms = connection.opening_ms if event is NEW_EVENT else 0.0
                if trace.first_event_s is not None:
                    samples[event].append(opening_ms + 1000 * (trace.first_event_s - trace.sent_s))
                samples[first] += [opening_ms + value for value in trace.ttft_ms]
    return samples


SCENARIOS = (
    Scenario("connect", "new and open connections", (NEW_EVENT, NEW_FIRST, OPEN_EVENT, OPEN_FIRST), connect),
    Scenario("overhead", "what the server adds to the model's own work", (TTFT_OVERHEAD, DELIVERY), overhead),
    Scenario("idle", "open WebSockets without traffic", (IDLE_BYTES, IDLE_OPENING, IDLE_FIRST), idle, is_once=True),
)
