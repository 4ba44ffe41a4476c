"""Counts drafts and accepted tokens since the start, for status and metrics.

Decisions do not use these counts. They use `acceptance`, where older drafts count less.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from edgeagent.types import DraftCounts


@dataclass(slots=True)
class _SourceCounts:
    drafts_by_length: list[int] = field(default_factory=list)
    verified: list[int] = field(default_factory=list)  # number of verified tokens by position
    accepted: list[int] = field(default_factory=list)  # number of accepted tokens by position


class Tally:
    """Counts of the drafts of each source, and the time that drafts saved or cost."""

    def __init__(self) -> None:
        self._sources: dict[str, _SourceCounts] = {}
        self._taken_s = self._without_s = 0.0

    @property
    def gain(self) -> float:
        """The factor by which drafts raised the tokens per second; 0 if no step was counted (`add_step`)."""
        return self._without_s / self._taken_s if self._taken_s else 0.0

    def counts(self) -> tuple[DraftCounts, ...]:
        """Return the counts of each source. Any thread may call it."""
        return tuple(
            DraftCounts(name, tuple(source.drafts_by_length), tuple(source.verified), tuple(source.accepted))
            for name, source in tuple(self._sources.items())
        )

    def add_draft(self, name: str, num_drafted: int, num_accepted: int, *, has_ended: bool = False) -> None:
        """Count one draft of the source `name`, of which `num_accepted` tokens were accepted.

        Tokens after the first refused one count as not verified. `has_ended`: the last accepted token ended the answer,
        so the tokens after it were not verified either.
        """
        source = self._sources.setdefault(name, _SourceCounts())
        _add(source.drafts_by_length, num_drafted)
        for position in range(num_accepted if has_ended else min(num_drafted, num_accepted + 1)):
            _add(source.verified, position)
            if position < num_accepted:
                _add(source.accepted, position)

    def add_step(self, num_sequences: int, num_accepted: int, taken_s: float, plain_s: float) -> None:
        """Count a step that had drafts, or in which the draft model computed. All sequences of the step must decode.

        `num_accepted`: the accepted draft tokens of all sequences. `taken_s`: how long the step and its drafting took.
        `plain_s`: how long the step would take without drafts, with one token for each sequence.
        """
        self._taken_s += taken_s
        self._without_s += plain_s * (num_sequences + num_accepted) / num_sequences


def _add(counts: list[int], place: int) -> None:
    counts.extend([0] * (place + 1 - len(counts)))
    counts[place] += 1
