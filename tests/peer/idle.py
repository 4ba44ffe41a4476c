"""Measures what a daemon with a loaded model takes of a core while it is idle: `python -m tests.peer.idle [MODEL]`.

It serves the model (default: SmolLM2), answers one request, and waits until nothing is left to do. Then it prints the
CPU time, user and system, of the daemon and of each of its processes, as a share of one core.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

import psutil

from edgeagent.bench.client import find_server
from edgeagent.client import Address
from tests.peer.token_cost import daemon, stream
from tests.smollm2 import MODEL


def spent(pid: int) -> dict[str, float]:
    """Return the seconds of CPU time of a process and of each of its descendants, by name."""
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    names = ["daemon", *(f"{each.cmdline()[-1]} ({each.pid})" for each in processes[1:])]
    return {name: sum(each.cpu_times()[:2]) for name, each in zip(names, processes, strict=True)}


async def ask(address: Address) -> None:
    """Load the model by a request, and read its answer."""
    await stream(await find_server(address, "ws"), 1, 16, 0)


def main() -> None:
    """Print the shares, and their sum."""
    parser = argparse.ArgumentParser(prog="python -m tests.peer.idle", description=__doc__)
    parser.add_argument("model", nargs="?", default=str(MODEL))
    parser.add_argument("--settle", type=float, default=60.0, help="seconds before the measurement (default: 60)")
    parser.add_argument("--measure", type=float, default=120.0, help="seconds that are measured (default: 120)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, daemon(sys.executable, args.model, Path(folder)) as (pid, address):
        asyncio.run(ask(address))
        time.sleep(args.settle)
        before, began_s = spent(pid), time.monotonic()
        time.sleep(args.measure)
        after, took_s = spent(pid), time.monotonic() - began_s
    shares = {name: (cpu_s - before.get(name, 0.0)) / took_s for name, cpu_s in after.items()}
    for name, share in shares.items():
        print(f"{name}: {share:.3%} of a core")
    print(f"together: {sum(shares.values()):.3%} of a core, over {took_s:.0f} s")


if __name__ == "__main__":
    main()
