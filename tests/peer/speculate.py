"""Compares speculation with llama-server's at fixed draft lengths: `python -m tests.peer.speculate`.

The pairs come from tests.peer.shelf.pairs: a 0.4 B target and three drafts made of its first two layers. Their draft
tokens are accepted always, mostly or rarely. edgeagent's engine runs in this process, so its rate excludes the daemon,
as llama-server's `timings` exclude the server. All contenders answer the same prompts in turn. The tables hold medians
in tokens per second.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgeagent.config import EngineConfig
from edgeagent.engine.sampling.params import resolve
from edgeagent.engine.sampling.sampler import Sampled, Sampler
from edgeagent.engine.sequence import SequenceSpec
from edgeagent.types import SamplingParams
from edgeagent.worker.child.generator.host import Host
from edgeagent.worker.child.opening import open_model
from edgeagent.worker.protocol import Load
from tests.local_template import open_here
from tests.peer.build import binary, default_folder
from tests.peer.servers import Child, free_port
from tests.peer.shelf.pairs import LOUDNESS, make_pair

VOCAB = 32_000
THREADS = 2
DEPTHS = (1, 2, 3, 5, 8)


@dataclass(frozen=True, slots=True)
class Scene:
    """One kind of load: concurrent requests with these lengths.

    The last `num_hot` streams sample at a high temperature, so that their draft tokens are not accepted.
    """

    name: str
    num_streams: int = 1
    num_hot: int = 0
    num_prompt: int = 64
    num_output: int = 128
    change_every: int = 0  # the answer is the prompt with one of so many tokens changed (0: the model's own answer)
    is_cached: bool = False  # the same prompts each time, which stay in the cells

    def temperature(self, stream: int) -> float:
        """Return a stream's temperature."""
        return 2.0 if stream >= self.num_streams - self.num_hot else 0.0

    def prompts(self, seed: int) -> list[list[int]]:
        """Return a prompt for each stream, of random tokens."""
        chance = random.Random(0 if self.is_cached else seed)
        return [[chance.randrange(300, VOCAB - 300) for _ in range(self.num_prompt)] for _ in range(self.num_streams)]


ONE, FOUR, SIXTEEN = Scene("one stream"), Scene("four streams, two at temperature 2", 4, 2), Scene("16 streams", 16)
DEEP, SHORT = Scene("6,000 tokens deep", num_prompt=6000, is_cached=True), Scene("answers of 20 tokens", num_output=20)
COPY = Scene("a copy of 512 tokens, one changed", num_prompt=512, num_output=512, change_every=512)
EDIT = Scene("a copy of 512 tokens, every fortieth changed", num_prompt=512, num_output=512, change_every=40)


class Scripted(Sampler):
    """A sampler that returns the tokens of `script`, like a model that copies its prompt."""

    script: Iterator[int]

    def sample(self, logits: Any, drawn: int | None = None) -> Sampled:
        super().sample(logits, drawn)
        return Sampled(next(self.script))


class Ours:
    """edgeagent's engine, in this process."""

    def __init__(self, target: Path, draft: Path | None, *, ngrams: bool = False) -> None:
        config = EngineConfig(
            ctx=8192, parallel=16, threads=THREADS, sandbox=False, flash_attention="off",
            draft_ngrams=ngrams,
        )  # fmt: skip
        load = Load("pair", str(target), None if draft is None else str(draft), config)
        self.host = Host(load, open_model(load), open_here)

    def rate(self, scene: Scene, seed: int) -> float:
        """Return the tokens per second of all streams together, measured from when each stream has its first token."""
        engine = self.host.engine
        streams = [
            engine.add(
                SequenceSpec(
                    f"{seed}-{index}",
                    prompt,
                    self._sampler(scene, index, prompt),
                    scene.num_output,
                    write_cache=scene.is_cached,
                    read_cache=scene.is_cached,
                )
            )
            for index, prompt in enumerate(scene.prompts(seed))
        ]
        began_s, num_before = 0.0, 0
        while engine.num_live:
            engine.step()
            engine.save_step()
            if not began_s and all(stream.num_output for stream in streams):
                began_s, num_before = time.perf_counter(), sum(stream.num_output for stream in streams)
        return (sum(stream.num_output for stream in streams) - num_before) / (time.perf_counter() - began_s)

    def close(self) -> None:
        """Close the engine."""
        self.host.close()

    def _sampler(self, scene: Scene, stream: int, prompt: Sequence[int]) -> Sampler:
        params = SamplingParams(temperature=scene.temperature(stream), seed=stream, top_k=0, top_p=1.0, min_p=0.0)
        resolved = resolve(params, self.host.model.default_sampling())
        if not scene.change_every:
            return Sampler(resolved, VOCAB)
        sampler = Scripted(resolved, VOCAB)
        changed = scene.change_every // 2
        copy = [7 if index % scene.change_every == changed else token for index, token in enumerate(prompt)]
        sampler.script = iter([*copy, *([9] * 64)])
        return sampler


