"""Drafts tokens with a small draft model.

The target model checks drafts in one batch. A draft is accepted if it equals the token that the sampler draws from the
target's own logits, so the output is the same as without drafts. This module only proposes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from types import MappingProxyType

from edgeagent.engine.cache.cached_prefix import Restoring
from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.costs.step_shape import StepShape
from edgeagent.engine.runner import DecodeCancelled, OutOfCells, Runner, Slice
from edgeagent.engine.sequence import Sequence
from edgeagent.engine.speculation.confidence import Ending
from edgeagent.errors import InternalError

# A draft model that is further behind than this (after a long prompt) computes one chunk at each step to catch up: this
# many tokens, or fewer if they would take longer than _MAX_CATCH_UP_S. All streams wait for it.
_MAX_CATCH_UP = 256
_MAX_CATCH_UP_S = 0.1
_MIN_CATCH_UP = 32
# A step waits at most this long for blocks to be loaded into the draft's cells. At least one block is loaded.
_MAX_RESTORE_S = 0.01
# How long to wait for a block if there is nothing else to do.
_WAIT_S = 0.005
# Up to this many missing tokens cost no more than the one token that a draft begins with.
_FEW = 4
# The weight of the latest time in the average.
_PICK_WEIGHT = 0.1


@dataclass(slots=True)
class _Draft:
    """A sequence's state in the draft model.

    The cache holds `num_agreed` tokens, all equal to the target's. The runner holds these tokens, then `fed`: the last
    known token and drafted ones, which are recorded only after the target has verified them. `restoring`: the blocks of
    its prefix that are not restored yet.
    """

    seq_id: int
    num_agreed: int
    restoring: Restoring | None = None
    num_looked_at: int = 0  # how many tokens were already searched for ends of blocks
    fed: list[int] = field(default_factory=list)

    def num_stood(self, tokens: Items[int]) -> int:
        """Return how many leading tokens of `fed` equal the sequence's next tokens, its last token left out."""
        actual = tokens[self.num_agreed : len(tokens) - 1]
        stood = 0
        while stood < min(len(self.fed), len(actual)) and self.fed[stood] == actual[stood]:
            stood += 1
        return stood


