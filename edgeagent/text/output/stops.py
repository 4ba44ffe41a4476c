"""Finds stop strings in a text that arrives in parts, by plain string search."""

from __future__ import annotations

from collections.abc import Iterable


class StopMatcher:
    """Returns the text that it gets, up to the first complete stop string.

    The stop string that is complete first ends the text. If several end at the same character, it is the longest of
    them. So the result does not depend on how the text is split into parts.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(dict.fromkeys(stop for stop in stops if stop))
        self._first_characters = frozenset(stop[0] for stop in self._stops)
        self._beginnings = frozenset(stop[:length] for stop in self._stops for length in range(1, len(stop)))
        self._max_held = max((len(stop) - 1 for stop in self._stops), default=0)
        self._held = ""

    @property
    def num_held(self) -> int:
        """The number of characters that are held back."""
        return len(self._held)

    def feed(self, text: str) -> tuple[str, str | None]:
        """Return the text that can be shown, and the stop string after it, which is None until one is complete.

        Text at the end that could begin a stop string is held back until more text shows that it does not. After a
        match, feed nothing more.
        """
        if not self._stops:
            return text, None
        text = self._held + text
        if (match := self._first_match(text)) is not None:
            start, stop = match
            self._held = ""
            return text[:start], stop
        cut = self._safe_length(text)
        self._held = text[cut:]
        return text[:cut], None

    def flush(self) -> str:
        """End the input and return the text that was held back."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, str] | None:
        best: tuple[int, int, str] | None = None
        for stop in self._stops:
            start = text.find(stop)
            if start >= 0 and (best is None or (start + len(stop), start) < best[:2]):
                best = (start + len(stop), start, stop)
        return None if best is None else (best[1], best[2])

    def _safe_length(self, text: str) -> int:
        for start in range(max(0, len(text) - self._max_held), len(text)):
            if text[start] in self._first_characters and text[start:] in self._beginnings:
                return start
        return len(text)
