"""Measures what the daemon spends on each streamed token: `python -m tests.peer.token_cost [MODEL] [--before PYTHON]`.

It streams answers over chat completions and over the WebSocket, and prints the daemon's CPU time, its system calls (if
strace is installed) and how often it went to sleep, for each token. The CPU time of an idle daemon in the same time is
subtracted, because the tokens come at different rates. `--before` names the interpreter of another
checkout's environment: the two are measured in turns, so that the machine's load is the same for both. The worker is a
process of its own and is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from edgeagent.bench.client import BenchRequest, Server, Trace, Transport, connection_to, find_server
from edgeagent.client import Address
from edgeagent.runtime_file import find_daemon
from tests.peer.servers import Child, free_port

PROMPT = "Write a long story about a ship and the sea, number {}."
IDLE_S = 5.0
TRANSPORTS: tuple[Transport, ...] = ("http", "ws")


@dataclass(frozen=True, slots=True)
class Cost:
    """What a process has spent: seconds of CPU, and how often one of its threads went to sleep."""

    cpu_s: float
    num_sleeps: int

    @classmethod
    def of(cls, pid: int) -> Cost:
        """Return what a process has spent so far."""
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        cpu_ns = sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)
        slept = re.compile(r"^voluntary_ctxt_switches:\s*(\d+)", re.MULTILINE)
        sleeps = (slept.search((task / "status").read_text()) for task in tasks)
        return cls(cpu_ns / 1e9, sum(int(found[1]) for found in sleeps if found))


@dataclass(slots=True)
class Samples:
    """The samples of one daemon, transport and number of streams, each for one token."""

    cpu_ms: list[float] = field(default_factory=list)
    tokens_per_s: list[float] = field(default_factory=list)
    num_sleeps: list[float] = field(default_factory=list)
    calls: dict[str, float] = field(default_factory=dict)


@contextmanager
def daemon(python: str, model: str, folder: Path) -> Iterator[tuple[int, Address]]:
    """Run a daemon with an interpreter; yield its process id and URL."""
    state, port = folder / "state", free_port()
    serve = ["-P", "-m", "edgeagent", "serve", model, "--port", str(port), "--state-dir", str(state), "--threads", "1"]
    child = Child([python, *serve], folder / "log", f"http://127.0.0.1:{port}/ready")
    try:
        runtime = find_daemon(state)
        assert runtime is not None
        yield runtime.pid, Address(f"http://127.0.0.1:{port}", runtime.token)
    finally:
        child.stop()


async def stream(server: Server, num_streams: int, num_tokens: int, turn: int) -> int:
    """Stream that many answers at once; return how many tokens they had."""

    async def one(index: int) -> int:
        async with connection_to(server) as connection:
            trace = Trace()
            await connection.ask(BenchRequest(PROMPT.format(100 * turn + index), num_tokens), trace)
            assert trace.counts is not None
            return trace.counts.num_output

    return sum(await asyncio.gather(*(one(index) for index in range(num_streams))))


@contextmanager
def counted_calls(pid: int, into: dict[str, float]) -> Iterator[None]:
    """Count the system calls of a process by name, if strace is installed."""
    program = shutil.which("strace")
    if program is None:
        yield
        return
    with tempfile.NamedTemporaryFile("r") as report:
        tracer = subprocess.Popen([program, "-c", "-f", "-q", "-p", str(pid), "-o", report.name])
        try:
            yield
        finally:
            tracer.terminate()
            tracer.wait()
        for line in report.read().splitlines():
            if (words := line.split()) and words[0][0].isdigit() and words[-1] != "total":
                into[words[-1]] = into.get(words[-1], 0.0) + int(words[3])


async def idle_share(pid: int) -> float:
    """Return how much of a CPU an idle daemon takes."""
    before = Cost.of(pid)
    await asyncio.sleep(IDLE_S)
    return (Cost.of(pid).cpu_s - before.cpu_s) / IDLE_S


async def measure(
    pid: int, server: Server, samples: Samples, args: argparse.Namespace, num_streams: int, idle: float
) -> None:
    """Add a sample of CPU time, and count the system calls in a second run, which strace slows down."""
    turn = len(samples.cpu_ms)
    before, began_s = Cost.of(pid), time.monotonic()
    num_tokens = await stream(server, num_streams, args.tokens, turn)
    after, took_s = Cost.of(pid), time.monotonic() - began_s
    samples.cpu_ms.append(1000 * (after.cpu_s - before.cpu_s - idle * took_s) / num_tokens)
    samples.tokens_per_s.append(num_tokens / took_s)
    samples.num_sleeps.append((after.num_sleeps - before.num_sleeps) / num_tokens)
    if not samples.calls:
        counted: dict[str, float] = {}
        with counted_calls(pid, counted):
            num_tokens = await stream(server, num_streams, args.tokens, turn)
        samples.calls.update({name: number / num_tokens for name, number in counted.items()})


def show(name: str, transport: str, num_streams: int, samples: Samples) -> None:
    """Print one row."""
    calls = sorted(samples.calls.items(), key=lambda call: -call[1])
    told = ", ".join(f"{name} {number:.1f}" for name, number in calls if number >= 0.05)
    print(
        f"{name:7}{transport:5}{num_streams:2} streams  {median(samples.tokens_per_s):.0f} tokens/s"
        f"  CPU {median(samples.cpu_ms):.3f} ms"
        f"  sleeps {median(samples.num_sleeps):.2f}  calls {sum(samples.calls.values()):.1f} ({told})",
        flush=True,
    )


async def run(args: argparse.Namespace, daemons: dict[str, tuple[int, Address]]) -> None:
    """Measure the daemons in turns, and print a row for each."""
    idle = {name: await idle_share(pid) for name, (pid, _) in daemons.items()}
    print("idle", {name: f"{1000 * share:.1f} ms/s" for name, share in idle.items()}, flush=True)
    for transport in TRANSPORTS:
        servers = {name: await find_server(address, transport) for name, (_, address) in daemons.items()}
        for num_streams in args.streams:
            rows = {name: Samples() for name in daemons}
            for _ in range(args.rounds):
                for name, (pid, _) in daemons.items():
                    await measure(pid, servers[name], rows[name], args, num_streams, idle[name])
            for name, samples in rows.items():
                show(name, transport, num_streams, samples)


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.peer.token_cost", description=__doc__)
    parser.add_argument("model", nargs="?", default="builtin")
    parser.add_argument("--before", help="the interpreter of another checkout's environment")
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    pythons = {"before": args.before} if args.before else {}
    pythons["now"] = sys.executable
    with tempfile.TemporaryDirectory() as folder:
        _run_all(args, list(pythons.items()), Path(folder), {})


def _run_all(
    args: argparse.Namespace, left: list[tuple[str, str]], folder: Path, daemons: dict[str, tuple[int, Address]]
) -> None:
    """Start the daemons that are left, then measure."""
    if not left:
        asyncio.run(run(args, daemons))
        return
    (name, python), *rest = left
    own = folder / name
    own.mkdir()
    with daemon(python, args.model, own) as started:
        _run_all(args, rest, folder, daemons | {name: started})


if __name__ == "__main__":
    main()
