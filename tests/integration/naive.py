"""The engine's law as an instrument: what a plain loop computes for the tokens that an engine gave, row by row.

The engine's own tokens are fed to the plain loop, so that everything is compared, behind a token in which the two would
part too. How far apart two right runs may be is measured: the plain loop computes every answer twice, the second time
in small chunks, beside another sequence that comes and goes and leaves holes between the cells.
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
# Right runs differ by up to this many times what the plain loop's own two runs differ by, and by `floor` more: a last
# bit may or may not flip the rounding of a cell or of a quantized value. One wrong token in the middle of a prompt
# makes a difference of 0.16 to 7.
FACTOR = 3.0
FLOOR = 0.05
EXACT_FLOOR = 1e-3
# The plain loop's runs in which a row may be found. Of a tie between two experts each has its side in about half.
MAX_RUNS = 12


class Recorder(Sampler):
    """A greedy sampler that keeps the rows that it was shown."""

    def __init__(self, model: Model) -> None:
        super().__init__(resolve(SamplingParams(temperature=0.0), model.default_sampling()), model.num_tokens)
        self.rows: Rows = []

    def sample(self, logits: NDArray[np.float32]) -> Sampled:
        self.rows.append(np.array(logits))
        return super().sample(logits)


@dataclass(slots=True)
class Asked:
    """A request, what came of it so far, and the rows that its tokens were drawn from."""

    prompt: list[int]
    max_tokens: int
    recorder: Recorder
    output: list[int]


class Naive:
    """A plain loop in a context of its own: the whole prefix in chunks, without a cache."""

    def __init__(self, model: Model, config: EngineConfig) -> None:
        config = config.model_copy(update={"parallel": 2, "batch": 2 * CHUNK, "ctx": config.ctx + 2 * CHUNK})
        self._runner = LlamaRunner(model, config)

    def rows(self, asked: Asked) -> Rows:
        """Return the logits behind the prompt and behind each token of the output, as far as the engine has them."""
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
    """Return the largest difference of two runs' logits."""
    return max(differences(rows, others), default=0.0)


def differences(rows: Rows, others: Rows) -> list[float]:
    """Return the largest difference of two runs' logits, row by row."""
    return [float(np.abs(a - b).max()) for a, b in zip(rows, others, strict=True)]


def check(all_asked: Iterable[Asked], naive: Naive, floor: float = EXACT_FLOOR) -> None:
    """Assert that every token was the likeliest of its row, and that the plain loop computes the same rows.

    Where two experts tie, a last bit decides between two right rows that are far apart. So a row that the plain loop's
    first run does not have may be one that a later run beside another sequence has.
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
