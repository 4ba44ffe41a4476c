"""Moving averages of an endpoint's speed: the time to the first token by prompt length, and the time between tokens.

Old values are forgotten, so that a slow endpoint is tried again.
"""

from __future__ import annotations

_BOUNDS = (256, 1024, 4096, 16_384)
_WEIGHT = 0.2
_FORGOTTEN_AFTER_S = 300.0
_MAX_STRETCH = 4.0


class Average:
    """One moving average. Its value is None before the first sample, and once the last sample is too old."""

    def __init__(self) -> None:
        self._value: float | None = None
        self._at_s = 0.0

    def add(self, value: float, now_s: float) -> None:
        """Add a value."""
        known = self.value(now_s)
        self._value = value if known is None else known + _WEIGHT * (value - known)
        self._at_s = now_s

    def value(self, now_s: float) -> float | None:
        """Return the average; None if it is unknown or too old."""
        return None if now_s - self._at_s > _FORGOTTEN_AFTER_S else self._value


class Averages:
    """The averages of one endpoint."""

    def __init__(self) -> None:
        self._first_token = [Average() for _ in (*_BOUNDS, 0)]
        self._token = Average()

    def note_first_token(self, num_prompt_tokens: int, seconds: float, now_s: float) -> None:
        """Note a time to the first token."""
        self._first_token[_size(num_prompt_tokens)].add(seconds, now_s)

    def note_tokens(self, num_tokens: int, seconds: float, now_s: float) -> None:
        """Note how many seconds the tokens after the first took; `num_tokens` counts only these."""
        if num_tokens > 0:
            self._token.add(seconds / num_tokens, now_s)

    def token_s(self, now_s: float) -> float | None:
        """Return the seconds from one token to the next; None if unknown."""
        return self._token.value(now_s)

    def first_token_s(self, num_prompt_tokens: int, now_s: float) -> float | None:
        """Predict the seconds to the first token from prompts of similar length, else of the nearest known length.

        A time that was measured with shorter prompts is multiplied by four. A time that was measured with
        longer prompts is returned as it is, as an upper bound. Return None if no time is known.
        """
        size = _size(num_prompt_tokens)
        for distance in range(len(self._first_token)):
            for other in (size - distance, size + distance):
                if 0 <= other < len(self._first_token):
                    known = self._first_token[other].value(now_s)
                    if known is not None:
                        return known * min(_MAX_STRETCH, 4.0 ** max(0, size - other))
        return None


def _size(num_prompt_tokens: int) -> int:
    return next((size for size, bound in enumerate(_BOUNDS) if num_prompt_tokens < bound), len(_BOUNDS))
