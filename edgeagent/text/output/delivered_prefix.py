"""Removes the part of an answer that another machine has already delivered to the client.

The other machine may have shown text that the channels of this machine still hold back (white space, half a marker).
"""

from __future__ import annotations

from edgeagent.types import Delta, ReasoningDelta, TextDelta, replace


class DeliveredPrefix:
    """Removes the delivered part from the deltas of an answer that is repeated from its start.

    `text` and `reasoning` of the constructor are the delivered part. White space at the beginning of the text, and at
    both ends of the reasoning, is not compared.
    """

    def __init__(self, text: str, reasoning: str) -> None:
        self._text = text
        self._reasoning = reasoning.lstrip()
        self._has_text = False

    def rest(self, delta: Delta) -> Delta | None:
        """Return the new part of a delta; None if nothing is new."""
        match delta:
            case ReasoningDelta(text):
                new, self._reasoning = _undelivered(text, self._reasoning)
                return ReasoningDelta(new) if new else None
            case TextDelta(text):
                if not self._has_text and not text[:1].isspace():
                    self._text = self._text.lstrip()
                self._has_text, self._reasoning = True, ""
                new, self._text = _undelivered(text, self._text)
                return replace(delta, text=new) if new else None
            case _:
                self._text = self._reasoning = ""
                return delta


def _undelivered(text: str, delivered: str) -> tuple[str, str]:
    """Return the part of `text` that was not delivered, and the part of `delivered` that is still to be compared."""
    if delivered.startswith(text):
        return "", delivered[len(text) :]
    pairs = enumerate(zip(text, delivered, strict=False))
    num_same = next((index for index, (one, other) in pairs if one != other), min(len(text), len(delivered)))
    return text[num_same:], ""
