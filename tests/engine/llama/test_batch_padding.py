"""Padding a batch to a number of tokens that is fast to compute."""

from __future__ import annotations

import pytest

from edgeagent.engine.llama.context import WeightPadding, num_to_fill, padding_of_type

Q4_0, Q8_0, F16 = 2, 7, 1


@pytest.mark.parametrize(
    ("file_type", "changed"),
    [
        (Q4_0, {3: 4, 7: 8, 11: 12, 13: 16, 14: 16, 15: 16, 19: 20, 23: 24}),
        (Q8_0, {7: 8, 13: 16, 14: 16, 15: 16, 23: 24}),
        (F16, {}),
    ],
)
def test_so_many_tokens_are_computed_instead(file_type: int, changed: dict[int, int]) -> None:
    padding = padding_of_type(file_type)
    added = {count: num_to_fill(count, padding, 512) for count in range(25)}
    assert {count: count + number for count, number in added.items() if number} == changed


@pytest.mark.parametrize("file_type", [Q4_0, Q8_0])
def test_what_is_added_does_not_bring_another_kernel(file_type: int) -> None:
    padding = padding_of_type(file_type)
    assert [count + num_to_fill(count, padding, 512) for count in (45, 60, 61, 62, 63, 64, 77)] == [
        48,
        60,
        61,
        62,
        63,
        64,
        80,
    ]


def test_no_token_of_several_is_computed_alone() -> None:
    added = {count: num_to_fill(count, padding_of_type(F16), 128) for count in (1, 2, 127, 128, 129, 130, 257)}
    assert added == {1: 0, 2: 0, 127: 0, 128: 0, 129: 1, 130: 0, 257: 1}
    assert num_to_fill(131, padding_of_type(Q8_0), 130) == 1


def test_what_is_added_to_the_last_micro_batch_does_not_bring_another_kernel() -> None:
    added = {count: num_to_fill(count, WeightPadding(8, 3), 64) for count in (125, 126, 127, 128 + 61)}
    assert added == {125: 0, 126: 0, 127: 0, 128 + 61: 0}
    assert num_to_fill(128 + 15, WeightPadding(8, 3), 128) == 1
