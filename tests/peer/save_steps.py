"""Measures the Python time per step of saving a long context: `python -m tests.peer.save_steps`.

A fake runner computes nothing and returns payloads of an 8B model's size (128 KiB per token). So the measured time is
the engine's own work to save blocks, while it computes a prompt of 100,000 tokens and then generates.
"""

from __future__ import annotations

import argparse
import time
from array import array
from statistics import median

from edgeagent.bench.stats import quantile
from edgeagent.engine.cache.block import CachePriority, Keyring, Payload, choose_block_tokens
from edgeagent.engine.cache.block_table import BlockTable
from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.process_settings import keep_collections_short
from tests.fakes import FakeRunner, FakeTier

TOKEN_BYTES = 128 << 10


class Weightless(FakeRunner):
    """A fake runner that returns the same memory as every payload. So only the engine's Python work is measured."""

    def __init__(self, num_cells: int, block_tokens: int) -> None:
        super().__init__(num_cells=num_cells)
        self._payload = memoryview(bytes(block_tokens * TOKEN_BYTES))

    def save(self, seq_id: int, start: int, end: int) -> memoryview:
        return self._payload[: (end - start) * TOKEN_BYTES]

    def can_save(self, seq_id: int, start: int, end: int) -> bool:
        return True

    def restore(self, seq_id: int, payload: Payload, end: int) -> bool:
        return False


def step_ms(num_tokens: int, chunk: int) -> list[float]:
    """Return the milliseconds spent on saving in each step. The prompt is computed in steps of `chunk` tokens."""
    block_tokens = choose_block_tokens(TOKEN_BYTES)
    below = FakeTier()
    blocks = BlockTable(Keyring(b"model", bytes(32)), 1 << 50, below, can_cut=True, block_tokens=block_tokens)
    prefixes = PrefixStore(Weightless(num_tokens + chunk, block_tokens), blocks)
    tokens = array("i", (at * 7919 % 150_000 for at in range(num_tokens)))
    claimed, times = prefixes.claim(tokens, prefixes.match("", tokens, num_tokens)), []
    assert claimed is not None
    for start in range(0, num_tokens, chunk):
        prefixes.slots.append(claimed.seq_id, tokens[start : start + chunk])
        started_s = time.perf_counter()
        prefixes.save(claimed.seq_id, start, CachePriority())
        while prefixes.saver.has_work:
            prefixes.saver.save_one()
        times.append(1000 * (time.perf_counter() - started_s))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=100_000)
    options = parser.parse_args()
    keep_collections_short()  # as in a worker
    print("| tokens a step | first tenth, median | last tenth, median | p99 of all | bar |\n|---|---|---|---|---|")
    for chunk in (1, 32, 512):
        times = step_ms(options.tokens, chunk)
        tenth = max(1, len(times) // 10)
        figures = (median(times[:tenth]), median(times[-tenth:]), quantile(times, 0.99))
        print(f"| {chunk} | " + " | ".join(f"{ms:.3f} ms" for ms in figures) + " | ≤ 1 ms |")


if __name__ == "__main__":
    main()
