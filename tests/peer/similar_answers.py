"""Measures answers from similarity: `python -m tests.peer.similar_answers [--seeds 10] [--vectors FILE]`.

It runs streams of 2,000 questions from two domains at three bounds, with vectors of the real all-MiniLM-L6-v2, beside
the best fixed threshold that the same guards allow, which is chosen with the truth known. Then come adverse streams,
and the search among 100,000 vectors. It prints tables for docs/figures.md. The truth is that of the rules which made
the questions. Vectors are computed once, in the engine's own encoder, and kept in FILE.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from edgeagent.answers.similar.index import Index, Vector
from edgeagent.config import EngineConfig
from edgeagent.engine.llama.encoder import Encoder
from edgeagent.engine.llama.model import Model
from tests.answers.similar.paraphrases import DOMAINS, Asked, negatives, stream
from tests.answers.similar.streams import Result, best_threshold, run, without_repeats
from tests.minilm import make_minilm

BOUNDS = (0.005, 0.01, 0.03)
_LENGTH = 2000
_NUM_VECTORS = 100_000
_NUM_SEARCHES = 300


def embedded(texts: Sequence[str]) -> dict[str, Vector]:
    """Return the vectors of texts, in their order."""
    config = EngineConfig()
    with tempfile.TemporaryDirectory() as folder:
        model = Model(make_minilm(Path(folder) / "minilm.gguf"), config)
        encoder = Encoder(model, config)
        begin, end = model.frame_tokens
        waiting = [[*begin, *model.tokenize(text, parse_special=False), *end] for text in texts]
        rows: list[Vector] = []
        while len(rows) < len(texts):
            batch = waiting[len(rows) : len(rows) + 64]
            rows.extend(encoder.encode(batch[: encoder.batch_length(batch)], 1))
        encoder.close()
    return dict(zip(texts, rows, strict=True))


def vectors_of(texts: Sequence[str], file: Path | None) -> dict[str, Vector]:
    """Return the vectors of texts; those that the file has are not computed again."""
    known: dict[str, Vector] = {}
    if file is not None and file.exists():
        with np.load(file) as saved:
            known = dict(zip(saved["texts"].tolist(), saved["vectors"], strict=True))
    missing = [text for text in texts if text not in known]
    if missing:
        print(f"{len(missing)} texts are embedded", flush=True)
        known |= embedded(missing)
        if file is not None:
            np.savez(file, texts=np.array(list(known)), vectors=np.stack(list(known.values())))
    return known


def adverse(seed: int) -> dict[str, list[Asked]]:
    """Return streams that are made to mislead: no question comes twice; one entry; a change of what is asked."""
    museum, bank = (stream(domain, seed, _LENGTH) for domain in DOMAINS)
    one = [each for other in range(6) for each in stream("museum", 100 * seed + other, _LENGTH)]
    return {
        "only negatives": [each for domain in DOMAINS for each in negatives(domain, seed, _LENGTH)],
        "all near one intent": [each for each in one if each.meaning.partition("/")[0] in ("0", "1")],
        "the domain changes": [*museum[: _LENGTH // 2], *bank[: _LENGTH // 2]],
    }


def row(name: str, found: Sequence[tuple[Result, Result]], bound: float) -> str:
    """Return a row of the table: hits, errors, and hits of the best threshold's."""
    within = sum(result.error <= bound for result, _ in found)
    ratios = [result.num_hits / max(1, best.num_hits) for result, best in found]
    hits = np.median([result.num_hits / result.num_questions for result, _ in found])
    errors = [result.error for result, _ in found]
    return (
        f"| {name} | {100 * bound:g} % | {within} of {len(found)} | {100 * float(np.mean(errors)):.2f} % "
        f"({100 * max(errors):.2f} %) | {100 * float(hits):.0f} % | "
        f"{float(np.median(ratios)):.2f} ({min(ratios):.2f}) |"
    )


