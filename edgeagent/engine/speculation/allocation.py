"""Decides how many tokens to draft for each sequence, so that a step gives the most expected tokens per second.

The drafts of one stream must not slow another one much.

The value of a draft token is the chance that it and all tokens before it are accepted (Leviathan et al. 2023, section
3). Its cost is the time by which it lengthens a draft step and the step of the target. Tokens are taken in the order of
their chances, or in one of two other orders. The order and the number with the best rate are chosen. All numbers are
tried: kernels work in tiles, so a fourth token may be free although the second is expensive.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence as Items
from dataclasses import dataclass

from edgeagent.engine.costs.cost_model import PLANNED_SHARE

# Drafts must be expected to raise the rate by this factor. Predictions are not exact enough for smaller gains.
_MIN_GAIN = 1.02
MIN_STREAM_RATE_SHARE = 0.8
"""With drafts, each stream keeps at least this share of its rate. Longer steps also delay streams without drafts."""
# Where a step without drafts exceeds the streams' target, one with drafts may take this many times as long. On such a
# machine, drafts are worth most.
_MAX_STRETCH = 3.0
# Tokens with a smaller chance are not considered. By estimate: they cannot repay their time.
_MIN_CHANCE = 0.02
# The most draft tokens of a step, by estimate. `allocate` takes longer with more.
MAX_DRAFTED = 64


@dataclass(slots=True)
class Offer:
    """The tokens that may be drafted for one sequence, and the cost of drafting them.

    `chances[i]`: the chance that the first i + 1 tokens are all accepted. `step_s[n]`: the seconds of a draft step for
    n sequences; empty if drafting costs nothing. `start_s`: the extra seconds of the first draft step.
    """

    chances: Items[float]
    step_s: Items[float] = ()
    start_s: float = 0.0


def allocate(
    offers: Items[Offer], target_steps_s: Items[float], num_sequences: int, max_s: float = math.inf
) -> tuple[list[int], float]:
    """Return how many tokens to draft for each offer, and the factor by which drafts raise the tokens per second.

    The factor is 1 if nothing is drafted.

    - `target_steps_s[n]`: the seconds of the target's step with n draft tokens. At most `len(target_steps_s) - 1` are
      drafted.
    - `num_sequences`: how many sequences decode, with or without an offer. Each gets one token from a step without
      drafts.
    - `max_s`: the most seconds of a step with drafts; see `longest_s`.
    """
    tokens = sorted(
        (-chance, position, index)
        for index, offer in enumerate(offers)
        for position, chance in enumerate(offer.chances)
        if chance >= _MIN_CHANCE
    )
    plain_rate = _rate(num_sequences, target_steps_s[0])
    rate_to_beat, chosen = _MIN_GAIN * plain_rate, tokens[:0]
    # The first order is that of the chances. The second one gives each stream one token before any stream gets two, so
    # that none falls behind. A third one has only the tokens that need no draft step, since they may pay where others
    # do not.
    orders = [tokens, sorted(tokens, key=lambda token: token[1])] if len(offers) > 1 else [tokens]
    free = [token for token in tokens if not offers[token[2]].step_s]
    if 0 < len(free) < len(tokens):
        orders.append(free)
    for order in orders:
        rate, count = _best_count(order[: len(target_steps_s) - 1], offers, target_steps_s, num_sequences, max_s)
        if rate > rate_to_beat:
            rate_to_beat, chosen = rate, order[:count]
    counts = [0] * len(offers)
    for _, _, index in chosen:
        counts[index] += 1
    return counts, rate_to_beat / plain_rate if chosen else 1.0


def _best_count(
    tokens: Items[tuple[float, int, int]],
    offers: Items[Offer],
    target_steps_s: Items[float],
    num_sequences: int,
    max_s: float,
) -> tuple[float, int]:
    """Return (rate, n): drafting the first n of `tokens` gives the highest rate in tokens per second.

    Return (0, 0) if every draft would exceed `max_s` or slow a stream too much. Each element of `tokens` is (-chance,
    position in its draft, index of its offer).
    """
    expected, draft_s, best, num_best = float(num_sequences), 0.0, 0.0, 0
    # Expected tokens of each stream in the step; 1 for a stream without an offer.
    each = [1.0] * max(num_sequences, len(offers))
    widths = [0] * MAX_DRAFTED  # number of sequences in each draft step
    for number, (minus_chance, position, index) in enumerate(tokens, 1):
        expected -= minus_chance
        each[index] -= minus_chance
        step_s = offers[index].step_s
        if step_s:
            width = widths[position]
            draft_s += step_s[width + 1] - (step_s[width] if width else 0.0)
            if width == position == 0:
                draft_s += offers[index].start_s
            widths[position] += 1
        step = target_steps_s[number] + draft_s
        if step > max_s:
            break  # more tokens would not take less time
        rate = _rate(expected, step)
        if rate > best and min(each) * target_steps_s[0] >= MIN_STREAM_RATE_SHARE * step:
            best, num_best = rate, number
    return best, num_best


def expected_s(counts: Items[int], offers: Items[Offer], target_steps_s: Items[float]) -> float:
    """Return the expected seconds of a step in which `counts[i]` tokens are drafted for `offers[i]`.

    Return infinity if these are more tokens than `target_steps_s` has times for.
    """
    if sum(counts) >= len(target_steps_s):
        return math.inf
    lengths = [(count, offer) for count, offer in zip(counts, offers, strict=True) if count and offer.step_s]
    draft_s = lengths[0][1].start_s if lengths else 0.0
    for position in range(max((count for count, _ in lengths), default=0)):
        draft_s += lengths[0][1].step_s[sum(count > position for count, _ in lengths)]
    return target_steps_s[sum(counts)] + draft_s


def add_asked(
    asked_counts: Items[int],
    asked: Items[Offer],
    counts: Items[int],
    offers: Items[Offer],
    num_others: int,
    target_steps_s: Items[float],
    max_s: float,
) -> list[int]:
    """Return how many tokens to draft for clients that asked for `asked_counts`, beside `counts` for others.

    - `asked`, `offers`: the offers behind `asked_counts` and `counts`.
    - `num_others`: how many of the decoding streams have clients that did not ask for drafts. The drafts are shortened
      until each of these streams keeps MIN_STREAM_RATE_SHARE of its rate, and the step takes at most `max_s`.
      Without such streams they are shortened only if `target_steps_s` has no time for that many tokens.
    """
    found = list(asked_counts)
    if not num_others:
        max_s = sys.float_info.max
    else:
        tokens = [1.0 + sum(offer.chances[:count]) for offer, count in zip(offers, counts, strict=True)]
        slowest = min(tokens) if len(tokens) == num_others else 1.0
        max_s = min(slowest * target_steps_s[0] / MIN_STREAM_RATE_SHARE, max_s)
    while any(found) and expected_s([*counts, *found], [*offers, *asked], target_steps_s) > max_s:
        found[found.index(max(found))] -= 1
    return found


def longest_s(plain_s: float, target_s: float) -> float:
    """Return how many seconds a step with drafts may take, if one without takes `plain_s`.

    It keeps `target_s`, the shortest target of the streams. If a plain step exceeds that, it may take _MAX_STRETCH of
    them.
    """
    return PLANNED_SHARE * target_s if plain_s <= target_s else _MAX_STRETCH * plain_s


def best_rate(offer: Offer, target_steps_s: Items[float], num_sequences: int) -> float:
    """Return the highest rate of all sequences together, in tokens per second, if each has such an offer and uses it.

    Return 0 if `target_steps_s` has no time for one draft token of each.
    """
    expected, best = 1.0, 0.0
    for count, chance in enumerate(offer.chances[: (len(target_steps_s) - 1) // num_sequences], 1):
        expected += chance
        step_s = target_steps_s[count * num_sequences]
        if offer.step_s:
            step_s += offer.start_s + count * offer.step_s[min(num_sequences, len(offer.step_s) - 1)]
        best = max(best, _rate(num_sequences * expected, step_s))
    return best


def _rate(num_tokens: float, seconds: float) -> float:
    # A coarse clock may have measured 0 s.
    return num_tokens / max(seconds, 1e-9)
