"""The choice of drafts with scripted costs and chances: it finds the best length, and recovers after a change."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field, replace
from itertools import repeat
from types import MappingProxyType
from unittest.mock import Mock

import numpy as np
import pytest

from edgeagent.engine.costs.cost_model import CostModel, StepShape
from edgeagent.engine.sampling.params import ResolvedSampling
from edgeagent.engine.sampling.sampler import Sampler
from edgeagent.engine.sequence import Sequence, SequenceSpec
from edgeagent.engine.speculation.acceptance import Ending
from edgeagent.engine.speculation.draft_model import DraftModel
from edgeagent.engine.speculation.ngram import NgramDrafter
from edgeagent.engine.speculation.proposals import _NGRAM_SOURCES, MODEL, Drafters, Proposals
from tests.fakes import FakeRunner


def decoding(tokens: list[int], name: str = "a", max_length: int = 1 << 20) -> Sequence:
    spec = SequenceSpec(name, tokens[:-1], Sampler(ResolvedSampling(), 50))
    return Sequence(spec, array("i", tokens), len(tokens) - 1, max_length, 0, seq_id=0, num_computed=len(tokens) - 1)


def still(drafters: Drafters, costs: CostModel) -> Proposals:
    """Return proposals on a clock that stands still: planning takes no time, however busy this machine is."""
    return Proposals(drafters, costs, clock=lambda: 0.0)


class ScriptedDraft(DraftModel):
    """A draft model with a fixed cost that is never behind."""

    def __init__(self, step_s: float, catch_up_s: float = 0.0, probabilities: Iterator[float] | None = None) -> None:
        super().__init__(FakeRunner())
        self.probabilities = repeat(0.9) if probabilities is None else probabilities
        self.step_s, self.missing_s = step_s, catch_up_s
        self.num_catch_ups = 0

    def steps_s(self, num_sequences: int, depth: int) -> list[float]:
        return [0.0] + [self.step_s] * num_sequences

    def catch_up_s(self, sequence: Sequence) -> float:
        return self.missing_s

    def draft(
        self, counts: Items[tuple[Sequence, int]], endings: Mapping[str, Ending] = MappingProxyType({})
    ) -> dict[str, tuple[int, ...]]:
        self.num_catch_ups += sum(count == 0 for _, count in counts)
        return {sequence.id: (1,) * self._length(endings[sequence.id], count) for sequence, count in counts if count}

    def _length(self, ending: Ending, count: int) -> int:
        """Return the number of drafted tokens; each has the next probability of the script."""
        for number in range(1, count + 1):
            probability = next(self.probabilities)
            if not ending.record_and_decide(np.log(np.array([1 - probability, probability], np.float32)), 1):
                return number
        return count


@dataclass
class Machine:
    """A target with scripted step times, and a text that accepts drafts with a scripted chance."""

    target_steps_s: Callable[[int], float]
    rate: float
    draft: ScriptedDraft = field(default_factory=lambda: ScriptedDraft(0.002))
    now_s: float = 0.0
    num_tokens: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(2)
        costs = self.costs = CostModel(512)
        for size in (1, 2, 4, 8, 16):
            costs.observe(StepShape.alone(size, 0), self.target_steps_s(size))
        self.proposals = Proposals(Drafters(self.draft), costs, clock=lambda: self.now_s)
        self.sequence = decoding([5, 6, 7])

    def run(self, num_steps: int) -> list[int]:
        """Run steps and return the number of tokens drafted in each."""
        lengths = []
        for _ in range(num_steps):
            depth = self.sequence.num_computed
            drafts = self.proposals.propose([self.sequence], depth).get("a", ())
            accepted = 0
            while accepted < len(drafts) and self.chance.random() < self.rate_of(accepted):
                accepted += 1
            step_s = self.target_steps_s(1 + len(drafts))
            self.costs.observe(StepShape.alone(1 + len(drafts), depth), step_s)
            if drafts:
                self.proposals.observe(self.sequence, len(drafts), accepted)
            self.sequence.tokens.extend([1] * (1 + accepted))
            self.sequence.num_computed += 1 + accepted
            self.now_s += step_s + len(drafts) * self.draft.step_s
            self.num_tokens += 1 + accepted
            lengths.append(len(drafts))
        return lengths

    def rate_of(self, position: int) -> float:
        """Return the chance that a drafted token is accepted; for a rate of -1 it is the draft model's probability."""
        if self.rate >= 0:
            return self.rate
        ending = self.proposals._states["a"].ending
        assert ending is not None
        return ending.probabilities[position]

    def tokens_per_s(self, num_steps: int = 400) -> float:
        """Run more steps and return their rate in tokens per second."""
        before_s, before = self.now_s, self.num_tokens
        self.run(num_steps)
        return (self.num_tokens - before) / (self.now_s - before_s)

    def best(self) -> float:
        """Return the expected rate of the best fixed length."""
        return max(
            sum(self.rate**index for index in range(count + 1))
            / (self.target_steps_s(1 + count) + count * self.draft.step_s)
            for count in range(17)
        )


