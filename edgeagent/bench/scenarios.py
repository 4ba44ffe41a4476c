"""The prompts, and the scenarios that are measured. Each has a round, which can be repeated, and its metrics."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from edgeagent.bench.client import BenchRequest, Connection, Server, Trace, connection_to
from edgeagent.bench.stats import Better, quantile
from edgeagent.errors import BackendUnavailable

_TEXT = (
    "apple arrow autumn basket bridge bottle candle castle circle copper cotton dinner dragon eagle engine feather "
    "finger forest garden ginger hammer harbor island jacket kettle ladder lemon market meadow mirror morning needle "
    "number orange paper pencil pepper pillow planet pocket rabbit ribbon river rocket saddle silver spider spring "
    "summer table temple thunder ticket timber tunnel valley velvet violin wagon water window winter yellow zebra"
)
WORDS = _TEXT.split()
ENDLESS = "Write a very long story with all of these words. Do not stop early."
NUM_TAIL_WORDS = 8


@dataclass(frozen=True, slots=True)
class TokenCounting:
    """How a server counts tokens: the tokens in each word, and the tokens that every prompt has besides its words."""

    tokens_per_word: float = 1.0
    num_fixed_tokens: float = 0.0

    def words(self, num_tokens: int) -> int:
        """Return how many words make a prompt of about `num_tokens` tokens."""
        return max(1, round((num_tokens - self.num_fixed_tokens) / self.tokens_per_word))


@dataclass(frozen=True, slots=True)
class Prompts:
    """Generates the prompts for one server. The same seed, server label and name give the same prompt.

    The first word of a prompt is made from these three. So two labels never share a cached prompt, even if they stand
    for the same server. The other words do not depend on the label, so both servers get prompts of the same kind. Only
    the result of `text` has no such first word.
    """

    seed: int
    server_label: str
    counting: TokenCounting = TokenCounting()

    def cold(self, name: str, num_tokens: int) -> str:
        """Return a prompt of about `num_tokens` tokens. Prompts of other names have other first words.

        The same `name` gives the same prompt.
        """
        return f"{self._mark(name)} {self._words(name, self.counting.words(num_tokens))}. {ENDLESS}"

    def warm(self, name: str, num_tokens: int) -> str:
        """Return a prompt that differs only in its last few words from the other warm prompts of this length."""
        return self.ending("warm", name, num_tokens)

    def ending(self, beginning: str, name: str, num_tokens: int) -> str:
        """Return a prompt that differs only in its last few words from others with this `beginning` and length."""
        shared = max(1, self.counting.words(num_tokens) - NUM_TAIL_WORDS)
        tail = self._words(f"tail {name}", NUM_TAIL_WORDS)
        return f"{self._mark(beginning)} {self._words(beginning, shared)}. {ENDLESS} {tail}"

    def text(self, name: str, num_tokens: int) -> str:
        """Return words of about `num_tokens` tokens for a later turn; the same `name` gives the same words.

        Unlike in a cold prompt, the first word is not unique.
        """
        return self._words(name, max(1, round(num_tokens / self.counting.tokens_per_word)))

    def _mark(self, name: str) -> str:
        # These letters are a few tokens in any vocabulary. The first of these tokens is nearly always unique.
        letters = self._random(f"{self.server_label} {name}")
        return "".join(letters.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(8))

    def _words(self, name: str, count: int) -> str:
        return " ".join(self._random(name).choices(WORDS, k=count))

    def _random(self, name: str) -> random.Random:
        # A string as seed gives the same sequence in every process, since `hash()` is not used for it.
        return random.Random(f"{self.seed} {name}")  # noqa: S311 no secret


def fit_token_counting(few: int, few_tokens: int, many: int, many_tokens: int) -> TokenCounting:
    """Compute how a server counts tokens from its token counts for two prompts, of `few` and of `many` words.

    Return the default TokenCounting if the longer prompt has no more tokens than the shorter one.
    """
    per_word = (many_tokens - few_tokens) / (many - few)
    if per_word <= 0:
        return TokenCounting()
    return TokenCounting(per_word, max(0.0, few_tokens - few * per_word))


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
    server fails, or if the scenario cannot measure this server. If `is_once` is True, only one round is measured. If
    `is_usual` is False, the scenario is measured only if it is named.
    """

    name: str
    summary: str
    metrics: tuple[Metric, ...]
    round: Callable[[MeasuredServer, Workload, str], Awaitable[Round]]
    prepare: Callable[[MeasuredServer, Workload], Awaitable[None]] | None = None
    is_once: bool = False
    is_usual: bool = True


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
    return [value for part in samples for value in part]


