"""Drafts tokens with a small draft model.

The target model checks drafts in one batch. A draft is accepted if it equals the token that the sampler draws from the
target's own logits, so the output is the same as without drafts. This module only proposes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from edgeagent.engine.cache.lookup import BlockCache, no_blocks
from edgeagent.engine.cache.restorer import Restorer
from edgeagent.engine.cache.saver import Saver
from edgeagent.engine.cost_model import CostModel
from edgeagent.engine.runner import DecodeCancelled, OutOfCells, Runner, Slice
from edgeagent.engine.sequence import Sequence
from edgeagent.engine.speculation.depth import Acceptance, DraftLength
from edgeagent.errors import InternalError

# A draft model that is further behind than this (after a long prompt) catches up by one such chunk each step: this many
# tokens, fewer if they would take longer. The next tokens of all streams wait for it.
_MAX_CATCH_UP = 256
_MAX_CATCH_UP_S = 0.25
_MIN_CATCH_UP = 32


@dataclass(slots=True)
class _Draft:
    """A sequence's state in the draft model.

    The cache holds `num_agreed` tokens, all equal to the target's; the runner holds those and then `guesses`.
    """

    seq_id: int
    num_agreed: int
    guesses: list[int] = field(default_factory=list)


class DraftModel:
    """Proposes tokens with a second, smaller runner that has the target's vocabulary."""

    def __init__(
        self,
        runner: Runner,
        length: DraftLength,
        blocks: BlockCache | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`blocks` in memory keep prefixes that were evicted from the draft's cells (None: they are lost)."""
        self._runner = runner
        self._length = length
        self._clock = clock
        self._costs = CostModel(min(_MAX_CATCH_UP, runner.max_batch))  # of catching up
        self.saver = Saver(runner, blocks or no_blocks(), clock, self._costs)
        self._restorer = Restorer(runner, self.saver, clock)
        self._cache = self.saver.cells
        self._drafts: dict[str, _Draft] = {}
        self._acceptances: dict[str, Acceptance] = {}

    def draft(self, decoding: Items[Sequence]) -> dict[str, tuple[int, ...]]:
        """Return proposals by sequence id for the sequences that want a token each."""
        self.saver.shed()
        depth = max((sequence.num_computed for sequence in decoding), default=0)
        counts = {sequence.id: self._choose(sequence, len(decoding), depth) for sequence in decoding}
        drafting = [sequence for sequence in decoding if counts[sequence.id]]
        if not drafting:
            return {}
        try:
            return self._guess(self._catch_up(drafting), counts)
        except (DecodeCancelled, OutOfCells):
            for draft in self._drafts.values():
                draft.guesses.clear()
                draft.num_agreed = self._cache.rewind(draft.seq_id)
            return {}
        except InternalError:
            # No answer needs the draft. Its memory is unknown after a failed decode.
            for draft in self._drafts.values():
                draft.guesses.clear()
                draft.num_agreed = 0
                self._cache.reset(draft.seq_id)
            return {}

    def observe(self, sequence: Sequence, num_drafted: int, num_accepted: int) -> None:
        """Note how many of a sequence's proposals were accepted."""
        self._length.observe(self._acceptances[sequence.id], num_drafted, num_accepted)

    def release(self, sequence: Sequence) -> None:
        """Forget a sequence that ended; its prefix stays for the next turn."""
        self._acceptances.pop(sequence.id, None)
        draft = self._drafts.pop(sequence.id, None)
        if draft is not None:
            self._cache.rewind(draft.seq_id)
            self.saver.release(draft.seq_id, keep=sequence.keeps_prefix, priority=sequence.spec.cache_priority)

    def _choose(self, sequence: Sequence, num_decoding: int, depth: int) -> int:
        if sequence.id not in self._acceptances:
            self._acceptances[sequence.id] = self._length.begin()
        return self._length.choose(self._acceptances[sequence.id], num_decoding, depth)

    def _catch_up(self, decoding: Items[Sequence]) -> list[tuple[Sequence, _Draft]]:
        """Bring drafts to within one token of their sequences; return those that reached it."""
        ready, slices, behind = [], [], []
        depth = max((len(sequence.tokens) for sequence in decoding), default=0)
        room = self._costs.max_tokens_within(_MAX_CATCH_UP_S, depth, _MIN_CATCH_UP, max_growth=_MAX_CATCH_UP)
        for sequence in decoding:
            draft = self._settle(sequence)
            if draft is None:
                continue
            missing = sequence.tokens[draft.num_agreed : len(sequence.tokens) - 1][:room]
            if missing:
                room -= len(missing)
                slices.append(Slice(draft.seq_id, draft.num_agreed, missing, 0))
                behind.append((draft, missing))
            if draft.num_agreed + len(missing) == len(sequence.tokens) - 1:
                ready.append((sequence, draft))
        if slices and self._cache.reserve(sum(len(part.tokens) for part in slices)):
            started_s = self._clock()
            self._runner.decode(slices)
            self._costs.observe(sum(len(part.tokens) for part in slices), depth, self._clock() - started_s)
            for draft, missing in behind:
                self._cache.append(draft.seq_id, missing)
                draft.num_agreed += len(missing)
        return [(sequence, draft) for sequence, draft in ready if draft.num_agreed == len(sequence.tokens) - 1]

    def _settle(self, sequence: Sequence) -> _Draft | None:
        """Return a sequence's draft state without rejected drafts; claim one if it has none."""
        draft = self._drafts.get(sequence.id)
        if draft is None:
            return self._begin(sequence)
        stood = 0
        actual = sequence.tokens[draft.num_agreed : len(sequence.tokens) - 1]
        while stood < min(len(draft.guesses), len(actual)) and draft.guesses[stood] == actual[stood]:
            stood += 1
        if stood:
            self._cache.append(draft.seq_id, draft.guesses[:stood])
        draft.guesses.clear()
        draft.num_agreed = self._cache.rewind(draft.seq_id)
        return draft

    def _begin(self, sequence: Sequence) -> _Draft | None:
        """Claim a sequence's prefix in the draft's cells and blocks; None if every sequence id is live."""
        partition, max_length = sequence.spec.partition, len(sequence.tokens) - 1
        found = self._restorer.find(partition, sequence.tokens, max_length, lambda _tokens, _depth: None)
        restoring = self._restorer.claim(sequence.tokens, found)
        if restoring is None:
            return None
        while not self._restorer.advance(restoring, math.inf):
            pass  # memory never makes it wait
        draft = self._drafts[sequence.id] = _Draft(restoring.seq_id, self._cache.length(restoring.seq_id))
        return draft

    def _guess(self, ready: Items[tuple[Sequence, _Draft]], counts: dict[str, int]) -> dict[str, tuple[int, ...]]:
        # The last token of each sequence and all drafts but the final one are computed; they are recorded only after
        # the target has verified them.
        if not ready or not self._cache.reserve(sum(counts[sequence.id] for sequence, _ in ready)):
            return {}
        proposals: dict[str, list[int]] = {sequence.id: [] for sequence, _ in ready}
        fed = {sequence.id: sequence.tokens[-1] for sequence, _ in ready}
        for step in range(max(counts[sequence.id] for sequence, _ in ready)):
            started_s = self._clock()
            going_on = [(sequence.id, draft) for sequence, draft in ready if counts[sequence.id] > step]
            self._runner.decode(
                [Slice(draft.seq_id, draft.num_agreed + step, (fed[name],), 1) for name, draft in going_on]
            )
            for row, (name, draft) in enumerate(going_on):
                draft.guesses.append(fed[name])
                fed[name] = int(self._runner.logits(row).argmax())
                proposals[name].append(fed[name])
            self._length.observe_draft_step(self._clock() - started_s)
        return {name: tuple(tokens) for name, tokens in proposals.items()}
