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
from edgeagent.engine.llama.model import Model
from edgeagent.engine.runner import Slice
from edgeagent.engine.sampling.params import resolve
from edgeagent.engine.sampling.sampler import Sampled, Sampler
from edgeagent.types import SamplingParams, replace
from tests.integration.router import Experts, Router, Swaps, WatchedRunner

Rows = list[NDArray[np.float32]]

CHUNK = 32
# Correct runs may differ by up to this factor times the difference between the plain loop's own two runs, plus `floor`:
# the last bit may change how a cell or a quantized value is rounded. One wrong token within a prompt makes a difference
# of 0.16 to 7.
FACTOR = 3.0
FLOOR = 0.05
EXACT_FLOOR = 1e-3
# How many further runs of the plain loop an answer is compared with that is too far from the first. A last bit may
# decide between two groups of correct runs that are further apart than the runs of one group. Measured on an AVX2
# machine, with windows and exact cells: 0.011 and 0.0005, and every sixth run was in the smaller group.
MORE_RUNS = 40


class Recorder(Sampler):
    """A greedy sampler that keeps every row of logits."""

    def __init__(self, model: Model) -> None:
        super().__init__(resolve(SamplingParams(temperature=0.0), model.default_sampling()), model.num_tokens)
        self.rows: Rows = []

    def sample(self, logits: NDArray[np.float32], drawn: int | None = None) -> Sampled:
        self.rows.append(np.array(logits))
        return super().sample(logits, drawn)


@dataclass(slots=True)
class Asked:
    """A request, its output so far, and the rows from which its tokens were drawn."""

    prompt: list[int]
    max_tokens: int
    recorder: Recorder
    output: list[int]


class Run:
    """What the plain loop computed for a request: the rows of logits, and the experts' logits that led to them."""

    def __init__(self, rows: Rows, experts: Experts, first: int) -> None:
        """`first`: the position of the first row's token."""
        self.rows, self.experts, self._first = rows, experts, first

    def difference(self, other: Run) -> float:
        """Return the largest difference between two runs' rows, up to where they chose other experts."""
        end = self.experts.first_difference(other.experts) - self._first
        return max(differences(self.rows[: max(0, end)], other.rows[: max(0, end)]), default=0.0)


class Naive:
    """A plain loop in its own context: the whole prefix in chunks, without a cache."""

    def __init__(self, model: Model, config: EngineConfig) -> None:
        self.model = model
        config = replace(config, parallel=2, batch=2 * CHUNK, ctx=config.ctx + 2 * CHUNK)
        self._router = Router(model)
        self._runner = WatchedRunner(model, config, self._router)

    def rows(self, asked: Asked) -> Rows:
        """Return the logits after the prompt and after each output token, for as many rows as the engine recorded."""
        return self.run(asked).rows

    def run(self, asked: Asked, swaps: Swaps = frozenset()) -> Run:
        """Compute the rows of a request. `swaps`: the ties between experts that are decided the other way."""
        return self._run(asked, lambda: CHUNK, list, swaps)

    def run_beside_another(self, asked: Asked, number: int = 0) -> Run:
        """Compute the same in small chunks beside another sequence. Each `number` gives other chunks and neighbours."""
        rng = random.Random(len(asked.prompt) + (number << 16))

        def neighbour() -> list[Slice]:
            if self._runner.length(1) > CHUNK:
                self._runner.clear(1)
            return [Slice(1, self._runner.length(1), [rng.randrange(10, 250) for _ in range(rng.randrange(1, 9))], 0)]

        return self._run(asked, lambda: rng.randrange(1, 9), neighbour)

    def _run(
        self,
        asked: Asked,
        chunk: Callable[[], int],
        neighbour: Callable[[], list[Slice]],
        swaps: Swaps = frozenset(),
    ) -> Run:
        num_rows = len(asked.recorder.rows)
        tokens = [*asked.prompt, *asked.output][: len(asked.prompt) + num_rows - 1]
        first = len(asked.prompt) - 1
        for seq_id in (0, 1):
            self._runner.clear(seq_id)
        self._router.begin(swaps)
        rows: Rows = []
        start = 0
        while start < len(tokens):
            part = tokens[start : start + chunk()]
            num_logits = max(0, start + len(part) - max(first, start))
            self._router.expect(range(start, start + len(part)))
            self._runner.decode([*neighbour(), Slice(0, start, part, num_logits)])
            rows += [self._runner.logits(index).copy() for index in range(num_logits)]
            start += len(part)
        assert len(rows) == num_rows
        return Run(rows, self._router.experts, first)

    def is_end(self, token: int) -> bool:
        return self._runner.is_end(token)

    def close(self) -> None:
        self._runner.close()


