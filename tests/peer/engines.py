"""Compares two builds of llama.cpp: `python -m tests.peer.engines MODEL.gguf NAME=FOLDER NAME=FOLDER`.

FOLDER is where a build's package llama_cpp lies, such as an unpacked wheel; an empty one means the installed build.
NAME=FOLDER:haswell forces a library of the portable engine. Only llama.cpp is measured. In each round every build has a
new process, since the place of its memory changes its rate. The processes take short turns, so that what other programs
do to the caches meets all builds alike. With one thread, the processor's time is shown, which other programs change
little; with more threads, the time on the clock.
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
from contextlib import ExitStack
from pathlib import Path

DEPTH = 512
NUM_TOKENS = 48
MAX_STREAMS = 8


Rates = dict[str, float]
"""Tokens per second of a cold prompt, of one stream and of eight streams."""


def measure(path: Path, num_threads: int) -> Iterator[Rates]:
    """Yield the rates of the llama.cpp that is loaded here, measured once more each time."""
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
    while True:
        found: Rates = {}
        lib.llama_memory_clear(lib.llama_get_memory(context), False)
        found["prompt"] = timed(DEPTH, lambda: compute(prompt))
        found["one stream"] = timed(NUM_TOKENS, lambda: decode(1))
        lib.llama_memory_clear(lib.llama_get_memory(context), False)
        found["eight streams"] = timed(NUM_TOKENS * MAX_STREAMS, lambda: decode(MAX_STREAMS, 0))
        yield found


def take_turns(model: Path, builds: dict[str, str], num_threads: int, num_turns: int) -> list[dict[str, Rates]]:
    """Measure each build in a new process; return the rates of each turn by build. The first of a turn changes."""
    names, turns = list(builds), []
    with ExitStack() as stack:
        processes = {name: stack.enter_context(start(model, builds[name], num_threads)) for name in names}
        for turn in range(num_turns):
            order = names[turn % len(names) :] + names[: turn % len(names)]
            turns.append({name: ask(processes[name]) for name in order})
        for process in processes.values():
            process.communicate()  # it ends when its input does
    return turns


def ask(process: subprocess.Popen[str]) -> Rates:
    """Let a process measure once more."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    rates: Rates = json.loads(process.stdout.readline())
    return rates


def start(model: Path, build: str, num_threads: int) -> subprocess.Popen[str]:
    """Return a process that measures a build once for each line that it reads."""
    folder, _, variant = build.partition(":")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))}
    if variant:
        environment["EDGEAGENT_CPU_VARIANT"] = variant
    command = [sys.executable, "-m", "tests.peer.engines", str(model), "--child", "--threads", str(num_threads)]
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def main() -> None:
    """Print the median of each figure, and its ratio to that of the first build with the quartiles of all turns."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("builds", nargs="*", metavar="NAME=FOLDER[:VARIANT]")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5, help="how often new processes are started")
    parser.add_argument("--turns", type=int, default=8, help="how often each process of a round measures")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        for _, rates in zip(sys.stdin, measure(options.model, options.threads), strict=False):
            print(json.dumps(rates), flush=True)
        return
    builds = dict(text.split("=", 1) for text in options.builds)
    taken: list[dict[str, Rates]] = []
    for _ in range(options.rounds):
        taken += take_turns(options.model, builds, options.threads, options.turns)
    first = next(iter(builds))
    for figure in taken[0][first]:
        for name in builds:
            median = statistics.median(turn[name][figure] for turn in taken)
            low, ratio, high = statistics.quantiles(turn[name][figure] / turn[first][figure] for turn in taken)
            print(f"{figure:14} {name:16} {median:8.1f} tokens/s, {ratio:.3f} x ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
