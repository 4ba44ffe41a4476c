"""The rows of the tables. Each row has a metric, the situation to measure, the servers, and the required value."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from edgeagent.bench import scenarios
from edgeagent.bench.measure import Measurement, Run, measure
from edgeagent.bench.report import as_object, ratio_of, summary_of
from edgeagent.bench.scenarios import ITL, RATE, Metric, Workload
from edgeagent.bench.stats import Ratio, ratio
from tests.peer import servers
from tests.peer.laboratory import SCENARIOS, caches, chats, overheads, promises
from tests.peer.servers import Setup

NUM_SEQUENCES = 4  # both servers' default; some situations use more
NUM_STREAMS = 8
NUM_LIVE = 4
NUM_BEGINNINGS = 5
NUM_CONVERSATIONS = 8
NO_DISK = ("--cache-disk-bytes", "0")


@dataclass(frozen=True, slots=True)
class Size:
    """The lengths of prompts and answers in tokens. `context` is the number of KV cells of each server."""

    context: int = 8192
    prefix: int = 1400
    answer: int = 64
    rate: int = 128
    restart: int = 4000

    @property
    def conversation(self) -> int:
        """The length of each of four conversations that fit into the KV cells together."""
        return self.context // 4 - 48


QUICK = Size(context=768, prefix=100, answer=8, rate=12, restart=300)


@dataclass(frozen=True, slots=True)
class Situation:
    """A scenario with its workload, and the server to compare with.

    `against` is "llama-server", "no disk cache" (an edgeagent without one), or "" for no comparison. If `is_fresh`,
    each round has newly started servers. `num_sequences`: how many requests may run together; 0: those of the workload.
    The servers get `context_share` times the usual number of KV cells. If `is_usual` is False, it is measured only
    if it is named.
    """

    name: str
    scenario: str
    workload: Workload
    against: str = "llama-server"
    is_fresh: bool = False
    num_sequences: int = 0
    context_share: float = 1.0
    is_usual: bool = True

    def is_named_by(self, names: Sequence[str] | None) -> bool:
        """Whether it is measured if these situations are named; None or empty: none is named."""
        return self.name in names if names else self.is_usual


def situations(size: Size) -> dict[str, Situation]:
    """Return all situations to measure, by name."""

    def workload(
        answer: int, parallel: int = NUM_SEQUENCES, prompt: int = size.prefix, conversations: int = 32
    ) -> Workload:
        return Workload(prompt, answer, parallel, conversations=conversations)

    beginnings = workload(size.answer, conversations=NUM_BEGINNINGS)
    by_turns = workload(size.answer, prompt=size.conversation, conversations=NUM_CONVERSATIONS)
    return {
        each.name: each
        for each in (
            Situation("decode", "decode", workload(size.rate)),
            # A model with random weights copies nothing.
            Situation("copying", "copying", workload(size.rate), is_usual=False),
            Situation("parallel", "parallel", workload(size.answer, NUM_STREAMS)),
            Situation("ttft", "ttft", workload(size.answer)),
            Situation("hol", "hol", workload(size.answer, NUM_LIVE + 1)),
            Situation(
                "mixed",
                "mixed",
                workload(size.answer, NUM_STREAMS),
                is_fresh=True,
                num_sequences=NUM_STREAMS + NUM_STREAMS // 2 + 1,
                context_share=1.5,
            ),
            Situation("promise", "promise", workload(size.answer), is_fresh=True),
            Situation("connect", "connect", workload(size.answer)),
            Situation("overhead", "overhead", workload(size.answer)),
            Situation("beginnings", "beginnings", beginnings, is_fresh=True),
            Situation("conversations", "conversations", by_turns),
            Situation("disk", "chat", workload(size.answer), against="no disk cache"),
            Situation("restart", "restart", workload(size.answer, prompt=size.restart), against=""),
        )
    }


@dataclass(frozen=True, slots=True)
class Bar:
    """The required value of a figure: at most (≤) or at least (≥) `limit`.

    `of_shapes` has other limits for some shapes. If `limit` is None, only those shapes have one.
    """

    sign: str
    limit: float | None
    of_shapes: dict[str, float] = field(default_factory=dict)

    def limit_of(self, shape: str) -> float | None:
        """Return the limit for a shape."""
        return self.of_shapes.get(shape, self.limit)

    def is_met(self, value: float, shape: str) -> bool:
        """Whether a shape's figure meets the bar. If the shape has no limit, any figure does."""
        limit = self.limit_of(shape)
        return limit is None or (value <= limit if self.sign == "≤" else value >= limit)

    @property
    def text(self) -> str:
        """The bar's text in a table."""
        parts = [f"{self.sign} {limit:.3g} ({shape})" for shape, limit in self.of_shapes.items()]
        return ", ".join(parts if self.limit is None else [f"{self.sign} {self.limit:.3g}", *parts])


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the table: one metric in one situation on both servers.

    If `of` is set, the row is instead the ratio of edgeagent's `metric` to edgeagent's `of` (its median). If
    `is_own`, the bar applies to edgeagent's own figure, not to a ratio. `figure` is a field of Summary, such as "p50".
    """

    title: str
    situation: str
    metric: Metric
    bar: Bar | None = None
    figure: str = "p50"
    of: Metric | None = None
    is_own: bool = False


def rows(size: Size) -> tuple[Row, ...]:
    """Return the rows of the tables."""
    prefix = f"{size.prefix:,} tokens"
    return (
        Row("one stream", "decode", RATE, Bar("≥", 1.0)),
        Row("one stream that repeats a text", "copying", RATE, Bar("≥", 1.5)),
        Row(f"{NUM_STREAMS} streams together, prompts included", "parallel", scenarios.ALL_RATE, Bar("≥", 1.0)),
        Row(f"{NUM_STREAMS} streams together, while all run", "parallel", scenarios.LIVE_RATE, Bar("≥", 1.0)),
        Row(f"first token, {prefix}, all but the end cached", "ttft", scenarios.WARM, Bar("≤", 0.8)),
        Row(f"first token, {prefix}, cold", "ttft", scenarios.COLD, Bar("≤", 1.05)),
        Row(f"{NUM_LIVE} live streams' gap while {prefix} arrive, p95", "hol", scenarios.ITL_DURING, figure="p95"),
        Row("their longest gap meanwhile", "hol", scenarios.WORST_ITL),
        Row("first token of what arrived", "hol", scenarios.LONG_TTFT),
        Row("a realtime request's first token, alone", "mixed", scenarios.ALONE),
        Row("beside 8 streams and 4 batch jobs, p95", "mixed", scenarios.REALTIME, figure="p95"),
        Row("the same, of alone", "mixed", scenarios.REALTIME, Bar("≤", 2.0), figure="p95", of=scenarios.ALONE),
        Row("the streams' gap, p95", "mixed", scenarios.BESIDE_ITL, figure="p95"),
        Row("batch beside them, of alone", "mixed", scenarios.JOBS, Bar("≥", 0.3), of=scenarios.JOBS_ALONE),
        Row("first token as stated, of accepted", "promise", promises.KEPT, Bar("≥", 0.95), is_own=True),
        Row("goodput with a stated latency", "promise", promises.GOODPUT),
        Row("goodput without a stated latency", "promise", promises.UNSTATED),
        Row("goodput with a stated latency, of in order", "promise", promises.GAIN, Bar("≥", 3.0), is_own=True),
        Row("first token as predicted", "promise", promises.PREDICTED, Bar("≥", 0.9), is_own=True),
        Row("the same without a stated latency", "promise", promises.PREDICTED_UNSTATED, Bar("≥", 0.9), is_own=True),
        Row("first event on a new connection", "connect", overheads.NEW_EVENT),
        Row("first event on an open connection", "connect", overheads.OPEN_EVENT),
        Row("first token beyond prefill, quiet", "overhead", overheads.TTFT_OVERHEAD),
        Row("delivery of one event", "overhead", overheads.DELIVERY),
        Row(
            f"first token of each of {NUM_BEGINNINGS} new conversations in a row, {prefix}",
            "beginnings",
            chats.BEGINNING,
            Bar("≤", 1.05),
        ),
        Row("the last of them, of the first", "beginnings", chats.GROWTH, Bar("≤", 1.05), is_own=True),
        Row(
            f"next turn of each of {NUM_CONVERSATIONS} conversations, cells for {NUM_CONVERSATIONS // 2}",
            "conversations",
            caches.NEXT,
            Bar("≤", 0.9),
        ),
        Row("disk cache on, of off: tokens/s", "disk", RATE, Bar("≥", 0.98)),
        Row("disk cache on, of off: cold first token", "disk", chats.OPENING, Bar("≤", 1.03)),
        Row("disk cache on, of off: warm first token", "disk", chats.NEXT, Bar("≤", 1.03)),
        Row("disk cache on, of off: gap between events, p95", "disk", ITL, Bar("≤", 1.03), figure="p95"),
        Row(
            f"after a restart: cached of {size.restart:,} tokens",
            "restart",
            caches.AFTER_CACHED,
            Bar("≥", 0.97),
            of=caches.AFTER_PROMPT,
        ),
        Row(
            "after a restart: first token, of cold",
            "restart",
            caches.AFTER,
            Bar("≤", None, {"8b-kv": 1 / 8, "qwen3-0.6b": 1 / 15}),
            of=caches.COLD,
        ),
    )


@dataclass(frozen=True, slots=True)
class Figure:
    """The result of a row. `value` is what the bar applies to: a ratio, or edgeagent's own figure."""

    ours: float | None
    theirs: float | None
    unit: str
    value: float | None
    quartiles: tuple[float, float] | None = None


