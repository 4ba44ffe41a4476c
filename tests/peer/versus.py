"""edgeagent against llama.cpp's own server, by turns: `python -m tests.peer.versus MODEL.gguf`, on a quiet machine.

Both get the same model, threads, context and number of sequences, and are started anew for each scenario; `edgeagent
bench` measures them A B A B. Prints the table of docs/figures.md; `--json FILE` keeps every sample. About six
minutes with a 0.5 B model (tests/peer/shelf makes one, tests/peer/build.py compiles llama-server).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from edgeagent.bench import overheads, scenarios
from edgeagent.bench.client import find_server
from edgeagent.bench.measure import Measurement, Run, measure
from edgeagent.bench.report import as_object, ratio_of, summary_of
from edgeagent.bench.scenario import Load, Metric
from edgeagent.client import Address
from edgeagent.runtime_file import find_daemon
from tests.peer.build import binary, default_folder

START_S = 120.0
PREFIX_TOKENS = 1400
NUM_SEQUENCES = 4  # both servers' default; more where a scenario has more
NUM_STREAMS = 8
NUM_LIVE = 4


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table: which metric of which scenario, and which of its figures."""

    title: str
    scenario: str
    metric: Metric
    figure: str = "p50"


@dataclass(frozen=True, slots=True)
class Setup:
    """What both servers get."""

    model: Path
    llama_server: Path
    threads: int
    context: int
    num_sequences: int = NUM_SEQUENCES


LOADS = {
    "decode": Load(PREFIX_TOKENS, 128, NUM_SEQUENCES),
    "parallel": Load(PREFIX_TOKENS, 64, NUM_STREAMS),
    "ttft": Load(PREFIX_TOKENS, 64, NUM_SEQUENCES),
    "hol": Load(PREFIX_TOKENS, 64, NUM_LIVE + 1),
    "connect": Load(PREFIX_TOKENS, 64, NUM_SEQUENCES),
    "overhead": Load(PREFIX_TOKENS, 64, NUM_SEQUENCES),
}
ROWS = (
    Row("one stream", "decode", scenarios.RATE),
    Row(f"{NUM_STREAMS} streams together, prompts included", "parallel", scenarios.ALL_RATE),
    Row(f"{NUM_STREAMS} streams together, while all run", "parallel", scenarios.LIVE_RATE),
    Row(f"first token, {PREFIX_TOKENS:,} tokens, warm but for the end", "ttft", scenarios.WARM),
    Row(f"first token, {PREFIX_TOKENS:,} tokens, cold", "ttft", scenarios.COLD),
    Row(f"{NUM_LIVE} live streams' gap while {PREFIX_TOKENS:,} tokens arrive, p95", "hol", scenarios.ITL_DURING, "p95"),
    Row("their longest gap meanwhile", "hol", scenarios.WORST_ITL),
    Row("first token of what arrived", "hol", scenarios.LONG_TTFT),
    Row("first event on a new connection", "connect", scenarios.NEW_EVENT),
    Row("first event on an open connection", "connect", scenarios.OPEN_EVENT),
    Row("first token beyond prefill, quiet", "overhead", overheads.BEYOND),
    Row("delivery of one event", "overhead", overheads.DELIVERY),
)


@contextmanager
def edgeagent(setup: Setup) -> Iterator[str]:
    """Start our daemon; yield its WebSocket's URL."""
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--threads", str(setup.threads), "--ctx", str(setup.context), "--parallel", str(setup.num_sequences)]
        command = [sys.executable, "-m", "edgeagent", "serve", str(setup.model), *flags]
        with started([*command, "--port", "0", "--state-dir", folder], Path(folder) / "log") as wait:
            wait(lambda: " ready in " in (Path(folder) / "log").read_text(encoding="utf-8"))
            runtime = find_daemon(Path(folder))
            assert runtime is not None
            yield f"ws://127.0.0.1:{runtime.port}"


