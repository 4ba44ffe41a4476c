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

from edgeagent.engine.costs.cost_model import CostModel
from edgeagent.engine.costs.step_shape import StepShape
from edgeagent.engine.sequence import Sequence
from edgeagent.engine.speculation.acceptance import NUM_FIRST, Acceptance
from edgeagent.engine.speculation.allocation import MAX_DRAFTED, Offer, allocate, longest_s
from edgeagent.engine.speculation.answer_lengths import AnswerLengths
from edgeagent.engine.speculation.asked_drafts import add_asked
from edgeagent.engine.speculation.catch_up_time import CatchUpTime
from edgeagent.engine.speculation.confidence import DraftPlan, Ending
from edgeagent.engine.speculation.draft_model import MAX_CATCH_UP_S, DraftModel
from edgeagent.engine.speculation.experience import Experience
from edgeagent.engine.speculation.ngram import NgramDrafter
from edgeagent.engine.speculation.planning_time import PlanningTime
from edgeagent.engine.speculation.step_times import StepTimes
from edgeagent.engine.speculation.tally import Tally
from edgeagent.engine.speculation.trials import Candidate, Trial, Trials, best_first

# One of this many steps has no drafts, so that the cost of a step without drafts stays known.
_PLAIN_EVERY = 128
# While no draft pays, check again only after this many steps, or when a text begins to repeat itself.
_REST = 8
# Sources by the least length of a match in a sequence's own text: after a longer match, more tokens are accepted.
_NGRAM_SOURCES = ((12, "ngram, 12 and more"), (6, "ngram, 6 to 11"), (1, "ngram, up to 5"), (0, "ngram, replaced"))
MODEL = "draft model"
_NOTHING = Offer(())


@dataclass(frozen=True, slots=True)
class Drafters:
    """The sources of proposals. `max_tokens`: the most tokens to draft for a sequence in a step (0: none).

    `planning_share`: the `share` of PlanningTime. `are_even`: all sequences of a step must get equally many tokens,
    because different numbers need more passes over the weights.
    """

    model: DraftModel | None = None
    ngrams: NgramDrafter | None = None
    max_tokens: int = 16
    max_forced: int = 0  # the most tokens forced by a grammar in one step
    planning_share: float = 0.005
    are_even: bool = False

    def within(self, max_tokens: int, *, are_even: bool) -> Drafters:
        """Return a copy for a runner that can take back at most `max_tokens` of a sequence (0: no drafts)."""
        if max_tokens == 0:
            return Drafters(max_tokens=0)
        most, forced = min(self.max_tokens, max_tokens), min(self.max_forced, max_tokens)
        return replace(self, max_tokens=most, max_forced=forced, are_even=are_even)


@dataclass(slots=True)
class _DraftingState:
    """The drafting state of a decoding sequence."""

    acceptances: dict[str, Acceptance] = field(default_factory=dict)
    source: str = ""  # of this step's drafts; "" if it has none, or only tokens that a grammar forces
    is_catching_up: bool = False  # the draft model first computes the tokens that it lacks, and drafts later
    is_catching_up_for_trial: bool = False  # the same for a trial, but only in this step
    ending: Ending | None = None  # of the draft model's draft of this step


