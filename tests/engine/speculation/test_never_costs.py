"""Drafts take nothing from other requests: no cells, no time before a first token, no work that nobody uses."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest

from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.costs.cost_model import CostModel, StepShape
from edgeagent.engine.engine import Engine
from edgeagent.engine.runner import Logits, Slice
from edgeagent.engine.sequence import Sequence, SequenceSpec
from edgeagent.engine.speculation.acceptance import Ending
from edgeagent.engine.speculation.allocation import MAX_DRAFTED
from edgeagent.engine.speculation.draft_model import DraftModel
from edgeagent.engine.speculation.ngram import NgramDrafter
from edgeagent.engine.speculation.proposals import Drafters, Proposals
from tests.engine.speculation.test_proposals import Repeating, ScriptedDraft, decoding, tiles
from tests.engine.support import END, greedy
from tests.fakes import ALWAYS, FakeClock, FakeRunner, next_token, warm_costs


class Periodic(FakeRunner):
    """A model that repeats the text of seven tokens ago, except every fourth token, and ends texts of `end` tokens."""

    end = 0

    def _logits_after(self, prefix: list[int]) -> Logits:
        logits = np.zeros(self.num_vocab, np.float32)
        token = prefix[-7] if len(prefix) % 4 else (prefix[-7] + 7 * len(prefix)) % 43 + 6
        logits[END if len(prefix) >= self.end else token] = 9.0
        return logits


@pytest.mark.parametrize(("num_streams", "num_prompt", "num_output"), [(2, 100, 27), (2, 80, 46), (4, 48, 15)])
@pytest.mark.parametrize("draft_tokens", [0, 16])
def test_nobody_is_preempted_for_drafts(num_streams: int, num_prompt: int, num_output: int, draft_tokens: int) -> None:
    """All texts together just fit into 256 cells. They nearly repeat themselves, so there are long drafts."""
    runner = Periodic(num_cells=256)
    runner.end = num_prompt + num_output
    costs = warm_costs(runner.max_batch)
    drafters = Drafters(None, NgramDrafter(), planning_share=ALWAYS)
    engine = Engine(runner, max_running=4, drafters=drafters, prefixes=PrefixStore(runner, costs=costs))
    prompts = [
        [stream + 1, *((place * 3 + stream * 5) % 40 + 6 for place in range(num_prompt - 1))]
        for stream in range(num_streams)
    ]
    sequences = [
        engine.add(SequenceSpec(f"s{stream}", prompt, greedy(), draft_tokens=draft_tokens))
        for stream, prompt in enumerate(prompts)
    ]
    ended, num_steps = set[str](), 0
    while engine.num_live:
        ended |= {output.sequence.id for output in engine.step() if output.is_last}
        num_steps += 1
        assert all(sequence.seq_id is not None or sequence.id in ended for sequence in sequences), num_steps
    assert [len(sequence.tokens) for sequence in sequences] == [runner.end] * num_streams
    assert (sum(sequence.num_accepted for sequence in sequences) > 0) == (draft_tokens > 0)


class Timed(FakeRunner):
    """A runner whose batches take time on a clock."""

    clock: FakeClock
    base_s = token_s = 0.0

    def decode(self, slices: Items[Slice], min_tokens: int = 0) -> None:
        self.clock.advance(self.base_s + self.token_s * sum(len(part.tokens) for part in slices))
        super().decode(slices, min_tokens)

    def costs(self) -> CostModel:
        costs = CostModel(self.max_batch)
        for size in (1, 2, 4, 8, 16, 32, 64, 128, 256):
            costs.observe(StepShape.alone(size, 0), self.base_s + self.token_s * size)
        return costs


def measured(target_steps_s: Callable[[int], float]) -> CostModel:
    """Return the costs of a target with these step times."""
    costs = CostModel(512)
    for size in (1, 2, 4, 8, 16):
        costs.observe(StepShape.alone(size, 0), target_steps_s(size))
    return costs


def timed(clock: FakeClock, base_s: float, token_s: float) -> Timed:
    runner = Timed(num_cells=4096, max_batch=512, max_outputs=512, end_token=-1)
    runner.clock, runner.base_s, runner.token_s = clock, base_s, token_s
    return runner


def test_a_first_token_does_not_wait_for_the_draft_model_to_read_another_prompt() -> None:
    clock = FakeClock()
    target, draft = timed(clock, 0.02, 0.001), timed(clock, 0.003, 0.0004)
    model = DraftModel(draft, PrefixStore(draft, costs=draft.costs(), clock=clock), clock)
    engine = Engine(
        target,
        max_running=4,
        drafters=Drafters(model, max_tokens=4, planning_share=ALWAYS),
        prefixes=PrefixStore(target, costs=target.costs(), clock=clock),
        clock=clock,
    )
    chance = random.Random(1)
    first = engine.add(
        SequenceSpec("a", [chance.randint(1, 49) for _ in range(1500)], greedy(), max_tokens=300, draft_tokens=4)
    )
    while not first.num_output:
        engine.step()
    second = engine.add(SequenceSpec("b", [chance.randint(1, 49) for _ in range(300)], greedy(), max_tokens=4))
    num_before = draft.num_tokens_computed
    while not second.num_output:
        engine.step()
    assert draft.num_tokens_computed == num_before
    while engine.num_live and not first.num_drafted:
        engine.step()
    assert first.num_drafted and draft.num_tokens_computed - num_before >= first.num_prompt


def test_where_there_is_always_a_new_prompt_the_draft_model_gets_a_twentieth_of_the_time() -> None:
    clock, spent_s = FakeClock(), 0.0

    class Slow(ScriptedDraft):
        def can_draft_now(self, sequence: Sequence) -> bool:
            return False

        def draft(
            self, counts: Items[tuple[Sequence, int]], endings: Mapping[str, Ending] = MappingProxyType({})
        ) -> dict[str, tuple[int, ...]]:
            nonlocal spent_s
            clock.advance(0.05)
            spent_s += 0.05
            return {}

    proposals = Proposals(Drafters(Slow(0.001, catch_up_s=5.0)), measured(tiles), clock=clock)
    sequence = decoding([5, 6, 7])
    sequence.spec = replace(sequence.spec, draft_tokens=4)
    for _ in range(1000):
        proposals.note_waiting(is_first_awaited=True)
        proposals.propose([sequence])
        clock.advance(0.1)
    assert 0.04 * clock() < spent_s <= 0.05 * clock()
    proposals.note_waiting(is_first_awaited=False)
    assert proposals.may_catch_up
    proposals.note_waiting(is_first_awaited=True)
    assert not proposals.may_catch_up, "what was saved for an earlier request is not used for this one"


class Counting(ScriptedDraft):
    """Counts the tokens that it drafts."""

    num_drafted = 0

    def draft(
        self, counts: Items[tuple[Sequence, int]], endings: Mapping[str, Ending] = MappingProxyType({})
    ) -> dict[str, tuple[int, ...]]:
        drafts = super().draft(counts, endings)
        self.num_drafted += sum(map(len, drafts.values()))
        return drafts


@pytest.mark.parametrize("why", ["its client wants none", "it has no room"])
def test_nothing_is_drafted_if_all_must_get_equally_many_and_one_gets_none(why: str) -> None:
    now_s, draft = 0.0, Counting(0.002)
    proposals = Proposals(Drafters(draft, are_even=True), measured(tiles), clock=lambda: now_s)
    free, bound = decoding([5, 6, 7], "a"), decoding([5, 6, 8], "b")
    if why == "it has no room":
        bound.max_length = len(bound.tokens) + 1
    else:
        bound.spec = replace(bound.spec, draft_tokens=0)
    for _ in range(200):
        assert proposals.propose([free, bound]) == {}
        for sequence in (free, bound) if bound.spec.draft_tokens == 0 else (free,):
            sequence.tokens.append(1)
            sequence.num_computed += 1
        now_s += tiles(2)
    assert draft.num_drafted == 0
    assert any(proposals.propose([free]) for _ in range(20)) and draft.num_drafted


def test_withdrawn_drafts_are_not_counted() -> None:
    proposals = Proposals(Drafters(ScriptedDraft(0.002), planning_share=ALWAYS), measured(tiles))
    sequence = decoding([5, 6, 7])
    sequence.spec = replace(sequence.spec, draft_tokens=4)
    assert not proposals.withdraw()
    assert proposals.propose([sequence], len(sequence.tokens)) and proposals.has_drafted
    assert proposals.withdraw() and proposals.has_drafted, "the draft model has computed, so the step counts"
    assert not proposals.withdraw()
    proposals.observe(sequence, 0, 0)
    assert (sequence.num_drafted, proposals.tally.counts()) == (0, ())


@pytest.mark.parametrize(("asked", "most"), [((16, 0), 1), ((16, None), 2), ((16, 16), 16)])
def test_a_client_that_asks_for_drafts_slows_no_other_stream(asked: tuple[int | None, ...], most: int) -> None:
    """A step of 17 tokens takes many times as long as one of 2. Streams that all asked for drafts get them."""
    proposals = Proposals(Drafters(ScriptedDraft(0.0001)), measured(lambda size: 0.010 * size))
    sequences = [decoding([5, 6, 7], name) for name in "ab"]
    for sequence, number in zip(sequences, asked, strict=True):
        sequence.spec = replace(sequence.spec, draft_tokens=number)
    lengths = [len(proposals.propose(sequences).get("a", ())) for _ in range(20)]
    assert max(lengths) <= most
    assert (min(lengths) == 16) == (most == 16)


def test_a_step_has_no_more_drafts_than_its_limit_even_if_all_clients_ask_for_them() -> None:
    proposals = Proposals(Drafters(ScriptedDraft(0.0001)), measured(lambda size: 0.010 * size))
    sequences = [decoding([5, 6, 7], name) for name in "abcdefgh"]
    for sequence in sequences:
        sequence.spec = replace(sequence.spec, draft_tokens=16)
    lengths = {name: len(tokens) for name, tokens in proposals.propose(sequences).items()}
    assert lengths == dict.fromkeys("abcdefgh", MAX_DRAFTED // 8)


def test_a_step_beside_which_the_draft_model_catches_up_counts_as_a_step_with_drafts() -> None:
    proposals = Proposals(Drafters(ScriptedDraft(0.001, catch_up_s=5.0)), CostModel(64))
    sequence = decoding([5, 6, 7])
    assert proposals.propose([sequence]) == {} and not proposals.has_drafted
    sequence.spec = replace(sequence.spec, draft_tokens=2)
    assert proposals.propose([sequence]) == {} and proposals.has_drafted


@pytest.mark.parametrize("step_s", [lambda size: 0.010 + 0.002 * size, lambda size: 0.020 + 0.002 * size])
def test_a_client_that_asks_for_drafts_of_which_there_are_none(step_s: Callable[[int], float]) -> None:
    """Its text never repeats itself. The other stream's first drafts are trials, which take longer than a plan may."""
    now_s = 0.0
    drafters = Drafters(None, Repeating({"b": 16}), planning_share=ALWAYS)
    proposals = Proposals(drafters, measured(step_s), clock=lambda: now_s)
    a, b = decoding([5, 6, 7], "a"), decoding([5, 6, 8], "b")
    a.spec = replace(a.spec, draft_tokens=4)
    num_drafted = 0
    for _ in range(300):
        drafts = proposals.propose([a, b])
        assert "a" not in drafts
        if "b" in drafts:
            num_drafted += len(drafts["b"])
            proposals.observe(b, len(drafts["b"]), 0)
        now_s += step_s(2)
    assert num_drafted


