"""Measures what the size of a cache block costs: `python -m tests.peer.block_sizes 8b-kv qwen2.5-0.5b`.

A sequence of 2,048 tokens is read out of the cells in blocks of 32 to 256 tokens. The blocks are written to disk, read
from there, and restored into the cells of another sequence. The model has the named shape, and random weights. The
table holds milliseconds for each 1,000 tokens: medians of three rounds, in which the sizes alternate.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from array import array
from pathlib import Path

from edgeagent.config import EngineConfig
from edgeagent.engine.cache.block import MAX_BLOCK_TOKENS, MIN_BLOCK_TOKENS, Block, Importance, Keyring, Loaded
from edgeagent.engine.cache.disk.file_format import Seal
from edgeagent.engine.cache.disk.files import Files
from edgeagent.engine.cache.disk.folder import Limits
from edgeagent.engine.cache.disk.folder_state import FolderState
from edgeagent.engine.cache.disk.store import BlockStore
from edgeagent.engine.llama.context import LlamaRunner
from edgeagent.engine.llama.model import Model
from edgeagent.engine.runner import Slice
from tests.peer.shelf import SHAPES, make_model

NUM_TOKENS = 2048
SIZES = [MIN_BLOCK_TOKENS << doublings for doublings in range((MAX_BLOCK_TOKENS // MIN_BLOCK_TOKENS).bit_length())]
KEYRING = Keyring(b"block sizes", bytes(32))


def make_store(folder: Path) -> BlockStore:
    files = Files(folder)
    state = FolderState(files, bytes_per_hour=0, max_gap_s=3600.0)
    store = BlockStore(files, Seal(bytes(32)), state, Limits(max_bytes=8 << 30), close_s=600.0)
    store.max_pending_bytes = 8 << 30
    return store


def measure(runner: LlamaRunner, tokens: list[int], size: int, folder: Path) -> dict[str, float]:
    """Return the seconds of each step for all tokens, in blocks of `size` tokens."""
    seconds: dict[str, float] = {}
    root = parent = KEYRING.root("")
    blocks: list[Block] = []
    started_s = time.perf_counter()
    for start in range(0, NUM_TOKENS, size):
        own = array("i", tokens[start : start + size])
        key = KEYRING.key(parent, own)
        blocks.append(Block(root, parent, key, start, own, bytes(runner.save(0, start, start + size))))
        parent = key
    seconds["read out"] = time.perf_counter() - started_s
    store = make_store(folder)
    thread = threading.Thread(target=store.run)
    thread.start()
    started_s = time.perf_counter()
    for block in blocks:
        store.write(block, Importance.SYSTEM, is_full=True)
    store.close()
    thread.join()
    seconds["write"] = time.perf_counter() - started_s
    later = make_store(folder)
    reader = threading.Thread(target=later.run)
    reader.start()
    later.wait_until_open(60.0)
    started_s = time.perf_counter()
    for block in blocks:
        later.read(block.key)
    found: list[Block | None] = []
    while len(found) < len(blocks):
        results = later.take_results(1000, timeout_s=60.0)
        found += [result.block for result in results if isinstance(result, Loaded)]
    seconds["read"] = time.perf_counter() - started_s
    started_s = time.perf_counter()
    for restored in found:
        assert restored is not None
        assert runner.restore(1, restored.payload, restored.start + size)
    seconds["restore"] = time.perf_counter() - started_s
    runner.clear(1)
    later.close()
    reader.join()
    return seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shapes", nargs="+", choices=list(SHAPES))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    columns = ("read out", "write", "read", "restore")
    print(f"| shape | tokens of a block | MiB | {' | '.join(columns)} |\n|---|---|---|---|---|---|---|")
    for shape in options.shapes:
        config = EngineConfig(ctx=2 * NUM_TOKENS + 512, parallel=2, flash_attention="on", mmap=False)
        with tempfile.TemporaryDirectory() as folder:
            # The weights are read into memory before the file is deleted.
            model = Model(make_model(Path(folder) / "model.gguf", SHAPES[shape]), config)
        runner = LlamaRunner(model, config)
        tokens = [300 + at * 7919 % 20_000 for at in range(NUM_TOKENS)]
        for start in range(0, NUM_TOKENS, runner.max_batch):
            runner.decode([Slice(0, start, tokens[start : start + runner.max_batch], 0)])
        rounds: dict[int, list[dict[str, float]]] = {size: [] for size in SIZES}
        for _ in range(options.rounds + 1):  # the first one is a warm-up
            for size in SIZES:
                with tempfile.TemporaryDirectory() as folder:
                    rounds[size].append(measure(runner, tokens, size, Path(folder) / "cache"))
        for size, found in rounds.items():
            mib = len(runner.save(0, 0, size)) / 2**20
            medians = [statistics.median(each[name] for each in found[1:]) for name in columns]
            cells = " | ".join(f"{1e6 * each / NUM_TOKENS:.1f}" for each in medians)
            print(f"| {shape} | {size} | {mib:.2g} | {cells} |", flush=True)
        runner.close()
        model.close()


if __name__ == "__main__":
    main()
