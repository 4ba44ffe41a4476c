"""Measures the daemon's figures in docs/figures.md: `python -m tests.peer.figures MODEL.gguf --llama-bench PATH`.

MODEL is a 0.5 B model (tests/peer/shelf makes one). Run it on a quiet machine. Comparisons alternate and give medians;
`--json` prints every measurement.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

import psutil
from websockets.asyncio.client import connect

from edgeagent.config import EngineConfig
from edgeagent.engine.runner import Slice
from edgeagent.runtime_file import find_daemon
from edgeagent.types import GenerateRequest, SamplingParams, TokenPrompt
from edgeagent.worker.child.generator.host import Host
from edgeagent.worker.child.generator.loop import GeneratorLoop
from edgeagent.worker.child.opening import open_model
from edgeagent.worker.protocol import Cancel, Load, Submit
from tests.local_template import open_here

DEPTH = 512
NUM_TOKENS = 128
# Both programs run without flash attention, so that they do the same work.
FLASH_ATTENTION = {"edgeagent": "off", "llama-bench": "0"}
SCHEMA = {
    "type": "object",
    "properties": {"names": {"type": "array", "items": {"type": "string"}, "minItems": 200}},
    "required": ["names"],
    "additionalProperties": False,
}


class Timed:
    """Adds up the time spent inside llama.cpp's decode, on a CPU."""

    def __init__(self, host: Host) -> None:
        self._submit = host.engine._runner.submit
        host.engine._runner.submit = self.submit  # type: ignore[method-assign]
        self.seconds = 0.0

    def submit(self, slices: Sequence[Slice], min_tokens: int = 0) -> None:
        """Compute a batch."""
        started = time.perf_counter()
        try:
            self._submit(slices, min_tokens)
        finally:
            self.seconds += time.perf_counter() - started


def load(model: Path, threads: int) -> tuple[Host, GeneratorLoop]:
    config = EngineConfig(threads=threads, ctx=4096)
    load = Load("m", str(model), None, config)
    host = Host(load, open_model(load), open_here)
    return host, GeneratorLoop(host, SimpleQueue())


def submit(host: Host, loop: GeneratorLoop, request: GenerateRequest) -> None:
    accepted = Submit(request, time.monotonic())
    loop.commands.put(accepted)
    loop.hand_in(accepted, host.prepare(request))


def python_share(model: Path, threads: int, sampling: SamplingParams) -> float:
    """Return the share of the worker's time that is spent outside llama.cpp while it decodes one stream."""
    host, loop = load(model, threads)
    timed = Timed(host)
    prompt = TokenPrompt(tuple(range(1000, 1000 + DEPTH)))
    shares = []
    for turn in range(4):
        submit(host, loop, GenerateRequest(f"r{turn}", "m", prompt, sampling, max_tokens=NUM_TOKENS))
        loop.turn()  # the prompt: all of it the first time, only its last token later
        timed.seconds, started = 0.0, time.perf_counter()
        while host.engine.num_live:
            loop.turn()
        shares.append(1 - timed.seconds / (time.perf_counter() - started))
        while host.engine.has_work:  # idle work is not part of a step
            loop.turn()
    return statistics.median(shares[1:])


def cancel_delay_ms(model: Path, threads: int) -> float:
    """Return how many milliseconds a cancel in the middle of a long prefill takes to end the step."""
    delays = []
    host, loop = load(model, threads)
    for turn in range(5):
        prompt = TokenPrompt(tuple((7 * turn + 13 * i) % 5000 + 100 for i in range(2048)))
        submit(host, loop, GenerateRequest(f"c{turn}", "m", prompt, max_tokens=4))
        asked_s = [0.0]

        def cancel(name: str = f"c{turn}", asked_s: list[float] = asked_s) -> None:
            asked_s[0] = time.perf_counter()
            loop.interrupt(Cancel(name))

        threading.Timer(0.3, cancel).start()
        loop.turn()
        while host.engine.has_work:
            loop.turn()
        delays.append((time.perf_counter() - asked_s[0]) * 1000)
    return statistics.median(delays)


