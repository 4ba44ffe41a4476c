"""The costs of an engine's steps: the shapes of its batches, and the rates that follow from measured steps."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Items

from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.costs.step_shape import StepShape
from edgeagent.engine.runner import Runner
from edgeagent.engine.scheduler import Work
from edgeagent.engine.sequence import Sequence

_STEPS_PER_RATES = 8  # measured rates change slowly


class StepCosts:
    """Computes the shapes of one runner's batches and their expected times."""

    def __init__(self, runner: Runner, prefixes: PrefixStore, itl_budget_s: float) -> None:
        self._runner = runner
        self._prefixes = prefixes
        self._itl_budget_s = itl_budget_s
        self._num_steps = 0
        self.rates = self._measured_rates(())
        """Prompt tokens per second, and seconds per token of one more sequence; each 0 if none were measured.

        Other threads may read it.
        """

    def shape(self, works: Items[Work], *, with_drafts: bool = True) -> StepShape:
        """Return the shape of a batch."""
        num_tokens = sum(work.num_tokens + with_drafts * len(work.drafts) for work in works)
        # Rows of logits that score a prompt count too: otherwise their time would be attributed to other prompts'
        # chunks.
        num_tokens += round(self._runner.row_cost * sum(work.num_scored for work in works))
        return StepShape(num_tokens, self._prefixes.num_cells_used, sum(work.num_pairs for work in works))

    def plain_s(self, works: Items[Work]) -> float | None:
        """Return the expected seconds of a step without its drafts; None if a sequence of the step does not decode."""
        if not all(work.sequence.is_decoding for work in works):
            return None
        return self._prefixes.costs.predict(self.shape(works, with_drafts=False))

    def observe(self, shape: StepShape, step_s: float, running: Collection[Sequence]) -> None:
        """Note how long a step took, and update the rates for the sequences that run after it."""
        self._prefixes.costs.observe(shape, step_s)
        self._num_steps += 1
        if self._num_steps < _STEPS_PER_RATES or self._num_steps % _STEPS_PER_RATES == 0:
            self.rates = self._measured_rates(running)

    def _measured_rates(self, running: Collection[Sequence]) -> tuple[float, float]:
        """Return the new `rates`.

        If streams run, a prompt gets the part of each step that the inter-token-latency budget leaves.
        """
        costs = self._prefixes.costs
        depths = [sequence.num_computed for sequence in running]
        beside = StepShape(len(depths), self._prefixes.num_cells_used, float(sum(depths)))
        depth, size = max(depths, default=0), self._runner.max_batch
        if depths:
            size = costs.max_tokens_within(self._itl_budget_s, beside, depth, 1)
        step_s = costs.predict(beside.plus(size, depth))
        token_s = costs.measured(beside.plus(1, depth))
        return size / step_s if step_s else 0.0, token_s or 0.0