def measure_streams(seeds: Sequence[int], file: Path | None) -> None:
    """Print the table of the streams."""
    streams = {(domain, seed): without_repeats(stream(domain, seed, _LENGTH)) for domain in DOMAINS for seed in seeds}
    vectors = vectors_of(sorted({each.text for asked in streams.values() for each in asked}), file)
    print(
        "| domain | bound | streams within | error: mean (largest) | answered | of the best threshold: median (least) |"
    )
    print("|---|---|---|---|---|---|", flush=True)
    for bound in BOUNDS:
        for domain in DOMAINS:
            found = [
                (run(asked, vectors, bound, seed=seed), best_threshold(asked, vectors, bound))
                for (name, seed), asked in streams.items()
                if name == domain
            ]
            print(row(domain, found, bound), flush=True)


def measure_adverse(file: Path | None) -> None:
    """Print what happens in adverse streams."""
    streams = {name: without_repeats(asked) for name, asked in adverse(0).items()}
    vectors = vectors_of(sorted({each.text for asked in streams.values() for each in asked}), file)
    for name, asked in streams.items():
        for bound in BOUNDS:
            _print_adverse(name, run(asked, vectors, bound), bound)


def _print_adverse(name: str, result: Result, bound: float) -> None:
    off = ", turned off" if result.is_off else ""
    print(
        f"{name}, {100 * bound:g} %: {result.num_wrong} of {result.num_hits} wrong, {result.num_questions} asked{off}"
    )


def measure_search(vectors: Mapping[str, Vector] | None = None) -> None:
    """Print what a search among many vectors of one place takes, and how often it finds the nearest."""
    random = np.random.default_rng(0)
    centres = random.standard_normal((_NUM_VECTORS // 5, 384), np.float32)
    many = centres[random.integers(0, len(centres), _NUM_VECTORS)]
    many += 0.7 * random.standard_normal(many.shape, np.float32)
    many /= np.linalg.norm(many, axis=1, keepdims=True)
    index = Index()
    began_s = time.thread_time()
    for number, vector in enumerate(many):
        index.add(b"place", number.to_bytes(4, "big"), vector)
    built_s = time.thread_time() - began_s
    asked = many[random.integers(0, _NUM_VECTORS, _NUM_SEARCHES)]
    asked = asked + 0.03 * random.standard_normal(asked.shape, np.float32)
    asked /= np.linalg.norm(asked, axis=1, keepdims=True)
    walls_s, cpu_s, num_found = [], [], 0
    for vector in asked:
        wall_s, thread_s = time.perf_counter(), time.thread_time()
        near = index.nearest(b"place", vector, 8)
        walls_s.append(time.perf_counter() - wall_s)
        cpu_s.append(time.thread_time() - thread_s)
        num_found += int.from_bytes(near[0].key, "big") == int(np.argmax(many @ vector))
    wall, cpu = (1000 * np.percentile(times, (50, 95)) for times in (walls_s, cpu_s))
    print(
        f"{_NUM_VECTORS:,} vectors: added in {built_s:.1f} s of CPU; a search takes {cpu[0]:.1f} ms of CPU "
        f"(p95 {cpu[1]:.1f}), {wall[0]:.1f} ms in all (p95 {wall[1]:.1f}); "
        f"the nearest is found {num_found} of {_NUM_SEARCHES} times"
    )


def main() -> None:
    """Measure everything, or only parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, help="streams of each domain")
    parser.add_argument("--vectors", type=Path, help="a file that keeps the vectors for the next time (.npz)")
    parser.add_argument("--only", choices=("streams", "adverse", "search"))
    given = parser.parse_args()
    if given.only in (None, "streams"):
        measure_streams(range(given.seeds), given.vectors)
    if given.only in (None, "adverse"):
        measure_adverse(given.vectors)
    if given.only in (None, "search"):
        measure_search()


if __name__ == "__main__":
    main()
