"""The parts of every scenario: its metrics, workload and measured server, and helpers to send prompts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from edgeagent.bench.client import Server, connection_to
from edgeagent.bench.prompts import Prompts
from edgeagent.bench.stats import Better
from edgeagent.bench.wire import BenchRequest, Connection, Trace

SHORT_PROMPT_TOKENS = 64
FEW_TOKENS = 2
"""The number of tokens in an answer if only its first token matters."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the report. If `better` is "neither", the row explains other rows and is not compared."""

    name: str
    unit: str
    meaning: str
    better: Better = "lower"


RATE = Metric("tokens/s", "tokens/s", "one stream, first text to last", "higher")
ITL = Metric("ITL", "ms", "between consecutive events with text")
LENGTH = Metric("answer", "tokens", "as the server counts", "neither")


@dataclass(frozen=True, slots=True)
class Workload:
    """The lengths of long prompts and answers in tokens, and the numbers of streams, WebSockets and conversations."""

    prompt_tokens: int
    max_tokens: int
    parallel: int
    connections: int = 1000
    conversations: int = 32


@dataclass(frozen=True, slots=True)
class MeasuredServer:
    """A server, and the prompts that are generated for it."""

    server: Server
    prompts: Prompts


Round = Mapping[Metric, list[float]]
"""The samples of one round. A metric may have none: for example, an answer of one event has no rate."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One thing to measure. `round` measures it once. `prepare` runs once on each server, and is not measured.

    The third argument of `round` is the round's id: its number as text, from "0". `round` raises EdgeAgentError if the
    server fails, or if the scenario cannot measure this server. If `is_once` is True, only one round is measured.
    """

    name: str
    summary: str
    metrics: tuple[Metric, ...]
    round: Callable[[MeasuredServer, Workload, str], Awaitable[Round]]
    prepare: Callable[[MeasuredServer, Workload], Awaitable[None]] | None = None
    is_once: bool = False


@asynccontextmanager
async def opened(measured: MeasuredServer) -> AsyncIterator[Connection]:
    """Yield a connection that is already open, so that opening it is not part of the measured times."""
    async with connection_to(measured.server) as connection:
        await connection.open()
        yield connection


async def answer(connection: Connection, prompt: str, max_tokens: int) -> Trace:
    """Send a prompt, and return the trace of the complete answer."""
    trace = Trace()
    await connection.ask(BenchRequest(prompt, max_tokens), trace)
    return trace


def length(trace: Trace) -> list[float]:
    """Return the server's count of the answer's tokens, as a list of one value, or empty if there is no count."""
    return [float(trace.counts.num_output)] if trace.counts else []


def joined(samples: Iterable[list[float]]) -> list[float]:
    """Return the values of all lists as one list."""
    return [value for part in samples for value in part]


@asynccontextmanager
async def tasks() -> AsyncIterator[asyncio.TaskGroup]:
    """Yield a task group. If a task fails, cancel the others and raise its error itself, not an ExceptionGroup."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
