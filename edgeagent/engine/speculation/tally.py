"""Counts drafts and their accepted tokens since the start, for status and metrics.

Decisions use `acceptance` instead, where older drafts count less.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from edgeagent.types import DraftCounts


@dataclass(slots=True)
class _Source:
    chosen: list[int] = field(default_factory=list)  # drafts by their length
    judged: list[int] = field(default_factory=list)  # tokens by position
    stood: list[int] = field(default_factory=list)


class Tally:
    """The drafts of each source, and the time of steps with drafts compared with the time without drafts."""

    def __init__(self) -> None:
        self._sources: dict[str, _Source] = {}
        self._taken_s = self._without_s = 0.0

    @property
    def gain(self) -> float:
        """The factor by which drafts raised the tokens per second of the steps that had them; 0 if no step had any."""
        return self._without_s / self._taken_s if self._taken_s else 0.0

    def counts(self) -> tuple[DraftCounts, ...]:
        """Return the counts of each source. Any thread may call it."""
        return tuple(
            DraftCounts(name, tuple(source.chosen), tuple(source.judged), tuple(source.stood))
            for name, source in tuple(self._sources.items())
        )

    def add_draft(self, name: str, num_drafted: int, num_stood: int) -> None:
        """Count one draft with `num_stood` accepted tokens. Tokens after the first refused one are not counted."""
        source = self._sources.setdefault(name, _Source())
        _add(source.chosen, num_drafted)
        for position in range(min(num_drafted, num_stood + 1)):
            _add(source.judged, position)
            if position < num_stood:
                _add(source.stood, position)

    def add_step(self, num_sequences: int, num_accepted: int, taken_s: float, plain_s: float) -> None:
        """Count a step of decoding sequences with drafts. `taken_s` includes drafting.

        Without drafts, a step of `plain_s` would give one token for each sequence.
        """
        self._taken_s += taken_s
        self._without_s += plain_s * (num_sequences + num_accepted) / num_sequences


def _add(counts: list[int], place: int) -> None:
    counts.extend([0] * (place + 1 - len(counts)))
    counts[place] += 1