def differences(rows: Rows, others: Rows) -> list[float]:
    """Return the largest difference between two runs' logits for each row."""
    return [float(np.abs(a - b).max()) for a, b in zip(rows, others, strict=True)]


def check(all_asked: Iterable[Asked], naive: Naive, floor: float = EXACT_FLOOR) -> None:
    """Assert that every token was the likeliest of its row, and that the plain loop computes the same rows.

    What is as near as `floor` to the plain loop's run is right whatever correct runs differ by, which is not measured
    then. An answer that is too far from the plain loop's run must be near one of its further runs (MORE_RUNS).

    If experts tie, the last bit decides between two correct rows that are far apart. So a row that the plain loop's run
    does not contain may appear in a run that decides such a tie the other way. The lead of one expert over another is a
    tie if it is not larger than the allowed difference of the router's own logits.
    """
    answered = [asked for asked in all_asked if asked.recorder.rows]
    plain = [naive.run(asked) for asked in answered]
    for asked in answered:
        _check_tokens(asked, naive)
    far = [
        (asked, run)
        for asked, run in zip(answered, plain, strict=True)
        if max(differences(asked.recorder.rows, run.rows)) > floor
    ]
    if not far:
        return
    others = [naive.run_beside_another(asked) for asked in answered]
    measured = max(map(Run.difference, plain, others))
    tie = FACTOR * max(run.experts.difference(other.experts) for run, other in zip(plain, others, strict=True))
    allowed = FACTOR * measured + floor
    for asked, run in far:
        apart = _decide_ties(asked, run, naive, tie, allowed)
        for number in range(MORE_RUNS):
            if max(apart) <= allowed:
                break
            other = naive.run_beside_another(asked, number)
            apart = min(apart, differences(asked.recorder.rows, other.rows), key=max)
        assert max(apart) <= allowed, f"logits differ by {max(apart):.3g}, two plain runs' by {measured:.3g}"


def _decide_ties(asked: Asked, run: Run, naive: Naive, tie: float, allowed: float) -> list[float]:
    """Return for each row how far it is from the nearest of the plain loop's runs, which decide ties differently."""
    nearest = apart = differences(asked.recorder.rows, run.rows)
    swaps: Swaps = frozenset()
    tried: Swaps = frozenset()
    while max(nearest) > allowed:
        # A row depends on the ties at its own token and before it.
        wrong = next(index for index, each in enumerate(nearest) if each > allowed)
        ties = [each for each in run.experts.ties(tie, len(asked.prompt) + wrong) if each not in tried]
        if not ties:
            break
        tried |= {ties[0]}
        other = naive.run(asked, swaps | {ties[0]})
        others_apart = differences(asked.recorder.rows, other.rows)
        nearest = list(map(min, nearest, others_apart))
        if sum(each > allowed for each in others_apart) < sum(each > allowed for each in apart):
            run, apart, swaps = other, others_apart, swaps | {ties[0]}
    return nearest


def _check_tokens(asked: Asked, naive: Naive) -> None:
    drawn = [int(row.argmax()) for row in asked.recorder.rows]
    is_ended = len(drawn) > 0 and naive.is_end(drawn[-1])
    assert asked.output == (drawn[:-1] if is_ended else drawn)
    assert is_ended or len(asked.output) == asked.max_tokens
    assert not any(naive.is_end(token) for token in asked.output)
