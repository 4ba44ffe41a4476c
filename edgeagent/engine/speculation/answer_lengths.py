"""Predicts how many more tokens an answer gets, from the lengths of the latest answers."""

from __future__ import annotations

from collections import deque

_MAX_ANSWERS = 32


class AnswerLengths:
    """The lengths of the latest answers in tokens."""

    def __init__(self) -> None:
        self._lengths: deque[int] = deque(maxlen=_MAX_ANSWERS)

    def add(self, num_tokens: int) -> None:
        """Record the length of an answer that has ended or was preempted."""
        if num_tokens:
            self._lengths.append(num_tokens)

    def expected_more(self, num_tokens: int) -> float:
        """Return how many more tokens to expect of an answer that has `num_tokens` now.

        The latest answers that were longer than `num_tokens` are taken. The result is the mean number of tokens that
        they got after their first `num_tokens`. One imaginary answer of twice `num_tokens` is included in the mean. So
        if no answer was longer, the result is `num_tokens`. A cost that further tokens must earn back is then paid only
        if the tokens so far would have earned it back.
        """
        more = [length - num_tokens for length in self._lengths if length > num_tokens]
        return (sum(more) + num_tokens) / (len(more) + 1)
