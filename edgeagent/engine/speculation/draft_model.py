"""Drafts tokens with a small draft model.

This module only proposes tokens. The target model checks all of them in one batch. A drafted token is accepted if it
equals the token that the sampler draws from the target's logits, so the output is the same as without drafts.
"""

from __future__ import annotations

import math
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from types import MappingProxyType

from edgeagent.engine.cache.cached_prefix import Restoring
from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.costs.cost_model import StepShape
from edgeagent.engine.media_tokens import is_medium
from edgeagent.engine.runner import DecodeCancelled, OutOfCells, Runner, Slice
from edgeagent.engine.sequence import Sequence
from edgeagent.engine.speculation.acceptance import Ending
from edgeagent.errors import InternalError

# If the draft model lacks more tokens of a sequence than this, as after a long prompt, it computes one chunk of them in
# each step: this many tokens, or fewer if they would take longer than MAX_CATCH_UP_S. All streams wait for that.
_MAX_CATCH_UP = 256
MAX_CATCH_UP_S = 0.1
"""The most seconds that the draft model computes missing tokens in one step."""
_MIN_CATCH_UP = 32
# Blocks are loaded into the draft model's cells for about this long in a step. At least one block is loaded.
_MAX_RESTORE_S = 0.01
# How long to wait for a block if there is nothing else to do.
_WAIT_S = 0.005
# Up to this many missing tokens take no longer than the one token that begins a draft.
_FEW = 4
# The weight of the latest measurement in the averages of `start_s` and `_pick_s`.
_WEIGHT = 0.1


@dataclass(slots=True)
class _Draft:
    """The state of one sequence in the draft model. The prefix cache records the tokens that equal the target's.

    - `text`: the sequence's tokens without its images and sounds, for which the draft model has no embeddings.
    - `unrecorded`: the tokens that the runner has computed after these: the last known token, then drafted ones. They
      are recorded only after the target has verified them.
    - `restoring`: the unfinished restore of the sequence's prefix; None if the restore is complete.
    """

    seq_id: int
    text: array[int]
    restoring: Restoring | None = None
    num_marked: int = 0  # full blocks up to this length are already marked for saving
    unrecorded: list[int] = field(default_factory=list)

    def num_accepted(self, tokens: Items[int], num_recorded: int) -> int:
        """Return how many leading tokens of `unrecorded` equal the sequence's own tokens from `num_recorded` on.

        The last of the sequence's `tokens` is not compared: it begins the next draft.
        """
        actual = tokens[num_recorded : len(tokens) - 1]
        accepted = 0
        while accepted < min(len(self.unrecorded), len(actual)) and self.unrecorded[accepted] == actual[accepted]:
            accepted += 1
        return accepted

    def read(self, sequence: Sequence) -> array[int]:
        """Return the sequence's tokens without its media."""
        num_media = sum(span.end - span.start for span in sequence.spec.media)
        if num_media == 0:
            return sequence.tokens
        self.text.extend(sequence.tokens[len(self.text) + num_media :])  # text follows the last medium
        return self.text


def _without_media(sequence: Sequence) -> array[int]:
    """Return a sequence's tokens without the numbers that stand for its media; see _Draft.read."""
    if not sequence.spec.media:
        return sequence.tokens
    return array("i", (token for token in sequence.tokens if not is_medium(token)))


