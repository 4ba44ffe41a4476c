"""Builds, and measures the rows of tests/peer/gpu.py. That module starts it, and says what it needs."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgeagent.bench.measure import Measurement, Run, measure
from edgeagent.bench.scenarios import RATE, SHORT_PROMPT_TOKENS
from tests.peer import servers
from tests.peer.build import binary
from tests.peer.gpu import ROOT, cuda_flags, device, parse
from tests.peer.laboratory import SCENARIOS, caches
from tests.peer.rows import QUICK, Bar, Row, Size, figure_of, measured, rows, situations
from tests.peer.servers import Setup
from tests.peer.shape_folder import ShapeFolder
from tests.peer.shelf import TWINS, Quant, Shape, cached_model
from tests.peer.shelf.shapes import SEVEN_B
from tests.peer.tables import one_model
from tests.peer.versus import commit

QUANT: Quant = "Q4_K_M"
SMALL = replace(TWINS["qwen2.5-0.5b"], num_vocab=20_000)
FLAGS = ("--flash-attention", "on")  # llama-server chooses it on a GPU, and llama-bench gets it


def gpu_rows(size: Size) -> tuple[Row, ...]:
    """Return the rows in the order in which they are measured."""
    eight = [replace(row, bar=Bar("≥", 1.0)) for row in rows(size) if row.situation == "parallel"]
    restored = f"first token, {size.restart:,} tokens from disk, of computed"
    return (
        Row("one stream, of llama-bench", "decode", RATE, Bar("≥", 0.97)),
        *eight,
        Row(restored, "restart", caches.AFTER, Bar("≤", 1 / 30), of=caches.COLD),
    )


def build(source: Path, folder: Path, architecture: str) -> subprocess.Popen[bytes]:
    """Begin to build the programs for one architecture of GPUs; "": without CUDA."""
    flags = cuda_flags(architecture) if architecture else ""
    command = [sys.executable, str(ROOT / "tests" / "peer" / "build.py"), "--source", str(source)]
    return subprocess.Popen([*command, "--folder", str(folder)], env={**os.environ, "CMAKE_ARGS": flags})


def use_libraries(source: Path, programs: Path, folder: Path) -> None:
    """Let edgeagent load the libraries of these programs, through llama-cpp-python's own modules."""
    package = folder / "python" / "llama_cpp"
    package.mkdir(parents=True, exist_ok=True)
    for module in (source / "llama_cpp").glob("*.py"):
        shutil.copy(module, package)
    if not (package / "lib").is_symlink():
        (package / "lib").symlink_to(programs / "bin")
    paths = [str(package.parent), str(ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def beside_llama_bench(setup: Setup, bench: Path, size: Size, num_rounds: int, seed: int) -> Measurement:
    """Measure one stream of edgeagent and the same decode in llama-bench, by turns."""
    scenario, workload = SCENARIOS["decode"], situations(size)["decode"].workload
    found = Measurement(scenario, [[], []])
    command = [str(bench), "-m", str(setup.model), "-p", "0", "-n", str(workload.max_tokens), "-fa", "on"]
    command += ["-d", str(SHORT_PROMPT_TOKENS), "-t", str(setup.threads), "-ngl", "99", "-r", "1", "-o", "json"]
    with servers.edgeagent(setup, size.context, *FLAGS) as server:
        for number in range(num_rounds):
            for is_ours in (True, False) if number % 2 == 0 else (False, True):
                if is_ours:
                    part = Run([server], [scenario], workload, 1, seed + number)
                    asyncio.run(measure(part, lambda *_: None))
                    found.rounds[0] += part.measurements[0].rounds[0]
                    found.failure = found.failure or part.measurements[0].failure
                else:
                    answer = subprocess.run(command, capture_output=True, check=True).stdout
                    found.rounds[1].append({RATE: [float(json.loads(answer)[0]["avg_ts"])]})
    return found


def run(options: argparse.Namespace, seed: int) -> None:
    """Build, make the model, and measure each row that no earlier run has measured."""
    began_s = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began_s:4.0f} s  {text}", flush=True)

    name, architecture = ("none", "") if options.small else device()
    shape, size = (SMALL, QUICK) if options.small else (SEVEN_B, Size())
    programs = options.folder / "build"
    say(f"GPU: {name}; building llama.cpp, and making {shape.name} {QUANT}")
    building = build(options.source, programs, architecture)
    try:
        model = cached_model(options.folder / "models", shape, QUANT)
        say(f"{model.name}: {model.stat().st_size / 1e9:.2f} GB")
        if building.wait():
            raise SystemExit("llama.cpp could not be built; the compiler's words are above")
    finally:
        servers.kill(building)  # and its compilers, if the time is over
    say("llama.cpp is built")
    use_libraries(options.source, programs, options.folder)
    setup = Setup(model, binary(programs, "llama-server"), options.threads)
    about = {"commit": commit(), "GPU": name, "threads": options.threads, "rounds": options.rounds}
    kept = ShapeFolder(options.folder / "figures", about)
    for situation in ("decode", "parallel", "restart"):
        if kept.has(shape.name, QUANT, situation):
            say(f"{situation}: measured before")
            continue
        done, samples = _measured(setup, options, situation, size, seed)
        own = [row for row in gpu_rows(size) if row.situation == situation]
        kept.add(shape.name, QUANT, situation, own, done, samples)
        say(f"{situation}: {done.failure or 'done'}; {about}")
        for row in own:
            print(told(row, done, shape), flush=True)
    say("all is measured")


def _measured(
    setup: Setup, options: argparse.Namespace, situation: str, size: Size, seed: int
) -> tuple[Measurement, dict[str, Any]]:
    if situation == "decode":
        bench = binary(setup.llama_server.parents[1], "llama-bench")
        return beside_llama_bench(setup, bench, size, options.rounds, seed), {}
    return measured(setup, situations(size)[situation], size, options.rounds, seed, FLAGS)


def told(row: Row, done: Measurement, shape: Shape) -> str:
    """Return a line of a table: both figures, their ratio, the bar, and whether it is met."""
    *_, line = one_model([row], {row.situation: done}, "llama.cpp")
    value = figure_of(row, done).value
    verdict = "–" if row.bar is None or value is None else "met" if row.bar.is_met(value, shape.name) else "**missed**"
    return f"{line} {verdict} |"


def main() -> None:
    """Measure until the time is over."""
    options = parse()
    # So that the servers end with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(f"the {options.minutes:g} minutes are over; run it again"))
    signal.setitimer(signal.ITIMER_REAL, 60 * options.minutes)
    run(options, seed=int(time.time()))


if __name__ == "__main__":
    main()