@pytest.mark.parametrize("asked", [2, 4, 8])
def test_a_client_that_asks_for_drafts_gets_some_beside_a_stream_with_planned_ones(asked: int) -> None:
    """All drafts are accepted. Neither stream falls below four fifths of its rate without drafts."""
    costs, now_s, draft = measured(lambda size: 0.010 + 0.001 * size), 0.0, ScriptedDraft(0.001)
    proposals = Proposals(Drafters(draft, planning_share=ALWAYS), costs, clock=lambda: now_s)
    streams = {name: decoding([5, 6, number], name) for number, name in enumerate("ab")}
    streams["a"].spec = replace(streams["a"].spec, draft_tokens=asked)
    num_tokens = dict.fromkeys(streams, 0)
    for _ in range(400):
        drafts = proposals.propose(list(streams.values()))
        lengths = {name: len(drafts.get(name, ())) for name in streams}
        for name, sequence in streams.items():
            if lengths[name]:
                proposals.observe(sequence, lengths[name], lengths[name])
            sequence.tokens.extend([1] * (1 + lengths[name]))
            sequence.num_computed += 1 + lengths[name]
            sequence.max_length += 1 + lengths[name]
            num_tokens[name] += 1 + lengths[name]
        now_s += 0.010 + 0.001 * (2 + sum(lengths.values())) + 0.001 * max(lengths.values())
    plain = 1 / 0.012
    assert all(number / now_s >= 0.8 * plain for number in num_tokens.values()), num_tokens
    assert num_tokens["a"] / now_s > 1.2 * plain


