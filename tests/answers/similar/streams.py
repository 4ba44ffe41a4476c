"""Runs streams of questions through the cache's decisions and through the best fixed threshold; the truth is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

import numpy as np
import pytest

from edgeagent.answers.similar import memory as memory_module
from edgeagent.answers.similar.boundary import MIN_SIMILARITY
from edgeagent.answers.similar.events import Compared
from edgeagent.answers.similar.guards import refusal
from edgeagent.answers.similar.index import Vector
from edgeagent.answers.similar.memory import Lookup, Memory
from tests.answers.similar.paraphrases import Asked

PLACE = b"place"
_DELAY = 20  # questions until an answer was checked
_NUM_NEAREST = 8

cached_refusal = cache(refusal)


@dataclass(frozen=True, slots=True)
class Result:
    """What happened in a stream: answers from similarity, how many of them were wrong, and checks."""

    num_questions: int
    num_hits: int
    num_wrong: int
    num_checks: int = 0
    is_off: bool = False
    threshold: float = 0.0

    @property
    def error(self) -> float:
        """The share of wrong ones among the answers from similarity."""
        return self.num_wrong / max(1, self.num_hits)


def without_repeats(asked: Sequence[Asked]) -> list[Asked]:
    """Return a stream without texts that came before: those are exact hits."""
    return list({each.text: each for each in asked}.values())


def run(
    asked: Sequence[Asked],
    vectors: Mapping[str, Vector],
    max_error: float,
    *,
    seed: int = 0,
    judge: Callable[[bool], bool] = bool,
) -> Result:
    """Ask a stream of different questions of a fresh Memory, as SimilarAnswers does it.

    `judge` returns what the judge says of an answer that is right or not.
    """
    random = Random(seed)
    memory = Memory(max_error)
    meanings: dict[bytes, str] = {}
    waiting: list[tuple[int, Asked, Lookup]] = []
    num_hits = num_wrong = num_checks = 0

    def is_right(key: bytes, question: Asked) -> bool:
        return meanings[key] == question.meaning

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_module, "refusal", cached_refusal)
        for number, each in enumerate(asked):
            while waiting and waiting[0][0] <= number:
                _, asked_then, given = waiting.pop(0)
                was_right = judge(is_right(given.near.key, asked_then))
                memory.learn(Compared(*given.near, was_right, given.check_probability))
                if not was_right:
                    memory.found_wrong()
            if memory.refusal(each.text):
                continue
            vector = vectors[each.text]
            lookup = memory.look_up(PLACE, each.text, vector)
            if lookup is not None and lookup.is_sure and memory.give(lookup):
                num_hits += 1
                num_wrong += not is_right(lookup.near.key, each)
                if random.random() < lookup.check_probability:
                    num_checks += 1
                    waiting.append((number + _DELAY, each, lookup))
                continue
            first = None
            if lookup is not None:
                first = Compared(*lookup.near, judge(is_right(lookup.near.key, each)))
                memory.learn(first)
            key = number.to_bytes(32, "big")
            memory.add(PLACE, key, each.text, vector, first)
            meanings[key] = each.meaning
    return Result(len(asked), num_hits, num_wrong, num_checks, memory.is_off)


def best_threshold(asked: Sequence[Asked], vectors: Mapping[str, Vector], max_error: float) -> Result:
    """Return the most hits that a fixed threshold reaches within the bound, with the same guards.

    The threshold is chosen after the stream, with the truth known, so no cache can have it.
    """
    return best_of(thresholds(asked, vectors), max_error)


def thresholds(asked: Sequence[Asked], vectors: Mapping[str, Vector]) -> list[Result]:
    """Return what each fixed threshold does with a stream, with the same guards."""
    matrix = np.stack([vectors[each.text] for each in asked])
    similarities = matrix @ matrix.T
    return [
        _with_threshold(asked, similarities, float(threshold)) for threshold in np.arange(MIN_SIMILARITY, 1.0, 0.02)
    ]


def best_of(results: Sequence[Result], max_error: float) -> Result:
    """Return the one with the most hits within the bound; one without hits if there is none."""
    within = [result for result in results if result.error <= max_error]
    return max(within, key=lambda result: result.num_hits, default=Result(results[0].num_questions, 0, 0))


def _with_threshold(asked: Sequence[Asked], similarities: Vector, threshold: float) -> Result:
    kept: list[int] = []
    num_hits = num_wrong = 0
    for number, each in enumerate(asked):
        found = None
        if cached_refusal(each.text, each.text) != "context":
            row = similarities[number, kept]
            near = [kept[place] for place in np.argsort(-row)[:_NUM_NEAREST] if row[place] >= threshold]
            found = next((other for other in near if not cached_refusal(each.text, asked[other].text)), None)
        if found is None:
            kept.append(number)
        else:
            num_hits += 1
            num_wrong += asked[found].meaning != each.meaning
    return Result(len(asked), num_hits, num_wrong, threshold=threshold)