def tiles(num_tokens: int) -> float:
    """A processor that computes four tokens in the time of one."""
    return 0.025 * (1 + (num_tokens - 1) // 4 * 0.6)


def linear(num_tokens: int) -> float:
    """A processor that is limited by arithmetic."""
    return 0.010 * num_tokens


def sloped(num_tokens: int) -> float:
    """A processor that spends most of the time on reading weights."""
    return 0.020 + 0.002 * num_tokens


def test_it_finds_the_best_length_within_fifty_steps() -> None:
    for target_steps_s in (tiles, linear):
        for rate in (0.05, 0.3, 0.6, 0.8, 0.95, 1.0):
            machine = Machine(target_steps_s, rate)
            machine.run(50)
            # The rest is the cost of one exploring step in a hundred, and the noise of what is accepted.
            assert machine.tokens_per_s() > 0.93 * machine.best(), (target_steps_s.__name__, rate)


def mixed(random_: random.Random) -> Iterator[float]:
    """Yield the probabilities of a text in which three of four tokens are almost certain."""
    while True:
        yield 0.99 if random_.random() < 0.75 else 0.15


def test_a_draft_ends_where_the_draft_model_is_unsure() -> None:
    knowing = Machine(sloped, -1.0, ScriptedDraft(0.002, probabilities=mixed(random.Random(1))))
    lengths = knowing.run(100)
    assert len(set(lengths[50:])) > 3, "long where it is sure"
    # A fixed length cannot tell which tokens these are.
    fixed = Machine(sloped, 0.75 * 0.99 + 0.25 * 0.15, ScriptedDraft(0.002))
    assert knowing.tokens_per_s(2000) > 1.15 * fixed.best()


def steep(num_tokens: int) -> float:
    """A processor on which a second token costs nearly as much as the first, and further ones a quarter."""
    return 0.0108 if num_tokens == 1 else 0.0142 + 0.0025 * num_tokens


def test_a_source_of_which_nothing_is_known_is_tried_within_a_few_steps() -> None:
    """At the assumed rate drafts would not pay here. They do: every token is accepted."""
    machine = Machine(steep, 1.0, ScriptedDraft(0.0019))
    assert max(machine.run(12)) >= 3
    assert machine.tokens_per_s(100) > 1.15 / steep(1)


def test_the_first_drafts_have_their_full_length_however_unsure_the_draft_model_is() -> None:
    """Its probabilities of 0.01 say nothing before a few of its tokens were verified: all of them are accepted."""
    machine = Machine(steep, 1.0, ScriptedDraft(0.0019, probabilities=repeat(0.01)))
    machine.run(30)
    assert machine.tokens_per_s(100) > 1.1 / steep(1)


def test_a_source_that_is_never_right_is_soon_given_up_and_costs_little() -> None:
    machine = Machine(steep, 0.0, ScriptedDraft(0.0019))
    assert sum(map(bool, machine.run(12))) <= 4
    assert machine.tokens_per_s(1000) > 0.985 / steep(1)


def tile_of_four(num_tokens: int) -> float:
    """A processor that computes four tokens in half as much time again, as measured on a 0.4 B model."""
    return {1: 0.0185, 2: 0.0274}.get(num_tokens, 0.0284 + 0.0045 * max(0, num_tokens - 4))


def test_two_unlucky_first_drafts_do_not_end_drafting() -> None:
    machine = Machine(tile_of_four, 0.0, ScriptedDraft(0.0027))
    shared = machine.proposals.experience.shared(MODEL, decoding([1]).spec.sampler.kind)
    while sum(shared.counts.verified) < 1.9:
        machine.run(1)
    machine.rate = 0.78
    assert sum(map(bool, machine.run(60))) > 30


def test_a_sequence_that_begins_with_unlucky_drafts_keeps_them_if_the_source_is_good() -> None:
    machine = Machine(tile_of_four, 0.78, ScriptedDraft(0.0027))
    machine.run(200)
    machine.proposals.release(machine.sequence)
    machine.sequence = decoding([5, 6, 7])
    while machine.sequence.num_drafted < 6:
        machine.rate = 0.0  # the first tokens of two drafts are refused
        machine.run(1)
    machine.rate = 0.78
    assert sum(map(bool, machine.run(30))) > 20


def test_it_comes_back_from_a_change() -> None:
    machine = Machine(tiles, 0.95)
    assert machine.run(50)[-1] >= 3
    machine.rate = 0.0
    machine.run(60)
    assert machine.tokens_per_s() > 0.96 * machine.best()
    machine.rate = 0.95
    machine.run(600)  # until a trial shows the change
    assert machine.tokens_per_s() > 0.9 * machine.best()


def test_drafts_that_never_stand_cost_a_hundredth() -> None:
    machine = Machine(tiles, 0.0)
    machine.run(100)
    assert machine.tokens_per_s(2000) > 0.985 * machine.best()


def test_little_is_tried_where_even_perfect_drafts_would_not_pay() -> None:
    machine = Machine(linear, 1.0)
    machine.run(20)
    assert sum(map(bool, machine.run(1000))) < 20
    assert machine.tokens_per_s(1000) > 0.99 * machine.best()


def test_a_long_prompt_is_drafted_for_only_once_the_answer_is_long_enough() -> None:
    machine = Machine(tiles, 0.9, ScriptedDraft(0.002, catch_up_s=2.0))
    machine.run(20)
    assert not machine.draft.num_catch_ups, "two seconds for an answer that has lasted one"
    machine.run(400)
    assert machine.draft.num_catch_ups


def known(proposals: Proposals) -> Proposals:
    """Return the proposals after drafts of n-grams that were accepted."""
    for _, source in _NGRAM_SOURCES:
        counts = proposals.experience.shared(source, decoding([1]).spec.sampler.kind).counts
        counts.verified[:] = counts.accepted[:] = [12.0] * 16
    return proposals


@pytest.mark.parametrize("names", ["a", "abc"])
@pytest.mark.parametrize("are_even", [False, True])
def test_a_draft_model_that_is_behind_catches_up_and_is_tried(names: str, *, are_even: bool) -> None:
    class Behind(ScriptedDraft):
        def draft(
            self, counts: Items[tuple[Sequence, int]], endings: Mapping[str, Ending] = MappingProxyType({})
        ) -> dict[str, tuple[int, ...]]:
            self.missing_s = 0.0
            return super().draft(counts, endings)

    draft = Behind(0.002, catch_up_s=0.03)
    proposals = still(Drafters(draft, are_even=are_even), flat_costs())
    running = [decoding([5, 6, 7], name) for name in names]
    lengths = []
    for _ in range(40):
        proposed = proposals.propose(running)
        lengths.append([len(proposed.get(sequence.id, ())) for sequence in running])
        for sequence, count in zip(running, lengths[-1], strict=True):
            proposals.observe(sequence, count, count)
            sequence.tokens.extend([1] * (1 + count))
            sequence.num_computed += 1 + count
    assert max(map(max, lengths)) >= 15
    if are_even:
        assert all(len(set(each)) == 1 for each in lengths)


def test_a_text_that_repeats_itself_needs_no_draft_model() -> None:
    proposals = known(still(Drafters(ngrams=NgramDrafter()), CostModel(64)))
    sequence = decoding([1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3])
    assert proposals.propose([sequence]) == {"a": (4, 5, 6, 7, 8, *([1, 2, 3, 4, 5, 6, 7, 8] * 2)[:11])}
    proposals.observe(sequence, 16, 8)
    assert (sequence.num_drafted, sequence.num_accepted) == (16, 8)
    proposals.release(sequence)


def test_a_sequence_gets_no_more_than_it_has_room_for() -> None:
    proposals = still(Drafters(ScriptedDraft(0.001)), CostModel(64))
    sequence = decoding([5, 6, 7], max_length=6)
    assert proposals.propose([sequence]) == {"a": (1, 1)}
    assert proposals.propose([decoding([5, 6, 7], "b", max_length=4)]) == {}


def test_as_many_are_drafted_as_a_request_asks_for() -> None:
    proposals = still(Drafters(ScriptedDraft(0.05)), CostModel(64))  # the target's steps take 1 s
    sequences = [decoding([5, 6, 7], name) for name in "abc"]
    for sequence, asked in zip(sequences, (3, 0, None), strict=True):
        sequence.spec = replace(sequence.spec, draft_tokens=asked)
    for _ in range(200):
        drafts = proposals.propose(sequences)
        assert len(drafts["a"]) == 3
        assert "b" not in drafts
        proposals.observe(sequences[0], 3, 0)


def test_a_request_that_asks_for_drafts_has_its_prompt_computed_for_them() -> None:
    draft = ScriptedDraft(0.001, catch_up_s=5.0)
    proposals = still(Drafters(draft), CostModel(64))
    sequence = decoding([5, 6, 7])
    sequence.spec = replace(sequence.spec, draft_tokens=2)
    assert proposals.propose([sequence]) == {}
    assert draft.num_catch_ups == 1
    draft.missing_s = 0.0
    assert proposals.propose([sequence]) == {"a": (1, 1)}


def test_times_are_looked_up_again_although_plans_are_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    """While drafts do not pay, only every ninth step is planned, so no plan may fall on a given step number."""
    machine = Machine(lambda size: 0.010 * size, 0.0, ScriptedDraft(0.001))
    predict_added = Mock(wraps=machine.costs.predict_added)
    monkeypatch.setattr(machine.costs, "predict_added", predict_added)
    machine.run(200)
    assert predict_added.call_count >= 200 / 9 / 2 - 1


def test_none_are_drafted_where_none_may_be() -> None:
    proposals = still(Drafters(ScriptedDraft(0.001), NgramDrafter(), max_tokens=0), CostModel(64))
    assert proposals.propose([decoding([1, 2, 3, 4, 1, 2, 3])]) == {}


class Repeating(NgramDrafter):
    """Finds the same few tokens in the texts of some sequences."""

    def __init__(self, found: dict[str, int]) -> None:
        super().__init__()
        self.found = found

    def find(self, sequence: Sequence, max_tokens: int) -> tuple[tuple[int, ...], int]:
        return (1,) * min(max_tokens, self.found.get(sequence.id, 0)), 6


def flat_costs() -> CostModel:
    """Costs of a target that computes sixteen tokens in the time of one."""
    costs = CostModel(512)
    for size in (1, 2, 4, 8, 16, 32):
        costs.observe(StepShape.alone(size, 0), 0.01)
    return costs


def lengths(found: dict[str, int], drafters: Drafters) -> list[int]:
    """Return how many tokens are drafted for two sequences, with this many n-gram tokens found for each."""
    proposals = known(still(replace(drafters, ngrams=Repeating(found)), flat_costs()))
    running = [decoding([5, 6, 7], "a"), decoding([5, 6, 8], "b")]
    proposed = proposals.propose(running, 6)
    assert proposals.has_drafted == any(proposed.values())
    return [len(proposed.get(sequence.id, ())) for sequence in running]


def test_a_memory_that_needs_it_gets_equally_many_for_all() -> None:
    some, even = Drafters(max_tokens=8), Drafters(max_tokens=8).within(8, are_even=True)
    assert lengths({"a": 6, "b": 2}, some) == [6, 2]
    assert lengths({"a": 6, "b": 2}, even) == [2, 2]
    assert lengths({"a": 6}, some) == [6, 0]
    assert lengths({"a": 6}, even) == [0, 0]


def test_only_the_sequences_of_a_step_can_have_drafts_in_it() -> None:
    proposals = known(still(Drafters(ngrams=Repeating({"a": 6}), max_tokens=8), flat_costs()))
    drafting, other = decoding([5, 6, 7], "a"), decoding([5, 6, 8], "b")
    assert proposals.propose([drafting, other], 6)
    assert proposals.has_drafted
    assert proposals.propose([other], 6) == {}
    assert not proposals.has_drafted
    assert proposals.propose([drafting], 6)
    assert proposals.propose([], 6) == {}
    assert not proposals.has_drafted


def test_no_more_is_drafted_than_a_memory_takes_back() -> None:
    drafters = Drafters(max_tokens=8)
    assert lengths({"a": 6, "b": 6}, drafters.within(3, are_even=True)) == [3, 3]
    assert lengths({"a": 6, "b": 6}, drafters.within(0, are_even=True)) == [0, 0]
