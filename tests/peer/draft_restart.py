"""Measures how a draft model changes the time to the first token, and how much of its cache survives a restart.

Run as `python -m tests.peer.draft_restart`.

The pair comes from tests.peer.shelf.pairs: a 0.4 B target, and a draft of its first two layers whose draft tokens are
always accepted. One run of a worker gets the same long prompt twice. The next run, after a restart, gets it once. This
is done alternately with and without the draft. The engine runs in this process. The script prints medians: the seconds
until the first token, the seconds from there to the last, and the number of tokens that the draft computed.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from edgeagent.config import EngineConfig
from edgeagent.engine.sampling.params import resolve
from edgeagent.engine.sampling.sampler import Sampler
from edgeagent.engine.sequence import SequenceSpec
from edgeagent.types import SamplingParams
from edgeagent.worker.child.generator.host import Host
from edgeagent.worker.child.opening import open_model
from edgeagent.worker.child.process import start_block_store
from edgeagent.worker.protocol import DiskCache, Load
from tests.local_template import open_here
from tests.peer.shelf.pairs import PAIR, make_pair

VOCAB = 32_000
NUM_OUTPUT = 48
STAGES = ("cold", "warm", "after a restart")


class Life:
    """One run of a worker's engine with a disk cache, from load to close."""

    def __init__(self, target: Path, draft: Path | None, folder: Path, threads: int) -> None:
        config = EngineConfig(ctx=4096, threads=threads, sandbox=False, draft_ngrams=False)
        disk = DiskCache(str(folder), b"s" * 32, 8 << 30, 0, 86400.0, 0, 10.0)
        load = Load("pair", str(target), None if draft is None else str(draft), config, disk=disk)
        self._host = Host(load, open_model(load), open_here, store=start_block_store(disk))
        self.num_drafted = 0
        for runner in self._host._runners[1:]:
            runner.decode = self._counted(runner.decode)  # type: ignore[method-assign]

    def _counted(self, decode: Any) -> Any:
        def counted(slices: Any) -> None:
            self.num_drafted += sum(len(part.tokens) for part in slices)
            decode(slices)

        return counted

    def ask(self, prompt: list[int]) -> tuple[float, float, int]:
        """Generate an answer. Return the seconds to the first token, from there to the last, and the draft's tokens."""
        engine, before = self._host.engine, self.num_drafted
        params = SamplingParams(temperature=0.0)
        sampler = Sampler(resolve(params, self._host.model.default_sampling()), VOCAB)
        started_s = first_s = time.perf_counter()
        sequence = engine.add(SequenceSpec("a", prompt, sampler, NUM_OUTPUT))
        while engine.num_live:
            engine.step()
            engine.save_step()
            if sequence.num_output and first_s == started_s:
                first_s = time.perf_counter()
        ended_s = time.perf_counter()
        while engine.has_work:
            engine.step()
        return first_s - started_s, ended_s - first_s, self.num_drafted - before

    def close(self) -> None:
        """Close the engine, which writes the cached blocks."""
        self._host.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "edgeagent-pairs")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=PAIR.num_layers, help="of the target; fewer make it faster")
    options = parser.parse_args()
    shape = dataclasses.replace(PAIR, name=f"pair-{options.layers}-layers", num_layers=options.layers)
    target, draft = make_pair(options.folder, 0.0, shape)
    samples: defaultdict[tuple[str, str], list[tuple[float, float, int]]] = defaultdict(list)
    for number in range(-1, options.rounds):  # the first round does not count
        chance = random.Random(number)
        prompt = [chance.randrange(300, VOCAB - 300) for _ in range(options.tokens)]
        for name, partner in (("without", None), ("with", draft)):
            with tempfile.TemporaryDirectory() as folder:
                for stages in (STAGES[:2], STAGES[2:]):
                    life = Life(target, partner, Path(folder), options.threads)
                    for stage in stages:
                        sample = life.ask(prompt)
                        if number >= 0:
                            samples[name, stage].append(sample)
                    life.close()
    print("| draft | stage | first token, s | the other tokens, s | tokens that the draft computed |")
    print("|---|---|---|---|---|")
    for (name, stage), measured in samples.items():
        first_s, rest_s, num_drafted = map(statistics.median, zip(*measured, strict=True))
        print(f"| {name} | {stage} | {first_s:.3f} | {rest_s:.2f} | {num_drafted:.0f} |")


if __name__ == "__main__":
    main()