def figure_of(row: Row, measurement: Measurement) -> Figure:
    """Return a row's figure. Its values are None if there are no samples."""
    ours, theirs = (
        None if summary is None else float(getattr(summary, row.figure))
        for summary in (_summary(measurement, row.metric, server) for server in (0, 1))
    )
    unit = row.metric.unit
    if row.of is not None and row.figure != "p50":
        alone = _summary(measurement, row.of, 0)
        value = alone.p50 if alone is not None else 0.0
        return Figure(ours, theirs, unit, ours / value if ours is not None and value else None)
    if row.of is not None:
        return _compared(ours, None, unit, ratio(*(measurement.samples(each, 0) for each in (row.metric, row.of))))
    if row.is_own:
        return Figure(ours, theirs, unit, ours)
    if row.figure != "p50":
        # Computed over the samples of all rounds together, since one round has too few.
        return Figure(ours, theirs, unit, ours / theirs if ours is not None and theirs else None)
    return _compared(ours, theirs, unit, ratio_of(measurement, row.metric))


def _summary(measurement: Measurement, metric: Metric, server: int) -> Any:
    return summary_of(measurement, metric, server) if server < len(measurement.rounds) else None


def _compared(ours: float | None, theirs: float | None, unit: str, compared: Ratio | None) -> Figure:
    if compared is None:
        return Figure(ours, theirs, unit, None)
    return Figure(ours, theirs, unit, compared.median, (compared.first_quartile, compared.third_quartile))


