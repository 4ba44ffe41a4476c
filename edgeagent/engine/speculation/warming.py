"""Lets the draft model compute the prompts of prefill-only requests while the engine is idle.

These requests have no answer, so the draft model does not compute their prompts while they run. When it has computed a
prompt, a later answer to that prompt can have drafts from its first token on, even after a restart.
"""

from __future__ import annotations

from collections import deque

from edgeagent.engine.sequence import Sequence
from edgeagent.engine.speculation.draft_model import DraftModel

# At most this many prompts wait. If there are more, the oldest is dropped. Each holds its tokens in memory.
_MAX_PROMPTS = 64


class PromptWarmer:
    """A queue of prompts that the draft model has not computed yet, the oldest first."""

    def __init__(self, model: DraftModel | None) -> None:
        """If `model` is None, prompts are ignored."""
        self._model = model
        self._prompts: deque[Sequence] = deque(maxlen=_MAX_PROMPTS)
        self._has_begun = False  # whether the draft model has a state for the first prompt

    @property
    def is_done(self) -> bool:
        """Whether no prompt is left."""
        return not self._prompts

    def add(self, sequence: Sequence) -> None:
        """Queue the prompt of a prefill-only sequence that has ended. Ignore it if it may not be cached."""
        if self._model is not None and sequence.keeps_prefix:
            self.pause()
            self._prompts.append(sequence)

    def run_when_idle(self) -> None:
        """Compute a chunk of the first prompt, or wait up to 5 ms for a block of its prefix.

        If the prompt is complete, was purged or makes no progress, remove it from the queue.
        """
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
        """Stop computing the first prompt for now. Its computed tokens stay as a prefix, which may be evicted."""
        if self._model is not None and self._has_begun:
            self._model.release(self._prompts[0])
            self._has_begun = False

    def purge(self, partition: str | None = None) -> None:
        """Forget the prompts of a partition, or of all partitions if None, and their computed tokens."""
        for sequence in self._prompts:
            sequence.is_purged = sequence.is_purged or partition in (None, sequence.spec.partition)
        self.pause()
        kept = [sequence for sequence in self._prompts if not sequence.is_purged]
        self._prompts.clear()
        self._prompts.extend(kept)