class Theirs:
    """llama-server with a fixed draft length. If it is 0, there is no draft model."""

    def __init__(self, target: Path, draft: Path, depth: int, folder: Path) -> None:
        port = free_port()
        self._url = f"http://127.0.0.1:{port}"
        command = [str(binary(default_folder(), "llama-server")), "-m", str(target), "--port", str(port), "-np", "4"]
        command += ["-c", "8192", "-t", str(THREADS), "-tb", str(THREADS), "--no-webui", "-fa", "off", "--kv-unified"]
        if depth:
            command += ["-md", str(draft), "--spec-type", "draft-simple", "--spec-draft-n-max", str(depth)]
            command += ["--spec-draft-threads", str(THREADS)]
        self._child = Child(command, folder / f"llama-server-{depth}.log", f"{self._url}/health")

    def rate(self, scene: Scene, seed: int) -> float:
        """Return the tokens per second of all streams together, from the times that llama-server reports."""
        with ThreadPoolExecutor(scene.num_streams) as pool:
            timings = list(pool.map(lambda each: self._ask(scene, *each), enumerate(scene.prompts(seed))))
        # Streams that start together also run together. The time begins with the first token, which is counted too.
        num_tokens = sum(timing["predicted_n"] - 1 for timing in timings)
        return num_tokens * 1000 / max(timing["predicted_ms"] for timing in timings)

    def close(self) -> None:
        """Stop the server."""
        self._child.stop()

    def _ask(self, scene: Scene, stream: int, prompt: list[int]) -> dict[str, float]:
        body = {"prompt": prompt, "n_predict": scene.num_output, "temperature": scene.temperature(stream)}
        body |= {
            "seed": stream,
            "top_k": 0,
            "top_p": 1.0,
            "min_p": 0.0,
            "cache_prompt": scene.is_cached,
            "ignore_eos": True,
        }
        request = urllib.request.Request(
            f"{self._url}/completion", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=600) as answer:
            timings: dict[str, float] = json.load(answer)["timings"]
            return timings


Contender = Ours | Theirs


@contextmanager
def running(make: dict[str, Callable[[], Contender]]) -> Iterator[dict[str, Contender]]:
    """Start all contenders and yield them by name. Close them at the end, also after an error."""
    with ExitStack() as stack:
        contenders = {}
        for name, start in make.items():
            contenders[name] = start()
            stack.callback(contenders[name].close)
        yield contenders


def compare(make: dict[str, Callable[[], Contender]], scene: Scene, num_rounds: int) -> dict[str, float]:
    """Return the median rate of each contender. The first round is a warm-up and does not count."""
    found: dict[str, list[float]] = {name: [] for name in make}
    with running(make) as contenders:
        for seed in range(num_rounds + 1):
            for name, contender in contenders.items():
                rate = contender.rate(scene, seed)
                if seed:
                    found[name].append(rate)
    return {name: statistics.median(rates) for name, rates in found.items()}


def table(title: str, rows: dict[str, dict[str, float]]) -> str:
    """Return a Markdown table with a row for each scene and a column for each contender."""
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    lines = [f"| {title}, tokens/s | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    for scene, row in rows.items():
        lines.append(f"| {scene} | {' | '.join(f'{row[name]:.0f}' if name in row else '–' for name in names)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=default_folder() / "pairs", help="where the models are")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=["peer", "four", "cost", "copy"], nargs="*")
    arguments = parser.parse_args()
    parts = arguments.only or ["peer", "four", "cost", "copy"]
    pairs = {loudness: make_pair(arguments.folder, loudness) for loudness in LOUDNESS}

    def ours(loudness: float) -> dict[str, Callable[[], Contender]]:
        target, draft = pairs[loudness]
        return {"off": lambda: Ours(target, None), "auto": lambda: Ours(target, draft)}

    def theirs(loudness: float) -> dict[str, Callable[[], Contender]]:
        target, draft = pairs[loudness]
        return {
            f"llama-server {depth or 'off'}": lambda depth=depth: Theirs(target, draft, depth, arguments.folder)  # type: ignore[misc]
            for depth in (0, *DEPTHS)
        }

    def over_pairs(scene: Scene, *, with_peer: bool) -> dict[str, dict[str, float]]:
        return {
            f"{scene.name}, later layers × {loudness:g}": compare(
                ours(loudness) | (theirs(loudness) if with_peer else {}), scene, arguments.rounds
            )
            for loudness in LOUDNESS
        }

    if "peer" in parts:
        print(table("one stream", over_pairs(ONE, with_peer=True)), flush=True)
    if "four" in parts:
        target_and_peer = ours(0.0) | theirs(0.0)
        print(table("mixed", {FOUR.name: compare(target_and_peer, FOUR, arguments.rounds)}), flush=True)
    if "cost" in parts:
        rows = {scene.name: compare(ours(0.3), scene, arguments.rounds) for scene in (SIXTEEN, DEEP, SHORT)}
        print(table("where drafts do not pay", rows), flush=True)
    if "copy" in parts:
        target, _ = pairs[0.3]
        contenders: dict[str, Callable[[], Contender]] = {
            "off": lambda: Ours(target, None),
            "ngram": lambda: Ours(target, None, ngrams=True),
        }
        rows = {scene.name: compare(contenders, scene, arguments.rounds) for scene in (COPY, EDIT)}
        print(table("a text that repeats itself", rows), flush=True)


if __name__ == "__main__":
    main()