@contextmanager
def llama_server(setup: Setup) -> Iterator[str]:
    """Start llama.cpp's server with one KV cache for all sequences, as ours has; yield its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = [
        "-t",
        str(setup.threads),
        "-tb",
        str(setup.threads),
        "-c",
        str(setup.context),
        "-np",
        str(setup.num_sequences),
    ]
    command = [str(setup.llama_server), "-m", str(setup.model), *flags, "--kv-unified", "--port", str(port)]
    with tempfile.TemporaryDirectory() as folder, started(command, Path(folder) / "log") as wait:
        wait(lambda: is_healthy(f"http://127.0.0.1:{port}/health"))
        yield f"http://127.0.0.1:{port}"


Wait = Callable[[Callable[[], bool]], None]


@contextmanager
def started(command: list[str], log: Path) -> Iterator[Wait]:
    """Run a server; yield what waits for a condition while it lives; end it."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)

    def wait(is_up: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_S
        while not is_up():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{command[0]} does not come up:\n{log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.05)

    try:
        yield wait
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def is_healthy(url: str) -> bool:
    """Whether a server answers with 200."""
    try:
        with urllib.request.urlopen(url, timeout=1) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def measured(setup: Setup, name: str, num_rounds: int, seed: int) -> tuple[Measurement, dict[str, Any]]:
    """Measure one scenario on both servers, started for it."""

    async def run() -> Run:
        servers = [await find_server(Address(ours)), await find_server(Address(theirs), "http")]
        done = Run(servers, [scenarios.SCENARIOS[name]], LOADS[name], num_rounds, seed)
        await measure(done, lambda label, at, of: print(f"\r{label} {at}/{of}    ", end="", file=sys.stderr))
        return done

    roomy = replace(setup, num_sequences=max(NUM_SEQUENCES, LOADS[name].parallel))
    with edgeagent(roomy) as ours, llama_server(roomy) as theirs:
        done = asyncio.run(run())
    return done.measurements[0], as_object(done)


def table(measurements: dict[str, Measurement]) -> Iterator[str]:
    """Yield the table's lines."""
    yield "| | edgeagent | llama-server | ratio (quartiles) |"
    yield "|---|---|---|---|"
    for row in ROWS:
        if row.scenario in measurements:
            measurement = measurements[row.scenario]
            ours, theirs = (cell(measurement, row, server) for server in (0, 1))
            yield f"| {row.title} | {ours} | {theirs} | {ratio_cell(measurement, row)} |"


def cell(measurement: Measurement, row: Row, server: int) -> str:
    """Return one server's figure with its unit."""
    summary = summary_of(measurement, row.metric, server)
    return "–" if summary is None else f"{number(getattr(summary, row.figure))} {row.metric.unit}"


def ratio_cell(measurement: Measurement, row: Row) -> str:
    """Return how ours compares, with the spread over the rounds; of a percentile, with what it is of."""
    if row.figure != "p50":
        ours, theirs = (summary_of(measurement, row.metric, server) for server in (0, 1))
        both = ours and theirs
        return f"{getattr(ours, row.figure) / getattr(theirs, row.figure):.2f} (of all gaps)" if both else "–"
    compared = ratio_of(measurement, row.metric)
    if compared is None:
        return "–"
    return f"{compared.median:.2f} ({compared.first_quartile:.2f}–{compared.third_quartile:.2f})"


def number(value: float) -> str:
    """Return three digits' worth."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def processor() -> str:
    """Return the CPU's name where the system tells."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--llama-server", type=Path, default=binary(default_folder(), "llama-server"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ctx", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--scenario", choices=list(LOADS), action="append")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    setup = Setup(options.model, options.llama_server, options.threads, options.ctx)
    measurements, samples = {}, {}
    for name in options.scenario or LOADS:
        measurements[name], samples[name] = measured(setup, name, options.rounds, options.seed)
        failure = measurements[name].failure
        print(f"\r{name}: {failure or 'done'}            ", file=sys.stderr)
    about = {
        "processor": processor(),
        "threads": options.threads,
        "context": options.ctx,
        "rounds": options.rounds,
        "seed": options.seed,
        "model": options.model.name,
        "bindings": version("llama-cpp-python"),
    }
    print(", ".join(f"{name} {value}" for name, value in about.items()), end="\n\n")
    print("\n".join(table(measurements)))
    for name, sample in samples.items():
        for note in sample["scenarios"][0]["notes"]:
            print(f"{name}: {note}")
    if options.json:
        options.json.write_text(json.dumps({"about": about, "scenarios": samples}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