def measured(
    setup: Setup, situation: Situation, size: Size, num_rounds: int, seed: int, flags: tuple[str, ...] = ()
) -> tuple[Measurement, dict[str, Any]]:
    """Start servers for a situation and measure it. Return the measurement, and every sample as JSON.

    `flags` are further options of edgeagent.
    """
    scenario = SCENARIOS[situation.scenario]
    total = Run([], [scenario], situation.workload, num_rounds, seed, [Measurement(scenario, [])])
    for number in range(num_rounds if situation.is_fresh else 1):
        with ExitStack() as stack:
            started = [stack.enter_context(each) for each in _servers(setup, situation, size, flags)]
            part = Run(started, [scenario], situation.workload, 1 if situation.is_fresh else num_rounds, seed + number)
            asyncio.run(measure(part, lambda label, at, of: print(f"\r{label} {at}/{of}    ", end="", file=sys.stderr)))
        total.servers = part.servers
        _add(total.measurements[0], part.measurements[0])
    total.is_complete = True
    failure = total.measurements[0].failure
    print(f"\r{situation.name}: {failure or 'done'}            ", file=sys.stderr)
    return total.measurements[0], as_object(total)


def _servers(setup: Setup, situation: Situation, size: Size, flags: tuple[str, ...]) -> Iterator[Any]:
    num_sequences = str(situation.num_sequences or max(NUM_SEQUENCES, situation.workload.parallel))
    context = round(situation.context_share * size.context)
    ours = ("--parallel", num_sequences, *flags)
    yield servers.edgeagent(setup, context, *ours)
    if situation.against and setup.before:
        yield servers.edgeagent(setup, context, *ours, python=setup.before)
    elif situation.against == "llama-server":
        # One KV cache for all sequences, like edgeagent's.
        yield servers.llama_server(setup, context, "-np", num_sequences, "--kv-unified")
    elif situation.against:
        yield servers.edgeagent(setup, context, *ours, *NO_DISK)


def _add(total: Measurement, part: Measurement) -> None:
    """Add the rounds of one run to those of earlier runs."""
    if not total.rounds:
        total.rounds = [[] for _ in part.rounds]
    for rounds, more in zip(total.rounds, part.rounds, strict=True):
        rounds += more
    total.failure = total.failure or part.failure


def number(value: float) -> str:
    """Return a number with two or three significant digits."""
    places = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 0.1 else 3
    return f"{value:.{places}f}"
