"""How the draft tokens of a step are divided among sequences, with scripted costs and chances."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence as Items

import pytest

from edgeagent.engine.speculation.allocation import Offer, allocate, longest_s

# A processor with tiles of four tokens that reads its weights once per tile: 4 tokens cost as much as one.
TILES_S = [0.025 * (1 + (num_tokens - 1) // 4) for num_tokens in range(1, 66)]

STEP_S = [0.0, 0.002, 0.003]


def falling(rate: float, count: int = 16) -> list[float]:
    return [rate ** (position + 1) for position in range(count)]


def test_a_tile_is_filled_where_its_tokens_are_free() -> None:
    (count,), gain = allocate([Offer(falling(0.5), [0.0, 0.001])], TILES_S, 1)
    assert count == 3
    assert gain > 1.5


def test_sure_tokens_are_drafted_as_far_as_they_go() -> None:
    assert allocate([Offer([1.0] * 15, [0.0, 0.001])], [0.025] * 65, 1)[0] == [15]


def test_a_step_keeps_the_target() -> None:
    sure, step_s = Offer([1.0] * 64, [0.0, 0.002]), [0.010, *[0.025] * 64]
    assert allocate([sure], step_s, 1, max_s=longest_s(step_s[0], 0.040))[0] == [5], "with a reserve"


def test_a_machine_slower_than_the_target_drafts_within_three_plain_steps() -> None:
    sure, step_s = Offer([1.0] * 16, [0.0, 0.050]), [0.4, *[0.5] * 64]
    (count,), gain = allocate([sure], step_s, 1, max_s=longest_s(step_s[0], 0.1))
    assert count == 14, "0.5 s and 14 draft steps of 50 ms take 1.2 s"
    assert gain == pytest.approx(15 * 0.4 / 1.2)


def test_what_does_not_pay_is_left() -> None:
    slow = [0.0, 0.050]
    assert allocate([Offer(falling(0.9), slow)], TILES_S, 1) == ([0], 1.0)
    assert allocate([Offer(falling(0.1), [0.0, 0.004])], TILES_S, 1) == ([0], 1.0)
    assert allocate([], TILES_S, 1) == ([], 1.0)


def test_the_first_draft_step_counts_with_all_its_time_and_only_once() -> None:
    step_s = [0.0, 0.001, 0.001]
    slow_start = Offer(falling(0.9), step_s, start_s=0.100)
    assert allocate([slow_start], TILES_S, 1) == ([0], 1.0)
    one, flat = Offer(falling(0.9), step_s, start_s=0.020), [0.025] * 65
    (_, gain), (_, gain_of_both) = allocate([one], flat, 1), allocate([one, one], flat, 2)
    assert gain_of_both > gain, "two streams share the start of a draft"


def test_the_surer_sequence_gets_the_tokens() -> None:
    offers = [Offer(falling(0.3), [0.0, 0.001, 0.001]), Offer(falling(0.9), [0.0, 0.001, 0.001])]
    (unsure, sure), _ = allocate(offers, TILES_S[1:], 2)
    assert sure > unsure


def test_tokens_that_are_known_already_need_no_draft_step() -> None:
    slow = [0.0, 0.050, 0.050]
    guessed, known = Offer(falling(0.9), slow), Offer(falling(0.9))
    (none, some), _ = allocate([guessed, known], TILES_S[1:], 2)
    assert none == 0 and some > 0


def step_s(counts: Items[int], target_steps_s: Items[float]) -> float:
    """Return the seconds of a step with its drafts."""
    return target_steps_s[sum(counts)] + sum(
        STEP_S[sum(count > position for count in counts)] for position in range(max(counts))
    )


def rate(offers: Items[Offer], counts: Items[int], target_steps_s: Items[float]) -> float:
    """Return the tokens per second of two sequences."""
    tokens = 2 + sum(sum(offer.chances[:count]) for offer, count in zip(offers, counts, strict=True))
    return tokens / step_s(counts, target_steps_s)


def is_fair(offers: Items[Offer], counts: Items[int], target_steps_s: Items[float]) -> bool:
    """Return whether each sequence keeps four fifths of its rate without drafts."""
    fewest = min(1 + sum(offer.chances[:count]) for offer, count in zip(offers, counts, strict=True))
    return fewest * target_steps_s[0] >= 0.8 * step_s(counts, target_steps_s)


def test_a_stream_without_drafts_is_hardly_slowed_by_others() -> None:
    # Twelve tokens for one stream would give more tokens per second, at a third of the rate for the others.
    draft_steps_s = [0.025 * (1 + (num_tokens - 1) // 16) for num_tokens in range(4, 69)]
    dear = [0.0, 0.004, 0.004, 0.004, 0.004]
    offers = [Offer([1.0] * 16, dear), *([Offer([0.0] * 16, dear)] * 3)]
    counts, _ = allocate(offers, draft_steps_s, 4)
    assert counts == [1, 0, 0, 0]
    assert allocate(offers[:1], draft_steps_s[:13], 1)[0] == [12]


def test_nothing_better_is_found_by_trying_everything() -> None:
    chance = random.Random(3)
    for _ in range(200):
        target_steps_s = list(
            itertools.accumulate((chance.choice((0.0, 0.0, 0.004, 0.02)) for _ in range(8)), initial=0.02)
        )
        offers = [Offer(falling(chance.uniform(0.1, 0.99), 4), STEP_S) for _ in range(2)]

        found, _ = allocate(offers, target_steps_s, 2)
        best = max(
            rate(offers, counts, target_steps_s)
            for counts in itertools.product(range(5), repeat=2)
            if is_fair(offers, counts, target_steps_s)
        )
        # Tokens are given in the order of their chances, which is not always the best if a wider draft step costs more.
        assert rate(offers, found, target_steps_s) >= 0.95 * best