@contextmanager
def daemon(model: str, *flags: str) -> Iterator[tuple[psutil.Process, int, dict[str, float]]]:
    """Start a daemon; yield its process, its port, and the seconds until it listened and was ready."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "edgeagent", "serve", model, "--port", "0", "--state-dir", folder, *flags]
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        times: dict[str, float] = {}
        assert process.stdout is not None
        for line in process.stdout:
            if "listening on" in line:
                times["listening_s"] = time.perf_counter() - started
            if " ready in " in line:
                times["ready_s"] = time.perf_counter() - started
                break
        runtime = find_daemon(Path(folder))
        assert runtime is not None
        try:
            yield psutil.Process(process.pid), runtime.port, times
        finally:
            process.terminate()
            process.wait(30)


async def stream_rate(port: int, prompt: str, schema: object | None = None) -> tuple[float, dict[str, float]]:
    """Return the tokens per second of one stream at the client, and the stages of the answer in milliseconds.

    The stages also have the entry "input_tokens", the number of tokens in the prompt.
    """
    fields: dict[str, object] = {"input": prompt, "max_output_tokens": NUM_TOKENS, "temperature": 0, "store": False}
    if schema is not None:
        fields["text"] = {"format": {"type": "json_schema", "name": "s", "schema": schema, "strict": True}}
    async with connect(f"ws://127.0.0.1:{port}/v1/responses", max_size=None) as socket:
        await socket.send(json.dumps({"type": "response.create", **fields}))
        first = last = 0.0
        async for message in socket:
            event = json.loads(message)
            if event["type"] == "response.output_text.delta":
                last = time.perf_counter()
                first = first or last
            if event["type"] in ("response.completed", "response.incomplete", "response.failed", "error"):
                break
    usage = event["response"]["usage"]
    stages = event["response"]["edgeagent"]["stages_ms"] | {"input_tokens": usage["input_tokens"]}
    # A short answer may arrive in one event. Then the rate is meaningless, and callers do not use it.
    return (usage["output_tokens"] - 1) / max(last - first, 1e-9), stages


async def prompt_of(port: int, num_tokens: int) -> str:
    """Return a text that makes a prompt of about `num_tokens` tokens, including those of the chat template."""
    sample = "word " * 64
    _, stages = await stream_rate(port, sample)
    return "word " * round(64 * num_tokens / stages["input_tokens"])


def llama_bench_rate(binary: Path, model: Path, threads: int) -> float:
    command = [str(binary), "-m", str(model), "-p", "0", "-n", str(NUM_TOKENS), "-d", str(DEPTH), "-t", str(threads)]
    output = subprocess.run(
        [*command, "-fa", FLASH_ATTENTION["llama-bench"], "-r", "2", "-o", "json"], capture_output=True, check=True
    ).stdout
    return float(json.loads(output)[0]["avg_ts"])


def wall_s(command: Sequence[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, capture_output=True, check=True)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--llama-bench", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures: dict[str, float] = {}
    figures["help_s"] = statistics.median(wall_s([sys.executable, "-m", "edgeagent", "--help"]) for _ in range(7))
    starts = []
    for _ in range(options.rounds):
        with daemon("builtin") as (process, port, times):
            asyncio.run(stream_rate(port, "Hello!"))
            starts.append((times["listening_s"], times["ready_s"], process.memory_info().rss / 1e6))
    for index, name in enumerate(("listening_s", "builtin_ready_s", "daemon_rss_mb")):
        figures[name] = statistics.median(start[index] for start in starts)
    ours, theirs, constrained, delivery = [], [], [], []
    for _ in range(options.rounds):
        # A new daemon for each round: prefixes that earlier answers left in the cells would slow later ones.
        flags = ("--threads", str(options.threads), "--ctx", "4096", "--flash-attention", FLASH_ATTENTION["edgeagent"])
        with daemon(str(options.model), *flags) as (_, port, _):
            prompt = asyncio.run(prompt_of(port, DEPTH))
            asyncio.run(stream_rate(port, prompt))
            rate, stages = asyncio.run(stream_rate(port, prompt))
            ours.append(rate)
            delivery.append(stages["delivery"])
            constrained.append(asyncio.run(stream_rate(port, prompt, SCHEMA))[0])
        if options.llama_bench:
            theirs.append(llama_bench_rate(options.llama_bench, options.model, options.threads))
    figures["delivery_ms"] = statistics.median(delivery)
    figures["websocket_tokens_per_s"] = statistics.median(ours)
    figures["schema_tokens_per_s"] = statistics.median(constrained)
    figures["schema_ratio"] = statistics.median(c / o for c, o in zip(constrained, ours, strict=True))
    if theirs:
        figures["llama_bench_tokens_per_s"] = statistics.median(theirs)
        figures["websocket_ratio"] = statistics.median(o / t for o, t in zip(ours, theirs, strict=True))
    # Measured last, since models loaded into this process would disturb the other measurements.
    greedy = SamplingParams(temperature=0.0)
    mixed = SamplingParams(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05, seed=1)
    figures["python_share_greedy"] = python_share(options.model, options.threads, greedy)
    figures["python_share_sampled"] = python_share(options.model, options.threads, mixed)
    figures["cancel_in_prefill_ms"] = cancel_delay_ms(options.model, options.threads)
    if options.json:
        print(json.dumps(figures, indent=1))
    else:
        for name, value in figures.items():
            print(f"{name:28} {value:10.4g}")


if __name__ == "__main__":
    main()
