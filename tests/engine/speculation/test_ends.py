"""Drafted tokens that end an answer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgeagent.engine.costs.cost_model import CostModel
from edgeagent.engine.runner import Logits
from edgeagent.engine.sequence import SequenceSpec
from edgeagent.engine.speculation.acceptance import Confidence, Ending
from edgeagent.engine.speculation.proposals import MODEL, Drafters, Proposals
from tests.engine.speculation.test_proposals import Repeating, ScriptedDraft, decoding
from tests.engine.support import END, greedy, make_engine
from tests.fakes import FakeRunner


class Ending5(FakeRunner):
    """A model whose answers have five tokens."""

    def _logits_after(self, prefix: list[int]) -> Logits:
        logits = np.zeros(self.num_vocab, np.float32)
        logits[END if len(prefix) >= 15 else 1 + (7 * prefix[0] + 3 * len(prefix)) % 49] = 9.0
        return logits


def test_a_drafted_end_counts_as_accepted_and_nothing_is_drafted_behind_it() -> None:
    target, draft = Ending5(num_cells=512), Ending5(num_cells=512)
    engine = make_engine(target, draft=draft)
    for number in range(40):
        sequence = engine.add(SequenceSpec(f"s{number}", [number + 1] * 10, greedy(), max_tokens=50, draft_tokens=4))
        while engine.num_live:
            engine.step()
        assert sequence.num_output == 5 and sequence.num_drafted == sequence.num_accepted
    (counts,) = engine.status().drafts
    assert counts.num_verified == counts.num_accepted
    shared = engine.proposals.experience.shared(MODEL, sequence.spec.sampler.kind)
    assert shared.counts.verified == shared.counts.accepted != [0.0] * len(shared.counts.verified)


def test_the_text_is_not_drafted_behind_an_end() -> None:
    repeating = Repeating({"a": 16})
    tokens, _ = repeating.find(decoding([5, 6, 7]), 16)
    ends = {tokens[2]}
    proposals = Proposals(Drafters(None, repeating), CostModel(64), is_end=lambda token: token in ends)
    sequence = decoding([5, 6, 7])
    sequence.spec = replace(sequence.spec, draft_tokens=16)
    first = next(place for place, token in enumerate(tokens) if token in ends)
    assert proposals.propose([sequence]) == {"a": tokens[: first + 1]}


def test_what_follows_an_accepted_end_is_neither_accepted_nor_refused() -> None:
    """A draft model may not know the token that ends the target's answers, and draft on behind it."""
    proposals = Proposals(Drafters(ScriptedDraft(0.001)), CostModel(64))
    sequence = decoding([5, 6, 7])
    sequence.spec = replace(sequence.spec, draft_tokens=4)
    assert len(proposals.propose([sequence])["a"]) == 4
    proposals.observe(sequence, 4, 2, has_ended=True)
    counts = proposals.experience.shared(MODEL, sequence.spec.sampler.kind).counts
    assert counts.verified == counts.accepted == [1.0, 1.0, *[0.0] * 14]
    confidence = proposals.experience.confidence(sequence.spec.sampler.kind)
    assert sum(confidence._verified) == sum(confidence._accepted) == pytest.approx(1.99)
    assert (sequence.num_drafted, sequence.num_accepted) == (4, 2)


def test_a_draft_ends_with_a_token_that_ends_the_targets_answer() -> None:
    ending = Ending(Confidence(), [], lambda token: token == 7)
    logits = np.zeros(50, np.float32)
    logits[6] = logits[7] = 5.0
    assert ending.record_and_decide(logits, 6)
    assert not ending.record_and_decide(logits, 7) and not ending.is_early