def test_a_catch_up_does_not_take_the_room_of_those_that_draft() -> None:
    asked: list[list[int]] = []

    class Noting(ScriptedDraft):
        def catch_up_s(self, sequence: Sequence) -> float:
            return 1.0 if sequence.id == "a" else 0.0

        def draft(
            self, counts: Items[tuple[Sequence, int]], endings: Mapping[str, Ending] = MappingProxyType({})
        ) -> dict[str, tuple[int, ...]]:
            asked.append([count for _, count in counts])
            return super().draft(counts, endings)

    proposals = Proposals(Drafters(Noting(0.001)), measured(tiles), clock=lambda: 0.0)
    streams = [decoding([5, 6, 7], "a"), decoding([5, 6, 8], "b")]
    for each in streams:
        each.spec = replace(each.spec, draft_tokens=3)
    proposals.propose(streams)
    assert asked == [[3, 0]]


class Slow(Repeating):
    """Each of its searches takes 0.4 ms."""

    def __init__(self, clock: FakeClock, found: dict[str, int]) -> None:
        super().__init__(found)
        self.clock, self.num_calls = clock, 0

    def find(self, sequence: Sequence, max_tokens: int) -> tuple[tuple[int, ...], int]:
        self.num_calls += 1
        self.clock.advance(0.0004)
        return super().find(sequence, max_tokens)


