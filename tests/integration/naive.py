"""A check of the engine's law: what a plain loop computes for the tokens that an engine gave, row by row.

The engine's own tokens are fed to the plain loop, so everything is compared, also after a token on which the two would
disagree. The allowed distance between two correct runs is measured: the plain loop computes every answer twice, the
second time in small chunks, beside another sequence that starts and ends and leaves holes between the cells.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgeagent.config import EngineConfig
from edgeagent.engine.llama.context import LlamaRunner
from edgeagent.engine.llama.model import Model
from edgeagent.engine.runner import Slice
from edgeagent.engine.sampling.params import resolve
from edgeagent.engine.sampling.sampler import Sampled, Sampler
from edgeagent.types import SamplingParams

Rows = list[NDArray[np.float32]]

CHUNK = 32
# Correct runs may differ by up to this factor times the difference between the plain loop's own two runs, plus `floor`:
# the last bit may change how a cell or a quantized value is rounded. One wrong token within a prompt makes a difference
# of 0.16 to 7.
FACTOR = 3.0
FLOOR = 0.05
EXACT_FLOOR = 1e-3
# The number of plain runs that may contain a row. When two experts tie, each wins in about half of the runs.
MAX_RUNS = 12


class Recorder(Sampler):
    """A greedy sampler that keeps every row of logits."""

    def __init__(self, model: Model) -> None:
        super().__init__(resolve(SamplingParams(temperature=0.0), model.default_sampling()), model.num_tokens)
        self.rows: Rows = []

    def sample(self, logits: NDArray[np.float32]) -> Sampled:
        self.rows.append(np.array(logits))
        return super().sample(logits)


@dataclass(slots=True)
class Asked:
    """A request, its output so far, and the rows from which its tokens were drawn."""

    prompt: list[int]
    max_tokens: int
    recorder: Recorder
    output: list[int]


class Naive:
    """A plain loop in its own context: the whole prefix in chunks, without a cache."""

    def __init__(self, model: Model, config: EngineConfig) -> None:
        config = config.model_copy(update={"parallel": 2, "batch": 2 * CHUNK, "ctx": config.ctx + 2 * CHUNK})
        self._runner = LlamaRunner(model, config)

    def rows(self, asked: Asked) -> Rows:
        """Return the logits after the prompt and after each output token, for as many rows as the engine recorded."""
        return self._rows(asked, lambda: CHUNK, list)

    def rows_beside_another(self, asked: Asked, seed: int = 0) -> Rows:
        """Return the same, computed in small chunks beside another sequence."""
        rng = random.Random(len(asked.prompt) + 10_000 * seed)

        def neighbour() -> list[Slice]:
            if self._runner.length(1) > CHUNK:
                self._runner.clear(1)
            return [Slice(1, self._runner.length(1), [rng.randrange(10, 250) for _ in range(rng.randrange(1, 9))], 0)]

        return self._rows(asked, lambda: rng.randrange(1, 9), neighbour)

    def _rows(self, asked: Asked, chunk: Callable[[], int], neighbour: Callable[[], list[Slice]]) -> Rows:
        num_rows = len(asked.recorder.rows)
        tokens = [*asked.prompt, *asked.output][: len(asked.prompt) + num_rows - 1]
        first = len(asked.prompt) - 1
        for seq_id in (0, 1):
            self._runner.clear(seq_id)
        rows: Rows = []
        start = 0
        while start < len(tokens):
            part = tokens[start : start + chunk()]
            num_logits = max(0, start + len(part) - max(first, start))
            self._runner.decode([*neighbour(), Slice(0, start, part, num_logits)])
            rows += [self._runner.logits(index).copy() for index in range(num_logits)]
            start += len(part)
        assert len(rows) == num_rows
        return rows

    def is_end(self, token: int) -> bool:
        return self._runner.is_end(token)

    def close(self) -> None:
        self._runner.close()


def difference(rows: Rows, others: Rows) -> float:
    """Return the largest difference between two runs' logits."""
    return max(differences(rows, others), default=0.0)


def differences(rows: Rows, others: Rows) -> list[float]:
    """Return the largest difference between two runs' logits for each row."""
    return [float(np.abs(a - b).max()) for a, b in zip(rows, others, strict=True)]


def check(all_asked: Iterable[Asked], naive: Naive, floor: float = EXACT_FLOOR) -> None:
    """Assert that every token was the likeliest of its row, and that the plain loop computes the same rows.

    When two experts tie, the last bit decides between two correct rows that are far apart. So a row that the plain
    loop's first run does not contain may appear in a later run beside another sequence.
    """
    answered = [asked for asked in all_asked if asked.recorder.rows]
    plain = [naive.rows(asked) for asked in answered]
    measured = max(map(difference, plain, map(naive.rows_beside_another, answered)), default=0.0)
    for asked, rows in zip(answered, plain, strict=True):
        _check_tokens(asked, naive)
        allowed = FACTOR * measured + floor
        apart = differences(asked.recorder.rows, rows)
        for seed in range(1, MAX_RUNS):
            if max(apart) <= allowed:
                break
            others = naive.rows_beside_another(asked, seed)
            apart = list(map(min, apart, differences(asked.recorder.rows, others)))
        assert max(apart) <= allowed, f"logits differ by {max(apart):.3g}, two plain runs' by {measured:.3g}"


def _check_tokens(asked: Asked, naive: Naive) -> None:
    drawn = [int(row.argmax()) for row in asked.recorder.rows]
    is_ended = len(drawn) > 0 and naive.is_end(drawn[-1])
    assert asked.output == (drawn[:-1] if is_ended else drawn)
    assert is_ended or len(asked.output) == asked.max_tokens
    assert not any(naive.is_end(token) for token in asked.output)
