"""Chooses drafts that are made to learn how often a source's tokens are accepted, although they may not pay."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

from edgeagent.engine.sequence import Sequence
from edgeagent.engine.speculation.acceptance import NUM_FIRST, Acceptance
from edgeagent.engine.speculation.allocation import Offer, best_rate, could_pay

# While drafts do not pay, this share of the time is spent on trials, which show whether they pay by now.
_SHARE_OF_TRIALS = 0.01
# Together, the first trials of all sequences may take this share of the time.
_SHARE_OF_FIRST_TRIALS = 0.02
# Sources whose drafts would not pay even if their tokens were accepted this many times as often get less time, namely
# this share of it.
_HOPE = 2.0
_SHARE_WITHOUT_HOPE = 0.25
# If a sequence has two sources, the one that is not used is tried after this many steps: it may have become better.
_STEPS_OF_OTHER = 64
# A source of which little is known, also from earlier processes, is tried at once if that takes at most this long.
_UNKNOWN_TRIAL_S = 0.1


@dataclass(slots=True)
class Candidate:
    """One source's offer for one sequence. `tokens` are already known if drafting costs nothing.

    `other` is the offer of a second source, which should pay less.
    """

    sequence: Sequence
    source: str
    acceptance: Acceptance
    offer: Offer
    tokens: tuple[int, ...] = ()
    catch_up_s: float = 0.0  # time that the source needs before it can draft
    other: Candidate | None = None

    @property
    def idle_longer(self) -> Candidate:
        """The one of the sequence's sources that has not drafted for longer. `other` must be able to draft at once."""
        other = self.other
        if other is None or other.catch_up_s:
            return self
        return other if other.acceptance.num_idle_steps > self.acceptance.num_idle_steps else self

    def note_step(self, num_tokens: int) -> None:
        """Record how many tokens this source drafts in a step."""
        self.acceptance.num_idle_steps = 0 if num_tokens else self.acceptance.num_idle_steps + 1
        if self.other is not None:
            self.other.acceptance.num_idle_steps += 1

    def trial_s(self, num_tokens: int, target_steps_s: Items[float]) -> float:
        """Return the expected seconds that drafting and verifying up to `num_tokens` adds to a step."""
        count = min(num_tokens, len(self.offer.chances), len(target_steps_s) - 1)
        return target_steps_s[count] - target_steps_s[0] + self.offer.draft_s(count) + self.catch_up_s


def best_first(offers: list[Candidate], target_steps_s: Items[float], num_sequences: int) -> list[Candidate]:
    """Sort the offers for one sequence by the rate that they promise. The second becomes the `other` of the first."""
    if len(offers) > 1:
        offers.sort(key=lambda each: -best_rate(each.offer, target_steps_s, num_sequences))
        offers[0].other = offers[1]
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

    A candidate is left out if its draft would not pay even with all tokens accepted.
    """

    def __init__(self) -> None:
        self._saved_s = self._saved_for_first_s = 0.0

    def of_unknown(
        self, candidates: Items[Candidate], target_steps_s: Items[float], num_sequences: int
    ) -> Trial | None:
        """Return a trial if too little is known of a candidate's source; else None.

        The first draft of a source is short. Each next one is about twice as long, until a token is refused. Then
        short drafts are tried as long as they may pay, because two unlucky drafts say little.
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

    def of_other(self, candidates: Items[Candidate], target_steps_s: Items[float], num_sequences: int) -> Trial | None:
        """Return a trial of a candidate's other source if that was idle for long and may pay; else None."""
        for each in candidates:
            other = each.idle_longer
            is_due = other is not each and other.acceptance.num_idle_steps >= _STEPS_OF_OTHER
            if is_due and could_pay(other.offer, target_steps_s, num_sequences):
                return Trial.of(other)
        return None

    def next(
        self, candidates: Items[Candidate], target_steps_s: Items[float], num_sequences: int, num_steps: int
    ) -> Trial | None:
        """Return a trial if the saved time is enough for it; else None.

        `num_steps`: for how many steps without drafts this call saves time. A sequence that never had a draft comes
        first. Otherwise the sequence without drafts for the longest time comes first.
        """
        sources = [each.idle_longer for each in candidates]
        worth = [each for each in sources if could_pay(each.offer, target_steps_s, num_sequences)]
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
        oldest = max(worth, key=lambda each: each.acceptance.num_idle_steps)
        cost_s = oldest.trial_s(NUM_FIRST, target_steps_s)
        if self._saved_s < cost_s:
            return None
        self._saved_s -= cost_s
        return Trial.of(oldest)