class Proposals:
    """Proposes tokens for each sequence, from one source in each step."""

    def __init__(
        self,
        drafters: Drafters,
        costs: CostModel,
        itl_budget_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
        is_end: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """`costs` are those of the target's steps. `itl_budget_s` bounds a step with drafts (allocation.longest_s).

        `is_end` says whether a token ends the answer.
        """
        self._itl_budget_s = itl_budget_s
        self._is_end = is_end
        self._drafters = drafters
        self._max_tokens = min(drafters.max_tokens, MAX_DRAFTED)
        self._has_sources = self._max_tokens > 0 and (drafters.model is not None or drafters.ngrams is not None)
        self.experience = Experience(self._max_tokens)
        """What verified drafts have shown about the sources."""
        self._states: dict[str, _DraftingState] = {}
        self._times = StepTimes(costs, drafters.model, self._max_tokens)
        self._num_steps = self._planned_at = 0
        self._planning = PlanningTime(drafters.planning_share)
        self._trials = Trials()
        self._answer_lengths = AnswerLengths()
        self._rest = 0  # steps during which the draft model is not asked
        self.tally = Tally()
        self._clock = clock
        self._draft_s, self._num_accepted = 0.0, 0  # of this step
        self._has_proposed = self._has_computed = False  # in this step; `_has_computed`: the draft model
        self.catch_up_time = CatchUpTime(clock)
        """Limits how long the draft model computes missing tokens while a first token is awaited."""
        self.has_drafted = False
        """Whether the latest step had drafts, or a computation of the draft model."""

    @property
    def draft_model(self) -> DraftModel | None:
        """The draft model, if there is one."""
        return self._drafters.model

    def propose(self, running: Items[Sequence], num_cells: int = 0) -> dict[str, tuple[int, ...]]:
        """Return proposals by sequence id, for decoding sequences only. `num_cells`: how many cells are in use."""
        started_s, self._num_accepted, self._has_computed = self._clock(), 0, False
        proposals = self._proposed(running, num_cells)
        if self._drafters.are_even and proposals:
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

    def _proposed(self, running: Items[Sequence], num_cells: int) -> dict[str, tuple[int, ...]]:
        # A sequence close to its length limit gets no more drafts than it has room for.
        rooms = {
            sequence.id: sequence.max_length - len(sequence.tokens) - 1 for sequence in running if sequence.is_decoding
        }
        decoding = [sequence for sequence in running if rooms.get(sequence.id, 0) > 0]
        forced = {}
        if self._drafters.max_forced:
            forced = {sequence.id: self._forced(sequence)[: rooms[sequence.id]] for sequence in decoding}
            forced = {name: tokens for name, tokens in forced.items() if tokens}
        if not self._has_sources:
            return forced
        for state in self._states.values():
            state.source, state.ending, state.is_catching_up_for_trial = "", None, False
        for sequence in decoding:
            if sequence.id not in self._states:
                self._states[sequence.id] = _DraftingState()
                self._rest = 0
        free = [sequence for sequence in decoding if sequence.id not in forced and sequence.spec.draft_tokens != 0]
        # If a sequence gets no tokens, and all must get equally many, none gets any.
        if not free or (self._drafters.are_even and len(free) + len(forced) < len(rooms)):
            return forced
        num_tokens = len(rooms) + sum(map(len, forced.values()))
        depth = sum(sequence.num_computed for sequence in free) / len(free)
        return forced | self._drafted(free, rooms, StepShape(num_tokens, num_cells, num_tokens * depth))

    def _cut_even(self, proposals: dict[str, tuple[int, ...]], names: Items[str]) -> dict[str, tuple[int, ...]]:
        """Return proposals, cut to the fewest tokens that any of the sequences `names` has; {} if one has none."""
        least = min(len(proposals.get(name, ())) for name in names)
        for state in (self._states[name] for name in proposals if name in self._states):
            if least == 0:
                state.source = ""
            if state.ending is not None:
                state.ending.cut(least)
        return {name: tokens[:least] for name, tokens in proposals.items()} if least else {}

    def observe(self, sequence: Sequence, num_proposed: int, num_accepted: int, *, has_ended: bool = False) -> None:
        """Note how many proposed tokens of a sequence were accepted. Tokens that a grammar forced are not counted.

        `has_ended`: the last accepted token ended the answer, so the tokens after it were not verified.
        """
        state = self._states.get(sequence.id)
        if state is not None and state.source:
            sequence.num_drafted += num_proposed
            sequence.num_accepted += num_accepted
            # A step without drafts would also have shown the end.
            self._num_accepted += num_accepted - has_ended
            self.tally.add_draft(state.source, num_proposed, num_accepted, has_ended=has_ended)
            ending, num_verified = state.ending, num_accepted if has_ended else num_proposed
            if ending is not None:
                compared = ending.probabilities[:num_accepted] if has_ended else ending.probabilities
                self.experience.confidence(sequence.spec.sampler.kind).observe(compared, num_accepted)
                # The place after an early end counts as refused.
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
        self._answer_lengths.add(sequence.num_output)
        if self._drafters.model is not None:
            self._drafters.model.release(sequence)
        if self._drafters.ngrams is not None:
            self._drafters.ngrams.release(sequence)

    def _drafted(self, free: Items[Sequence], rooms: dict[str, int], plain: StepShape) -> dict[str, tuple[int, ...]]:
        """Return the step's drafts for the sequences `free`, by id. `plain`: the step's shape without drafts."""
        self._num_steps += 1
        is_resting, self._rest = self._rest > 0, max(0, self._rest - 1)
        is_fixed = any(sequence.spec.draft_tokens for sequence in free)
        if not self._planning.allows() and not is_fixed:
            return {}
        started_s = self._clock()
        found = [self._find_ngram(sequence, min(rooms[sequence.id], self._max_tokens)) for sequence in free]
        if is_resting and not any(found) and not is_fixed:
            return {}
        target_steps_s, draft_steps_s = self._times.look_up(plain, len(free), self._planning.plan_s, self._num_steps)
        candidates = []
        for sequence, ngram in zip(free, found, strict=True):
            offers = [*ngram, *self._ask_model(sequence, min(rooms[sequence.id], self._max_tokens), draft_steps_s)]
            candidates += best_first(offers, target_steps_s, len(rooms))[:1]
        sequences_behind = [each.sequence for best in candidates for each in best.with_second_choice if each.catch_up_s]
        asked = [candidate for candidate in candidates if candidate.sequence.spec.draft_tokens]
        for candidate in asked:
            self._states[candidate.sequence.id].is_catching_up |= candidate.catch_up_s > 0.0
        candidates = [candidate for candidate in candidates if not candidate.sequence.spec.draft_tokens]
        counts, gain = self._choose(candidates, target_steps_s, len(rooms))
        if asked:
            num_others = len(rooms) - sum(sequence.spec.draft_tokens not in (None, 0) for sequence in free)
            add_asked(asked, candidates, counts, num_others, target_steps_s, self._itl_budget_s)
        if self._drafters.are_even:
            counts = [min(counts, default=0) if len(candidates) == len(free) else 0] * len(counts)
        proposals, to_draft = self._accept_offers(candidates, counts)
        # Sequences that draft come first, since a catch-up takes all the room that it gets.
        behind = [(each, self._states[each.id]) for each in sequences_behind]
        catch_ups = [each for each, state in behind if state.is_catching_up or state.is_catching_up_for_trial]
        draft_counts = to_draft + [(each, 0) for each in catch_ups]
        is_restoring = self._drafters.model is not None and self._drafters.model.is_restoring
        has_work = bool(proposals or draft_counts or is_restoring)
        self._planning.note(self._clock() - started_s, target_steps_s[0], pays=has_work)
        self._planned_at = self._num_steps
        if draft_counts and self._drafters.model is not None:
            max_s = longest_s(target_steps_s, self._itl_budget_s)
            plan = DraftPlan(target_steps_s, draft_steps_s, len(rooms), sum(counts), gain, max_s)
            draft_counts = self._end_early(draft_counts, plan)
            endings = {each.id: ending for each, _ in draft_counts if (ending := self._states[each.id].ending)}
            began_s = self._clock()
            proposals |= self._drafters.model.draft(draft_counts, endings)
            self._has_computed = True
            if len(draft_counts) > len(to_draft):
                self.catch_up_time.spend(self._clock() - began_s)
                self._trials.spend_on_second_choice(self._clock() - began_s)
        if not has_work:
            self._rest = _REST
        return proposals

    def _accept_offers(
        self, candidates: Items[Candidate], counts: Items[int]
    ) -> tuple[dict[str, tuple[int, ...]], list[tuple[Sequence, int]]]:
        """Return the drafts from the sequences' own texts, and (sequence, draft length) for the draft model."""
        proposals: dict[str, tuple[int, ...]] = {}
        to_draft = []
        for candidate, count in zip(candidates, counts, strict=True):
            state = self._states[candidate.sequence.id]
            if not count or candidate.catch_up_s:
                self.tally.add_draft(candidate.source, 0, 0)
                continue
            state.source = candidate.source
            if candidate.tokens:
                proposals[candidate.sequence.id] = candidate.tokens[:count]
            else:
                state.is_catching_up = False
                to_draft.append((candidate.sequence, count))
        return proposals, to_draft

    def _end_early(self, draft_counts: Items[tuple[Sequence, int]], plan: DraftPlan) -> list[tuple[Sequence, int]]:
        """Let drafts end early where the draft model is unsure (see Ending). Return `draft_counts` with new counts."""
        num_drafting, found = sum(count > 0 for _, count in draft_counts), []
        for each, count in draft_counts:
            if count:
                confidence = self.experience.confidence(each.spec.sampler.kind)
                is_planned = plan.gain > 0.0 and not each.spec.draft_tokens
                min_chances: list[float] = []
                num_planned = count
                if is_planned and confidence.is_known:
                    room = each.max_length - len(each.tokens) - 1
                    min_chances = plan.min_chances(confidence.rate, count, num_drafting, room)
                    count = max(count, len(min_chances) + 1)
                elif is_planned:
                    count = min(count, NUM_FIRST)
                self._states[each.id].ending = Ending(confidence, min_chances, self._is_end, num_planned=num_planned)
            found.append((each, count))
        return found

    def _choose(
        self, candidates: list[Candidate], target_steps_s: Items[float], num_sequences: int
    ) -> tuple[list[int], float]:
        """Return how many tokens each candidate may draft in this step, and the factor by which that raises the rate.

        The rate is in tokens per second. The factor is 0 if there are no drafts, or if there is a trial. A candidate is
        replaced by its `second_choice` if its source must first catch up, or if the other source is to be tried.
        """
        if self._num_steps % _PLAIN_EVERY == 0:
            return [0] * len(candidates), 0.0
        offers = [candidate.offer for candidate in candidates]
        counts, gain = allocate(offers, target_steps_s, num_sequences, self._itl_budget_s)
        if any(candidate.catch_up_s for candidate in candidates):
            best, counts_of_best, best_gain = list(candidates), counts, gain
            for index, candidate in enumerate(best):
                if candidate.catch_up_s:
                    offers[index] = _NOTHING
                    if candidate.second_choice is not None:
                        candidates[index], offers[index] = candidate.second_choice, candidate.second_choice.offer
            counts, gain = allocate(offers, target_steps_s, num_sequences, self._itl_budget_s)
            self._decide_catching_up(best, counts_of_best, target_steps_s[0] * (1.0 / gain - 1.0 / best_gain))
        for candidate, count in zip(candidates, counts, strict=True):
            candidate.note_step(count)
        trial = self._trials.of_unknown(candidates, target_steps_s, num_sequences)
        num_steps = self._num_steps - self._planned_at
        trial = trial or self._trials.of_second_choice(candidates, target_steps_s, num_sequences, num_steps, gain)
        if trial is None and not any(counts):
            trial = self._trials.next(candidates, target_steps_s, num_sequences, num_steps)
        if trial is None:
            return counts, gain if any(counts) else 0.0
        is_made = self._try(candidates, counts, trial)
        return counts, gain if any(counts) and not is_made else 0.0

    def _try(self, candidates: list[Candidate], counts: list[int], trial: Trial) -> bool:
        """Change `candidates` and `counts` so that the trial is made in this step; return whether it is.

        If the draft model must first catch up with the sequence, the catch-up begins, and the trial is not made now. If
        all sequences of a step must get equally many tokens, try all candidates, not only this one.
        """
        are_even, is_second_choice = self._drafters.are_even, all(each is not trial.candidate for each in candidates)
        tried = [trial.candidate if each.sequence is trial.candidate.sequence else each for each in candidates]
        candidates_behind = [each for each in tried if each.catch_up_s and (are_even or each is trial.candidate)]
        for each in candidates_behind:
            self._states[each.sequence.id].is_catching_up = not is_second_choice
            self._states[each.sequence.id].is_catching_up_for_trial = is_second_choice
        if candidates_behind:
            if is_second_choice and trial.candidate.catch_up_s <= MAX_CATCH_UP_S:
                # With drafts from the text, the draft model would be behind again after this step.
                counts[[each is trial.candidate for each in tried].index(True)] = 0
            return False
        candidates[:] = tried
        for place, each in enumerate(candidates):
            if are_even or each is trial.candidate:
                counts[place], each.acceptance.num_steps_since_draft = min(trial.count, len(each.offer.chances)), 0
        return True

    def _decide_catching_up(self, candidates: Items[Candidate], counts: Items[int], saved_s: float) -> None:
        """Choose the sequences for which the draft model should catch up, so that it can draft for them.

        `counts`: how many tokens each candidate would draft after all catch-ups. `saved_s`: by how many seconds each
        stream's time per token would then fall.
        """
        num_drafting = max(1, sum(map(bool, counts)))
        for candidate, count in zip(candidates, counts, strict=True):
            if candidate.catch_up_s and count:
                sequence = candidate.sequence
                num_expected = self._answer_lengths.expected_more(sequence.num_output)
                num_expected = min(num_expected, sequence.max_length - len(sequence.tokens))
                if candidate.catch_up_s <= num_expected * saved_s / num_drafting:
                    self._states[sequence.id].is_catching_up = True

    def _find_ngram(self, sequence: Sequence, max_tokens: int) -> list[Candidate]:
        """Return the offer of the sequence's own text, in a list; empty if there is none."""
        if self._drafters.ngrams is None:
            return []
        tokens, length = self._drafters.ngrams.find(sequence, max_tokens)
        if not tokens:
            return []
        end = next((place for place, token in enumerate(tokens) if self._is_end(token)), len(tokens))
        tokens = tokens[: end + 1]
        source = next(name for least, name in _NGRAM_SOURCES if length >= least)
        acceptance = self._acceptance(sequence, source)
        return [Candidate(sequence, source, acceptance, Offer(acceptance.chances[: len(tokens)]), tokens)]

    def _ask_model(self, sequence: Sequence, max_tokens: int, draft_steps_s: Items[float]) -> list[Candidate]:
        """Return the draft model's offer, in a list; empty if it can neither draft nor catch up now."""
        model = self._drafters.model
        if model is None or not (self.catch_up_time.allows or model.can_draft_now(sequence)):
            return []
        catch_up_s = model.catch_up_s(sequence)
        acceptance = self._acceptance(sequence, MODEL)
        offer = Offer(acceptance.chances[:max_tokens], draft_steps_s, model.start_s)
        return [Candidate(sequence, MODEL, acceptance, offer, catch_up_s=catch_up_s)] if catch_up_s < math.inf else []

    def _acceptance(self, sequence: Sequence, source: str) -> Acceptance:
        known = self._states[sequence.id].acceptances
        if source not in known:
            known[source] = self.experience.of_sequence(source, sequence.spec.sampler.kind)
        return known[source]

    def _forced(self, sequence: Sequence) -> tuple[int, ...]:
        # They are verified like drafts: other tokens may give the same text, and the sampler decides.
        return tuple(sequence.spec.sampler.forced()[: self._drafters.max_forced])
