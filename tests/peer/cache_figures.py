"""Measures the prefix cache's table in docs/figures.md: `python -m tests.peer.cache_figures MODEL.gguf`.

It starts edgeagent and llama.cpp's own server with the same model, threads and context, and measures them in turn. Some
lines compare edgeagent with itself; for them, two daemons are measured in turn. It prints the table in Markdown;
`--json FILE` stores every sample. It takes about a quarter of an hour with a 0.5 B model on a quiet machine.
tests/peer/shelf makes such a model, and tests/peer/build.py compiles llama-server. `--quick` runs everything once, and
its numbers mean little.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from edgeagent.bench import scenarios
from edgeagent.bench.client import BenchRequest, Server, Trace
from edgeagent.bench.measure import Measurement, Run, measure
from edgeagent.bench.report import as_object, summary_of
from edgeagent.bench.scenarios import FEW_TOKENS, ITL, MeasuredServer, Metric, Round, Scenario, Workload, opened
from edgeagent.bench.stats import quantile
from edgeagent.cli.link import ask
from edgeagent.client import Address
from tests.peer import servers
from tests.peer.build import binary, default_folder
from tests.peer.laboratory import SCENARIOS, caches
from tests.peer.laboratory.pages import read_page
from tests.peer.lookup import lookup_ms
from tests.peer.rows import number
from tests.peer.servers import edgeagent, llama_server, processor

NUM_LIVE = 4
IDLE_TOKENS = 400
"""The number of tokens in each idle conversation that is cached while streams run."""
REST_S = 1.5
PONG_S = 1.3
"""Seconds until a worker's counts are up to date: it sends them once a second, with its pongs."""
SMALL_MIB = 128
"""MiB of host memory for prompts where both servers get the same: enough for about ten conversations."""
WRITTEN_TOKENS = 2400
"""The number of tokens in the prompt that is written to disk while streams run. Both take equally long."""


@dataclass(frozen=True, slots=True)
class Setup(servers.Setup):
    """The settings of both servers, and the amount of work."""

    seed: int
    rounds: int = 6
    restarts: int = 3
    depths: tuple[int, ...] = (500, 1500, 3000, 6000)
    prefix: int = 1500
    idle: int = 50
    conversations: int = 32
    turns: int = 2
    sharers: int = 100
    system: int = 2000


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table. `bar` is the required value."""

    title: str
    ours: str
    other: str
    ratio: str
    bar: str = ""


Samples = dict[str, Any]


def measure_scenario(
    servers: Sequence[Server], scenario: Scenario, workload: Workload, num_rounds: int, seed: int
) -> tuple[Measurement, Samples]:
    """Measure one scenario on servers in alternation. Return the measurement, and every sample as JSON."""
    run = Run(servers, [scenario], workload, num_rounds, seed)
    asyncio.run(measure(run, lambda label, at, of: print(f"\r{label} {at}/{of}    ", end="", file=sys.stderr)))
    failure = run.measurements[0].failure
    print(f"\r{scenario.name}: {failure or 'done'}            ", file=sys.stderr)
    return run.measurements[0], as_object(run)


def cell(measurement: Measurement, metric: Metric, server: int, figure: str = "p50") -> str:
    """Return one server's value of a metric with its unit. `figure` is a field of Summary, such as "p50"."""
    summary = summary_of(measurement, metric, server)
    return "–" if summary is None else f"{number(getattr(summary, figure))} {metric.unit}"


def compared(above: Sequence[Sequence[float]], below: Sequence[Sequence[float]], q: float = 0.5) -> str:
    """Return text with the median ratio over the rounds and its quartiles; "–" without samples.

    Each round's ratio divides the `q`-quantile of `above` by that of `below`.
    """
    ratios = [
        quantile(mine, q) / quantile(other, q) for mine, other in zip(above, below, strict=False) if mine and other
    ]
    if not ratios:
        return "–"
    return f"{median(ratios):.3f} ({quantile(ratios, 0.25):.3f}–{quantile(ratios, 0.75):.3f})"


