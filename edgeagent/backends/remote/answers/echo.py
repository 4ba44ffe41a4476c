"""Removes the earlier answer from the start of its continuation, if the remote repeats it.

Some builds of llama-server send the unfinished message again before they continue it. A model that is asked in words
to continue may do so too. The client already has that text and must not get it twice.
"""

from __future__ import annotations

from edgeagent.backends.remote.failures import Failure, Kind
from edgeagent.types import Delta, TextDelta

# A repetition of this many characters is not a coincidence; a second "ha" after "ha" may be.
MIN_CERTAIN_CHARS = 16


class EchoGuard:
    """Holds back text that may be a repetition of `before`, which is the answer so far."""

    def __init__(self, before: str) -> None:
        self._before = before
        self._held: list[TextDelta] = []
        self._num_same = 0  # characters of `before` that were repeated so far
        self._is_decided = not before

    def take(self, deltas: list[Delta]) -> list[Delta]:
        """Return the deltas without repeated text.

        Raise a Failure if the text repeats `before`, but `before` is too short to exclude a coincidence.
        """
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
        """Stop holding text back, and return the deltas that were held.

        Call this as soon as the held text is known to be new, and at the end of the answer.
        """
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
            raise Failure(Kind.REPEATED, "it is unclear whether it continued the answer or started it over")
        self.release()
        rest = text[left:]
        return [TextDelta(rest, delta.logprobs)] if rest else []
