"""Measures the time to sample one token, for many mixes of parameters, with a vocabulary of realistic size.

Run as `python -m tests.peer.bench_sampling`. It uses two kinds of logits. `peaked` logits are like those of a trained
model: few likely tokens and a long tail. `flat` logits are like those of random weights: normal with a deviation of 3.
Times are the thread's own CPU time, so that other programs disturb them less.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
from numpy.typing import NDArray

from edgeagent.engine.sampling.params import ResolvedSampling
from edgeagent.engine.sampling.sampler import Sampler

NUM_VOCAB = 151_936
NUM_ROWS = 16
OFF = ResolvedSampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
BIAS = tuple((token * 997, -1.0) for token in range(100))

MIXES: dict[str, ResolvedSampling] = {
    "greedy": ResolvedSampling(temperature=0.0),
    "greedy, penalties": ResolvedSampling(temperature=0.0, repeat_penalty=1.1, presence_penalty=0.5),
    "temperature 1": OFF,
    "temperature 0.8": ResolvedSampling(temperature=0.8, top_k=0, top_p=1.0, min_p=0.0),
    "temperature 1.5": ResolvedSampling(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0),
    "top-k 40": ResolvedSampling(top_p=1.0, min_p=0.0),
    "top-k 1000": ResolvedSampling(top_k=1000, top_p=1.0, min_p=0.0),
    "top-k 20000": ResolvedSampling(top_k=20_000, top_p=1.0, min_p=0.0),
    "top-p 0.5": ResolvedSampling(top_k=0, top_p=0.5, min_p=0.0),
    "top-p 0.95, temperature 1": ResolvedSampling(temperature=1.0, top_k=0, top_p=0.95, min_p=0.0),
    "top-p 0.95": ResolvedSampling(top_k=0, top_p=0.95, min_p=0.0),
    "top-p 0.9, temperature 1.5": ResolvedSampling(temperature=1.5, top_k=0, top_p=0.9, min_p=0.0),
    "top-p 0.999": ResolvedSampling(top_k=0, top_p=0.999, min_p=0.0),
    "min-p 0.05": ResolvedSampling(top_k=0, top_p=1.0, min_p=0.05),
    "min-p 0.0001": ResolvedSampling(top_k=0, top_p=1.0, min_p=0.0001),
    "top-p 0.95, min-p 0.05": ResolvedSampling(top_k=0),
    "top-p 0.95, min-p 0.0001": ResolvedSampling(top_k=0, min_p=0.0001),
    "top-p 0.99, min-p 0.000001": ResolvedSampling(temperature=1.5, top_k=0, top_p=0.99, min_p=0.000001),
    "top-k 1000, top-p 0.95, min-p 0.01": ResolvedSampling(top_k=1000, min_p=0.01),
    "the defaults": ResolvedSampling(),
    "the defaults, penalties, 100 biases": ResolvedSampling(repeat_penalty=1.1, frequency_penalty=0.2, logit_bias=BIAS),
}


def flat(random: np.random.Generator) -> NDArray[np.float32]:
    return random.normal(0.0, 3.0, NUM_VOCAB).astype(np.float32)


def peaked(random: np.random.Generator) -> NDArray[np.float32]:
    logits = random.normal(0.0, 2.0, NUM_VOCAB)
    likely = random.integers(0, NUM_VOCAB, 50)
    logits[likely] += np.linspace(18.0, 8.0, len(likely))
    return logits.astype(np.float32)


def median_us(sampler: Sampler, rows: list[NDArray[np.float32]], num_draws: int) -> float:
    times = []
    for draw in range(num_draws):
        logits = rows[draw % len(rows)]
        start = time.thread_time()
        sampler.sample(logits)
        times.append(time.thread_time() - start)
    return statistics.median(times[len(times) // 10 :]) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=300)
    arguments = parser.parse_args()
    random = np.random.default_rng(0)
    shapes = {make.__name__: [make(random) for _ in range(NUM_ROWS)] for make in (peaked, flat)}
    history = [int(token) for token in random.integers(0, NUM_VOCAB, 64)]
    print(f"{'median µs for one token':40}" + "".join(f"{name:>10}" for name in shapes))
    for label, params in MIXES.items():
        cells = []
        for rows in shapes.values():
            cells.append(median_us(Sampler(params, NUM_VOCAB, history=history), rows, arguments.draws))
        print(f"{label:40}" + "".join(f"{cell:10.0f}" for cell in cells))
    sampler = Sampler(ResolvedSampling(), NUM_VOCAB, num_logprobs=20)
    cells = [median_us(sampler, rows, arguments.draws) for rows in shapes.values()]
    print(f"{'the defaults, 20 logprobs':40}" + "".join(f"{cell:10.0f}" for cell in cells))


if __name__ == "__main__":
    main()