@asynccontextmanager
async def tasks() -> AsyncIterator[asyncio.TaskGroup]:
    """Yield a task group. If a task fails, cancel the others and raise its error itself, not an ExceptionGroup."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None


NUM_WARM_REQUESTS = 3
LIVE_LENGTH = 4
"""The length of the answers that run during a long prompt, as a multiple of max_tokens."""
NUM_EVENTS_BEFORE = 12
"""How many events each live stream gets before the long prompt is sent. They are counted once all streams run."""


TTFT = Metric("TTFT", "ms", "request sent to first text")
PER_EVENT = Metric("tokens/event", "tokens/event", "tokens that come with one event", "neither")


async def decode(measured: MeasuredServer, workload: Workload, round_id: str) -> Round:
    """Measure one stream on an otherwise idle server."""
    async with opened(measured) as connection:
        prompt = measured.prompts.cold(f"decode {round_id}", SHORT_PROMPT_TOKENS)
        trace = await answer(connection, prompt, workload.max_tokens)
    return {
        RATE: trace.tokens_per_s,
        ITL: trace.gaps_ms,
        TTFT: trace.ttft_ms,
        LENGTH: length(trace),
        PER_EVENT: [trace.tokens_per_event] if trace.tokens_per_event else [],
    }


COLD = Metric("cold TTFT", "ms", "prompt never seen before")
WARM = Metric("warm TTFT", "ms", "prompt seen before, except its end")
COLD_PROMPT = Metric("cold prompt", "tokens", "as the server counts", "neither")
COLD_CACHED = Metric("cold cached", "tokens", "found in the prefix cache", "neither")
WARM_CACHED = Metric("warm cached", "tokens", "found in the prefix cache", "neither")


async def ttft(measured: MeasuredServer, workload: Workload, round_id: str) -> Round:
    """Measure the TTFT of a prompt that is in no cache, and of prompts that share a long prefix with earlier ones."""
    async with opened(measured) as connection:
        cold = await answer(connection, measured.prompts.cold(f"ttft {round_id}", workload.prompt_tokens), FEW_TOKENS)
        warm = [
            await answer(connection, measured.prompts.warm(f"{round_id} {turn}", workload.prompt_tokens), FEW_TOKENS)
            for turn in range(NUM_WARM_REQUESTS)
        ]
    return {
        COLD: cold.ttft_ms,
        WARM: joined(trace.ttft_ms for trace in warm),
        COLD_PROMPT: [float(cold.counts.num_prompt)] if cold.counts else [],
        COLD_CACHED: [float(cold.counts.num_cached)] if cold.counts else [],
        WARM_CACHED: [float(trace.counts.num_cached) for trace in warm if trace.counts],
    }


async def _warm_up(measured: MeasuredServer, workload: Workload) -> None:
    async with opened(measured) as connection:
        await answer(connection, measured.prompts.warm("first", workload.prompt_tokens), FEW_TOKENS)


ALL_RATE = Metric("all tokens/s", "tokens/s", "all tokens, first request to last text", "higher")
LIVE_RATE = Metric("live tokens/s", "tokens/s", "together, while every stream ran", "higher")


async def parallel(measured: MeasuredServer, workload: Workload, round_id: str) -> Round:
    """Measure several streams that start at the same time, each on its own connection."""
    traces = [Trace() for _ in range(workload.parallel)]
    prompts = [
        measured.prompts.cold(f"parallel {round_id} {lane}", SHORT_PROMPT_TOKENS) for lane in range(workload.parallel)
    ]

    async def lane(prompt: str, trace: Trace) -> None:
        async with opened(measured) as connection:
            is_open.release()
            await start.wait()
            await connection.ask(BenchRequest(prompt, workload.max_tokens), trace)

    is_open, start = asyncio.Semaphore(0), asyncio.Event()
    async with tasks() as group:
        for prompt, trace in zip(prompts, traces, strict=True):
            group.create_task(lane(prompt, trace))
        for _ in traces:
            await is_open.acquire()
        start.set()
    return {
        ALL_RATE: all_rate(traces),
        LIVE_RATE: live_rate(traces),
        RATE: joined(trace.tokens_per_s for trace in traces),
        ITL: joined(trace.gaps_ms for trace in traces),
        TTFT: joined(trace.ttft_ms for trace in traces),
        LENGTH: joined(length(trace) for trace in traces),
    }


def all_rate(traces: Iterable[Trace]) -> list[float]:
    """Return the tokens/s of all answers together, from the first request to the last text, as a list of one value.

    Answers without text or without a count are left out. If none is left, return an empty list.
    """
    answered = [trace for trace in traces if trace.texts and trace.counts]
    if not answered:
        return []
    seconds = max(trace.texts[-1] for trace in answered) - min(trace.sent_s for trace in answered)
    return [sum(trace.counts.num_output for trace in answered if trace.counts) / seconds]


def live_rate(traces: Iterable[Trace]) -> list[float]:
    """Return the total tokens/s while all streams ran, as a list of one value.

    Return an empty list if the streams never ran all at the same time.
    """
    traces = list(traces)
    if not traces or not all(trace.texts for trace in traces):
        return []
    begin, end = max(trace.texts[0] for trace in traces), min(trace.texts[-1] for trace in traces)
    if begin >= end:
        return []
    tokens = sum(trace.tokens_between(begin, end) for trace in traces)
    return [tokens / (end - begin)]


ITL_BEFORE = Metric("ITL before", "ms", "between events, live streams alone")
ITL_DURING = Metric("ITL during", "ms", "between events, while the prompt is computed")
WORST_ITL = Metric("worst ITL", "ms", "each stream's longest gap during that time")
LONG_TTFT = Metric("long TTFT", "ms", "of the long prompt")
LONG_PROMPT = Metric("long prompt", "tokens", "as the server counts", "neither")
BEGUN = Metric("begun meanwhile", "answers", "live streams that ended and began again; not a gap", "neither")


@dataclass(slots=True)
class Live:
    """A stream that does not end: each answer is followed by a new request. Gaps are measured only within answers."""

    traces: list[Trace] = field(default_factory=list)
    arrival: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def num_events(self) -> int:
        return sum(len(trace.texts) for trace in self.traces)

    async def run(self, measured: MeasuredServer, workload: Workload, name: str) -> None:
        """Request answers one after another until cancelled. Raise BackendUnavailable if an answer has no text."""
        async with opened(measured) as connection:
            while True:
                trace = Trace(on_text=self.arrival.set)
                self.traces.append(trace)
                prompt = measured.prompts.cold(f"{name} {len(self.traces)}", SHORT_PROMPT_TOKENS)
                await connection.ask(BenchRequest(prompt, LIVE_LENGTH * workload.max_tokens), trace)
                if not trace.texts:
                    raise BackendUnavailable("the model gives this prompt an empty answer, so no stream stays live")

    async def reach(self, num_events: int) -> None:
        """Wait until this number of events with text has arrived."""
        while self.num_events < num_events:
            self.arrival.clear()
            await self.arrival.wait()

    def num_begun(self, begin_s: float, end_s: float) -> int:
        """Return how many requests were sent between `begin_s` and `end_s`."""
        return sum(begin_s < trace.sent_s < end_s for trace in self.traces)

    def gaps_ms(self, begin_s: float, end_s: float) -> list[float]:
        """Return the milliseconds between consecutive events with text.

        A gap is returned if it lies at least partly between `begin_s` and `end_s`.
        """
        gaps = (gap for trace in self.traces for gap in pairwise(trace.texts))
        return [1000 * (later - earlier) for earlier, later in gaps if later > begin_s and earlier < end_s]


async def hol(measured: MeasuredServer, workload: Workload, round_id: str) -> Round:
    """Measure head-of-line blocking: send a long prompt while other streams run.

    Together with the long prompt, `workload.parallel` requests run, but at least two.
    """
    lanes, long = [Live() for _ in range(max(1, workload.parallel - 1))], Trace()
    async with opened(measured) as connection, tasks() as group:
        running = [
            group.create_task(live.run(measured, workload, f"hol {round_id} {lane}")) for lane, live in enumerate(lanes)
        ]
        for live in lanes:
            await live.reach(1)
        all_live_s = time.perf_counter()
        for live in lanes:
            await live.reach(live.num_events + NUM_EVENTS_BEFORE)
        await connection.ask(
            BenchRequest(measured.prompts.cold(f"hol {round_id}", workload.prompt_tokens), FEW_TOKENS), long
        )
        # A gap is known only at its end. The gap of the prompt's last step ends after the prompt's first token.
        for live, num_events in [(live, live.num_events) for live in lanes]:
            await live.reach(num_events + 1)
        for task in running:
            task.cancel()
    first_s = long.first_text_s or long.sent_s
    during = [live.gaps_ms(long.sent_s, first_s) for live in lanes]
    return {
        ITL_BEFORE: joined(live.gaps_ms(all_live_s, long.sent_s) for live in lanes),
        ITL_DURING: joined(during),
        WORST_ITL: [max(gaps) for gaps in during if gaps],
        LONG_TTFT: long.ttft_ms,
        LONG_PROMPT: [float(long.counts.num_prompt)] if long.counts else [],
        BEGUN: [float(sum(live.num_begun(long.sent_s, first_s) for live in lanes))],
    }


ALONE = Metric("TTFT alone", "ms", "of a realtime request, on the idle server")
REALTIME = Metric("realtime TTFT", "ms", "of a realtime request, beside the others")
BESIDE_ITL = Metric("interactive ITL", "ms", "between events of the interactive streams")
STREAM_ITL = Metric("a stream's p95", "ms", "the p95 of the ITL of each interactive stream")
JOBS_ALONE = Metric("batch alone", "tokens/s", "prompts and answers of the batch jobs, alone", "higher")
JOBS = Metric("batch", "tokens/s", "prompts and answers of the batch jobs, beside the others", "higher")
NUM_REALTIME_ALONE = 3
REALTIME_EVERY_S = 2.0
NUM_REALTIME = 8
"""A realtime request is sent every REALTIME_EVERY_S, at least NUM_REALTIME times and until each batch job has ended."""
REALTIME_TOKENS = 16
"""The length of an answer to a realtime request: a short sentence, as a voice assistant speaks it."""
MAX_MIXED_S = 120.0
"""A server that never computes the batch jobs beside the others is measured for this long."""


@dataclass(slots=True)
class Jobs:
    """Sends batch jobs one after the other, and keeps their traces. A job is a long prompt with an answer."""

    began_s: float = 0.0
    traces: list[Trace] = field(default_factory=list)
    first_done: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, measured: MeasuredServer, workload: Workload, name: str) -> None:
        """Send jobs until cancelled."""
        async with opened(measured) as connection:
            self.began_s = time.perf_counter()
            while True:
                prompt = measured.prompts.cold(f"{name} {len(self.traces)}", workload.prompt_tokens)
                self.traces.append(await _answer_of_tier(connection, "flex", prompt, workload.max_tokens))
                self.first_done.set()

    @property
    def rate(self) -> float:
        """The tokens/s of the jobs that have ended: computed prompts and answers. 0 if none has."""
        done = [trace for trace in self.traces if trace.texts and trace.counts]
        if not done:
            return 0.0
        tokens = sum(
            counts.num_prompt - counts.num_cached + counts.num_output for trace in done if (counts := trace.counts)
        )
        return tokens / (done[-1].texts[-1] - self.began_s)


async def _answer_of_tier(connection: Connection, service_tier: str, prompt: str, max_tokens: int) -> Trace:
    """Send a prompt in the tier for which OpenAI's `service_tier` stands: priority is realtime, flex is batch."""
    trace = Trace()
    await connection.ask(BenchRequest(prompt, max_tokens, own={"service_tier": service_tier}), trace)
    return trace


