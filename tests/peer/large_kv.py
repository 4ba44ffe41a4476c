"""Measures a long prompt with an 8B model's KV cells: cold, repeated, and after a stop and a start.

Run as `python -m tests.peer.large_kv`. It makes the model (8b-kv of tests/peer/shelf), starts a daemon with its
defaults, and stops it normally. It writes 0.6 GB to the disk.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import httpx2

from tests.integration.conftest import Daemon, start_daemon, stop_daemon
from tests.peer.shelf import SHAPES, make_model


def ask(daemon: Daemon, num_tokens: int) -> tuple[int, float]:
    """Return the number of cached prompt tokens, and the milliseconds to the first token."""
    prompt = [300 + at * 7919 % 30_000 for at in range(num_tokens)]
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 0}
    started_s = time.perf_counter()
    answer = httpx2.post(f"{daemon.url}/v1/completions", json=body, timeout=600).json()
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"], 1000 * (time.perf_counter() - started_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=4245)
    parser.add_argument("--quiet", type=float, default=0.0, help="seconds between the last answer and the stop")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = str(make_model(folder / "model.gguf", SHAPES["8b-kv"]))
        daemon = start_daemon(folder / "state", model, "--threads", "0")
        rows = {"cold": ask(daemon, options.tokens), "again": ask(daemon, options.tokens)}
        time.sleep(options.quiet)
        started_s = time.perf_counter()
        stop_daemon(daemon)
        stop_s = time.perf_counter() - started_s
        daemon = start_daemon(folder / "state", model, "--threads", "0")
        rows["after a stop and a start"] = ask(daemon, options.tokens)
        stop_daemon(daemon)
        sizes = [path.stat().st_size for path in (folder / "state" / "cache").glob("*.kv")]
    print(f"| prompt of {options.tokens:,} tokens | cached | first token |\n|---|---|---|")
    for title, (num_cached, ms) in rows.items():
        print(f"| {title} | {num_cached:,} | {ms:,.0f} ms |")
    print(f"\n{len(sizes)} blocks, {sum(sizes) / 2**20:.0f} MiB on disk; the stop took {stop_s:.1f} s")


if __name__ == "__main__":
    main()