def versus(measurement: Measurement, metric: Metric, title: str, bar: str = "") -> Row:
    """Return the row that compares both servers by one metric."""
    ratio = compared(measurement.samples(metric, 0), measurement.samples(metric, 1))
    return Row(title, cell(measurement, metric, 0), cell(measurement, metric, 1), ratio, bar)


Section = tuple[list[Row], Samples]


def restart(setup: Setup) -> Section:
    """Measure the time to the first token of prompts with one long prefix, before and after the server is killed."""
    with edgeagent(setup, 8192) as ours, llama_server(setup, 8192) as theirs:
        scenario = SCENARIOS["restart"]
        done, samples = measure_scenario(
            [ours, theirs], scenario, Workload(setup.prefix, 64, 4), setup.restarts, setup.seed
        )
    after, cold, warm = (done.samples(metric, 0) for metric in (caches.AFTER, caches.COLD, caches.WARM))
    title = f"{setup.prefix:,} tokens"
    return [
        versus(done, caches.COLD, f"first token, {title}, cold"),
        versus(done, caches.WARM, f"first token, {title}, warm but for the question"),
        versus(done, caches.AFTER, "the same after kill -9 and a restart"),
        Row("after the restart, of cold", "", "", compared(after, cold), "≤ 0.05"),
        Row("after the restart, of warm", "", "", compared(after, warm), "≤ 2"),
    ], samples


def depths(setup: Setup) -> Section:
    """Measure warm prompts of several lengths that do not all fit into the KV cells.

    Each prompt is sent twice. The first time, its prefix is restored from host memory. The second time, it is still in
    the cells.
    """
    back = {at: Metric(f"back {at}", "ms", "first text, after others had the cells") for at in setup.depths}
    there = {at: Metric(f"there {at}", "ms", "first text, asked again at once") for at in setup.depths}
    moved = {at: Metric(f"moved {at}", "blocks", "from host memory, first ask", "neither") for at in setup.depths}
    moved_again = {at: Metric(f"moved again {at}", "blocks", "second ask", "neither") for at in setup.depths}

    async def prepare(measured: MeasuredServer, _: Workload) -> None:
        for at in setup.depths:
            await asked(measured, measured.prompts.ending(f"depth {at}", "first", at))

    async def round_(measured: MeasuredServer, _: Workload, round_id: str) -> Round:
        samples: dict[Metric, list[float]] = {}
        for at in setup.depths:
            for times, moves, turn in ((back, moved, "a"), (there, moved_again, "b")):
                before = await num_memory_hits(measured.server)
                trace = await asked(measured, measured.prompts.ending(f"depth {at}", f"{round_id} {turn}", at))
                samples[times[at]] = trace.ttft_ms
                samples[moves[at]] = [float(await num_memory_hits(measured.server) - before)]
        return samples

    metrics = (*back.values(), *there.values(), *moved.values(), *moved_again.values())
    scenario = Scenario("depths", "warm prompts of several lengths", metrics, round_, prepare)
    with edgeagent(setup, 8192) as ours, llama_server(setup, 8192) as theirs:
        done, samples = measure_scenario(
            [ours, theirs], scenario, Workload(max(setup.depths), 64, 4), setup.rounds, setup.seed
        )
    rows = []
    for title, times, moves in (("from host memory", back, moved), ("from cells", there, moved_again)):
        for at in setup.depths:
            num_moved = cell(done, moves[at], 0)
            rows.append(versus(done, times[at], f"warm, {at:,} tokens, {title} ({num_moved} moved)", "≤ 0.8"))
        low, high = (done.samples(times[at], 0) for at in (setup.depths[0], setup.depths[-1]))
        label = f"warm {title}: {setup.depths[-1]:,} tokens, of {setup.depths[0]:,}"
        rows.append(Row(label, "", "", compared(high, low), "≤ 1.5"))
    return rows, samples


