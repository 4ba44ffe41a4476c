"""What verified drafts have shown: how often tokens are accepted, and how far the draft model can be trusted.

Acceptance is kept by source of drafts and kind of sampler. A later process can start with the counts of an earlier one.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

from edgeagent.engine.speculation.acceptance import Acceptance, SharedAcceptance
from edgeagent.engine.speculation.confidence import Confidence
from edgeagent.types.choices import DraftRecord


class Experience:
    """Acceptance rates by source and kind of sampler, and confidence in the draft model by kind of sampler."""

    def __init__(self, max_tokens: int) -> None:
        """`max_tokens`: the most tokens of a draft."""
        self._max_tokens = max_tokens
        self._shared: dict[tuple[str, str], SharedAcceptance] = {}
        self._confidence: dict[str, Confidence] = {}

    def records(self) -> tuple[DraftRecord, ...]:
        """Return how often drafts were accepted, for `learn` in a later process."""
        return tuple(
            DraftRecord(source, sampler, *map(tuple, shared.counts()))
            for (source, sampler), shared in self._shared.items()
        )

    def learn(self, records: Items[DraftRecord]) -> None:
        """Start with the records of an earlier process."""
        for each in records:
            self.shared(each.source, each.sampler).begin_with(each.verified, each.accepted)

    def shared(self, source: str, sampler: str) -> SharedAcceptance:
        """Return the acceptance of a source's drafts over all sequences with this kind of sampler."""
        return self._shared.setdefault((source, sampler), SharedAcceptance(self._max_tokens))

    def of_sequence(self, source: str, sampler: str) -> Acceptance:
        """Return a new Acceptance for one sequence. It starts with the rates of all sequences (`shared`)."""
        return Acceptance(self.shared(source, sampler))

    def confidence(self, sampler: str) -> Confidence:
        """Return the Confidence for this kind of sampler: how far the draft model's probabilities can be trusted."""
        return self._confidence.setdefault(sampler, Confidence())
