"""Chooses trials: drafts that may not pay, but show how often a source's tokens are accepted."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

from edgeagent.engine.sequence import Sequence
from edgeagent.engine.speculation.acceptance import NUM_FIRST, Acceptance
from edgeagent.engine.speculation.allocation import Offer, best_rate_if_all_draft, could_pay

# While drafts do not pay, at most this share of the time is lost by trials, which show whether they pay by now.
_SHARE_OF_TRIALS = 0.01
# A trial is charged for the time that it is expected to lose, and for at least this share of the time that it takes.
_LEAST_LOSS = 0.05
# Together, the first trials of all sequences may take this share of the time.
_SHARE_OF_FIRST_TRIALS = 0.02
# Sources whose drafts would not pay even if their tokens were accepted this many times as often get less time, namely
# this share of it.
_HOPE = 2.0
_SHARE_WITHOUT_HOPE = 0.25
# If sequences have two sources, the one that is not used is tried after this many steps, multiplied by what the drafts
# of the other one gain: it may have become better.
# Such trials take a share of the time of their own, of which at most _MOST_SAVED_S is saved up.
_STEPS_BEFORE_SECOND_CHOICE = 64
_MOST_SAVED_S = 2.0
# A source of which little is known, also from earlier processes, is tried at once if that takes at most this long.
_UNKNOWN_TRIAL_S = 0.1


@dataclass(slots=True)
class Candidate:
    """One source's offer for one sequence.

    `tokens`: the draft, if it comes from the sequence's own text; empty if the draft model must first make it.
    `second_choice`: the candidate of the sequence's other source, which promises a lower rate; None if there is none.
    """

    sequence: Sequence
    source: str
    acceptance: Acceptance
    offer: Offer
    tokens: tuple[int, ...] = ()
    catch_up_s: float = 0.0  # time that the source needs before it can draft
    second_choice: Candidate | None = None

    @property
    def with_second_choice(self) -> tuple[Candidate, ...]:
        """This candidate, and that of the sequence's other source if there is one."""
        return (self,) if self.second_choice is None else (self, self.second_choice)

    def note_step(self, num_tokens: int) -> None:
        """Record how many tokens this source drafts in a step."""
        self.acceptance.num_steps_since_draft = 0 if num_tokens else self.acceptance.num_steps_since_draft + 1
        if self.second_choice is not None:
            self.second_choice.acceptance.shared.num_steps_unused += 1

    def trial_s(self, num_tokens: int, target_steps_s: Items[float]) -> float:
        """Return the expected seconds that a draft of up to `num_tokens` adds to a step, its catch-up included."""
        count = min(num_tokens, len(self.offer.chances), len(target_steps_s) - 1)
        return target_steps_s[count] - target_steps_s[0] + self.offer.draft_s(count) + self.catch_up_s

    def loss_s(self, num_tokens: int, target_steps_s: Items[float], num_sequences: int) -> float:
        """Return the expected seconds that a trial of up to `num_tokens` loses.

        Its accepted tokens save time, so a source that nearly pays can be tried often.
        """
        trial_s = self.trial_s(num_tokens, target_steps_s)
        count = min(num_tokens, len(target_steps_s) - 1)
        saved_s = sum(self.offer.chances[:count]) * target_steps_s[0] / num_sequences
        return max(trial_s - saved_s, _LEAST_LOSS * trial_s)


def best_first(offers: list[Candidate], target_steps_s: Items[float], num_sequences: int) -> list[Candidate]:
    """Sort the offers for one sequence, the highest expected rate first. Set the `second_choice` of the first."""
    if len(offers) > 1:
        # Streams share the draft model's steps. The drafts of one stream alone may not pay, but those of all may.
        offers.sort(key=lambda each: -best_rate_if_all_draft(each.offer, target_steps_s, num_sequences))
        offers[0].second_choice = offers[1]
    return offers


@dataclass(frozen=True, slots=True)
class Trial:
    """A draft of `count` tokens that is made to learn about a candidate's source."""

    candidate: Candidate
    count: int

    @classmethod
    def of(cls, candidate: Candidate, count: int = NUM_FIRST) -> Trial:
        """Return a trial of `count` tokens, or of fewer if the candidate offers fewer."""
        return cls(candidate, min(count, len(candidate.offer.chances)))


