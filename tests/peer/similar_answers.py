"""Measures answers from similarity: `python -m tests.peer.similar_answers [--seeds 10] [--vectors FILE]`.

It runs streams of 2,000 questions from two domains at three bounds, with vectors of the real all-MiniLM-L6-v2, beside
the best fixed threshold that the same guards allow, which is chosen with the truth known. Then come adverse streams,
and the search among 100,000 vectors. It prints tables for docs/figures.md. Vectors are computed once, in the engine's
own encoder, and kept in FILE.

The domains and their seeds are those that nothing was tuned on; `--domains tuned` has the others. The truth is that of
the rules which made the questions. With `--truth builtin` or `--truth smollm2`, it is that of a model, which answers
each text once, greedily: two questions are the same if its answers are. Those streams have fewer wordings. With
`--truth sorted`, SmolLM2 names the kind of each question with one word, after examples.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import numpy as np
import pytest

from edgeagent.answers.similar import boundary, memory
from edgeagent.answers.similar.index import Index, Vector
from edgeagent.answers.similar.judge import plain_text
from edgeagent.answers.similar.measured import MIN_CHECKED, ErrorTest
from edgeagent.config import EngineConfig
from edgeagent.engine.llama.encoder import Encoder
from edgeagent.engine.llama.model import Model
from tests.answers.similar.fresh_domains import FRESH
from tests.answers.similar.paraphrases import DOMAINS, TUNED, Asked, negatives, stream
from tests.answers.similar.streams import Result, best_of, best_threshold, run, thresholds, without_repeats
from tests.integration.conftest import serving
from tests.minilm import make_minilm
from tests.patience import patient
from tests.smollm2 import MODEL as SMOLLM2

BOUNDS = (0.005, 0.01, 0.03)
_FIRST_TUNED, _FIRST_FRESH = 0, 100  # seeds
_BOUND_OF_CONSTANTS = 0.01
_MAX_ANSWER_TOKENS = 40
# SmolLM2 goes on after its answer; its first sentence or its first word is compared.
_STOPS = {"builtin": [], "smollm2": [".", "\n"], "sorted": [" ", ".", ",", "\n"]}
_SORTED = (
    ("Who runs the shop?", "person"),
    ("When does the shop open on Friday?", "time"),
    ("May I bring my dog?", "rule"),
    ("How much is a coffee?", "price"),
    ("Where can I park my car?", "place"),
    ("Do I have to pay in cash?", "rule"),
    ("How long does it take?", "time"),
    ("What does it cost for children?", "price"),
)
_AT_ONCE = 16
_SAVED_EVERY = 64
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


def adverse(domains: Sequence[str], seed: int) -> dict[str, list[Asked]]:
    """Return streams that are made to mislead.

    No question comes twice; all are about two similar intents; the domain changes after one half; a share of the texts
    has an answer of its own, as if the model did not say the same again.
    """
    first, second = (stream(domain, seed, _LENGTH) for domain in (domains[0], domains[-1]))
    one = [each for other in range(6) for each in stream(domains[0], 100 * seed + other, _LENGTH)]
    streams = {
        "no meaning comes twice": [each for domain in domains for each in negatives(domain, seed, _LENGTH)],
        "all near one intent": [each for each in one if each.meaning.partition("/")[0] in ("0", "1")],
        "the domain changes": [*first[: _LENGTH // 2], *second[: _LENGTH // 2]],
    }
    for share in (0.002, 0.005, 0.01, 0.03, 0.1, 0.3):
        chance = random.Random(f"{seed}/{share}")
        of_its_own = {each.text for each in without_repeats(first) if chance.random() < share}
        streams[f"{100 * share:g} % have an answer of their own"] = [
            Asked(each.text, each.text) if each.text in of_its_own else each for each in first
        ]
    return streams


def answered_by(model: str, asked: Mapping[str, Sequence[str]], file: Path | None) -> dict[tuple[str, str], str]:
    """Return a model's answer to each text of each domain, without those that it did not end by itself.

    Those that `file` has are not asked for again. It is written after every few answers.
    """
    known: dict[str, dict[str, str]] = json.loads(file.read_text()) if file is not None and file.exists() else {}
    missing = [(domain, text) for domain, texts in asked.items() for text in texts if text not in known.get(domain, {})]
    if missing:
        print(f"{model} answers {len(missing)} questions", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            path = "builtin" if model == "builtin" else str(SMOLLM2)
            flags = ("--threads", "1", "--parallel", str(_AT_ONCE), "--cache-disk-bytes", "0")
            with serving(Path(folder) / "state", path, *flags) as daemon, ThreadPoolExecutor(_AT_ONCE) as threads:
                url = f"{daemon.url}/v1/chat/completions"
                answers = threads.map(lambda each: _answer(url, model, *each), missing)
                for number, ((domain, text), answer) in enumerate(zip(missing, answers, strict=True), 1):
                    known.setdefault(domain, {})[text] = answer
                    if file is not None and (number % _SAVED_EVERY == 0 or number == len(missing)):
                        file.write_text(json.dumps(known))
    return {(domain, text): known[domain][text] for domain, texts in asked.items() for text in texts}


def _answer(url: str, model: str, domain: str, text: str) -> str:
    """Return a greedy answer; "" if it was cut."""
    is_sorted, stops = model == "sorted", _STOPS[model]
    said = [
        ("system", "Sort each question: time, place, price, rule or person." if is_sorted else DOMAINS[domain].facts)
    ]
    for question, kind in _SORTED if is_sorted else ():
        said += [("user", question), ("assistant", kind)]
    body: dict[str, Any] = {
        "messages": [{"role": role, "content": content} for role, content in (*said, ("user", text))],
        "temperature": 0,
        "max_tokens": _MAX_ANSWER_TOKENS,
        **({"stop": stops} if stops else {}),
    }
    choice = httpx.post(url, json=body, timeout=patient(120), trust_env=False).raise_for_status().json()["choices"][0]
    return str(choice["message"]["content"]) if choice["finish_reason"] == "stop" else ""


Streams = dict[tuple[str, int], list[Asked]]


def streams_of(domains: Sequence[str], seeds: Sequence[int], truth: str, file: Path | None) -> Streams:
    """Return the streams, without texts that come twice. `truth`: "rules", or the model whose answers are compared."""
    is_terse = truth != "rules"
    streams = {
        (domain, seed): without_repeats(stream(domain, seed, _LENGTH, is_terse=is_terse))
        for domain in domains
        for seed in seeds
    }
    if truth == "rules":
        return streams
    texts = {
        domain: sorted({each.text for (name, _), asked in streams.items() if name == domain for each in asked})
        for domain in domains
    }
    answers = answered_by(truth, texts, file)
    for domain in domains:
        plain = [plain_text(answers[domain, text]) for text in texts[domain]]
        whole = [answer for answer in plain if answer]
        print(f"{domain}: {len(plain)} texts, {len(whole)} answers that ended, {len(set(whole))} different ones")
    return {
        (domain, seed): [
            Asked(each.text, answer) for each in asked if (answer := plain_text(answers[domain, each.text]))
        ]
        for (domain, seed), asked in streams.items()
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


def measure_streams(streams: Streams, file: Path | None, bounds: Sequence[float] = BOUNDS) -> None:
    """Print the table of the streams."""
    vectors = vectors_of(sorted({each.text for asked in streams.values() for each in asked}), file)
    print(
        "| domain | bound | streams within | error: mean (largest) | answered | of the best threshold: median (least) |"
    )
    print("|---|---|---|---|---|---|", flush=True)
    fixed = {key: thresholds(asked, vectors) for key, asked in streams.items()}
    for bound in bounds:
        for domain in dict.fromkeys(name for name, _ in streams):
            found = [
                (run(asked, vectors, bound, seed=key[1]), best_of(fixed[key], bound))
                for key, asked in streams.items()
                if key[0] == domain
            ]
            print(row(domain, found, bound), flush=True)


def measure_adverse(domains: Sequence[str], seeds: Sequence[int], file: Path | None) -> None:
    """Print the table of adverse streams."""
    streams = {(name, seed): without_repeats(asked) for seed in seeds for name, asked in adverse(domains, seed).items()}
    vectors = vectors_of(sorted({each.text for asked in streams.values() for each in asked}), file)
    print("| stream | bound | streams within | error: mean (largest) | answered | turned off |")
    print("|---|---|---|---|---|---|", flush=True)
    for name in dict.fromkeys(name for name, _ in streams):
        for bound in BOUNDS:
            found = [run(asked, vectors, bound, seed=key[1]) for key, asked in streams.items() if key[0] == name]
            errors = [result.error for result in found]
            hits = np.median([result.num_hits / result.num_questions for result in found])
            print(
                f"| {name} | {100 * bound:g} % | {sum(error <= bound for error in errors)} of {len(found)} | "
                f"{100 * float(np.mean(errors)):.2f} % ({100 * max(errors):.2f} %) | {100 * float(hits):.0f} % | "
                f"{sum(result.is_off for result in found)} |",
                flush=True,
            )


def _variants() -> dict[str, list[tuple[ModuleType, str, object]]]:
    """Return other values of the constants that were chosen, by what is other."""
    num_lapses = boundary._PRIOR.shape[1]
    return {
        "as they are": [],
        "all lapses equally likely": [(boundary, "_PRIOR", boundary._SPREAD_PRIOR[:, None] * np.ones(num_lapses))],
        "all spreads equally likely": [(boundary, "_PRIOR", boundary._PRIOR / boundary._SPREAD_PRIOR[:, None])],
        "all entries alike": [(boundary, "SPREADS", boundary.SPREADS[:1]), (boundary, "_PRIOR", boundary._PRIOR[:1])],
        "compared from 0.5 on": [(memory, "MIN_SIMILARITY", 0.5)],
        "compared from 0.8 on": [(memory, "MIN_SIMILARITY", 0.8)],
        "8 observations of an entry": [(boundary, "MAX_OBSERVATIONS", 8)],
        "forgets after 400 observations": [(boundary, "_MEMORY", 400)],
        "one in five is checked": [(memory, "MIN_CHECKED", 0.2)],
        "one in a hundred is checked": [(memory, "MIN_CHECKED", 0.01)],
    }


def measure_constants(num_seeds: int, file: Path | None) -> None:
    """Print what other values of the chosen constants change, and how soon the test of the error ends the reuse.

    Only the domains that were tuned on are used, so that the fresh ones stay fresh.
    """
    streams = streams_of(tuple(TUNED), range(num_seeds), "rules", None)
    vectors = vectors_of(sorted({each.text for asked in streams.values() for each in asked}), file)
    best = {key: best_threshold(asked, vectors, _BOUND_OF_CONSTANTS) for key, asked in streams.items()}
    print("| constants | error: mean (largest) | of the best threshold: median (least) | checked |\n|---|---|---|---|")
    for name, changes in _variants().items():
        with pytest.MonkeyPatch.context() as patch:
            for place, attribute, value in changes:
                patch.setattr(place, attribute, value)
            found = {key: run(asked, vectors, _BOUND_OF_CONSTANTS, seed=key[1]) for key, asked in streams.items()}
        errors = [result.error for result in found.values()]
        ratios = [result.num_hits / max(1, best[key].num_hits) for key, result in found.items()]
        checked = sum(result.num_checks for result in found.values()) / sum(each.num_hits for each in found.values())
        print(
            f"| {name} | {100 * np.mean(errors):.2f} % ({100 * max(errors):.2f} %) | "
            f"{np.median(ratios):.2f} ({min(ratios):.2f}) | {100 * checked:.0f} % |",
            flush=True,
        )
    print("| true error | checks until the reuse ends: median (95 %) | answers until then, median |\n|---|---|---|")
    for times in (2.0, 3.0, 10.0, 50.0):
        counts = [_checks_until_off(times * _BOUND_OF_CONSTANTS, seed) for seed in range(300)]
        middle = int(np.median(counts))
        print(f"| {times:g} x the bound | {middle} ({np.percentile(counts, 95):.0f}) | {middle / MIN_CHECKED:.0f} |")


def _checks_until_off(error: float, seed: int) -> int:
    chance, test = random.Random(seed), ErrorTest(_BOUND_OF_CONSTANTS)
    while not test.is_above:
        test.observe(is_right=chance.random() >= error, probability=MIN_CHECKED)
    return test.num_checked


def measure_search(vectors: Mapping[str, Vector] | None = None) -> None:
    """Print what a search among many vectors of one place takes, and how often it finds the nearest."""
    chance = np.random.default_rng(0)
    centres = chance.standard_normal((_NUM_VECTORS // 5, 384), np.float32)
    many = centres[chance.integers(0, len(centres), _NUM_VECTORS)]
    many += 0.7 * chance.standard_normal(many.shape, np.float32)
    many /= np.linalg.norm(many, axis=1, keepdims=True)
    index = Index()
    began_s = time.thread_time()
    for number, vector in enumerate(many):
        index.add(b"place", number.to_bytes(4, "big"), vector)
    built_s = time.thread_time() - began_s
    asked = many[chance.integers(0, _NUM_VECTORS, _NUM_SEARCHES)]
    asked = asked + 0.03 * chance.standard_normal(asked.shape, np.float32)
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


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure everything, or only parts. `arguments`: of the command line; None: those of this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="streams of each domain")
    parser.add_argument("--domains", choices=("fresh", "tuned", *DOMAINS), default="fresh")
    parser.add_argument("--truth", choices=("rules", "builtin", "smollm2", "sorted"), default="rules")
    parser.add_argument("--bounds", type=float, nargs="+", default=BOUNDS, help="of the streams, as shares")
    parser.add_argument("--vectors", type=Path, help="a file that keeps the vectors for the next time (.npz)")
    parser.add_argument("--answers", type=Path, help="a file that keeps the model's answers for the next time (.json)")
    parser.add_argument("--only", choices=("streams", "adverse", "search", "constants"))
    given = parser.parse_args(arguments)
    domains = {"fresh": tuple(FRESH), "tuned": tuple(TUNED)}.get(given.domains, (given.domains,))
    if given.truth != "rules":
        domains = tuple(domain for domain in domains if DOMAINS[domain].facts)
    first = _FIRST_TUNED if set(domains) <= set(TUNED) else _FIRST_FRESH
    if given.only in (None, "streams"):
        streams = streams_of(domains, range(first, first + given.seeds), given.truth, given.answers)
        measure_streams(streams, given.vectors, given.bounds)
    if given.only in (None, "adverse"):
        measure_adverse(domains, range(first, first + given.seeds), given.vectors)
    if given.only in (None, "search"):
        measure_search()
    if given.only == "constants":
        measure_constants(given.seeds, given.vectors)


if __name__ == "__main__":
    main()
