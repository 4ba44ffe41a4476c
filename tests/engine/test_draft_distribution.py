"""Drafts do not change sampling: the tokens have the target's own probabilities (Pearson's chi-square test)."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Items
from types import MappingProxyType

import numpy as np
import pytest

from edgeagent.engine import verification
from edgeagent.engine.engine import Engine
from edgeagent.engine.runner import Logits
from edgeagent.engine.sampling.params import ResolvedSampling
from edgeagent.engine.sampling.sampler import Sampler, draw_rows
from edgeagent.engine.sequence import Sequence, SequenceSpec
from edgeagent.engine.speculation import proposals
from edgeagent.engine.speculation.acceptance import Ending
from edgeagent.engine.speculation.allocation import Offer
from edgeagent.engine.speculation.draft_model import DraftModel
from edgeagent.engine.speculation.proposals import Drafters
from tests.engine.support import make_engine, run
from tests.fakes import ALWAYS, FakeRunner

NUM_VOCAB = 6
NUM_TOKENS = 3000
LOGITS = np.random.default_rng(7).normal(0.0, 1.5, (NUM_VOCAB, NUM_VOCAB)).astype(np.float32)
# Six rows of probabilities, each of which sums to one: 30 degrees of freedom. One correct draw in a thousand exceeds
# this value.
MOST = 59.7


@pytest.fixture(autouse=True)
def _always_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draft in each step, whether or not it pays."""

    def allocate(offers: Items[Offer], *_: object) -> tuple[list[int], float]:
        counts = [min(3, len(offer.chances)) for offer in offers]
        return counts, 2.0 if any(counts) else 1.0

    monkeypatch.setattr(proposals, "allocate", allocate)


class Chain(FakeRunner):
    """A model whose next token depends on the last token only."""

    def _logits_after(self, held: Items[int]) -> Logits:
        logits: Logits = LOGITS[held[-1]]
        return logits


class Guess(DraftModel):
    """Proposes tokens by a rule about the last token."""

    def __init__(self, rule: str) -> None:
        super().__init__(Chain(num_vocab=NUM_VOCAB, num_cells=4096, end_token=-1))
        self._rule, self._random = rule, np.random.default_rng(3)

    def draft(
        self, counts: Items[tuple[Sequence, int]], endings: Mapping[str, Ending] = MappingProxyType({})
    ) -> dict[str, tuple[int, ...]]:
        drafts = super().draft(counts, endings)
        match self._rule:
            case "wrong":  # the least likely token
                return {name: tuple(int(LOGITS[token].argmin()) for token in each) for name, each in drafts.items()}
            case "random":
                return {
                    name: tuple(map(int, self._random.integers(0, NUM_VOCAB, len(each))))
                    for name, each in drafts.items()
                }
        return drafts


def drawn(rule: str | None) -> list[int]:
    """Return the tokens of one long sampled answer."""
    drafters = None if rule is None else Drafters(Guess(rule), max_tokens=4, planning_share=ALWAYS)
    engine = Engine(Chain(num_vocab=NUM_VOCAB, num_cells=4096, end_token=-1), max_running=1, drafters=drafters)
    sampler = Sampler(ResolvedSampling(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=11), NUM_VOCAB)
    sequence = engine.add(SequenceSpec("a", [0], sampler, max_tokens=NUM_TOKENS))
    while engine.has_work:
        engine.step()
    if rule is not None:
        assert sequence.num_drafted > NUM_TOKENS / 2
    return list(sequence.tokens)


def chi_square(tokens: list[int]) -> float:
    """Return the chi-square distance between each token's successors and the target's probabilities."""
    counts = np.zeros((NUM_VOCAB, NUM_VOCAB))
    np.add.at(counts, (tokens[:-1], tokens[1:]), 1)
    chances = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
    expected = chances * counts.sum(axis=1, keepdims=True)
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.daily("random", seconds=2)
@pytest.mark.parametrize("rule", [None, "right", pytest.param("wrong", marks=pytest.mark.slow(seconds=2)), "random"])
def test_tokens_have_the_probabilities_of_the_target(rule: str | None) -> None:
    tokens = drawn(rule)
    assert len(tokens) == 1 + NUM_TOKENS
    assert chi_square(tokens) < MOST


def test_a_bias_would_be_seen() -> None:
    """Every tenth token is replaced with the likeliest one."""
    tokens = drawn(None)
    for place in range(1, len(tokens), 10):
        tokens[place] = int(LOGITS[tokens[place - 1]].argmax())
    assert chi_square(tokens) > MOST


def test_streams_beside_a_draft_are_drawn_together_and_get_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    together: list[int] = []

    def noted(samplers: Items[Sampler], rows: Logits) -> list[int | None]:
        together.append(len(samplers))
        return draw_rows(samplers, rows)

    monkeypatch.setattr(verification, "draw_rows", noted)
    answers = []
    for num_drafts in (0, 3):
        together.clear()
        engine = make_engine(FakeRunner(end_token=-1), draft=FakeRunner(end_token=-1))
        for stream in range(4):
            sampler = Sampler(ResolvedSampling(temperature=9.0, top_k=5, top_p=1.0, min_p=0.0, seed=stream), 50)
            draft_tokens = num_drafts if stream == 1 else 0
            num_tokens = 80 if stream == 1 else 20  # the one with drafts ends last
            spec = SequenceSpec(f"{stream}", [5 + stream, 7], sampler, max_tokens=num_tokens, draft_tokens=draft_tokens)
            engine.add(spec)
        answers.append(run(engine))
        assert (3 in together, 4 in together) == (num_drafts > 0, True)
    assert answers[0] == answers[1]