class DraftModel:
    """Proposes tokens with a second, smaller runner that has the target's vocabulary.

    It sees no images and no sounds, only the texts around them.
    """

    def __init__(
        self, runner: Runner, prefixes: PrefixStore | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`prefixes`: the prefix cache of `runner`. If None, prefixes that are evicted from its cells are lost."""
        self._runner = runner
        self._clock = clock
        self.prefixes = prefixes or PrefixStore(runner, clock=clock)
        """The prefixes in the draft model's cells and blocks."""
        self.costs = self.prefixes.costs
        """The measured costs of the draft model's steps."""
        self._drafts: dict[str, _Draft] = {}
        self.start_s = 0.0
        """How many seconds longer the first step of a draft takes than each further one, on average.

        The first step also computes the tokens that the draft model lacks.
        """
        self._pick_s = 0.0  # average time of finding the likeliest token of a row of logits

    def steps_s(self, num_sequences: int, depth: int) -> list[float]:
        """Return the expected seconds of a draft step for 0, 1 … `num_sequences` sequences.

        All are 0 if nothing was measured. `depth`: how many tokens each sequence has.
        """
        used = StepShape(0, self.prefixes.slots.num_cells_used, 0.0)
        steps_s = self.costs.predict_added(used, range(1, num_sequences + 1), depth)
        if steps_s is None:
            return [0.0] * (num_sequences + 1)
        return [0.0, *(step_s + count * self._pick_s for count, step_s in enumerate(steps_s, 1))]

    def catch_up_s(self, sequence: Sequence) -> float:
        """Return the expected seconds of computing the tokens that the draft model lacks before it can draft.

        If the sequence is new, claim its prefix first. Restore its blocks for about 10 ms, if any are left. Return
        infinity if the draft model has no room for the sequence, or if blocks are then still to be restored. Return 0
        if only a few tokens are missing, or if no step was measured.
        """
        draft = self._drafts.get(sequence.id) or self._begin(sequence)
        if draft is None or not self._is_restored(draft):
            return math.inf
        num_missing = self.num_missing(sequence) or 0
        return (self.costs.prefill_s(num_missing, self._num_recorded(draft)) or 0.0) if num_missing > _FEW else 0.0

    def can_draft_now(self, sequence: Sequence) -> bool:
        """Whether the draft model can draft for a sequence now: its prefix is restored, and few tokens are missing."""
        draft, num_missing = self._drafts.get(sequence.id), self.num_missing(sequence)
        return draft is not None and draft.restoring is None and num_missing is not None and num_missing <= _FEW

    def num_missing(self, sequence: Sequence) -> int | None:
        """Return how many tokens of a sequence, except its last one, the draft model has still to compute.

        None if the draft model holds no state of the sequence.
        """
        draft = self._drafts.get(sequence.id)
        if draft is None:
            return None
        length, tokens = self._num_recorded(draft), draft.read(sequence)
        return len(tokens) - 1 - length - draft.num_accepted(tokens, length)

    def wait_for(self, sequence: Sequence) -> bool:
        """Return whether a sequence is being restored. If so, wait up to 5 ms for its next block."""
        draft = self._drafts.get(sequence.id)
        if draft is None or draft.restoring is None:
            return False
        self.prefixes.restorer.wait([draft.restoring], _WAIT_S)
        return True

    def draft(
        self, to_draft: Items[tuple[Sequence, int]], endings: Mapping[str, Ending] = MappingProxyType({})
    ) -> dict[str, tuple[int, ...]]:
        """Draft tokens, and return them by sequence id.

        - `to_draft`: sequences, with the most tokens to draft for each.
        - `endings`: decides, by sequence id, whether a draft ends earlier.

        If the count is 0, or if the draft model lacks many tokens of a sequence, nothing is drafted for the sequence.
        The draft model then computes a chunk of the missing tokens. A sequence that is still being restored, or for
        which there is no room, is left out. The result is empty if cells run out, or if a batch fails or is
        interrupted.
        """
        self.prefixes.saver.free_saved_cells(sum(count for _, count in to_draft))
        try:
            return self._draft_all(to_draft, endings)
        except (DecodeCancelled, OutOfCells):
            for draft in self._drafts.values():
                draft.unrecorded.clear()
                self.prefixes.slots.rewind(draft.seq_id)
            return {}
        except InternalError:
            # Answers do not need drafts, so ignore the error. After a failed decode the state of the memory is unknown.
            for draft in self._drafts.values():
                if draft.restoring is not None:
                    self.prefixes.restorer.stop(draft.restoring)
                    draft.restoring = None
                draft.unrecorded.clear()
                self.prefixes.slots.reset(draft.seq_id)
            return {}

    @property
    def is_restoring(self) -> bool:
        """Whether any sequence is still being restored. If so, call `draft` again soon."""
        return any(draft.restoring is not None for draft in self._drafts.values())

    def release(self, sequence: Sequence) -> None:
        """Forget a sequence that ended. Its prefix stays cached if the request allows it."""
        draft = self._drafts.pop(sequence.id, None)
        if draft is not None:
            self.prefixes.release(
                draft.seq_id,
                draft.restoring,
                keep=sequence.keeps_prefix,
                priority=sequence.cache_priority,
                is_open=sequence.is_open,
            )

    def _begin(self, sequence: Sequence) -> _Draft | None:
        """Claim a sequence's prefix in the draft model's cells, and begin to restore its blocks.

        Return None if no sequence id is available. Reading these blocks earlier, before the sequence's first token,
        would delay the reads of the target's blocks.
        """
        tokens = _without_media(sequence)
        found = self.prefixes.match(sequence.spec.partition, tokens, len(tokens) - 1)
        restoring = self.prefixes.claim(tokens, found)
        if restoring is None:
            return None
        draft = self._drafts[sequence.id] = _Draft(restoring.seq_id, tokens, restoring)
        return draft

    def _num_recorded(self, draft: _Draft) -> int:
        return self.prefixes.slots.length(draft.seq_id)

    def _is_restored(self, draft: _Draft) -> bool:
        """Restore blocks for about 10 ms, without waiting for the disk. Return whether the restore is complete."""
        if draft.restoring is not None and self.prefixes.restorer.advance(draft.restoring, _MAX_RESTORE_S):
            draft.restoring = None
            draft.num_marked = self._num_recorded(draft)
        return draft.restoring is None

    def _commit(self, sequence: Sequence) -> _Draft | None:
        """Record the accepted drafts of a sequence, remove the refused ones, and return its state.

        If the sequence is new, claim its prefix first. Return None if there is no room for it, or if it is still being
        restored.
        """
        draft = self._drafts.get(sequence.id) or self._begin(sequence)
        if draft is None or not self._is_restored(draft):
            return None
        accepted = draft.num_accepted(draft.read(sequence), self._num_recorded(draft))
        # The cells of drafted tokens were not recorded, so another sequence may have reserved them since.
        if accepted and self.prefixes.slots.reserve(accepted):
            self.prefixes.slots.append(draft.seq_id, draft.unrecorded[:accepted])
        draft.unrecorded.clear()
        length = self.prefixes.slots.rewind(draft.seq_id)
        if sequence.keeps_prefix:
            self.prefixes.save(draft.seq_id, draft.num_marked, sequence.cache_priority)
        draft.num_marked = length
        return draft

    def _draft_all(
        self, to_draft: Items[tuple[Sequence, int]], endings: Mapping[str, Ending]
    ) -> dict[str, tuple[int, ...]]:
        started_s = self._clock()
        depth = max((len(sequence.tokens) for sequence, _ in to_draft), default=0)
        used = StepShape(0, self.prefixes.slots.num_cells_used, 0.0)
        room = self.costs.max_tokens_within(MAX_CATCH_UP_S, used, depth, _MIN_CATCH_UP, max_growth=_MAX_CATCH_UP)
        room = min(room, _MAX_CATCH_UP, self._runner.max_batch - len(to_draft))
        slices, drafts_with_missing, counts = [], [], {}
        going_on: list[tuple[str, _Draft]] = []
        for sequence, count in to_draft:
            draft = self._commit(sequence)
            if draft is None:
                continue
            length, tokens = self._num_recorded(draft), draft.read(sequence)
            missing = tokens[length : len(tokens) - 1]
            if len(missing) > room or not count:
                missing = missing[:room]
                if missing:
                    slices.append(Slice(draft.seq_id, length, missing, 0))
            else:
                # Missing tokens are computed in one batch with the last token, which begins the draft.
                slices.append(Slice(draft.seq_id, length, [*missing, tokens[-1]], 1))
                draft.unrecorded.append(tokens[-1])
                counts[sequence.id] = count
                going_on.append((sequence.id, draft))
            drafts_with_missing.append((draft, missing))
            room -= len(missing)
        num_new = sum(len(part.tokens) for part in slices) + sum(counts.values()) - len(counts)
        if not slices or not self.prefixes.slots.reserve(num_new):
            for draft, _ in drafts_with_missing:
                draft.unrecorded.clear()
            return {}
        self._decode(slices)
        for draft, missing in drafts_with_missing:
            self.prefixes.slots.append(draft.seq_id, missing)
        if len(counts) == len(slices) and max(len(missing) for _, missing in drafts_with_missing) <= _FEW:
            step_s = self.costs.predict(used.plus(len(counts), depth)) or 0.0
            self.start_s += _WEIGHT * (max(0.0, self._clock() - started_s - step_s) - self.start_s)
        return self._draft_on(going_on, counts, endings)

    def _draft_on(
        self, going_on: list[tuple[str, _Draft]], counts: Mapping[str, int], endings: Mapping[str, Ending]
    ) -> dict[str, tuple[int, ...]]:
        """Draft tokens for the sequences that `going_on` names, and return them by sequence id.

        The latest batch gave the logits for the first token of each draft. Each further token of the drafts takes
        another batch.
        """
        proposals: dict[str, list[int]] = {name: [] for name, _ in going_on}
        while going_on:
            started_s = self._clock()
            num_rows, over = len(going_on), set()
            rows = self._runner.all_logits()
            for (name, _), logits, token in zip(going_on, rows, rows.argmax(axis=1).tolist(), strict=True):
                proposals[name].append(token)
                if name in endings and not endings[name].record_and_decide(logits, token):
                    over.add(name)
            going_on = [
                (name, draft) for name, draft in going_on if name not in over and len(proposals[name]) < counts[name]
            ]
            self._pick_s += _WEIGHT * ((self._clock() - started_s) / num_rows - self._pick_s)
            slices = []
            for name, draft in going_on:
                slices.append(
                    Slice(draft.seq_id, self._num_recorded(draft) + len(draft.unrecorded), proposals[name][-1:], 1)
                )
                draft.unrecorded.append(proposals[name][-1])
            if slices:
                self._decode(slices)
        return {name: tuple(tokens) for name, tokens in proposals.items()}

    def _decode(self, slices: Items[Slice]) -> None:
        started_s = self._clock()
        self._runner.decode(slices)
        shape = StepShape(0, self.prefixes.slots.num_cells_used, 0.0)
        for part in slices:
            shape = shape.plus(len(part.tokens), part.start)
        self.costs.record(shape, self._clock() - started_s)


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
