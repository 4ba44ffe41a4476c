"""Computes with the draft model, in idle moments, prompts that were computed for later requests.

Such a request has no answer, for which the draft model would compute its prompt. The first answer to that prompt can
then be drafted for from its first token on, also after a restart.
"""

from __future__ import annotations

from collections import deque

from edgeagent.engine.sequence import Sequence
from edgeagent.engine.speculation.draft_model import DraftModel

# More prompts than this do not wait; the oldest is dropped. Each holds its tokens in memory.
_MAX_PROMPTS = 64


class PromptWarmer:
    """The prompts that the draft model is still to compute, the oldest first."""

    def __init__(self, model: DraftModel | None) -> None:
        """Without a model it takes no prompts."""
        self._model = model
        self._prompts: deque[Sequence] = deque(maxlen=_MAX_PROMPTS)
        self._has_begun = False  # the first one has a place in the draft's cells

    @property
    def is_done(self) -> bool:
        """Whether no prompt is left."""
        return not self._prompts

    def add(self, sequence: Sequence) -> None:
        """Take a sequence that has ended, and was to leave nothing but its prompt."""
        if self._model is not None and sequence.keeps_prefix:
            self.pause()
            self._prompts.append(sequence)

    def run_idle(self) -> None:
        """Compute a chunk of the first prompt, or wait a moment for its blocks; drop it where there is no progress."""
        if self._model is None or not self._prompts:
            return
        sequence = self._prompts[0]
        before = self._model.num_missing(sequence)
        self._has_begun = True
        self._model.draft([(sequence, 0)])
        if self._model.wait_for(sequence):
            return
        left = self._model.num_missing(sequence)
        if sequence.is_purged or not left or left == before:
            self.pause()
            self._prompts.popleft()

    def pause(self) -> None:
        """Give the draft's cells back to sequences that are answered; what was computed stays as a prefix."""
        if self._model is not None and self._has_begun:
            self._model.release(self._prompts[0])
            self._has_begun = False

    def purge(self, partition: str | None = None) -> None:
        """Forget the prompts of a partition (None: all), with what was computed of them."""
        for sequence in self._prompts:
            sequence.is_purged = sequence.is_purged or partition in (None, sequence.spec.partition)
        self.pause()
        kept = [sequence for sequence in self._prompts if not sequence.is_purged]
        self._prompts.clear()
        self._prompts.extend(kept)
