"""Counts drafts and accepted tokens since the start, for status and metrics.

Decisions do not use these counts. They use `acceptance`, where older drafts count less.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from edgeagent.types import DraftCounts


@dataclass(slots=True)
class _Source:
    chosen: list[int] = field(default_factory=list)  # number of drafts by length
    verified: list[int] = field(default_factory=list)  # number of verified tokens by position
    accepted: list[int] = field(default_factory=list)  # number of accepted tokens by position


class Tally:
    """Counts of the drafts of each source, and the time that drafts saved or cost."""

    def __init__(self) -> None:
        self._sources: dict[str, _Source] = {}
        self._taken_s = self._without_s = 0.0

    @property
    def gain(self) -> float:
        """The factor by which drafts raised the tokens per second; 0 if there were none.

        Steps count in which there were drafts, or the draft model computed.
        """
        return self._without_s / self._taken_s if self._taken_s else 0.0

    def counts(self) -> tuple[DraftCounts, ...]:
        """Return the counts of each source. Any thread may call it."""
        return tuple(
            DraftCounts(name, tuple(source.chosen), tuple(source.verified), tuple(source.accepted))
            for name, source in tuple(self._sources.items())
        )

    def add_draft(self, name: str, num_drafted: int, num_accepted: int, *, has_ended: bool = False) -> None:
        """Count one draft, of which `num_accepted` tokens were accepted.

        Tokens after the first refused one count as not verified, as do those after an accepted one that `has_ended`
        the answer.
        """
        source = self._sources.setdefault(name, _Source())
        _add(source.chosen, num_drafted)
        for position in range(num_accepted if has_ended else min(num_drafted, num_accepted + 1)):
            _add(source.verified, position)
            if position < num_accepted:
                _add(source.accepted, position)

    def add_step(self, num_sequences: int, num_accepted: int, taken_s: float, plain_s: float) -> None:
        """Count a step with drafts, or beside which the draft model computed, and in which all sequences decode.

        `taken_s`: how long the step and its drafting took. `plain_s`: how long the step would take without drafts,
        with one token for each sequence.
        """
        self._taken_s += taken_s
        self._without_s += plain_s * (num_sequences + num_accepted) / num_sequences


def _add(counts: list[int], place: int) -> None:
    counts.extend([0] * (place + 1 - len(counts)))
    counts[place] += 1
