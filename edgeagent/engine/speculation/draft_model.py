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
from edgeagent.engine.step_shape import StepShape
from edgeagent.errors import InternalError

# A draft model that is further behind than this (after a long prompt) catches up by one such chunk each step: this many
# tokens, fewer if they would take longer. The next tokens of all streams wait for it.
_MAX_CATCH_UP = 256
_MAX_CATCH_UP_S = 0.1
_MIN_CATCH_UP = 32
# So few missing tokens cost no more than the one that a draft begins with.
_FEW = 4


@dataclass(slots=True)
class _Draft:
    """A sequence's state in the draft model.

    The cache holds `num_agreed` tokens, all equal to the target's; the runner holds those and then `fed`: the last
    token that was known, and guesses. They are recorded only after the target has verified them.
    """

    seq_id: int
    num_agreed: int
    fed: list[int] = field(default_factory=list)

    def num_stood(self, tokens: Items[int]) -> int:
        """Return how many of `fed` a sequence's tokens before its last one confirm."""
        actual = tokens[self.num_agreed : len(tokens) - 1]
        stood = 0
        while stood < min(len(self.fed), len(actual)) and self.fed[stood] == actual[stood]:
            stood += 1
        return stood


class DraftModel:
    """Proposes tokens with a second, smaller runner that has the target's vocabulary."""

    def __init__(
        self,
        runner: Runner,
        blocks: BlockCache | None = None,
        costs: CostModel | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`blocks` in memory keep prefixes that were evicted from the draft's cells (None: they are lost).

        `costs`: measured costs of the runner's steps.
        """
        self._runner = runner
        self._clock = clock
        self._costs = costs or CostModel(runner.max_batch)
        self.saver = Saver(runner, blocks or no_blocks(), clock, self._costs)
        self._restorer = Restorer(runner, self.saver, clock)
        self._cache = self.saver.cells
        self._drafts: dict[str, _Draft] = {}

    def steps_s(self, num_sequences: int, depth: int) -> list[float]:
        """Return the expected seconds of a draft step for 0, 1 … `num_sequences`; 0 while none was measured."""
        used = StepShape(0, self._cache.num_cells_used, 0.0)
        steps_s = self._costs.compare(used, range(1, num_sequences + 1), depth)
        return [0.0, *(steps_s or [0.0] * num_sequences)]

    def catch_up_s(self, sequence: Sequence) -> float:
        """Return the expected seconds until it can draft for a sequence; infinity if it has no room for it."""
        draft = self._drafts.get(sequence.id) or self._begin(sequence)
        if draft is None:
            return math.inf
        num_missing = len(sequence.tokens) - 1 - draft.num_agreed - draft.num_stood(sequence.tokens)
        return (self._costs.prefill_s(num_missing, draft.num_agreed) or 0.0) if num_missing > _FEW else 0.0

    def draft(self, counts: Items[tuple[Sequence, int]]) -> dict[str, tuple[int, ...]]:
        """Return proposals by sequence id, at most as many as `counts` says for each.

        A sequence that it is far behind of gets none: it catches up with it, by a chunk.
        """
        self.saver.shed()
        try:
            return self._guess(counts)
        except (DecodeCancelled, OutOfCells):
            for draft in self._drafts.values():
                draft.fed.clear()
                draft.num_agreed = self._cache.rewind(draft.seq_id)
            return {}
        except InternalError:
            # No answer needs the draft. Its memory is unknown after a failed decode.
            for draft in self._drafts.values():
                draft.fed.clear()
                draft.num_agreed = 0
                self._cache.reset(draft.seq_id)
            return {}

    def release(self, sequence: Sequence) -> None:
        """Forget a sequence that ended; its prefix stays for the next turn."""
        draft = self._drafts.pop(sequence.id, None)
        if draft is not None:
            self._cache.rewind(draft.seq_id)
            self.saver.release(draft.seq_id, keep=sequence.keeps_prefix, priority=sequence.spec.cache_priority)

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

    def _settle(self, sequence: Sequence) -> _Draft | None:
        """Return a sequence's draft state without refused drafts; claim one if it has none."""
        draft = self._drafts.get(sequence.id)
        if draft is None:
            return self._begin(sequence)
        stood = draft.num_stood(sequence.tokens)
        if stood:
            self._cache.append(draft.seq_id, draft.fed[:stood])
        draft.fed.clear()
        draft.num_agreed = self._cache.rewind(draft.seq_id)
        return draft

    def _guess(self, counts: Items[tuple[Sequence, int]]) -> dict[str, tuple[int, ...]]:
        depth = max((len(sequence.tokens) for sequence, _ in counts), default=0)
        used = StepShape(0, self._cache.num_cells_used, 0.0)
        room = self._costs.max_tokens_within(_MAX_CATCH_UP_S, used, depth, _MIN_CATCH_UP, max_growth=_MAX_CATCH_UP)
        room = min(room, _MAX_CATCH_UP, self._runner.max_batch - len(counts))
        slices, behind, wanted = [], [], {}
        proposals: dict[str, list[int]] = {}
        going_on: list[tuple[str, _Draft]] = []
        for sequence, count in counts:
            draft = self._settle(sequence)
            if draft is None:
                continue
            missing = sequence.tokens[draft.num_agreed : len(sequence.tokens) - 1]
            if len(missing) > room or not count:
                missing = missing[:room]
                if missing:
                    slices.append(Slice(draft.seq_id, draft.num_agreed, missing, 0))
            else:
                # What it lacks is computed with the token that its draft begins with.
                slices.append(Slice(draft.seq_id, draft.num_agreed, [*missing, sequence.tokens[-1]], 1))
                draft.fed.append(sequence.tokens[-1])
                wanted[sequence.id] = count
                proposals[sequence.id] = []
                going_on.append((sequence.id, draft))
            behind.append((draft, missing))
            room -= len(missing)
        num_new = sum(len(part.tokens) for part in slices) + sum(wanted.values()) - len(wanted)
        if not slices or not self._cache.reserve(num_new):
            for draft, _ in behind:
                draft.fed.clear()
            return {}
        self._decode(slices)
        for draft, missing in behind:
            self._cache.append(draft.seq_id, missing)
            draft.num_agreed += len(missing)
        while going_on:
            for row, (name, _) in enumerate(going_on):
                proposals[name].append(int(self._runner.logits(row).argmax()))
            going_on = [(name, draft) for name, draft in going_on if len(proposals[name]) < wanted[name]]
            if going_on:
                for name, draft in going_on:
                    draft.fed.append(proposals[name][-1])
                self._decode(
                    [
                        Slice(draft.seq_id, draft.num_agreed + len(draft.fed) - 1, draft.fed[-1:], 1)
                        for _, draft in going_on
                    ]
                )
        return {name: tuple(tokens) for name, tokens in proposals.items()}

    def _decode(self, slices: Items[Slice]) -> None:
        started_s = self._clock()
        self._runner.decode(slices)
        shape = StepShape(0, self._cache.num_cells_used, 0.0)
        for part in slices:
            shape = shape.plus(len(part.tokens), part.start)
        self._costs.observe(shape, self._clock() - started_s)
