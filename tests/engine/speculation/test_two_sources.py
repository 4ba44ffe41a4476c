"""Two sources for one sequence: each drafts when it is better, and none is forgotten."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from types import MappingProxyType

import pytest

from edgeagent.engine.sequence import Sequence
from edgeagent.engine.speculation.acceptance import Acceptance, Ending, Experience, SharedAcceptance
from edgeagent.engine.speculation.proposals import _NGRAM_SOURCES, MODEL, Drafters, Proposals
from tests.engine.speculation.test_never_costs import measured
from tests.engine.speculation.test_proposals import Repeating, ScriptedDraft, decoding, tiles
from tests.fakes import ALWAYS


def teach(experience: Experience, **rates: float) -> None:
    """Let the counts be those after drafts of the model and of n-grams of which these shares were accepted."""
    sources = {"model": [MODEL], "ngrams": [source for _, source in _NGRAM_SOURCES]}
    for name, rate in rates.items():
        for source in sources[name]:
            counts = experience.shared(source, decoding([1]).spec.sampler.kind).counts
            counts.verified[:] = [min(12.0, 40.0 * rate**position) for position in range(16)]
            counts.accepted[:] = [rate * count for count in counts.verified]


@dataclass
class Text:
    """Two sources that draft for one stream; each source's tokens are accepted at a rate of its own."""

    rates: dict[str, float]
    draft: ScriptedDraft | None = None
    now_s: float = 0.0
    used: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.costs = measured(tiles)
        drafters = Drafters(self.draft, Repeating({"a": 16}), planning_share=ALWAYS)
        self.proposals = Proposals(drafters, self.costs, clock=lambda: self.now_s)
        self.sequence = decoding([5, 6, 7])
        self.chance = random.Random(3)

    def begin_answer(self) -> None:
        self.proposals.release(self.sequence)
        self.sequence = decoding([5, 6, 7])

    def rate(self, num_steps: int) -> float:
        """Run steps; return their rate in tokens per second."""
        began_s, num_tokens = self.now_s, 0
        for _ in range(num_steps):
            drafts = self.proposals.propose([self.sequence]).get("a", ())
            source = self.proposals._states["a"].source
            self.used[source] += 1
            accepted = 0
            while (
                accepted < len(drafts) and self.chance.random() < self.rates["model" if source == MODEL else "ngrams"]
            ):
                accepted += 1
            if drafts:
                self.proposals.observe(self.sequence, len(drafts), accepted)
            self.sequence.num_computed += 1 + accepted
            self.sequence.tokens.extend([1] * (1 + accepted))
            self.sequence.max_length += 1 + accepted
            self.now_s += tiles(1 + len(drafts)) + (source == MODEL) * len(drafts) * 0.003
            num_tokens += 1 + accepted
        return num_tokens / (self.now_s - began_s)


@pytest.mark.parametrize("share", [0.6, 0.8, 0.9])
def test_a_draft_model_that_is_behind_takes_no_drafts_from_the_text(share: float) -> None:
    """The model would be better, but catching up for a minute is not worth it."""
    alone, beside = (Text({"model": 0.95, "ngrams": share}, draft) for draft in (None, ScriptedDraft(0.0005, 60.0)))
    for text in (alone, beside):
        teach(text.proposals.experience, model=0.95, ngrams=share)
    assert beside.rate(200) == pytest.approx(alone.rate(200), rel=0.02)
    assert beside.used[MODEL] == 0 and beside.draft is not None and beside.draft.num_catch_ups == 0


def test_the_text_drafts_while_the_draft_model_catches_up() -> None:
    draft = ScriptedDraft(0.0005, 0.5)
    text = Text({"model": 0.95, "ngrams": 0.6}, draft)
    teach(text.proposals.experience, model=0.95, ngrams=0.6)
    text.rate(100)
    num_catch_ups = draft.num_catch_ups
    assert num_catch_ups > 10 and text.used[MODEL] == text.used[""] == 0
    draft.missing_s = 0.0
    text.rate(50)
    assert text.used[MODEL] > 40 and draft.num_catch_ups == num_catch_ups


def test_a_source_that_became_better_is_found_beside_one_that_pays() -> None:
    text = Text({"model": 0.8, "ngrams": 0.98}, ScriptedDraft(0.003))
    teach(text.proposals.experience, model=0.8, ngrams=0.1)
    text.rate(1000)
    before = text.used[MODEL]
    text.rate(200)
    assert text.used[MODEL] - before <= 4


def test_the_other_source_takes_few_steps() -> None:
    text = Text({"model": 0.9, "ngrams": 0.05}, ScriptedDraft(0.003))
    teach(text.proposals.experience, model=0.9, ngrams=0.05)
    text.rate(2000)
    assert text.used[MODEL] >= 0.97 * 2000


def test_a_sequence_hears_what_others_have_shown() -> None:
    shared = SharedAcceptance(16)
    shared.counts.verified[:3], shared.counts.accepted[:3] = [12.0] * 3, [1.2] * 3
    silent, busy = Acceptance(shared), Acceptance(shared)
    assert silent.chances[0] < 0.2
    for _ in range(200):
        busy.observe(3, 3)
    assert silent.chances[0] > 0.9


class Behind(ScriptedDraft):
    """A draft model that lacks the tokens of all steps in which it did not draft, like a real one."""

    num_lacking = 0
    token_s = 0.001

    def catch_up_s(self, sequence: Sequence) -> float:
        return self.num_lacking * self.token_s if self.num_lacking > 4 else 0.0

    def can_draft_now(self, sequence: Sequence) -> bool:
        return self.num_lacking <= 4

    def draft(
        self, counts: Items[tuple[Sequence, int]], endings: Mapping[str, Ending] = MappingProxyType({})
    ) -> dict[str, tuple[int, ...]]:
        self.num_lacking = 0
        return super().draft(counts, endings)


@pytest.mark.parametrize(
    "share", [0.3, *(pytest.param(share, marks=pytest.mark.slow(seconds=3)) for share in (0.05, 0.6))]
)
def test_a_draft_model_that_became_better_is_found_although_it_must_catch_up(share: float) -> None:
    draft = Behind(0.003)
    text = Text({"model": 0.98, "ngrams": share}, draft)
    teach(text.proposals.experience, model=0.1, ngrams=share)
    for step in range(8000):
        if step % 200 == 0:
            text.begin_answer()
            draft.num_lacking = 100
        before = text.sequence.num_computed
        text.rate(1)
        if text.proposals._states["a"].source != MODEL:
            draft.num_lacking += text.sequence.num_computed - before
    before = text.used[MODEL]
    text.rate(200)
    assert text.used[MODEL] - before > 150


@pytest.mark.parametrize("num_streams", [1, pytest.param(4, marks=pytest.mark.slow(seconds=2)), 8])
def test_worthless_drafts_from_the_text_do_not_hide_a_draft_model(num_streams: int) -> None:
    """Beside many streams, no stream's drafts pay alone."""
    model = Behind(0.003)
    names = [f"s{number}" for number in range(num_streams)]
    drafters = Drafters(model, Repeating(dict.fromkeys(names, 16)), planning_share=ALWAYS)
    proposals = Proposals(drafters, measured(lambda size: 0.010 + 0.001 * size), clock=lambda: 0.0)
    teach(proposals.experience, model=0.8, ngrams=0.03)
    streams = [decoding([5, 6, number], name) for number, name in enumerate(names)]
    for _ in range(20):
        proposals.propose(streams)
    sources = {proposals._states[name].source for name in names}
    assert sources == {MODEL}