async def asked(measured: MeasuredServer, prompt: str) -> Trace:
    """Send a prompt that the server may cache, and return the trace of the complete answer."""
    trace = Trace()
    async with opened(measured) as connection:
        await connection.ask(BenchRequest(prompt, FEW_TOKENS, own=caches.STORED), trace)
    return trace


async def num_memory_hits(server: Server) -> int:
    """Return how many blocks an edgeagent has restored from host memory so far; 0 for other servers."""
    if server.kind != "edgeagent":
        return 0
    await asyncio.sleep(PONG_S)
    status = json.loads(await read_page(server, "/edgeagent/status"))
    tiers = ((model.get("worker") or {}).get("memory_cache") or {} for model in status["models"])
    return sum(each.get("num_hits", 0) for each in tiers)


async def num_disk_blocks(server: Server) -> int:
    """Return how many blocks an edgeagent has on disk now."""
    return sum(part["num_blocks"] for part in json.loads(await read_page(server, "/edgeagent/cache"))["parts"])


def purge(server: Server) -> None:
    """Purge all prompts of an edgeagent."""
    http = Address(server.address.http_url.removesuffix("/v1"), server.address.token)
    ask(http, "/edgeagent/cache/purge", "POST", body={})


def idle(setup: Setup) -> Section:
    """Measure live streams of a daemon with many idle conversations, and of a daemon without any."""
    with edgeagent(setup, 8192, transport="http") as full, edgeagent(setup, 8192, transport="http") as empty:

        async def prepare(measured: MeasuredServer, _: Workload) -> None:
            if measured.server.address.url == full.address.url:
                for lane in range(setup.idle):
                    await asked(measured, measured.prompts.cold(f"idle {lane}", IDLE_TOKENS))

        async def round_(measured: MeasuredServer, workload: Workload, round_id: str) -> Round:
            if measured.server.address.url == empty.address.url:
                await asyncio.to_thread(purge, measured.server)
            await asyncio.sleep(REST_S)
            return await scenarios.parallel(measured, workload, round_id)

        scenario = Scenario("idle conversations", "", SCENARIOS["parallel"].metrics, round_, prepare)
        workload = Workload(IDLE_TOKENS, 96, NUM_LIVE)
        done, samples = measure_scenario([full, empty], scenario, workload, setup.rounds, setup.seed)
    title = f"{NUM_LIVE} live streams, {setup.idle} idle conversations of {IDLE_TOKENS} tokens kept | none"
    return [versus(done, scenarios.LIVE_RATE, title.replace(" | ", " / "), "≥ 0.97")], samples


WRITTEN = Metric("written meanwhile", "blocks", "onto the disk while the streams ran", "neither")


def writer(setup: Setup) -> Section:
    """Measure live streams while earlier prompts are written to disk, and without a disk cache."""
    without = ("--cache-disk-bytes", "0")
    with edgeagent(setup, 8192, transport="http") as on, edgeagent(setup, 8192, *without, transport="http") as off:

        async def round_(measured: MeasuredServer, workload: Workload, round_id: str) -> Round:
            await asked(measured, measured.prompts.cold(f"written {round_id}", WRITTEN_TOKENS))
            before = await num_disk_blocks(measured.server)
            samples = await scenarios.parallel(measured, workload, round_id)
            return {**samples, WRITTEN: [float(await num_disk_blocks(measured.server) - before)]}

        metrics = (*SCENARIOS["parallel"].metrics, WRITTEN)
        workload = Workload(IDLE_TOKENS, 192, NUM_LIVE)
        done, samples = measure_scenario(
            [on, off], Scenario("writer", "", metrics, round_), workload, setup.rounds, setup.seed
        )
    title = f"{NUM_LIVE} live streams, disk cache on ({cell(done, WRITTEN, 0)} written meanwhile) / off"
    tails = compared(done.samples(ITL, 0), done.samples(ITL, 1), q=0.95)
    return [
        versus(done, scenarios.LIVE_RATE, title, "≥ 0.99"),
        Row("their ITL, p95", cell(done, ITL, 0, "p95"), cell(done, ITL, 1, "p95"), tails, "≤ 1.02"),
    ], samples


