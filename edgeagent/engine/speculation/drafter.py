"""Proposes tokens for a step: those that a grammar forces, otherwise the drafter's.

The target's logits decide whether they are accepted; see engine.verification.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Protocol

from edgeagent.engine.cache.saver import Saver
from edgeagent.engine.sequence import Sequence


class Drafter(Protocol):
    """Drafts tokens; see draft_model."""

    saver: Saver

    def draft(self, decoding: Items[Sequence]) -> dict[str, tuple[int, ...]]:
        """Return proposals by sequence id."""
        ...

    def observe(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """Take in how many of a sequence's proposals stood."""
        ...

    def release(self, sequence: Sequence) -> None:
        """Forget a sequence that ended."""
        ...


class Proposals:
    """Proposes for each sequence from one source a step."""

    def __init__(self, drafter: Drafter | None, max_forced: int) -> None:
        """`max_forced`: the most tokens forced by a grammar in one step (0: none)."""
        self._drafter = drafter
        self._max_forced = max_forced
        self._forced_ids: set[str] = set()  # sequences whose proposals of this step come from a grammar

    def propose(self, running: Items[Sequence]) -> dict[str, tuple[int, ...]]:
        """Return proposals by sequence id, for decoding sequences only."""
        # A sequence close to its length limit gets no more drafts than it has room for.
        rooms = {
            sequence.id: sequence.max_length - len(sequence.tokens) - 1 for sequence in running if sequence.is_decoding
        }
        decoding = [sequence for sequence in running if rooms.get(sequence.id, 0) > 0]
        forced = {sequence.id: self._forced(sequence) for sequence in decoding} if self._max_forced else {}
        self._forced_ids = {name for name, tokens in forced.items() if tokens}
        free = [sequence for sequence in decoding if sequence.id not in self._forced_ids]
        guesses = self._drafter.draft(free) if self._drafter is not None else {}
        return {name: tokens[: rooms[name]] for name, tokens in (forced | guesses).items() if tokens}

    def observe(self, sequence: Sequence, num_proposed: int, num_accepted: int) -> None:
        """Note how many of a sequence's proposals were accepted; a grammar's proposals do not count for the drafter."""
        if self._drafter is not None and sequence.id not in self._forced_ids:
            sequence.num_drafted += num_proposed
            sequence.num_accepted += num_accepted
            self._drafter.observe(sequence, num_proposed, num_accepted)

    def release(self, sequence: Sequence) -> None:
        """Forget a sequence that ended or was preempted."""
        if self._drafter is not None:
            self._drafter.release(sequence)

    def _forced(self, sequence: Sequence) -> tuple[int, ...]:
        # Proposed like any draft: the same text may have other tokens, and the sampler decides.
        return tuple(sequence.spec.sampler.forced()[: self._max_forced])
