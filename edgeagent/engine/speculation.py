"""Guessing tokens ahead with a small draft model, and how many are worth guessing.

The target model checks guesses in one batch; a guess stands when it equals what the sampler draws from the target's own
logits, so the output is what the target alone would give. This module only proposes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from edgeagent.engine.block_cache import BlockCache, no_blocks
from edgeagent.engine.cost_model import CostModel
from edgeagent.engine.mover import Mover
from edgeagent.engine.runner import DecodeCancelled, OutOfCells, Runner, Slice
from edgeagent.engine.sequence import Sequence
from edgeagent.errors import InternalError

# A draft model that lags further behind than this (a long prompt) catches up by one such chunk a step.
_MAX_CATCH_UP = 256
_WEIGHT = 0.1  # of a new measurement of acceptance
_PROBE_EVERY = 64  # steps without drafts after which one is tried again
_CANDIDATES = (0, 1, 2, 3, 5, 7, 11, 15, 23, 31)


class DraftLength:
    """Chooses how many tokens to draft: the count with the most expected tokens for the step's expected time.

    With acceptance rate a for each token, K drafts give (1 - a^(K+1)) / (1 - a) tokens a step (Leviathan et al. 2023,
    equation 1); the step takes K draft steps and one target step of 1 + K tokens for each sequence.
    """

    def __init__(self, max_tokens: int, cost_model: CostModel) -> None:
        self._candidates = sorted({count for count in _CANDIDATES if count < max_tokens} | {0, max_tokens})
        self._cost_model = cost_model
        self._acceptance = 0.7  # optimistic, so that drafting is tried
        self._draft_step_s = 0.0
        self._num_idle_steps = 0

    def choose(self, num_decoding: int, depth: int) -> int:
        """Return how many tokens to draft for each of `num_decoding` sequences in this step."""
        best = max(self._candidates, key=lambda count: self._rate(count, num_decoding, depth))
        if best == 0:
            self._num_idle_steps += 1
            if self._num_idle_steps >= _PROBE_EVERY:
                best = self._candidates[min(1, len(self._candidates) - 1)]
        if best:
            self._num_idle_steps = 0
        return best

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """Take in one sequence's verdict: how many of its drafts stood. The first refusal ends what is known."""
        num_judged = min(num_drafted, num_accepted + 1)
        for index in range(num_judged):
            self._acceptance += _WEIGHT * ((index < num_accepted) - self._acceptance)

    def observe_draft_step(self, seconds: float) -> None:
        """Take in the measured time of one draft step."""
        self._draft_step_s += (_WEIGHT if self._draft_step_s else 1.0) * (seconds - self._draft_step_s)

    def _rate(self, count: int, num_decoding: int, depth: int) -> float:
        a = min(self._acceptance, 0.999)
        expected_tokens = (1 - a ** (count + 1)) / (1 - a)
        step_s = self._cost_model.predict(num_decoding * (1 + count), depth)
        if step_s is None:
            return expected_tokens
        return expected_tokens / (step_s + count * self._draft_step_s)


@dataclass(slots=True)
class _Draft:
    """A sequence's state in the draft model.

    ledger: the cache holds `num_agreed` tokens, all equal to the target's; the runner holds those and then `guesses`.
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
        """`blocks` in memory keep prefixes that left the draft's cells (None: they are gone then)."""
        self._runner = runner
        self._length = length
        self._clock = clock
        self.mover = Mover(runner, blocks or no_blocks(), clock)
        self._cache = self.mover.cells
        self._drafts: dict[str, _Draft] = {}

    def draft(self, decoding: Items[Sequence]) -> dict[str, tuple[int, ...]]:
        """Return proposals by sequence id for the sequences that want a token each."""
        self.mover.shed()
        depth = max((sequence.num_computed for sequence in decoding), default=0)
        count = self._length.choose(len(decoding), depth) if decoding else 0
        if count == 0:
            return {}
        try:
            ready = self._catch_up(decoding)
            return self._guess(ready, count)
        except (DecodeCancelled, OutOfCells):
            for draft in self._drafts.values():
                draft.guesses.clear()
                draft.num_agreed = self._cache.restore(draft.seq_id)
            return {}
        except InternalError:
            # Nobody's answer needs the draft; what its memory holds after a failed decode is not known.
            for draft in self._drafts.values():
                draft.guesses.clear()
                draft.num_agreed = 0
                self._cache.reset(draft.seq_id)
            return {}

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """Take in how many of a sequence's proposals stood."""
        self._length.observe(num_drafted, num_accepted)

    def release(self, sequence: Sequence) -> None:
        """Forget a sequence that ended; its prefix stays for the next turn."""
        draft = self._drafts.pop(sequence.id, None)
        if draft is not None:
            self._cache.restore(draft.seq_id)
            self.mover.release(draft.seq_id, keep=sequence.keeps_prefix, worth=sequence.spec.worth)

    def check_integrity(self) -> None:
        """Assert every invariant; for tests, between sequences."""
        if not self._drafts:
            self.mover.check_integrity()

    def _catch_up(self, decoding: Items[Sequence]) -> list[tuple[Sequence, _Draft]]:
        """Bring drafts to within one token of their sequences; return those that are there."""
        ready, slices, behind = [], [], []
        room = min(_MAX_CATCH_UP, self._runner.max_batch)
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
            self._runner.decode(slices)
            for draft, missing in behind:
                self._cache.append(draft.seq_id, missing)
                draft.num_agreed += len(missing)
        return [(sequence, draft) for sequence, draft in ready if draft.num_agreed == len(sequence.tokens) - 1]

    def _settle(self, sequence: Sequence) -> _Draft | None:
        """Return a sequence's draft state with refused guesses taken back; claim one if it has none."""
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
        draft.num_agreed = self._cache.restore(draft.seq_id)
        return draft

    def _begin(self, sequence: Sequence) -> _Draft | None:
        """Claim what the draft's cells and blocks hold of a sequence; None if every sequence id is live."""
        partition, max_length = sequence.spec.partition, len(sequence.tokens) - 1
        known, links = self.mover.find(partition, sequence.tokens, max_length, lambda _tokens, _depth: None)
        claimed = self.mover.claim(partition, sequence.tokens, known)
        if claimed is None:
            return None
        seq_id, length = claimed
        restoring = self.mover.begin(seq_id, sequence.tokens, max_length, links if length == known else [])
        while not self.mover.advance(restoring, math.inf):
            pass  # memory never makes it wait
        draft = self._drafts[sequence.id] = _Draft(seq_id, self._cache.length(seq_id))
        return draft

    def _guess(self, ready: Items[tuple[Sequence, _Draft]], count: int) -> dict[str, tuple[int, ...]]:
        # The last token of each sequence and all guesses but the final one are fed; they stay unrecorded until the
        # target has judged them.
        if not ready or not self._cache.reserve(len(ready) * count):
            return {}
        proposals: dict[str, list[int]] = {sequence.id: [] for sequence, _ in ready}
        fed = [sequence.tokens[-1] for sequence, _ in ready]
        for step in range(count):
            started_s = self._clock()
            self._runner.decode(
                [
                    Slice(draft.seq_id, draft.num_agreed + step, (token,), 1)
                    for (_, draft), token in zip(ready, fed, strict=True)
                ]
            )
            for index, (sequence, draft) in enumerate(ready):
                draft.guesses.append(fed[index])
                fed[index] = int(self._runner.logits(index).argmax())
                proposals[sequence.id].append(fed[index])
            self._length.observe_draft_step(self._clock() - started_s)
        return {name: tuple(tokens) for name, tokens in proposals.items()}
