"""Makes recent tokens less likely: the repeat, presence and frequency penalties, by llama.cpp's formula."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray


class Penalties:
    """Counts the last `window` tokens of a sequence, and lowers their logits. A window of -1 means all tokens.

    `repeat`, `presence`, `frequency`: the strengths of the penalties. `history`: the sequence's tokens so far.
    """

    def __init__(self, window: int, repeat: float, presence: float, frequency: float, history: Sequence[int]) -> None:
        self._window = window
        self._repeat = np.float32(repeat)
        self._presence = np.float32(presence)
        self._frequency = np.float32(frequency)
        self._recent: deque[int] = deque()
        self._slots: dict[int, int] = {}
        self._tokens = np.zeros(64, np.intp)
        self._counts = np.zeros(64, np.float32)
        self.extend(history[-window:] if window > 0 else history)

    def extend(self, tokens: Iterable[int]) -> None:
        """Add tokens as the most recent ones, in order."""
        if self._window == 0:
            return
        for token in tokens:
            self._add(token)
            if self._window > 0:
                self._recent.append(token)
                if len(self._recent) > self._window:
                    self._remove(self._recent.popleft())

    def apply(self, logits: NDArray[np.float32]) -> None:
        """Lower the logits of the recent tokens, in place."""
        num = len(self._slots)
        tokens = self._tokens[:num]
        before = logits[tokens]
        after = np.where(before <= 0, before * self._repeat, before / self._repeat)
        logits[tokens] = after - (self._counts[:num] * self._frequency + self._presence)

    def _add(self, token: int) -> None:
        slot = self._slots.setdefault(token, len(self._slots))
        if slot == len(self._tokens):
            self._tokens = np.concatenate((self._tokens, np.zeros_like(self._tokens)))
            self._counts = np.concatenate((self._counts, np.zeros_like(self._counts)))
        self._tokens[slot] = token
        self._counts[slot] += 1

    def _remove(self, token: int) -> None:
        slot = self._slots[token]
        self._counts[slot] -= 1
        if self._counts[slot] == 0:
            # Fill the gap with the last slot.
            del self._slots[token]
            last = len(self._slots)
            if slot != last:
                moved = int(self._tokens[last])
                self._slots[moved] = slot
                self._tokens[slot] = moved
                self._counts[slot] = self._counts[last]
                self._counts[last] = 0
