"""Proposes tokens for a step: tokens that a grammar forces, or drafts from the sequence's own text or a draft model.

The target's logits decide which tokens are accepted; see engine.verification. The number of draft tokens depends on the
costs of drafts and steps, and on how often drafts were accepted; see allocation.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field, replace
from itertools import takewhile

from edgeagent.engine.costs.cost_model import FLASH_TILE, CostModel, StepShape, TimeShare
from edgeagent.engine.media_tokens import is_medium
from edgeagent.engine.sequence import Rank, Sequence, shortest_target_s
from edgeagent.engine.speculation.acceptance import Acceptance, Ending, Experience, min_chances
from edgeagent.engine.speculation.allocation import (
    MAX_DRAFTED,
    Offer,
    add_asked,
    allocate,
    best_rate,
    expected_s,
    longest_s,
)
from edgeagent.engine.speculation.draft_model import MAX_CATCH_UP_S, DraftModel
from edgeagent.engine.speculation.ngram import NgramDrafter
from edgeagent.types import DraftCounts


@dataclass(slots=True)
class _SourceCounts:
    drafts_by_length: list[int] = field(default_factory=list)
    verified: list[int] = field(default_factory=list)  # number of verified tokens by position
    accepted: list[int] = field(default_factory=list)  # number of accepted tokens by position


class Tally:
    """Counts of the drafts of each source, and the time that drafts saved or cost."""

    def __init__(self) -> None:
        self._sources: dict[str, _SourceCounts] = {}
        self._taken_s = self._without_s = 0.0

    @property
    def gain(self) -> float:
        """The factor by which drafts raised the tokens per second; 0 if no step was counted (`add_step`)."""
        return self._without_s / self._taken_s if self._taken_s else 0.0

    def counts(self) -> tuple[DraftCounts, ...]:
        """Return the counts of each source. Any thread may call it."""
        return tuple(
            DraftCounts(name, tuple(source.drafts_by_length), tuple(source.verified), tuple(source.accepted))
            for name, source in tuple(self._sources.items())
        )

    def add_draft(self, name: str, num_drafted: int, num_accepted: int, *, has_ended: bool = False) -> None:
        """Count one draft of the source `name`, of which `num_accepted` tokens were accepted.

        Tokens after the first refused one count as not verified. `has_ended`: the last accepted token ended the answer,
        so the tokens after it were not verified either.
        """
        source = self._sources.setdefault(name, _SourceCounts())
        _add(source.drafts_by_length, num_drafted)
        for position in range(num_accepted if has_ended else min(num_drafted, num_accepted + 1)):
            _add(source.verified, position)
            if position < num_accepted:
                _add(source.accepted, position)

    def add_step(self, num_sequences: int, num_accepted: int, taken_s: float, plain_s: float) -> None:
        """Count a step that had drafts, or in which the draft model computed. All sequences of the step must decode.

        `num_accepted`: the accepted draft tokens of all sequences. `taken_s`: how long the step and its drafting took.
        `plain_s`: how long the step would take without drafts, with one token for each sequence.
        """
        self._taken_s += taken_s
        self._without_s += plain_s * (num_sequences + num_accepted) / num_sequences


def _add(counts: list[int], place: int) -> None:
    counts.extend([0] * (place + 1 - len(counts)))
    counts[place] += 1


# One of this many steps has no drafts, so that the cost of a step without drafts stays known.
_PLAIN_EVERY = 128
# Measured times change slowly, so they are looked up again only after this many steps.
_STEPS_PER_LOOKUP = 16
# The share of the time that trials may lose. The time of _SAVED_STEPS steps is available at first, and is saved up, or
# what the next trial needs if it is more: up to _MAX_SAVED_S for a catch-up with a long prompt.
_SHARE_OF_TRIALS = 0.01
_SAVED_STEPS = 3.0
_MAX_SAVED_S = 2.0
# A trial is charged for the time that it is expected to lose, and for at least this share of the time that it takes.
_LEAST_LOSS = 0.05
# A trial of an unused offer gives a step of 4 tokens. On a CPU, steps of 4, 8 and 16 tokens are cheap.
_NUM_TRIED = 3
# While a first token is awaited, the draft model may take this share of the time to catch up with other sequences. With
# none, the streams of a machine that always has a new prompt would never have drafts.
_SHARE_OF_CATCH_UPS = 0.05
_WEIGHT = 0.1  # of the latest plan in the average, and of the latest answer in the average length
# Sources by the least length of a match in a sequence's own text: after a longer match, more tokens are accepted.
_NGRAM_SOURCES = ((12, "ngram, 12 and more"), (6, "ngram, 6 to 11"), (1, "ngram, up to 5"), (0, "ngram, replaced"))
MODEL = "draft model"


@dataclass(frozen=True, slots=True)
class Drafters:
    """The sources of proposals. `max_tokens`: the most drafted or forced tokens of a sequence in a step (0: none).

    `planning_share`: the part of the time that planning may take while drafts do not pay. Planning a step takes some
    tenths of a millisecond; for the smallest models, that is half of a step's time. `are_even`: all sequences of a step
    must get equally many tokens, because different numbers need more passes over the weights. `spares_repeatable`: a
    sequence whose answer can be repeated exactly (see Sampler.is_repeatable) gets drafts only if its client asks, since
    a step of several tokens is rounded differently.
    """

    model: DraftModel | None = None
    ngrams: NgramDrafter | None = None
    max_tokens: int = 16
    planning_share: float = 0.005
    are_even: bool = False
    spares_repeatable: bool = False

    def within(self, max_tokens: int, *, are_even: bool) -> Drafters:
        """Return a copy for a runner that can take back at most `max_tokens` of a sequence (0: no drafts)."""
        if max_tokens == 0:
            return Drafters(max_tokens=0)
        return replace(self, max_tokens=min(self.max_tokens, max_tokens), are_even=are_even)


@dataclass(slots=True)
class _DraftingState:
    """The drafting state of a decoding sequence."""

    acceptances: dict[str, Acceptance] = field(default_factory=dict)
    source: str = ""  # of this step's drafts; "" if it has none, or only tokens that a grammar forces
    is_catching_up: bool = False  # the draft model computes the tokens that it lacks, to draft later
    ending: Ending | None = None  # of the draft model's draft of this step


@dataclass(slots=True, kw_only=True)
class _SourceOffer(Offer):
    """What one source offers for one sequence.

    `tokens`: the draft, if it comes from the sequence's own text; empty if the draft model must first make it.
    `catch_up_s`: the time that the source needs before it can draft.
    """

    sequence: Sequence
    source: str
    acceptance: Acceptance
    tokens: tuple[int, ...] = ()
    catch_up_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Times:
    """Expected seconds of steps.

    `target_s[n]`: of the target's step with n draft tokens, up to the most that a step may have. `draft_s[n]`: of a
    draft step for n sequences; empty without a draft model.
    """

    target_s: list[float]
    draft_s: list[float]


@dataclass(slots=True)
class _Plan:
    """How many tokens are drafted in a step, by offer. There is at most one offer for each sequence.

    `gain`: the factor by which the drafts are expected to raise the tokens per second; 1 if the step has a trial.
    """

    offers: list[_SourceOffer]
    counts: list[int]
    gain: float = 1.0


class Proposals:
    """Proposes tokens for each sequence, from one source in each step."""

    def __init__(
        self,
        drafters: Drafters,
        costs: CostModel,
        clock: Callable[[], float] = time.monotonic,
        is_end: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """`costs` are those of the target's steps. `is_end` says whether a token ends the answer."""
        self.drafters = drafters
        """The sources of proposals."""
        self._costs = costs
        # Of this step: the shortest target of the streams, and the most seconds with drafts.
        self._target_s = self._max_s = math.inf
        self._clock, self._is_end = clock, is_end
        self._max_tokens = min(drafters.max_tokens, MAX_DRAFTED)
        self._has_sources = self._max_tokens > 0 and (drafters.model is not None or drafters.ngrams is not None)
        self.experience = Experience(self._max_tokens)
        """What verified drafts have shown about the sources."""
        self.tally = Tally()
        self._states: dict[str, _DraftingState] = {}
        self._times: dict[tuple[int, int], _Times] = {}
        self._num_steps = self._planned_at = self._looked_up_at = 0
        self._trial_time, self._planning_time = TimeShare(_SHARE_OF_TRIALS), TimeShare(drafters.planning_share)
        self._catch_up_time, self._is_first_awaited, self._noted_at_s = TimeShare(_SHARE_OF_CATCH_UPS), False, clock()
        # `_step_s`: the expected seconds of a step without drafts, at the latest plan; 0 before the first plan.
        self._plan_s, self._step_s, self._must_plan = 0.0, 0.0, True
        self._answer_tokens = 0.0  # the average length of an answer
        self._draft_s, self._num_accepted = 0.0, 0  # of this step
        self._has_proposed = self._has_computed = False  # in this step; `_has_computed`: the draft model
        self.has_drafted = False
        """Whether the latest step had drafts, or a computation of the draft model."""

    def note_waiting(self, *, is_first_awaited: bool) -> None:
        """Record whether a request waits for its first token. Call it before each step."""
        now_s = self._clock()
        if is_first_awaited and self._is_first_awaited:
            self._catch_up_time.add(now_s - self._noted_at_s, MAX_CATCH_UP_S)
        else:
            self._catch_up_time.saved_s = 0.0
        self._is_first_awaited, self._noted_at_s = is_first_awaited, now_s

    @property
    def may_catch_up(self) -> bool:
        """Whether the draft model may compute tokens that it lacks now. Such work delays a first token."""
        return not self._is_first_awaited or self._catch_up_time.saved_s >= MAX_CATCH_UP_S

    def propose(self, running: Items[Sequence], num_cells: int = 0) -> dict[str, tuple[int, ...]]:
        """Return proposals by sequence id, for decoding sequences only. `num_cells`: how many cells are in use."""
        started_s, self._num_accepted, self._has_computed = self._clock(), 0, False
        self._target_s = shortest_target_s(running)
        proposals = self._proposed(running, num_cells)
        if self.drafters.are_even and proposals:
            proposals = self._cut_even(proposals, [sequence.id for sequence in running if sequence.is_decoding])
        self._has_proposed = bool(proposals)
        self.has_drafted = self._has_computed or any(state.source for state in self._states.values())
        self._draft_s = self._clock() - started_s
        return proposals

    def withdraw(self) -> bool:
        """Forget the proposals of the latest call of `propose`. Return whether there were any."""
        for state in self._states.values():
            state.source, state.ending = "", None
        had_any, self._has_proposed, self.has_drafted = self._has_proposed, False, self._has_computed
        return had_any

    def observe(self, sequence: Sequence, num_drafted: int, num_accepted: int, *, has_ended: bool = False) -> None:
        """Record how many drafted tokens of a sequence were accepted. Tokens that a grammar forced are not counted.

        `has_ended`: the last accepted token ended the answer, so the tokens after it were not verified.
        """
        state = self._states.get(sequence.id)
        if state is None or not state.source:
            return
        sequence.num_drafted += num_drafted
        sequence.num_accepted += num_accepted
        # A step without drafts would also have shown the end.
        self._num_accepted += num_accepted - has_ended
        self.tally.add_draft(state.source, num_drafted, num_accepted, has_ended=has_ended)
        ending, num_verified = state.ending, num_accepted if has_ended else num_drafted
        if ending is not None:
            compared = ending.probabilities[:num_accepted] if has_ended else ending.probabilities
            self.experience.confidence(sequence.spec.sampler.kind).observe(compared, num_accepted)
            # The place after an early end counts as refused: else the planned drafts would become too long.
            num_verified += ending.is_early and not has_ended
        state.acceptances[state.source].observe(num_verified, num_accepted)

    def note_step(self, num_sequences: int, step_s: float, plain_s: float) -> None:
        """Record a step of `num_sequences` decoding sequences. `step_s`: its seconds without those of drafting.

        `plain_s`: the seconds that the step would have taken without drafts.
        """
        self.tally.add_step(num_sequences, self._num_accepted, step_s + self._draft_s, plain_s)

    def release(self, sequence: Sequence) -> None:
        """Forget a sequence that ended or was preempted."""
        self._states.pop(sequence.id, None)
        self._answer_tokens += _WEIGHT * (sequence.num_output - self._answer_tokens)
        if self.drafters.model is not None:
            self.drafters.model.release(sequence)
        if self.drafters.ngrams is not None:
            self.drafters.ngrams.release(sequence)

    def _proposed(self, running: Items[Sequence], num_cells: int) -> dict[str, tuple[int, ...]]:
        # A sequence close to its length limit gets no more drafts than it has room for.
        rooms = {
            sequence.id: sequence.max_length - len(sequence.tokens) - 1 for sequence in running if sequence.is_decoding
        }
        decoding = [sequence for sequence in running if rooms.get(sequence.id, 0) > 0]
        forced = {}
        if self.drafters.max_tokens:
            forced = {sequence.id: self._forced(sequence)[: rooms[sequence.id]] for sequence in decoding}
            forced = {name: tokens for name, tokens in forced.items() if tokens}
        if not self._has_sources:
            return forced
        for state in self._states.values():
            state.source, state.ending = "", None
        for sequence in decoding:
            if sequence.id not in self._states:
                self._states[sequence.id] = _DraftingState()
                self._must_plan = True  # a catch-up is cheapest at the beginning of an answer
        free = [sequence for sequence in decoding if sequence.id not in forced and self._may_draft(sequence)]
        # If a sequence gets no tokens, and all must get equally many, none gets any.
        if not free or (self.drafters.are_even and len(free) + len(forced) < len(rooms)):
            return forced
        num_tokens = len(rooms) + sum(map(len, forced.values()))
        depth = sum(sequence.num_computed for sequence in free) / len(free)
        num_extra = max(0, FLASH_TILE * len(rooms) - num_tokens) * depth
        return forced | self._drafted(free, rooms, StepShape(num_tokens, num_cells, num_tokens * depth, num_extra))

    def _cut_even(self, proposals: dict[str, tuple[int, ...]], names: Items[str]) -> dict[str, tuple[int, ...]]:
        """Return proposals, cut to the fewest tokens that any of the sequences `names` has; {} if one has none."""
        least = min(len(proposals.get(name, ())) for name in names)
        for state in (self._states[name] for name in proposals if name in self._states):
            if least == 0:
                state.source = ""
            if state.ending is not None:
                state.ending.cut(least)
        return {name: tokens[:least] for name, tokens in proposals.items()} if least else {}

    def _drafted(self, free: Items[Sequence], rooms: dict[str, int], plain: StepShape) -> dict[str, tuple[int, ...]]:
        """Return the step's drafts for the sequences `free`, by id. `plain`: the step's shape without drafts."""
        self._num_steps += 1
        self._planning_time.add(self._step_s, self._plan_s)
        may_plan = self._must_plan or self._planning_time.saved_s >= 0.0
        if not may_plan and not any(sequence.spec.draft_tokens for sequence in free):
            return {}
        started_s = self._clock()
        times = self._look_up(plain, len(free))
        self._max_s = longest_s(times.target_s[0], self._target_s)
        by_sequence = [self._offers(sequence, min(rooms[sequence.id], self._max_tokens), times) for sequence in free]
        plan = self._choose([offers for offers in by_sequence if offers], times.target_s, len(rooms))
        proposals, to_draft = dict[str, tuple[int, ...]](), list[tuple[Sequence, int]]()
        for each, count in zip(plan.offers, plan.counts, strict=True):
            if not count:
                self.tally.add_draft(each.source, 0, 0)
                continue
            self._states[each.sequence.id].source = each.source
            if each.tokens:
                proposals[each.sequence.id] = each.tokens[:count]
            else:
                to_draft.append((each.sequence, count))
        num_drafting, drafting = len(to_draft), {each.id for each, _ in to_draft}
        # Sequences that draft come first, since a catch-up takes all the room that it gets.
        behind = {each.sequence.id: each.sequence for offers in by_sequence for each in offers if each.catch_up_s}
        to_draft += [
            (each, 0) for name, each in behind.items() if self._states[name].is_catching_up and name not in drafting
        ]
        model = self.drafters.model
        self._must_plan = bool(proposals or to_draft or (model is not None and model.is_restoring))
        self._note_plan(self._clock() - started_s, times.target_s[0])
        if to_draft and model is not None:
            began_s = self._clock()
            to_draft = self._with_endings(to_draft, num_drafting, plan, times, len(rooms))
            endings = {each.id: ending for each, _ in to_draft if (ending := self._states[each.id].ending)}
            proposals |= model.draft(to_draft, endings)
            self._has_computed = True
            if any(each.id in behind for each, _ in to_draft):
                self._catch_up_time.spend(self._clock() - began_s)
        return proposals

    def _note_plan(self, plan_s: float, step_s: float) -> None:
        """Record that a plan took `plan_s` seconds. `step_s`: the expected seconds of a step without drafts."""
        self._plan_s += (_WEIGHT if self._step_s else 1.0) * (plan_s - self._plan_s)
        if not self._must_plan:  # the drafts of a step pay for their plan
            # A plan that other programs interrupted counts like the average one.
            self._planning_time.spend(min(plan_s, self._plan_s))
        self._step_s, self._planned_at = step_s, self._num_steps

    def _look_up(self, plain: StepShape, num_draftable: int) -> _Times:
        """Return the expected seconds of the target's steps and of the draft model's, for this step and a few more.

        `plain`: the shape of the target's step without drafts. `num_draftable`: how many sequences may have drafts.
        """
        if self._num_steps - self._looked_up_at >= _STEPS_PER_LOOKUP:
            self._times.clear()
            self._looked_up_at = self._num_steps
        known = self._times.get((plain.num_tokens, num_draftable))
        if known is None:
            most = min(MAX_DRAFTED, self._max_tokens * num_draftable)
            depth = plain.num_pairs / plain.num_tokens
            # Before the first measurement, steps of all lengths count as 1 s.
            target_s = self._costs.predict_added(plain, range(most + 1), depth) or [1.0] * (most + 1)
            # A step with drafts also takes the time of planning them.
            target_s[1:] = [step_s + self._plan_s for step_s in target_s[1:]]
            model = self.drafters.model
            known = _Times(target_s, [] if model is None else model.steps_s(num_draftable, int(depth)))
            self._times[plain.num_tokens, num_draftable] = known
        return known

    def _offers(self, sequence: Sequence, max_tokens: int, times: _Times) -> list[_SourceOffer]:
        """Return the offers of the sequence's own text and of the draft model, if they have any."""
        found = []
        model, ngrams = self.drafters.model, self.drafters.ngrams
        if ngrams is not None:
            tokens, length = ngrams.find(sequence, max_tokens)
            tokens = tuple(takewhile(lambda token: not is_medium(token), tokens))
            if tokens:
                end = next((place for place, token in enumerate(tokens) if self._is_end(token)), len(tokens))
                tokens = tokens[: end + 1]
                source = next(name for least, name in _NGRAM_SOURCES if length >= least)
                acceptance = self._acceptance(sequence, source)
                chances = acceptance.chances[: len(tokens)]
                found.append(
                    _SourceOffer(chances, sequence=sequence, source=source, acceptance=acceptance, tokens=tokens)
                )
        if model is not None and (self.may_catch_up or model.can_draft_now(sequence)):
            catch_up_s = model.catch_up_s(sequence)
            if catch_up_s < math.inf:
                state, acceptance = self._states[sequence.id], self._acceptance(sequence, MODEL)
                state.is_catching_up &= catch_up_s > 0.0
                state.is_catching_up |= catch_up_s > 0.0 and bool(sequence.spec.draft_tokens)
                found.append(
                    _SourceOffer(
                        acceptance.chances[:max_tokens],
                        times.draft_s,
                        model.start_s,
                        sequence=sequence,
                        source=MODEL,
                        acceptance=acceptance,
                        catch_up_s=catch_up_s,
                    )
                )
        return found

    def _choose(self, by_sequence: list[list[_SourceOffer]], target_s: Items[float], num_sequences: int) -> _Plan:
        """Return the plan of a step. `by_sequence`: the offers of each sequence that may have drafts."""
        planned = [offers for offers in by_sequence if not offers[0].sequence.spec.draft_tokens]
        asked = [offers for offers in by_sequence if offers[0].sequence.spec.draft_tokens]
        plan = self._best(self._ready(planned), target_s, num_sequences)
        if any(each.catch_up_s for offers in planned for each in offers):
            self._decide_catching_up(plan, planned, target_s, num_sequences)
        if self._num_steps % _PLAIN_EVERY == 0:
            plan = _Plan(plan.offers, [0] * len(plan.counts))
        else:
            plan = self._with_trial(plan, planned, target_s, num_sequences)
        if asked:
            best = self._best(self._ready(asked), target_s, num_sequences).offers
            counts = [min(each.sequence.spec.draft_tokens or 0, len(each.chances)) for each in best]
            others, num_others = (plan.counts, plan.offers), num_sequences - len(asked)
            added = add_asked(counts, best, *others, num_others, target_s, self._max_s)
            plan = replace(plan, offers=plan.offers + best, counts=plan.counts + added)
        if self.drafters.are_even:
            least = min(plan.counts, default=0) if len(plan.counts) == len(by_sequence) else 0
            plan = replace(plan, counts=[least] * len(plan.counts))
        return plan

    def _ready(self, by_sequence: list[list[_SourceOffer]]) -> list[list[_SourceOffer]]:
        """Return the offers that can draft in this step. The last chunk of a catch-up is computed with the draft."""
        ready = [
            [
                each
                for each in offers
                if not each.catch_up_s
                or (each.catch_up_s <= MAX_CATCH_UP_S and self._states[each.sequence.id].is_catching_up)
            ]
            for offers in by_sequence
        ]
        return [offers for offers in ready if offers]

    def _best(self, by_sequence: list[list[_SourceOffer]], target_s: Items[float], num_sequences: int) -> _Plan:
        """Return the best plan with one offer of each sequence: the one that would give most if all had such offers.

        Streams share the draft model's steps. The drafts of one stream alone may not pay, but those of all may.
        """
        best = [max(offers, key=lambda each: best_rate(each, target_s, num_sequences)) for offers in by_sequence]
        counts, gain = allocate(best, target_s, num_sequences, self._max_s)
        return _Plan(best, counts, gain)

    def _decide_catching_up(
        self, plan: _Plan, by_sequence: list[list[_SourceOffer]], target_s: Items[float], num_sequences: int
    ) -> None:
        """Choose the sequences for which the draft model should catch up, so that it can draft for them.

        `plan`: the best plan without any catch-up. An answer is expected to become twice as long as it is, or as long
        as answers are on average.
        """
        after = self._best(by_sequence, target_s, num_sequences)
        saved_s = target_s[0] * (1.0 / plan.gain - 1.0 / after.gain)  # of each stream's time per token
        behind = [(each, count) for each, count in zip(after.offers, after.counts, strict=True) if each.catch_up_s]
        num_behind = sum(count > 0 for _, count in behind)
        for each, count in behind:
            sequence = each.sequence
            num_expected = max(sequence.num_output, self._answer_tokens - sequence.num_output)
            num_expected = min(num_expected, sequence.max_length - len(sequence.tokens))
            is_worth = count > 0 and each.catch_up_s <= num_expected * saved_s / num_behind
            self._states[sequence.id].is_catching_up = is_worth
        # A few streams' drafts may not pay without those of the others.
        chosen = [
            [each for each in offers if not each.catch_up_s or self._states[each.sequence.id].is_catching_up]
            for offers in by_sequence
        ]
        if self._best([offers for offers in chosen if offers], target_s, num_sequences).gain <= plan.gain:
            for each in after.offers:
                self._states[each.sequence.id].is_catching_up = False

    def _with_trial(
        self, plan: _Plan, by_sequence: list[list[_SourceOffer]], target_s: Items[float], num_sequences: int
    ) -> _Plan:
        """Return the plan with a trial, if one is due; else the plan.

        A trial drafts a few tokens of an unused offer, although that may not pay, to learn how many are accepted. If
        all offers are used, it drafts twice as many tokens as planned, to learn how long such a step takes. All trials
        together may lose a small share of the time. The next one is for the offer that was unused for longest; one that
        needs a catch-up waits longer in proportion.
        """
        num_steps = self._num_steps - self._planned_at
        counted = zip(plan.offers, plan.counts, strict=True)
        used, idle = {(each.sequence.id, each.source) for each, count in counted if count}, []
        for each in (each for offers in by_sequence for each in offers):
            if (each.sequence.id, each.source) in used:
                each.acceptance.num_steps_unused = 0
            else:
                each.acceptance.num_steps_unused += num_steps
                idle.append(each)
        if not self._step_s:
            self._trial_time.saved_s = _SAVED_STEPS * target_s[0]
        if idle:
            tried = min(idle, key=lambda each: (each.catch_up_s + target_s[0]) / each.acceptance.num_steps_unused)
            trial = self._tried(plan, tried, _NUM_TRIED)
        elif used:
            place = plan.counts.index(max(plan.counts))
            tried = plan.offers[place]
            trial = self._tried(plan, tried, 2 * plan.counts[place])
            num_drafted = sum(trial.counts)
            if num_drafted <= sum(plan.counts) or not self._costs.is_outdated(num_sequences + num_drafted):
                return plan
        else:
            return plan
        loss_s = self._loss_s(plan, trial, target_s, num_sequences)
        max_s = max(_SAVED_STEPS * target_s[0], min(loss_s, _MAX_SAVED_S))
        self._trial_time.add(num_steps * target_s[0], max_s)
        if loss_s > self._trial_time.saved_s:
            return plan
        self._trial_time.spend(loss_s)
        if tried.catch_up_s > MAX_CATCH_UP_S:
            self._states[tried.sequence.id].is_catching_up = True
            return plan
        tried.acceptance.num_steps_unused = 0
        return trial

    def _tried(self, plan: _Plan, tried: _SourceOffer, most: int) -> _Plan:
        """Return the plan in which the sequence of `tried` drafts up to `most` of its tokens, or all sequences do."""
        others = [
            (each, count)
            for each, count in zip(plan.offers, plan.counts, strict=True)
            if each.sequence is not tried.sequence
        ]
        num_tried = min(most, len(tried.chances))
        if self.drafters.are_even:
            others = [(each, min(num_tried, len(each.chances))) for each, _ in others]
        others.append((tried, num_tried))
        return _Plan([each for each, _ in others], [count for _, count in others])

    def _loss_s(self, plan: _Plan, trial: _Plan, target_s: Items[float], num_sequences: int) -> float:
        """Return the expected seconds that the step of `trial` takes longer than its tokens would take with `plan`."""
        step_s = expected_s(trial.counts, trial.offers, target_s)
        num_tokens = num_sequences + sum(
            sum(each.chances[:count]) for each, count in zip(trial.offers, trial.counts, strict=True)
        )
        loss_s = step_s - num_tokens * target_s[0] / (num_sequences * plan.gain)
        return max(loss_s, _LEAST_LOSS * (step_s - target_s[0])) + trial.offers[-1].catch_up_s

    def _with_endings(
        self,
        to_draft: list[tuple[Sequence, int]],
        num_drafting: int,
        plan: _Plan,
        times: _Times,
        num_sequences: int,
    ) -> list[tuple[Sequence, int]]:
        """Let drafts end early where the draft model is unsure (see Ending). Return `to_draft` with new counts.

        The draft of a stream that is alone may become longer than planned while the draft model is sure.
        """
        target_s, found = times.target_s, []
        rate = plan.gain * num_sequences / max(target_s[0], 1e-9)
        for sequence, count in to_draft:
            if count:
                least, planned = list[float](), count
                if plan.gain > 1.0 and not sequence.spec.draft_tokens:
                    if num_sequences == 1:
                        count = min(len(target_s) - 1, sequence.max_length - len(sequence.tokens) - 1)
                    token_s, others = times.draft_s[num_drafting] / num_drafting, sum(plan.counts) - planned
                    step_s = [target_s[others + number] + number * token_s for number in range(count + 1)]
                    while count > planned and step_s[count] > self._max_s:
                        count -= 1
                    least = min_chances(rate, self._acceptance(sequence, MODEL).shared.rate, step_s[: count + 1])
                confidence = self.experience.confidence(sequence.spec.sampler.kind)
                self._states[sequence.id].ending = Ending(confidence, least, self._is_end, count=planned)
            found.append((sequence, count))
        return found

    def _acceptance(self, sequence: Sequence, source: str) -> Acceptance:
        known = self._states[sequence.id].acceptances
        if source not in known:
            known[source] = Acceptance(self.experience.shared(source, sequence.spec.sampler.kind))
        return known[source]

    def _may_draft(self, sequence: Sequence) -> bool:
        asked = sequence.spec.draft_tokens
        if sequence.rank is Rank.AHEAD:
            return False  # a request that comes meanwhile interrupts a step with drafts, or waits for it
        if asked is None:
            return not (self.drafters.spares_repeatable and sequence.spec.sampler.is_repeatable)
        return asked > 0

    def _forced(self, sequence: Sequence) -> tuple[int, ...]:
        # They are verified like drafts: other tokens may give the same text, and the sampler decides.
        return tuple(sequence.spec.sampler.forced()[: self.drafters.max_tokens])
