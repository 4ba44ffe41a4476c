"""The costs of an engine's steps."""

from __future__ import annotations

from array import array

import pytest

from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.costs.cost_model import CostModel
from edgeagent.engine.costs.step_shape import StepShape
from edgeagent.engine.sampling.params import ResolvedSampling
from edgeagent.engine.sampling.sampler import Sampler
from edgeagent.engine.scheduler import Work
from edgeagent.engine.sequence import Sequence, SequenceSpec
from edgeagent.engine.step_costs import StepCosts
from tests.fakes import FakeRunner


def test_a_step_without_its_drafts_has_neither_their_tokens_nor_their_attention() -> None:
    runner, costs = FakeRunner(), CostModel(64)
    for size in (1, 2, 4, 8, 16):
        for depth in (0, 100, 1000):
            costs.observe(StepShape.alone(size, depth), 0.001 * size * (1 + depth / 100))
    spec = SequenceSpec("a", [5] * 999, Sampler(ResolvedSampling(), 50))
    sequence = Sequence(spec, array("i", [5] * 1001), 1000, 2000, 0, seq_id=0, num_computed=1000)
    step_costs = StepCosts(runner, PrefixStore(runner, None, costs), 0.1)
    plain = Work(sequence, 1, (), num_logits=1, num_scored=0)
    drafted = Work(sequence, 1, (6,) * 15, num_logits=16, num_scored=0)
    assert step_costs.shape([drafted]).num_tokens == 16
    assert step_costs.plain_s([drafted]) == pytest.approx(step_costs.plain_s([plain]))
