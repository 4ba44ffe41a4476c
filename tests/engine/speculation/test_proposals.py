"""The choice of drafts against scripted costs and chances: it finds the best length, and comes back from a change."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from edgeagent.engine.cost_model import CostModel
from edgeagent.engine.sampling.sampler import ResolvedSampling, Sampler
from edgeagent.engine.sequence import Sequence, SequenceSpec
from edgeagent.engine.speculation.draft_model import DraftModel
from edgeagent.engine.speculation.ngram import NgramDrafter
from edgeagent.engine.speculation.proposals import Drafters, Proposals
from edgeagent.engine.step_shape import StepShape
from tests.fakes import FakeRunner


def decoding(tokens: list[int], name: str = "a", max_length: int = 1 << 20) -> Sequence:
    spec = SequenceSpec(name, tokens[:-1], Sampler(ResolvedSampling(), 50))
    return Sequence(spec, array("i", tokens), len(tokens) - 1, max_length, 0, seq_id=0, num_computed=len(tokens) - 1)


class ScriptedDraft(DraftModel):
    """Drafts at a given price, and lacks nothing."""

    def __init__(self, step_s: float, catch_up_s: float = 0.0) -> None:
        super().__init__(FakeRunner())
        self.step_s, self.missing_s = step_s, catch_up_s
        self.num_catch_ups = 0

    def steps_s(self, num_sequences: int, depth: int) -> list[float]:
        return [0.0] + [self.step_s] * num_sequences

    def catch_up_s(self, sequence: Sequence) -> float:
        return self.missing_s

    def draft(self, counts: Items[tuple[Sequence, int]]) -> dict[str, tuple[int, ...]]:
        self.num_catch_ups += sum(count == 0 for _, count in counts)
        return {sequence.id: (1,) * count for sequence, count in counts if count}


@dataclass
class Machine:
    """A target whose steps take scripted times, and a text in which drafts stand with a scripted chance."""

    target_s: Callable[[int], float]
    rate: float
    draft: ScriptedDraft = field(default_factory=lambda: ScriptedDraft(0.002))
    now_s: float = 0.0
    num_tokens: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(2)
        costs = self.costs = CostModel(512)
        for size in (1, 2, 4, 8, 16):
            costs.observe(StepShape.alone(size, 0), self.target_s(size))
        self.proposals = Proposals(Drafters(self.draft), costs)
        self.sequence = decoding([5, 6, 7])

    def run(self, num_steps: int) -> list[int]:
        """Make steps and return how many tokens were drafted in each."""
        lengths = []
        for _ in range(num_steps):
            depth = self.sequence.num_computed
            drafts = self.proposals.propose([self.sequence], depth).get("a", ())
            stood = 0
            while stood < len(drafts) and self.chance.random() < self.rate:
                stood += 1
            step_s = self.target_s(1 + len(drafts))
            self.costs.observe(StepShape.alone(1 + len(drafts), depth), step_s)
            if drafts:
                self.proposals.observe(self.sequence, len(drafts), stood)
            self.sequence.tokens.extend([1] * (1 + stood))
            self.sequence.num_computed += 1 + stood
            self.now_s += step_s + len(drafts) * self.draft.step_s
            self.num_tokens += 1 + stood
            lengths.append(len(drafts))
        return lengths

    def tokens_per_s(self, num_steps: int = 400) -> float:
        """Return the rate of some more steps."""
        before_s, before = self.now_s, self.num_tokens
        self.run(num_steps)
        return (self.num_tokens - before) / (self.now_s - before_s)

    def best(self) -> float:
        """Return the expected rate of the best fixed length."""
        return max(
            sum(self.rate**index for index in range(count + 1)) / (self.target_s(1 + count) + count * self.draft.step_s)
            for count in range(17)
        )


def tiles(num_tokens: int) -> float:
    """A processor that computes four tokens in the time of one."""
    return 0.025 * (1 + (num_tokens - 1) // 4 * 0.6)


def linear(num_tokens: int) -> float:
    """One that is bound by arithmetic."""
    return 0.010 * num_tokens


def test_it_finds_the_best_length_within_fifty_steps() -> None:
    for target_s in (tiles, linear):
        for rate in (0.05, 0.3, 0.6, 0.8, 0.95, 1.0):
            machine = Machine(target_s, rate)
            machine.run(50)
            # What one step in a hundred costs that only tries, and the noise of what stands.
            assert machine.tokens_per_s() > 0.93 * machine.best(), (target_s.__name__, rate)


def test_it_comes_back_from_a_change() -> None:
    machine = Machine(tiles, 0.95)
    assert machine.run(50)[-1] >= 3
    machine.rate = 0.0
    machine.run(60)
    assert machine.tokens_per_s() > 0.96 * machine.best()
    machine.rate = 0.95
    machine.run(600)  # until a trial shows it
    assert machine.tokens_per_s() > 0.9 * machine.best()


def test_drafts_that_never_stand_cost_a_hundredth() -> None:
    machine = Machine(linear, 0.0)
    machine.run(100)
    assert machine.tokens_per_s(2000) > 0.985 * machine.best()


def test_a_long_prompt_is_drafted_for_only_once_the_answer_is_long_enough() -> None:
    machine = Machine(tiles, 0.9, ScriptedDraft(0.002, catch_up_s=2.0))
    machine.run(20)
    assert not machine.draft.num_catch_ups, "two seconds for an answer that has lasted one"
    machine.run(400)
    assert machine.draft.num_catch_ups


def test_a_text_that_repeats_itself_needs_no_draft_model() -> None:
    proposals = Proposals(Drafters(ngrams=NgramDrafter()), CostModel(64))
    sequence = decoding([1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3])
    assert proposals.propose([sequence]) == {"a": (4, 5, 6, 7, 8, *([1, 2, 3, 4, 5, 6, 7, 8] * 2)[:11])}
    proposals.observe(sequence, 16, 8)
    assert (sequence.num_drafted, sequence.num_accepted) == (16, 8)
    proposals.release(sequence)


def test_a_sequence_gets_no_more_than_it_has_room_for() -> None:
    proposals = Proposals(Drafters(ScriptedDraft(0.001)), CostModel(64))
    sequence = decoding([5, 6, 7], max_length=6)
    assert proposals.propose([sequence]) == {"a": (1, 1)}
    assert proposals.propose([decoding([5, 6, 7], "b", max_length=4)]) == {}


def test_none_are_drafted_where_none_may_be() -> None:
    proposals = Proposals(Drafters(ScriptedDraft(0.001), NgramDrafter(), max_tokens=0), CostModel(64))
    assert proposals.propose([decoding([1, 2, 3, 4, 1, 2, 3])]) == {}