async def mixed(measured: MeasuredServer, workload: Workload, round_id: str) -> Round:
    """Measure realtime requests, live streams and batch jobs beside each other.

    First the realtime requests and the batch jobs are measured alone. Then a realtime request is sent every
    REALTIME_EVERY_S, whether the earlier ones have ended or not, beside `workload.parallel` live streams and half as
    many batch jobs.
    """

    async def realtime(name: str) -> Trace:
        async with opened(measured) as connection:
            prompt = measured.prompts.cold(f"realtime {round_id} {name}", SHORT_PROMPT_TOKENS)
            return await _answer_of_tier(connection, "priority", prompt, REALTIME_TOKENS)

    alone = [await realtime(f"alone {number}") for number in range(NUM_REALTIME_ALONE)]
    jobs_alone = await _run_jobs(measured, workload, f"alone {round_id}")
    lanes, jobs = [Live() for _ in range(workload.parallel)], [Jobs() for _ in jobs_alone]
    asked: list[asyncio.Task[Trace]] = []
    async with tasks() as group:
        running = [
            group.create_task(live.run(measured, workload, f"mixed {round_id} {lane}"))
            for lane, live in enumerate(lanes)
        ]
        for live in lanes:
            await live.reach(1)
        began_s = time.perf_counter()
        running += [
            group.create_task(each.run(measured, workload, f"job {round_id} {lane}")) for lane, each in enumerate(jobs)
        ]
        while len(asked) < NUM_REALTIME or (
            not all(each.first_done.is_set() for each in jobs) and time.perf_counter() < began_s + MAX_MIXED_S
        ):
            asked.append(group.create_task(realtime(str(len(asked)))))
            await asyncio.sleep(max(0.0, began_s + len(asked) * REALTIME_EVERY_S - time.perf_counter()))
        answered = [await each for each in asked]
        end_s = time.perf_counter()
        for task in running:
            task.cancel()
    gaps = [live.gaps_ms(began_s, end_s) for live in lanes]
    return {
        ALONE: joined(trace.ttft_ms for trace in alone),
        REALTIME: joined(trace.ttft_ms for trace in answered),
        BESIDE_ITL: joined(gaps),
        STREAM_ITL: [quantile(each, 0.95) for each in gaps if each],
        JOBS_ALONE: [sum(each.rate for each in jobs_alone)],
        JOBS: [sum(each.rate for each in jobs)],
    }


