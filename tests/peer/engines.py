"""Compares two builds of llama.cpp: `python -m tests.peer.engines MODEL.gguf NAME=FOLDER NAME=FOLDER`.

FOLDER is where a build's package llama_cpp lies, such as an unpacked wheel; an empty one means the installed build. The
builds take turns, each in a new process, and only llama.cpp is measured. NAME=FOLDER:haswell forces a library of the
portable engine. With one thread, the processor's time is shown, which other programs change little; with more threads,
the time on the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

DEPTH = 512
NUM_TOKENS = 48
MAX_STREAMS = 8


def measure(path: Path, num_threads: int) -> dict[str, float]:
    """Return tokens per second of a cold prompt, of one stream and of eight streams, with the llama.cpp loaded here."""
    from edgeagent.config import EngineConfig
    from edgeagent.engine.llama.bindings import lib
    from edgeagent.engine.llama.model import Model

    model = Model(path, EngineConfig())
    params = lib.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = 2048, DEPTH, DEPTH, MAX_STREAMS
    params.n_threads = params.n_threads_batch = num_threads
    params.kv_unified = True
    context = lib.llama_init_from_model(model.handle, params)
    clock = time.process_time if num_threads == 1 else time.perf_counter

    def compute(rows: list[tuple[int, int, int]]) -> None:
        """Compute rows of token, position and sequence in one batch, with logits for each if there are few."""
        batch = lib.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for index, (token, position, sequence) in enumerate(rows):
            batch.token[index], batch.pos[index], batch.n_seq_id[index] = token, position, 1
            batch.seq_id[index][0] = sequence
            batch.logits[index] = len(rows) <= MAX_STREAMS or index == len(rows) - 1
        assert lib.llama_decode(context, batch) == 0
        lib.llama_synchronize(context)
        lib.llama_batch_free(batch)

    def timed(num_tokens: int, work: Callable[[], None]) -> float:
        began = clock()
        work()
        return num_tokens / (clock() - began)

    def decode(num_streams: int, start: int = DEPTH) -> None:
        for step in range(NUM_TOKENS):
            compute([(200 + stream, start + step, stream) for stream in range(num_streams)])

    prompt = [(100 + 7 * i % (model.num_tokens - 200), i, 0) for i in range(DEPTH)]
    compute(prompt)  # once, to warm up: the weights are read, and threads started
    found: dict[str, list[float]] = {"prompt": [], "one stream": [], "eight streams": []}
    for _ in range(3):
        lib.llama_memory_clear(lib.llama_get_memory(context), False)
        found["prompt"].append(timed(DEPTH, lambda: compute(prompt)))
        found["one stream"].append(timed(NUM_TOKENS, lambda: decode(1)))
        lib.llama_memory_clear(lib.llama_get_memory(context), False)
        found["eight streams"].append(timed(NUM_TOKENS * MAX_STREAMS, lambda: decode(MAX_STREAMS, 0)))

    return {name: max(rates) for name, rates in found.items()}


def rounds(model: Path, builds: dict[str, str], num_threads: int, num_rounds: int) -> Iterator[dict[str, Any]]:
    """Yield the figures of each round by build. The first build of a round changes."""
    names = list(builds)
    for turn in range(num_rounds):
        yield {
            name: ask(model, builds[name], num_threads)
            for name in names[turn % len(names) :] + names[: turn % len(names)]
        }


def ask(model: Path, build: str, num_threads: int) -> dict[str, float]:
    """Measure one build in a process of its own."""
    folder, _, variant = build.partition(":")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))}
    if variant:
        environment["EDGEAGENT_CPU_VARIANT"] = variant
    command = [sys.executable, "-m", "tests.peer.engines", str(model), "--child", "--threads", str(num_threads)]
    answer = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(answer.stdout)
    return figures


def main() -> None:
    """Print the median of each figure, and its ratio to that of the first build."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("builds", nargs="*", metavar="NAME=FOLDER[:VARIANT]")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.model, options.threads)))
        return
    builds = dict(text.split("=", 1) for text in options.builds)
    taken = list(rounds(options.model, builds, options.threads, options.rounds))
    first = next(iter(builds))
    for figure in taken[0][first]:
        base = statistics.median(each[first][figure] for each in taken)
        for name in builds:
            rates = [each[name][figure] for each in taken]
            ratio = statistics.median(each[name][figure] / each[first][figure] for each in taken)
            spread = f"{min(rates):.0f} to {max(rates):.0f}"
            median = statistics.median(rates)
            print(f"{figure:14} {name:16} {median:8.1f} tokens/s ({spread}), {median / base:.3f} x, {ratio:.3f} paired")


if __name__ == "__main__":
    main()
