"""Computes the shapes of an engine's batches, their expected times, and token rates from measured steps."""

from __future__ import annotations

import math
from collections.abc import Collection
from collections.abc import Sequence as Items

from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.costs.cost_model import StepShape
from edgeagent.engine.runner import Runner
from edgeagent.engine.scheduler import MAX_GROWTH, MAX_STEP_S, MIN_SLOW_CHUNK, BatchPart
from edgeagent.engine.sequence import Rank, Sequence

_NEARLY = 4  # a prompt's chunks may be this many times larger than measured steps, for its rate to be known
_STEPS_PER_RATES = 8  # after the first steps, `rates` is updated once in this many steps: rates change slowly


class StepCosts:
    """Computes the shapes of one runner's batches and their expected times."""

    def __init__(self, runner: Runner, prefixes: PrefixStore, itl_budget_s: float) -> None:
        self._runner = runner
        self._prefixes = prefixes
        self._itl_budget_s = itl_budget_s
        self._num_steps = 0
        self.rates = self._measured_rates(())
        """The expected rates of an additional sequence; see `_measured_rates`. Other threads may read this."""

    def shape(self, parts: Items[BatchPart]) -> StepShape:
        shape = StepShape.of([part.shape for part in parts], self._prefixes.slots.num_cells_used)
        # Rows of logits that score a prompt count as tokens: otherwise their time would be attributed to the chunks of
        # other prompts.
        num_rows = round(self._runner.row_cost * sum(part.num_scored for part in parts))
        return shape._replace(num_tokens=shape.num_tokens + num_rows) if num_rows else shape

    def padded(self, parts: Items[BatchPart]) -> tuple[StepShape, int]:
        """Return the shape in which to compute a batch, and its `min_tokens` (see Runner.decode).

        If padding would make the batch faster, the shape includes it. Otherwise `min_tokens` is 0.
        """
        shape = self.shape(parts)
        if any(part.num_scored or part.sequence.span is not None for part in parts):
            return shape, 0
        is_urgent = any(part.sequence.rank is Rank.REALTIME and not part.sequence.is_decoding for part in parts)
        span = sum(part.sequence.num_computed for part in parts)
        streams = (part.sequence for part in parts if part.sequence.is_decoding)
        target_s = min((stream.budget_s for stream in streams), default=math.inf)
        padded = self._prefixes.costs.padded(shape, span, is_urgent=is_urgent, target_s=target_s)
        if padded == shape or padded.num_tokens > self._runner.num_cells - shape.num_cells:
            return shape, 0
        return padded, padded.num_tokens

    def plain_s(self, parts: Items[BatchPart]) -> float | None:
        """Return the expected seconds of a step with these parts, but without their drafts.

        Return None if nothing was measured, or if a sequence of the step does not decode.
        """
        if not all(part.sequence.is_decoding for part in parts):
            return None
        return self._prefixes.costs.predict(self.shape([part._replace(drafts=()) for part in parts]))

    def observe(self, shape: StepShape, step_s: float, running: Collection[Sequence]) -> None:
        """Record how long a step took, and update `rates` if that is due.

        `shape`: what `padded` returned for this step. `running`: the sequences that run now.
        """
        costs = self._prefixes.costs
        costs.record(shape, step_s)
        self._num_steps += 1
        if self._num_steps < _STEPS_PER_RATES or self._num_steps % _STEPS_PER_RATES == 0:
            self.update_rates(running)

    def update_rates(self, running: Collection[Sequence]) -> None:
        self.rates = self._measured_rates(running)

    def _measured_rates(self, running: Collection[Sequence]) -> tuple[float, float, float]:
        """Return a new value of `rates`. A rate is 0 if it is unknown.

        1. The prompt tokens per second while no sequence decodes.
        2. The same beside the running sequences, or beside one sequence if none runs. A prompt then gets only the part
           of the inter-token-latency budget that they leave.
        3. The seconds per generated token.

        The rate of a prompt is unknown until steps of nearly the size of its chunks were measured: rates of smaller
        steps are too low.
        """
        depths = [sequence.num_computed for sequence in running]
        depth = max(depths, default=0)
        base = StepShape.of([(1, each) for each in depths], self._prefixes.slots.num_cells_used if depths else 0)
        beside = base if depths else StepShape(1, 0, 0.0)
        token_s = self._prefixes.costs.predict_if_reliable(base.plus(1, depth))
        return (
            self._prompt_rate(StepShape(0, base.num_cells, 0.0), 0, MAX_STEP_S),
            self._prompt_rate(beside, depth, self._itl_budget_s),
            token_s or 0.0,
        )

    def _prompt_rate(self, base: StepShape, depth: int, limit_s: float) -> float:
        """Return how many prompt tokens per second are computed in steps of `base` that take at most `limit_s`."""
        costs = self._prefixes.costs
        chunk = costs.max_tokens_within(limit_s, base, depth, MIN_SLOW_CHUNK, max_growth=MAX_GROWTH)
        size = min(chunk, costs.largest - base.num_tokens)
        step_s = costs.predict(base.plus(size, depth)) if size * _NEARLY >= chunk else None
        return size / step_s if step_s else 0.0
