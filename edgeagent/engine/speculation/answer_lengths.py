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
        """Return how many further tokens to expect of an answer that has `num_tokens` now.

        This is the mean of what the longer ones of the latest answers got from there on. One more answer counts, which
        got as many tokens again. So without longer answers, a cost that the further tokens must earn back is paid only
        when the answer has lasted as long as it takes to earn it.
        """
        more = [length - num_tokens for length in self._lengths if length > num_tokens]
        return (sum(more) + num_tokens) / (len(more) + 1)
