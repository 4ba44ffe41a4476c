"""What a client has of an answer that began elsewhere, so that nothing of it is said twice.

The channels hold text back (white space, half a marker) that another place had shown already.
"""

from __future__ import annotations

from edgeagent.types import Delta, ReasoningDelta, TextDelta, replace


class SaidBefore:
    """Takes the part that was said before off the deltas of an answer that is gone through again from its start.

    White space before the text, and at either end of the reasoning, belongs to neither.
    """

    def __init__(self, text: str, reasoning: str) -> None:
        self._text = text
        self._reasoning = reasoning.lstrip()
        self._has_text = False

    def rest(self, delta: Delta) -> Delta | None:
        """Return what of a delta is new; None where nothing is."""
        match delta:
            case ReasoningDelta(text):
                new, self._reasoning = _behind(text, self._reasoning)
                return ReasoningDelta(new) if new else None
            case TextDelta(text):
                if not self._has_text and not text[:1].isspace():
                    self._text = self._text.lstrip()
                self._has_text, self._reasoning = True, ""
                new, self._text = _behind(text, self._text)
                return replace(delta, text=new) if new else None
            case _:
                self._text = self._reasoning = ""
                return delta


def _behind(text: str, said: str) -> tuple[str, str]:
    """Return the part of a text behind what was said, and what of that is still to come."""
    if said.startswith(text):
        return "", said[len(text) :]
    pairs = enumerate(zip(text, said, strict=False))
    num_same = next((index for index, (one, other) in pairs if one != other), min(len(text), len(said)))
    return text[num_same:], ""