async def _run_jobs(measured: MeasuredServer, workload: Workload, name: str) -> list[Jobs]:
    """Run batch jobs alone, until each has ended once."""
    jobs = [Jobs() for _ in range(max(1, workload.parallel // 2))]
    async with tasks() as group:
        running = [group.create_task(each.run(measured, workload, f"{name} {lane}")) for lane, each in enumerate(jobs)]
        for each in jobs:
            await each.first_done.wait()
        for task in running:
            task.cancel()
    return jobs


BEHIND = Metric("tokens/s behind", "tokens/s", "one stream, behind the long prompt", "higher")


async def turn(measured: MeasuredServer, workload: Workload, round_id: str) -> Round:
    """Measure what settings of the engine change: a long prompt, its answer, a second one behind it, and streams."""
    async with opened(measured) as connection:
        first, second = (
            measured.prompts.ending(f"turn {round_id}", name, workload.prompt_tokens) for name in ("first", "second")
        )
        cold = await answer(connection, first, workload.max_tokens)
        warm = await answer(connection, second, FEW_TOKENS)
    together = await parallel(measured, workload, f"turn {round_id}")
    return {COLD: cold.ttft_ms, WARM: warm.ttft_ms, BEHIND: cold.tokens_per_s, ALL_RATE: together[ALL_RATE]}


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("decode", "one stream", (RATE, ITL, TTFT, LENGTH, PER_EVENT), decode),
        Scenario(
            "ttft",
            "time to first token",
            (COLD, WARM, COLD_PROMPT, COLD_CACHED, WARM_CACHED),
            ttft,
            prepare=_warm_up,
        ),
        Scenario("parallel", "many streams", (ALL_RATE, LIVE_RATE, RATE, ITL, TTFT, LENGTH), parallel),
        Scenario(
            "hol",
            "live streams while a long prompt arrives",
            (ITL_BEFORE, ITL_DURING, WORST_ITL, LONG_TTFT, LONG_PROMPT, BEGUN),
            hol,
        ),
        Scenario(
            "mixed",
            "realtime requests beside live streams and batch jobs",
            (ALONE, REALTIME, BESIDE_ITL, STREAM_ITL, JOBS_ALONE, JOBS),
            mixed,
            is_once=True,
            is_usual=False,
        ),
        Scenario(
            "turn",
            "a long prompt with its answer, a second one that shares most of it, then many streams",
            (COLD, WARM, BEHIND, ALL_RATE),
            turn,
            is_usual=False,
        ),
    )
}