@pytest.mark.parametrize(("step_s", "num_plans"), [(0.0005, 25), (0.05, 1000)])
def test_planning_takes_its_share_of_the_time_while_nothing_is_drafted(step_s: float, num_plans: int) -> None:
    clock = FakeClock()
    slow, sequence = Slow(clock, {}), decoding([5, 6, 7])
    drafters = Drafters(None, slow, planning_share=0.02)
    proposals = Proposals(drafters, measured(lambda size: step_s), clock=clock)
    for _ in range(1000):
        assert proposals.propose([sequence]) == {}
        clock.advance(step_s)
    assert slow.num_calls == pytest.approx(num_plans, abs=2)


def test_plans_that_pay_leave_no_debt() -> None:
    """A copied text is often interrupted. Where it goes on, that is seen as soon as if nothing had been drafted."""
    clock = FakeClock()
    slow, sequence = Slow(clock, {"a": 4}), decoding([5, 6, 7])
    proposals = Proposals(Drafters(None, slow), measured(lambda size: 0.02), clock=clock)
    for _ in range(100):
        drafts = proposals.propose([sequence])["a"]
        proposals.observe(sequence, len(drafts), len(drafts))
        clock.advance(0.02)
    slow.found.clear()
    num_before = slow.num_calls
    for _ in range(41):
        assert proposals.propose([sequence]) == {}
        clock.advance(0.02)
    assert slow.num_calls - num_before >= 9, "planning takes its share of the time, 0.1 ms for each step"


class Copying(Timed):
    """A model that repeats its prompt of 200 tokens; every fifth token is another one if `is_wrong`."""

    is_wrong = False

    def _logits_after(self, prefix: list[int]) -> Logits:
        logits = np.zeros(self.num_vocab, np.float32)
        is_replaced = self.is_wrong and len(prefix) % 5 == 0
        logits[prefix[-200] if not is_replaced else 1 + (prefix[-200] + len(prefix)) % 49] = 9.0
        return logits


class Mixing(Copying):
    """A model with six different tokens: the last three nearly always occurred before, and others follow them."""

    def _logits_after(self, prefix: list[int]) -> Logits:
        logits = np.zeros(self.num_vocab, np.float32)
        logits[1 + next_token(prefix, 6)] = 9.0
        return logits


