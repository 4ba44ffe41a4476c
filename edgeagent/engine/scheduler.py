"""Decides what the next batch holds. Pure: it reads sequences and answers; the engine acts.

1. Every decoding sequence gets its one token (and its drafts), so that no stream waits for another's prompt.
2. Prompt tokens follow, by tier and then arrival, as many as keep the step within the inter-token-latency budget
   while somebody is decoding, and as many as a batch holds when nobody is.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass

from edgeagent.engine.cost_model import CostModel
from edgeagent.engine.sequence import Sequence
from edgeagent.types import Tier

# The smallest prompt chunk worth a step: below it, a CPU kernel's tile is not filled and the step costs the same.
MIN_CHUNK = 32

# The most prompt tokens of one sequence to score in a step: each costs a pass over the vocabulary beside the decode.
MAX_SCORED = 32

_RANK = {tier: rank for rank, tier in enumerate(Tier)}


@dataclass(frozen=True, slots=True)
class Work:
    """A sequence's share of a batch: its next `num_tokens` known tokens, then `drafts`.

    The last `num_logits` of them give logits: all from the last known token on, none while the prompt is incomplete.
    Of a prompt that is scored every token does; the first `num_scored` rows are for scoring, the others for sampling.
    """

    sequence: Sequence
    num_tokens: int
    drafts: tuple[int, ...]
    num_logits: int
    num_scored: int = 0


def _work(sequence: Sequence, num_tokens: int, drafts: tuple[int, ...] = ()) -> Work:
    completes = num_tokens == sequence.num_pending and not sequence.spec.prefill_only
    num_sampled = 1 + len(drafts) if completes else 0
    num_logits = num_tokens + len(drafts) if sequence.is_scoring else num_sampled
    return Work(sequence, num_tokens, drafts, num_logits, num_logits - num_sampled)


def by_urgency(sequences: Iterable[Sequence]) -> list[Sequence]:
    """Return sequences in the order in which they are served: tier, then arrival."""
    return sorted(sequences, key=lambda sequence: (_RANK[sequence.tier], sequence.order))


class Scheduler:
    """Plans batches of at most `max_batch` tokens and `max_outputs` rows of logits (by default as many)."""

    def __init__(
        self, max_batch: int, itl_budget_s: float, cost_model: CostModel, *, max_outputs: int | None = None
    ) -> None:
        self._max_batch = max_batch
        self._max_outputs = max_batch if max_outputs is None else max_outputs
        self._itl_budget_s = itl_budget_s
        self._cost_model = cost_model

    def plan(
        self, running: Items[Sequence], drafts: dict[str, tuple[int, ...]], max_prompt_tokens: int | None = None
    ) -> list[Work]:
        """Return the next batch. `drafts` proposes tokens by sequence id, for decoding sequences only.

        No more sequences may run than a batch has tokens.
        """
        decoding = [sequence for sequence in running if sequence.is_decoding]
        works = []
        room = self._max_batch - len(decoding)
        for sequence in decoding:
            proposed = drafts.get(sequence.id, ())[:room]
            room -= len(proposed)
            works.append(_work(sequence, 1, proposed))
        depth = max((sequence.num_computed for sequence in running), default=0)
        room = min(room, self._prompt_budget(works, depth))
        if max_prompt_tokens is not None:
            room = min(room, max_prompt_tokens)
        # Each sequence that samples needs a row; what is scored takes from those that are left.
        num_spare = self._max_outputs - sum(work.num_logits for work in works) - (len(running) - len(decoding))
        for sequence in by_urgency(sequence for sequence in running if not sequence.is_decoding):
            num_tokens = min(sequence.num_until_stop, room)
            if sequence.is_scoring:
                num_tokens = min(num_tokens, num_spare, MAX_SCORED)
                num_spare -= num_tokens
            if num_tokens > sequence.min_prompt_chunk and sequence.leaves_one(sequence.num_computed + num_tokens):
                num_tokens -= 1
            if num_tokens > 0:
                works.append(_work(sequence, num_tokens))
                room -= num_tokens
        return works

    def _prompt_budget(self, decoding: list[Work], depth: int) -> int:
        if not decoding:
            return self._max_batch
        taken = sum(1 + len(work.drafts) for work in decoding)
        return max(MIN_CHUNK, self._cost_model.max_tokens_within(self._itl_budget_s, depth, MIN_CHUNK) - taken)