class DraftModel:
    """Proposes tokens with a second, smaller runner that has the target's vocabulary."""

    def __init__(
        self, runner: Runner, prefixes: PrefixStore | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`prefixes` are those of this runner. If None, prefixes that are evicted from its cells are lost."""
        self._runner = runner
        self._clock = clock
        self.prefixes = prefixes or PrefixStore(runner, clock=clock)
        """The prefixes in the draft's cells and blocks."""
        self.costs = self.prefixes.costs
        """The measured costs of the draft model's steps."""
        self._drafts: dict[str, _Draft] = {}
        self._pick_s = 0.0  # to read a token from its logits

    def steps_s(self, num_sequences: int, depth: int) -> list[float]:
        """Return the expected seconds of a draft step for 0, 1 … `num_sequences`; all 0 if no step was measured."""
        used = StepShape(0, self.prefixes.num_cells_used, 0.0)
        steps_s = self.costs.compare(used, range(1, num_sequences + 1), depth)
        if steps_s is None:
            return [0.0] * (num_sequences + 1)
        return [0.0, *(step_s + count * self._pick_s for count, step_s in enumerate(steps_s, 1))]

    def catch_up_s(self, sequence: Sequence) -> float:
        """Return the expected seconds of the computation that is needed before it can draft for a sequence.

        Infinity if it has no room for the sequence, or if blocks of its prefix are still being read, since no step
        waits for them.
        """
        draft = self._drafts.get(sequence.id) or self._begin(sequence)
        if draft is None or not self._is_restored(draft):
            return math.inf
        num_missing = self.num_missing(sequence) or 0
        return (self.costs.prefill_s(num_missing, draft.num_agreed) or 0.0) if num_missing > _FEW else 0.0

    def num_missing(self, sequence: Sequence) -> int | None:
        """Return how many tokens before the last one are still to be computed; None if the sequence is not known."""
        draft = self._drafts.get(sequence.id)
        return None if draft is None else len(sequence.tokens) - 1 - draft.num_agreed - draft.num_stood(sequence.tokens)

    def wait_for(self, sequence: Sequence) -> bool:
        """If a sequence is being restored, wait up to 5 ms for its blocks and return True."""
        draft = self._drafts.get(sequence.id)
        if draft is None or draft.restoring is None:
            return False
        self.prefixes.wait_for_blocks([draft.restoring], _WAIT_S)
        return True

    def draft(
        self, counts: Items[tuple[Sequence, int]], endings: Mapping[str, Ending] = MappingProxyType({})
    ) -> dict[str, tuple[int, ...]]:
        """Return proposals by sequence id: at most `counts` tokens for each, or fewer if its ending stops it earlier.

        If the draft model is far behind a sequence, it proposes nothing, but computes a chunk to catch up.
        """
        self.prefixes.shed()
        try:
            return self._guess(counts, endings)
        except (DecodeCancelled, OutOfCells):
            for draft in self._drafts.values():
                draft.fed.clear()
                draft.num_agreed = self.prefixes.rewind(draft.seq_id)
            return {}
        except InternalError:
            # Answers do not need the draft. The state of its memory is unknown after a failed decode.
            for draft in self._drafts.values():
                if draft.restoring is not None:
                    self.prefixes.stop_reload(draft.restoring)
                    draft.restoring = None
                draft.fed.clear()
                draft.num_agreed = 0
                self.prefixes.reset(draft.seq_id)
            return {}

    @property
    def is_restoring(self) -> bool:
        """Whether a sequence is still being restored, so that `draft` should be called again soon."""
        return any(draft.restoring is not None for draft in self._drafts.values())

    def release(self, sequence: Sequence) -> None:
        """Forget a sequence that ended; its prefix stays for the next turn."""
        draft = self._drafts.pop(sequence.id, None)
        if draft is not None:
            self.prefixes.release(
                draft.seq_id, draft.restoring, keep=sequence.keeps_prefix, priority=sequence.spec.cache_priority
            )

    def _begin(self, sequence: Sequence) -> _Draft | None:
        """Claim a sequence's prefix in the draft's cells and blocks; None if every sequence id is live.

        Its blocks are read only now: before the first token they would compete with the target's for the disk.
        """
        partition, max_length = sequence.spec.partition, len(sequence.tokens) - 1
        restoring = self.prefixes.claim(sequence.tokens, self.prefixes.match(partition, sequence.tokens, max_length))
        if restoring is None:
            return None
        draft = _Draft(restoring.seq_id, self.prefixes.length(restoring.seq_id), restoring)
        self._drafts[sequence.id] = draft
        return draft

    def _is_restored(self, draft: _Draft) -> bool:
        """Restore blocks that have been read, for about 10 ms; return whether none is left."""
        if draft.restoring is not None and self.prefixes.reload(draft.restoring, _MAX_RESTORE_S):
            draft.restoring = None
            draft.num_agreed = draft.num_looked_at = self.prefixes.length(draft.seq_id)
        return draft.restoring is None

    def _settle(self, sequence: Sequence) -> _Draft | None:
        """Return a sequence's draft state without refused drafts; claim one if it has none.

        None if there is no room for it, or it is still being restored.
        """
        draft = self._drafts.get(sequence.id) or self._begin(sequence)
        if draft is None or not self._is_restored(draft):
            return None
        stood = draft.num_stood(sequence.tokens)
        # Drafted tokens are not recorded, so another sequence may have been given their cells since.
        if stood and self.prefixes.reserve(stood):
            self.prefixes.append(draft.seq_id, draft.fed[:stood])
        draft.fed.clear()
        draft.num_agreed = self.prefixes.rewind(draft.seq_id)
        self._save_ends(sequence, draft)
        return draft

    def _save_ends(self, sequence: Sequence, draft: _Draft) -> None:
        """Mark blocks that have become full, to be read out when there is time."""
        if sequence.keeps_prefix:
            self.prefixes.save(draft.seq_id, draft.num_looked_at, sequence.spec.cache_priority)
        draft.num_looked_at = draft.num_agreed

    def _guess(self, counts: Items[tuple[Sequence, int]], endings: Mapping[str, Ending]) -> dict[str, tuple[int, ...]]:
        depth = max((len(sequence.tokens) for sequence, _ in counts), default=0)
        used = StepShape(0, self.prefixes.num_cells_used, 0.0)
        room = self.costs.max_tokens_within(_MAX_CATCH_UP_S, used, depth, _MIN_CATCH_UP, max_growth=_MAX_CATCH_UP)
        room = min(room, _MAX_CATCH_UP, self._runner.max_batch - len(counts))
        slices, behind, wanted = [], [], {}
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
                # Missing tokens are computed in one batch with the token that the draft begins with.
                slices.append(Slice(draft.seq_id, draft.num_agreed, [*missing, sequence.tokens[-1]], 1))
                draft.fed.append(sequence.tokens[-1])
                wanted[sequence.id] = count
                going_on.append((sequence.id, draft))
            behind.append((draft, missing))
            room -= len(missing)
        num_new = sum(len(part.tokens) for part in slices) + sum(wanted.values()) - len(wanted)
        if not slices or not self.prefixes.reserve(num_new):
            for draft, _ in behind:
                draft.fed.clear()
            return {}
        self._decode(slices)
        for draft, missing in behind:
            self.prefixes.append(draft.seq_id, missing)
            draft.num_agreed += len(missing)
        return self._draft_on(going_on, wanted, endings)

    def _draft_on(
        self, going_on: list[tuple[str, _Draft]], wanted: Mapping[str, int], endings: Mapping[str, Ending]
    ) -> dict[str, tuple[int, ...]]:
        """Return proposals by sequence id: the first token of each from the last batch, others from further batches."""
        proposals: dict[str, list[int]] = {name: [] for name, _ in going_on}
        while going_on:
            started_s = self._clock()
            num_rows, unsure = len(going_on), set()
            for row, (name, _) in enumerate(going_on):
                logits = self._runner.logits(row)
                token = int(logits.argmax())
                proposals[name].append(token)
                if name in endings and not endings[name].goes_on(logits, token):
                    unsure.add(name)
            going_on = [
                (name, draft) for name, draft in going_on if name not in unsure and len(proposals[name]) < wanted[name]
            ]
            self._pick_s += _PICK_WEIGHT * ((self._clock() - started_s) / num_rows - self._pick_s)
            slices = []
            for name, draft in going_on:
                draft.fed.append(proposals[name][-1])
                slices.append(Slice(draft.seq_id, draft.num_agreed + len(draft.fed) - 1, draft.fed[-1:], 1))
            if slices:
                self._decode(slices)
        return {name: tuple(tokens) for name, tokens in proposals.items()}

    def _decode(self, slices: Items[Slice]) -> None:
        started_s = self._clock()
        self._runner.decode(slices)
        shape = StepShape(0, self.prefixes.num_cells_used, 0.0)
        for part in slices:
            shape = shape.plus(len(part.tokens), part.start)
        self.costs.observe(shape, self._clock() - started_s)