def answers_s(runner_class: type[Copying], base_s: float, token_s: float, drafters: Drafters | None) -> float:
    """Return how long three answers of 600 tokens take, one after another."""
    clock = FakeClock()
    runner = runner_class(num_cells=4096, max_batch=512, max_outputs=512, end_token=-1)
    runner.clock, runner.base_s, runner.token_s = clock, base_s, token_s
    prefixes = PrefixStore(runner, costs=runner.costs(), clock=clock)
    engine = Engine(runner, max_running=4, drafters=drafters, prefixes=prefixes, clock=clock)
    chance, took_s = random.Random(3), 0.0
    for name in "abc":
        prompt = [chance.randint(1, 49) for _ in range(200)]
        sequence = engine.add(SequenceSpec(name, prompt, greedy(), max_tokens=600))
        while not sequence.num_output:
            engine.step()
        took_s -= clock()
        while engine.num_live:
            engine.step()
        took_s += clock()
    return took_s


MACHINES = pytest.mark.parametrize(
    ("base_s", "token_s"), [(0.02, 0.0005), (0.02, 0.004), (0.005, 0.005), (0.001, 0.02)], ids=str
)


@pytest.mark.daily(1, seconds=1)
@MACHINES
def test_drafts_from_a_text_that_misleads_cost_a_fiftieth_at_most(base_s: float, token_s: float) -> None:
    plain_s = answers_s(Mixing, base_s, token_s, None)
    assert answers_s(Mixing, base_s, token_s, Drafters(None, NgramDrafter())) <= 1.02 * plain_s


@pytest.mark.daily(1, seconds=0.5)
@MACHINES
def test_a_copied_text_is_faster_where_a_token_more_costs_little(base_s: float, token_s: float) -> None:
    gain = answers_s(Copying, base_s, token_s, None) / answers_s(
        Copying, base_s, token_s, Drafters(None, NgramDrafter())
    )
    assert gain >= (1.5 if token_s < base_s else 0.98)


@pytest.mark.parametrize(
    ("target_s", "asked_s", "least_s", "most_s"),
    [
        (0.2, None, 0.15, 0.2),
        (0.2, 0.1, 0.08, 0.1),
        (0.2, 0.4, 0.15, 0.2),
        (5.0, None, 0.3, 5.0),
        (0.05, None, 0.15, 3 * 0.0621),
    ],
    ids=["the tier's", "asked for", "of the others", "of the tier batch", "of none that can be kept"],
)
def test_drafts_keep_the_shortest_target(target_s: float, asked_s: float | None, least_s: float, most_s: float) -> None:
    """Eight streams copy texts. A step without drafts takes 62 ms."""
    clock = FakeClock()
    runner = Copying(num_cells=8192, num_sequences=8, max_batch=512, max_outputs=512, end_token=-1)
    runner.clock, runner.base_s, runner.token_s = clock, 0.03, 0.004
    prefixes = PrefixStore(runner, costs=runner.costs(), clock=clock)
    drafters = Drafters(None, NgramDrafter(), planning_share=ALWAYS)
    engine = Engine(runner, max_running=8, drafters=drafters, prefixes=prefixes, clock=clock)
    chance = random.Random(3)
    prompt = [chance.randint(1, 49) for _ in range(200)]
    for number in range(8):
        asked = asked_s if number == 0 else None
        engine.add(SequenceSpec(f"{number}", prompt, greedy(), 300, token_s=asked, target_s=target_s))
    longest_s = 0.0
    while engine.num_live:
        were_decoding = [each.is_decoding for each in engine._running.values()]
        began_s = clock()
        engine.step()
        if len(were_decoding) == 8 and all(were_decoding):
            longest_s = max(longest_s, clock() - began_s)
    assert least_s < longest_s <= most_s


def test_a_repeatable_answer_is_spared_unless_its_client_asks() -> None:
    drafters = Drafters(None, NgramDrafter(), planning_share=ALWAYS, spares_repeatable=True)
    proposals = Proposals(drafters, measured(lambda size: 0.02), clock=lambda: 0.0)
    spared, asked = decoding([5, 6, 7, 8, 5, 6, 7], "a"), decoding([5, 6, 7, 8, 5, 6, 7], "b")
    spared.spec = replace(spared.spec, sampler=greedy())
    asked.spec = replace(asked.spec, sampler=greedy(), draft_tokens=2)
    assert list(proposals.propose([spared, asked])) == ["b"]
