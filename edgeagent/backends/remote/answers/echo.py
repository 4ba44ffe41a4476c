"""Removes from a continuation what it repeats of the answer before it.

Some builds of llama-server send the message that they continue once more before they go on, and a model that is asked
in words may do so too. The client has that text, and must not get it twice.
"""

from __future__ import annotations

from edgeagent.backends.remote.failures import Failure, Kind
from edgeagent.types import Delta, TextDelta

# This many characters are not repeated by chance; "ha" after "ha" may be.
MIN_CERTAIN_CHARS = 16


class EchoGuard:
    """Holds text back while it may be a repetition of `before`."""

    def __init__(self, before: str) -> None:
        self._before = before
        self._held: list[TextDelta] = []
        self._num_same = 0  # characters of `before` that were repeated so far
        self._is_decided = not before

    def take(self, deltas: list[Delta]) -> list[Delta]:
        """Return what of these deltas is new; raise a Failure where that cannot be told."""
        if self._is_decided:
            return deltas
        passed: list[Delta] = []
        for delta in deltas:
            if self._is_decided:
                passed.append(delta)
            elif isinstance(delta, TextDelta):
                passed += self._judge(delta)
            else:
                passed += [*self.release(), delta]
        return passed

    def release(self) -> list[Delta]:
        """Return what was held back: it repeats nothing, or ended before that was certain."""
        self._is_decided = True
        held, self._held = self._held, []
        return list(held)

    def _judge(self, delta: TextDelta) -> list[Delta]:
        self._held.append(delta)
        text, num_same = delta.text, self._num_same
        left = len(self._before) - num_same
        if len(text) < left and self._before.startswith(text, num_same):
            self._num_same += len(text)
            return []
        if not text.startswith(self._before[num_same:]):
            return self.release()
        if len(self._before) < MIN_CERTAIN_CHARS:
            raise Failure(Kind.REPEATED, "it cannot be told whether it went on with the answer or began it again")
        self.release()
        rest = text[left:]
        return [TextDelta(rest, delta.logprobs)] if rest else []
