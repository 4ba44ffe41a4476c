"""Prompts: cold ones share no prefix, warm ones differ only at their end, and lengths are as requested."""

from __future__ import annotations

from itertools import combinations

import pytest

from edgeagent.bench.scenarios import NUM_TAIL_WORDS, Prompts, TokenCounting, fit_token_counting

NAMES = [f"ttft {number}" for number in range(20)]


def common(one: str, other: str) -> int:
    """Return the length of the common prefix of two prompts, in characters."""
    return next(
        (index for index, pair in enumerate(zip(one, other, strict=False)) if len(set(pair)) > 1),
        min(len(one), len(other)),
    )


def test_cold_prompts_share_no_first_word() -> None:
    prompts = [Prompts(1, server).cold(name, 200) for server in "AB" for name in NAMES]
    prompts += [Prompts(2, "A").cold(name, 200) for name in NAMES]
    assert max(common(one, other) for one, other in combinations(prompts, 2)) < 4


def test_warm_prompts_differ_in_their_last_words_alone() -> None:
    prompts = Prompts(1, "A")
    warm = [prompts.warm(name, 200) for name in NAMES]
    assert len(set(warm)) == len(NAMES)
    for prompt in warm[1:]:
        assert len(prompt[common(warm[0], prompt) :].split()) <= NUM_TAIL_WORDS
    assert common(warm[0], Prompts(1, "B").warm(NAMES[0], 200)) < 4
    assert common(warm[0], Prompts(2, "A").warm(NAMES[0], 200)) < 4


def test_two_servers_get_the_same_words_behind_the_first() -> None:
    ours, theirs = (Prompts(1, server).cold("x", 100).split(maxsplit=1) for server in "AB")
    assert ours[0] != theirs[0]
    assert ours[1] == theirs[1]


def test_a_seed_repeats_itself() -> None:
    assert Prompts(7, "A").cold("x", 100) == Prompts(7, "A").cold("x", 100)


@pytest.mark.parametrize(("per_word", "fixed"), [(1.0, 12), (1.3, 30), (2.5, 0)])
def test_a_server_s_way_of_counting_is_found_out(per_word: float, fixed: float) -> None:
    counting = fit_token_counting(16, round(16 * per_word + fixed), 80, round(80 * per_word + fixed))
    assert counting.words(1000) * per_word + fixed == pytest.approx(1000, rel=0.03)


def test_a_server_that_counts_nonsense_is_taken_at_a_token_a_word() -> None:
    assert fit_token_counting(16, 10, 80, 10) == TokenCounting()


def test_there_is_always_a_word() -> None:
    assert TokenCounting(1.0, 500).words(10) == 1
