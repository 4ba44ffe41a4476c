"""Plans the next batch. The engine carries the plan out.

1. Each decoding sequence gets its next token and its drafts, so that no stream waits for another one's prompt.
2. Prompt tokens follow, in the order of `by_share`. Their number is limited by the expected time of the step. While a
   sequence decodes, the limit is the inter-token-latency budget, and more while a continued answer waits, that is, one
   that another engine began. If no sequence decodes, the limit is MAX_STEP_S, or twice as much for a step that is
   larger than any measured one. So a new request waits for one such step at most, and a slow machine shows progress.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from collections.abc import Sequence as Items
from typing import NamedTuple

from edgeagent.engine.costs.cost_model import CostModel
from edgeagent.engine.costs.retrials import Retrials
from edgeagent.engine.costs.step_shape import StepShape
from edgeagent.engine.runner import Slice
from edgeagent.engine.sequence import Sequence
from edgeagent.types import Tier

# The smallest useful prompt chunk: a smaller one does not fill a tile of a CPU kernel and takes as long.
MIN_CHUNK = 32

# The smallest chunk in a step with streams if MIN_CHUNK would exceed their budget. Half a tile takes a little more than
# half of a tile's time.
MIN_CHUNK_WITH_STREAMS = 16

# The longest predicted step. Smaller chunks take a slow machine more time in total: measured on a 0.5 B model, a prompt
# took 21 s in chunks of 508 tokens, 25 s in chunks of 124, and 50 s in chunks of 28.
MAX_STEP_S = 2.0

# The smallest chunk if MIN_CHUNK takes longer than MAX_STEP_S. A batch of four costs a CPU little more than one of two.
MIN_SLOW_CHUNK = 4

# The next step may be this many times larger than any measured step. After the 32 tokens of the warm-up, this allows a
# full batch.
MAX_GROWTH = 16

# The most prompt tokens of one sequence to score in a step. Each scored token costs an extra pass over the vocabulary.
MAX_SCORED = 32

# The fewest prompt tokens of one sequence to score in a step while a sequence decodes.
_MIN_SCORED = 4

# The longest predicted step with streams while an answer that began elsewhere waits to continue. Its client sees a
# pause too. When 16 answers came back from a remote at once, the last one waited 0.6 s with steps within the budget,
# and 0.3 s with this limit.
_RESUMING_STEP_S = 0.25

# How long a sequence may make no progress because of more urgent sequences or those of other clients.
_MAX_STALL_S = 60.0

_OVERHEAD_WEIGHT = 0.1  # of the latest step's overhead

_RANK = {tier: rank for rank, tier in enumerate(Tier)}


class BatchPart(NamedTuple):
    """The part of a batch that belongs to one sequence: its next `num_tokens` known tokens, then its `drafts`.

    The last `num_logits` of these tokens give a row of logits each:

    - Usually these are the last known token and the drafts; none if the prompt continues in a later step.
    - If log probabilities of the prompt are requested, these are all tokens. The first `num_scored` rows are for those
      log probabilities, and the others for sampling.
    """

    sequence: Sequence
    num_tokens: int
    drafts: tuple[int, ...]
    num_logits: int
    num_scored: int

    @property
    def num_pairs(self) -> float:
        """How many pairs of tokens attention computes for this part; see StepShape."""
        num_tokens = self.num_tokens + len(self.drafts)
        return float(num_tokens * self.sequence.num_computed)

    @property
    def slice(self) -> Slice:
        """The tokens in the form that the runner takes."""
        assert self.sequence.seq_id is not None
        start = self.sequence.num_computed
        tokens = self.sequence.tokens[start : start + self.num_tokens]
        tokens.extend(self.drafts)
        return Slice(self.sequence.seq_id, start, tokens, self.num_logits, len(self.drafts))


def _part_of(sequence: Sequence, num_tokens: int, drafts: tuple[int, ...] = ()) -> BatchPart:
    completes = num_tokens == sequence.num_pending and not sequence.spec.prefill_only
    num_sampled = 1 + len(drafts) if completes else 0
    num_logits = num_tokens + len(drafts) if sequence.is_scoring else num_sampled
    return BatchPart(sequence, num_tokens, drafts, num_logits, num_logits - num_sampled)


def without_drafts(parts: Items[BatchPart]) -> list[BatchPart]:
    """Return the parts of a batch without their drafts."""
    return [part._replace(drafts=(), num_logits=part.num_logits - len(part.drafts)) for part in parts]


def rank(sequence: Sequence) -> int:
    """Return how urgent a sequence is. A smaller number is more urgent."""
    return -1 if sequence.is_boosted else _RANK[sequence.tier]


def by_urgency(sequences: Iterable[Sequence]) -> list[Sequence]:
    """Return sequences sorted by urgency: boosted ones (see `boost_stalled`) first, then by tier and arrival."""
    return sorted(sequences, key=lambda sequence: (rank(sequence), sequence.order))


def by_share(sequences: Iterable[Sequence], running: Iterable[Sequence] = ()) -> list[Sequence]:
    """Return sequences in the order in which they are served: boosted ones first, then by tier, fair share and arrival.

    In a tier, clients take turns: the n-th sequence of a client comes after the first n - 1 sequences of every other
    client. A client's `running` sequences count as its first ones. Each client has its own partition.
    """
    places = Counter(sequence.spec.partition for sequence in running)
    ranked = []
    for sequence in by_urgency(sequences):
        ranked.append((rank(sequence), places[sequence.spec.partition], sequence.order, sequence))
        places[sequence.spec.partition] += 1
    return [sequence for *_, sequence in sorted(ranked, key=lambda each: each[:3])]


def boost_stalled(running: Collection[Sequence], waiting: Collection[Sequence], now_s: float) -> None:
    """Boost a sequence that made no progress for a minute: it runs before all others until it ends.

    Without this, more urgent requests could delay the sequence forever. Only one sequence is boosted at a time, so that
    urgent requests wait for at most one. Realtime requests may still start before a boosted sequence that lacks cells.
    A sequence that waits for the prefill of another one is not boosted.
    """
    live = (*running, *waiting)
    if len(live) > 1 and not any(sequence.is_boosted for sequence in live):
        own = [sequence for sequence in live if sequence.awaited_sequence(running) is None]
        stalled = min(own, key=lambda sequence: sequence.advanced_s, default=None)
        if stalled is not None:
            stalled.is_boosted = now_s - stalled.advanced_s >= _MAX_STALL_S


class Scheduler:
    """Plans batches of at most `max_batch` tokens and `max_outputs` rows of logits (`max_batch` if None).

    `row_cost`: see Runner.
    """

    def __init__(
        self,
        max_batch: int,
        itl_budget_s: float,
        cost_model: CostModel,
        *,
        max_outputs: int | None = None,
        row_cost: float = 0.0,
    ) -> None:
        self._max_batch = max_batch
        self._max_outputs = max_batch if max_outputs is None else max_outputs
        self._row_cost = row_cost
        self._itl_budget_s = itl_budget_s
        self._cost_model = cost_model
        self._retrials = Retrials()  # of the smallest chunk
        self._overhead_s = 0.0  # the part of a step that is not the decode: drafting and sampling

    def plan(
        self,
        running: Items[Sequence],
        drafts: dict[str, tuple[int, ...]],
        num_cells: int = 0,
        *,
        num_turns: int = 1,
        others_decode: bool = False,
    ) -> list[BatchPart]:
        """Return the next batch for the `running` sequences. There may be at most `max_batch` of them.

        `drafts`: proposed tokens by sequence id. `num_cells`: KV cells in use. `num_turns`: how many groups take turns;
        each gets an equal part of the budget. A group is the sequences of one adapter, or a side context.
        `others_decode`: a sequence of another group decodes.
        """
        decoding: list[Sequence] = []
        prompts: list[Sequence] = []
        for sequence in running:
            (decoding if sequence.is_decoding else prompts).append(sequence)
        parts = []
        room = self._max_batch - len(decoding)
        for sequence in decoding:
            proposed = drafts.get(sequence.id, ())[:room]
            room -= len(proposed)
            parts.append(_part_of(sequence, 1, proposed))
        if not prompts:
            return parts  # most steps: no prediction is needed
        base = StepShape(sum(1 + len(part.drafts) for part in parts), num_cells, sum(part.num_pairs for part in parts))
        budget_s = None if not decoding and not others_decode else self._itl_budget_s / num_turns - self._overhead_s
        if budget_s is not None and any(sequence.spec.delivered for sequence in prompts):
            budget_s = max(budget_s, _RESUMING_STEP_S)
        depth = max(sequence.num_computed for sequence in prompts)
        room = min(room, self._prompt_budget(base, depth, budget_s))
        # Decoding sequences and drafts need rows of logits, and each prompt one for its last token. Scoring uses the
        # rest.
        num_spare = self._max_outputs - sum(part.num_logits for part in parts) - len(prompts)
        for sequence in by_share(prompts):
            num_tokens = min(sequence.num_until_chunk_end, room)
            if sequence.is_scoring:
                num_tokens = min(num_tokens, num_spare, self._most_scored(room, is_alone=not decoding))
                num_spare -= num_tokens
            if num_tokens > sequence.min_prompt_chunk and sequence.leaves_one(sequence.num_computed + num_tokens):
                num_tokens -= 1
            if num_tokens > 0:
                parts.append(_part_of(sequence, num_tokens))
                room -= num_tokens
        return parts

    def record_overhead(self, seconds: float) -> None:
        """Record how many seconds the latest step took in addition to its decode. They count against the budget."""
        self._overhead_s += _OVERHEAD_WEIGHT * (seconds - self._overhead_s)

    def _most_scored(self, room: int, *, is_alone: bool) -> int:
        """Return for how many tokens of a prompt to compute log probabilities in a step, at most.

        `room`: how many prompt tokens could be computed without them. `is_alone`: no sequence decodes.
        """
        if is_alone:
            return MAX_SCORED
        return min(MAX_SCORED, max(_MIN_SCORED, int(room / (1 + self._row_cost))))

    def _prompt_budget(self, base: StepShape, depth: int, budget_s: float | None) -> int:
        """Return how many prompt tokens to add to a step. `base`: the shape of the step without them.

        `depth`: how many tokens of a prompt are computed already; of several prompts, the largest number. `budget_s`:
        how long the step may take; None if no stream waits for the end of the step.
        """
        costs = self._cost_model
        if costs.predict(base.plus(MIN_CHUNK, depth)) is None:
            return MIN_CHUNK
        # The limit is doubled for steps larger than all measured ones, since their estimates are usually too high.
        most = costs.max_tokens_within(
            MAX_STEP_S, base, depth, MIN_SLOW_CHUNK, at_first=2 * MAX_STEP_S, max_growth=MAX_GROWTH
        )
        if budget_s is None:
            return most
        within = costs.max_tokens_within(budget_s, base, depth, MIN_CHUNK_WITH_STREAMS)
        small_s, used_s = (costs.predict(base.plus(count, depth)) or 0.0 for count in (MIN_CHUNK_WITH_STREAMS, within))
        if small_s > used_s:  # with flash attention, a whole tile may be faster
            if self._retrials.is_due(small_s - used_s):
                self._retrials.reset()
                within = MIN_CHUNK_WITH_STREAMS
            else:
                self._retrials.record(used_s)
        return min(most, within)