def conversations(setup: Setup) -> Section:
    """Measure more conversations than the KV cells hold.

    Both servers run with their defaults, and then with the same small host memory.
    """
    scenario = SCENARIOS["conversations"]
    workload = Workload(1000, 64, NUM_LIVE, conversations=setup.conversations)
    title = f"{setup.conversations} conversations of 1,000 tokens by turns, cells for nine: first token of a next turn"
    rows, samples = [], {}
    small = (("--cache-memory-bytes", str(SMALL_MIB << 20)), ("--cache-ram", str(SMALL_MIB)))
    for memory, (our_flags, their_flags) in {"defaults": ((), ()), f"{SMALL_MIB} MiB each": small}.items():
        with edgeagent(setup, 9216, *our_flags) as ours, llama_server(setup, 9216, *their_flags) as theirs:
            done, samples[memory] = measure_scenario([ours, theirs], scenario, workload, setup.turns, setup.seed)
        rows.append(versus(done, caches.NEXT, f"{title}, {memory}", "≤ 0.2"))
    return rows, samples


def shared_prefix(setup: Setup) -> Section:
    """Measure how many bytes are stored for many conversations with one system prompt."""
    with edgeagent(setup, 8192) as ours:
        scenario = SCENARIOS["shared-prefix"]
        workload = Workload(setup.system, 64, NUM_LIVE, conversations=setup.sharers)
        done, samples = measure_scenario([ours], scenario, workload, 1, setup.seed)
    title = f"{setup.sharers} conversations, one system prompt of {setup.system:,} tokens: bytes"
    memory, disk = (cell(done, metric, 0) for metric in (caches.MEMORY_SHARE, caches.DISK_SHARE))
    return [
        Row(f"{title} in host memory, of the prompt once and the rest", memory, "", "", "≤ 1.1"),
        Row(f"{title} on disk, of the prompt once and the rest", disk, "", "", "≤ 1.1"),
        Row("first token of each of them", cell(done, caches.OTHERS, 0), "", ""),
    ], samples


def lookup(_: Setup) -> Section:
    """Measure a lookup in the cache's index of ten thousand blocks."""
    figures = {num_tokens: lookup_ms(num_tokens) for num_tokens in (1500, 6000)}
    rows = [
        Row(f"lookup of {num_tokens:,} tokens among 10,000 blocks on disk", f"{ms:.3f} ms", "", "", "≤ 0.2 ms")
        for num_tokens, ms in figures.items()
    ]
    return rows, {"lookup_ms": figures}


SECTIONS = {each.__name__: each for each in (restart, depths, conversations, idle, writer, shared_prefix, lookup)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--llama-server", type=Path, default=binary(default_folder(), "llama-server"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", choices=list(SECTIONS), action="append")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    # So that the servers end with this process, also on SIGTERM.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    setup = Setup(options.model, options.llama_server, options.threads, options.seed)
    if options.quick:
        setup = replace(setup, rounds=1, restarts=1, depths=(300, 900), prefix=600, idle=4, conversations=4, turns=1)
        setup = replace(setup, sharers=5, system=600)
    print("| | edgeagent | llama-server, or without | ratio (quartiles) | bar |\n|---|---|---|---|---|", flush=True)
    kept: Samples = {}
    for name in options.only or SECTIONS:
        began_s = time.monotonic()
        rows, kept[name] = SECTIONS[name](setup)
        for row in rows:
            print(f"| {row.title} | {row.ours} | {row.other} | {row.ratio} | {row.bar} |", flush=True)
        print(f"{name}: {time.monotonic() - began_s:.0f} s", file=sys.stderr)
    about = {
        "processor": processor(),
        "threads": options.threads,
        "seed": options.seed,
        "model": options.model.name,
        "bindings": version("llama-cpp-python"),
    }
    print("\n" + ", ".join(f"{name} {value}" for name, value in about.items()))
    if options.json:
        options.json.write_text(json.dumps({"about": about, "sections": kept}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
