"""Chooses drafts that are made to learn how often a source's tokens are accepted, although they may not pay."""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

from edgeagent.engine.sequence import Sequence
from edgeagent.engine.speculation.acceptance import NUM_FIRST, Acceptance
from edgeagent.engine.speculation.allocation import Offer, could_pay

# While drafts do not pay, this share of the time is spent on trials, which show whether they pay by now.
_SHARE_OF_TRIALS = 0.01
# Together, the first trials of all sequences may take this share of the time.
_SHARE_OF_FIRST_TRIALS = 0.02
# Sources whose drafts would not pay even if their tokens were accepted this many times as often get less time, namely
# this share of it.
_HOPE = 2.0
_SHARE_WITHOUT_HOPE = 0.25
# A source of which little is known, also from earlier processes, is tried at once if that takes at most this long.
_UNKNOWN_TRIAL_S = 0.1


@dataclass(slots=True)
class Candidate:
    """One source's offer for one sequence. `tokens` are already known if drafting costs nothing."""

    sequence: Sequence
    source: str
    acceptance: Acceptance
    offer: Offer
    tokens: tuple[int, ...] = ()
    catch_up_s: float = 0.0  # time that the source needs before it can draft

    def trial_s(self, num_tokens: int, target_s: Items[float]) -> float:
        """Return the expected seconds that drafting and verifying up to `num_tokens` adds to a step."""
        count = min(num_tokens, len(self.offer.chances), len(target_s) - 1)
        return target_s[count] - target_s[0] + self.offer.draft_s(count) + self.catch_up_s


class Trials:
    """Saves up time for trials, and says which candidate to try with how many tokens.

    A candidate is left out if its draft would not pay even with all tokens accepted.
    """

    def __init__(self) -> None:
        self._saved_s = self._saved_for_first_s = 0.0

    def of_unknown(
        self, candidates: Items[Candidate], target_s: Items[float], num_sequences: int
    ) -> tuple[int, int] | None:
        """Return (index of a candidate, number of tokens) if too little is known of its source; else None.

        The first draft of a source is short. Each next one is about twice as long, until a token is refused. Then
        short drafts are tried as long as they may pay, because two unlucky drafts say little.
        """
        for index, each in enumerate(candidates):
            shared = each.acceptance.shared
            count, rate = shared.num_to_try, 1.0
            if not count:
                count, rate = NUM_FIRST, shared.likely_rate
                if rate == shared.rate:
                    continue
            if each.trial_s(count, target_s) <= _UNKNOWN_TRIAL_S and could_pay(
                each.offer, target_s, num_sequences, rate
            ):
                return index, min(count, len(each.offer.chances))
        return None

    def next(
        self, candidates: Items[Candidate], target_s: Items[float], num_sequences: int, num_steps: int
    ) -> tuple[int, int] | None:
        """Return (index of a candidate, number of tokens) if the saved time is enough for its trial; else None.

        `num_steps`: for how many steps without drafts this call saves time. A sequence that never had a draft comes
        first. Otherwise the sequence without drafts for the longest time comes first.
        """
        worth = [index for index, each in enumerate(candidates) if could_pay(each.offer, target_s, num_sequences)]
        if not worth:
            return None
        is_hopeful = any(
            could_pay(each.offer, target_s, num_sequences, min(1.0, _HOPE * each.acceptance.shared.rate))
            for each in (candidates[index] for index in worth)
        )
        saved_s = target_s[0] * num_steps * (1.0 if is_hopeful else _SHARE_WITHOUT_HOPE)
        self._saved_s += _SHARE_OF_TRIALS * saved_s
        self._saved_for_first_s += _SHARE_OF_FIRST_TRIALS * saved_s
        for index in worth:
            cost_s = candidates[index].trial_s(NUM_FIRST, target_s)
            if not candidates[index].acceptance.is_judged and cost_s <= self._saved_for_first_s:
                self._saved_for_first_s -= cost_s
                return index, min(NUM_FIRST, len(candidates[index].offer.chances))
        index = max(worth, key=lambda index: candidates[index].acceptance.num_idle_steps)
        cost_s = candidates[index].trial_s(NUM_FIRST, target_s)
        if self._saved_s < cost_s:
            return None
        self._saved_s -= cost_s
        return index, min(NUM_FIRST, len(candidates[index].offer.chances))
