"""Drafts whose lengths clients have set (`draft_tokens`). They are shortened if other streams would become too slow."""

from __future__ import annotations

import sys
from collections.abc import Sequence as Items

from edgeagent.engine.speculation.allocation import MIN_STREAM_RATE_SHARE, expected_s, longest_s
from edgeagent.engine.speculation.trials import Candidate


def add_asked(
    asked: Items[Candidate],
    candidates: list[Candidate],
    counts: list[int],
    num_others: int,
    target_steps_s: Items[float],
    budget_s: float,
) -> None:
    """Append to `candidates` the drafts that clients asked for, and to `counts` how many tokens each of them has.

    - `asked`: the candidates of the sequences whose clients have set `draft_tokens`. A candidate whose source must
      first catch up is replaced by the sequence's other source, or left out.
    - `counts`: how many tokens each of `candidates` drafts.
    - `num_others`: how many of the decoding streams have clients that did not ask for drafts. The drafts are shortened
      until each of these streams keeps at least four fifths of its rate, and the step takes at most `longest_s`.
      Without such streams they are shortened only if `target_steps_s` has no time for that many tokens.

    `allocate` describes the other arguments.
    """
    ready = [each if not each.catch_up_s else each.second_choice for each in asked]
    added = [each for each in ready if each is not None and not each.catch_up_s]
    wanted = [min(each.sequence.spec.draft_tokens or 0, len(each.offer.chances)) for each in added]
    offers = [each.offer for each in (*candidates, *added)]
    max_s = sys.float_info.max
    if num_others:
        tokens = [1.0 + sum(each.offer.chances[:count]) for each, count in zip(candidates, counts, strict=True)]
        slowest = min(tokens) if len(tokens) == num_others else 1.0
        max_s = min(slowest * target_steps_s[0] / MIN_STREAM_RATE_SHARE, longest_s(target_steps_s, budget_s))
    while any(wanted) and expected_s([*counts, *wanted], offers, target_steps_s) > max_s:
        wanted[wanted.index(max(wanted))] -= 1
    counts += wanted
    candidates += added