class Trials:
    """Saves up time for trials, and says which candidate to try with how many tokens.

    A candidate whose draft would not pay even with all tokens accepted is tried too, but rarely: the times of the steps
    may be outdated.
    """

    def __init__(self) -> None:
        self._saved_s = self._saved_for_first_s = self._saved_for_second_choices_s = 0.0

    def of_unknown(
        self, candidates: Items[Candidate], target_steps_s: Items[float], num_sequences: int
    ) -> Trial | None:
        """Return a trial if too little is known of a candidate's source; else None.

        The first draft of a source is short. Each next one is about twice as long, until a token is refused. Then
        short drafts are tried as long as they may pay, because two unlucky drafts say little. No trial adds more
        than 0.1 s to a step.
        """
        for each in candidates:
            shared = each.acceptance.shared
            count, rate = shared.num_to_try, 1.0
            if not count:
                count, rate = NUM_FIRST, shared.likely_rate
                if rate == shared.rate:
                    continue
            if each.trial_s(count, target_steps_s) <= _UNKNOWN_TRIAL_S and could_pay(
                each.offer, target_steps_s, num_sequences, rate
            ):
                return Trial.of(each, count)
        return None

    def of_second_choice(
        self,
        candidates: Items[Candidate],
        target_steps_s: Items[float],
        num_sequences: int,
        num_steps: int,
        gain: float,
    ) -> Trial | None:
        """Return a trial of a candidate's `second_choice` if that was unused for long and may pay; else None.

        `num_steps`: the number of steps since the last plan. A share of their time is saved up. The saved time must be
        enough for the trial and for the source's catch-up. `gain`: the factor by which the other drafts of this step
        raise the rate. A step without these drafts costs more if `gain` is larger, so there are fewer trials then.
        """
        self._saved_for_second_choices_s += _SHARE_OF_TRIALS * target_steps_s[0] * num_steps
        self._saved_for_second_choices_s = min(_MOST_SAVED_S, self._saved_for_second_choices_s)
        second_choices = [
            each.second_choice
            for each in candidates
            if each.second_choice is not None
            and each.second_choice.acceptance.shared.num_steps_unused >= _STEPS_BEFORE_SECOND_CHOICE * gain
        ]
        worth = [each for each in second_choices if could_pay(each.offer, target_steps_s, num_sequences)]
        cheapest = min(worth, key=lambda each: each.trial_s(NUM_FIRST, target_steps_s), default=None)
        if cheapest is None or cheapest.trial_s(NUM_FIRST, target_steps_s) > self._saved_for_second_choices_s:
            return None
        if not cheapest.catch_up_s:
            self._saved_for_second_choices_s -= cheapest.trial_s(NUM_FIRST, target_steps_s)
        return Trial.of(cheapest)

    def spend_on_second_choice(self, seconds: float) -> None:
        """Subtract the seconds of a catch-up from the time that is saved for trials of second choices."""
        self._saved_for_second_choices_s = max(0.0, self._saved_for_second_choices_s - seconds)

    def next(
        self, candidates: Items[Candidate], target_steps_s: Items[float], num_sequences: int, num_steps: int
    ) -> Trial | None:
        """Return a trial if the saved time is enough for it; else None.

        `num_steps`: the number of steps since the last plan. A share of their time is saved up. A sequence for which
        the source has no verified draft yet comes first. Otherwise the sequence without drafts for the longest time is
        chosen.
        """
        worth = [each for each in candidates if could_pay(each.offer, target_steps_s, num_sequences)] or candidates
        if not worth:
            return None
        is_hopeful = any(
            could_pay(each.offer, target_steps_s, num_sequences, min(1.0, _HOPE * each.acceptance.shared.rate))
            for each in worth
        )
        saved_s = target_steps_s[0] * num_steps * (1.0 if is_hopeful else _SHARE_WITHOUT_HOPE)
        self._saved_s += _SHARE_OF_TRIALS * saved_s
        self._saved_for_first_s += _SHARE_OF_FIRST_TRIALS * saved_s
        for each in worth:
            cost_s = each.trial_s(NUM_FIRST, target_steps_s)
            if not each.acceptance.has_verified and cost_s <= self._saved_for_first_s:
                self._saved_for_first_s -= cost_s
                return Trial.of(each)
        oldest = max(worth, key=lambda each: each.acceptance.num_steps_since_draft)
        cost_s = oldest.loss_s(NUM_FIRST, target_steps_s, num_sequences)
        if self._saved_s < cost_s:
            return None
        self._saved_s -= cost_s
        return Trial.of(oldest)
