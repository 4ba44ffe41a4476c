"""Plans the next batch. The engine carries the plan out.

The order of sequences (`serving_order.by_share`) is that of their ranks. Within a rank, clients take turns. Among the
next sequences of the clients, the one that is due first comes first. Those that the daemon predicts to come too late
have no due time, so they follow, and delay no sequence that can be in time.
A sequence that made no progress for a minute comes before all ranks (`boost_stalled`), so none waits forever.

1. `choose` leaves sequences of the tier BATCH out of a step that more urgent ones need. They keep a share of the time.
2. Each decoding sequence of the step gets its next token and its drafts, so that no stream waits for another one's
   prompt.
3. Prompt tokens follow, in the order of `by_share`. Their number is limited by the expected time of the step: by the
   shortest budget of the streams (`Sequence.budget_s`). If no stream has one, the limit is MAX_STEP_S, or twice as
   much for a step that is larger than any measured one. So a new request waits for one such step at most, and a slow
   machine shows progress.
4. The prompt of a realtime request gets steps without the streams if its first token comes sooner that way (`choose`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable
from collections.abc import Sequence as Items
from typing import NamedTuple

from edgeagent.engine.choices import Tree, grow
from edgeagent.engine.costs.cost_model import PLANNED_SHARE, CostModel, Retrials, StepShape, TimeShare
from edgeagent.engine.media import MediaSpan
from edgeagent.engine.runner import Slice
from edgeagent.engine.sequence import Rank, Sequence, shortest_target_s
from edgeagent.serving_order import by_share

# The smallest useful prompt chunk: a smaller one does not fill a tile of a CPU kernel and takes as long.
MIN_CHUNK = 32

# The smallest chunk in a step with streams if MIN_CHUNK would exceed their budget. Half a tile takes a little more than
# half of a tile's time.
MIN_CHUNK_WITH_STREAMS = 16

# The smallest chunk of embeddings in a step with streams. With 4 instead of 8, half of the steps of four streams of a
# 0.5 B model took at most 95 instead of 109 ms, but the answer about an image came after 33 instead of 21 s.
MIN_ROWS_WITH_STREAMS = 8

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

# The longest step of a prompt that is computed ahead while no stream runs, or that hurries while another one waits.
_HURRIED_STEP_S = 0.2

# If the streams would make the first token of a realtime request come so many times later than alone, they wait for its
# prompt, except those that asked for a target.
_MAX_SLOWDOWN = 2.0

# Sequences of the tier BATCH get at least this share of the rate that they would have alone. While a realtime prompt is
# computed, they save it up, but at most this many seconds of work, or one step: other prompts wait for such work.
BATCH_SHARE, _MAX_BATCH_S = 0.3, 0.3

# How long a sequence may make no progress because of more urgent sequences or those of other clients.
_MAX_STALL_S = 60.0

_OVERHEAD_WEIGHT = 0.1  # of the latest step's overhead


class BatchPart(NamedTuple):
    """The part of a batch that belongs to one sequence: its next `num_tokens` known tokens, then its `drafts`.

    The last `num_logits` of these tokens give a row of logits each:

    - Usually these are the last known token and the drafts; none if the prompt continues in a later step.
    - If log probabilities of the prompt are requested, these are all tokens. The first `num_scored` rows are for those
      log probabilities, and the others for sampling.
    - If there is a `tree` of choices, it is all that is computed, and the last `num_scored` of its tokens have rows.
    """

    sequence: Sequence
    num_tokens: int
    drafts: tuple[int, ...]
    num_logits: int
    num_scored: int
    tree: Tree | None = None

    @property
    def size(self) -> int:
        return self.num_tokens + len(self.drafts) if self.tree is None else len(self.tree.tokens)

    @property
    def shape(self) -> tuple[int, int]:
        """How many tokens of the batch belong to this part, and how many of its sequence come before them."""
        return self.size, self.sequence.num_computed + self.sequence.num_rows

    @property
    def slice(self) -> Slice:
        """The tokens in the form that the runner takes."""
        assert self.sequence.seq_id is not None
        start = self.sequence.num_computed
        if self.tree is not None:
            return Slice(self.sequence.seq_id, start, self.tree.tokens, self.num_logits, 0, self.tree.places)
        span = self.sequence.span
        if span is not None:
            return self._slice_of(span, start, start + self.sequence.num_rows)
        tokens = self.sequence.tokens[start : start + self.num_tokens]
        tokens.extend(self.drafts)
        return Slice(self.sequence.seq_id, start, tokens, self.num_logits, len(self.drafts))

    def _slice_of(self, span: MediaSpan, start: int, begin: int) -> Slice:
        """Return the embeddings of a chunk from token `begin` on. Token `start` is the first that is not recorded."""
        rows, tokens = span.embeddings.take(), self.sequence.tokens[begin : begin + self.num_tokens]
        assert rows is not None, "a part with embeddings is planned when they are there"
        assert self.sequence.seq_id is not None
        first, end = begin - span.start, begin - span.start + self.num_tokens
        positions = None if span.positions is None else span.positions[:, first:end]
        return Slice(
            self.sequence.seq_id, start, tokens, 0, rows=rows[first:end], is_causal=span.is_causal, positions=positions
        )


def _part_of(sequence: Sequence, num_tokens: int, drafts: tuple[int, ...] = ()) -> BatchPart:
    completes = num_tokens == sequence.num_pending and not sequence.spec.prefill_only
    num_sampled = 1 + len(drafts) if completes else 0
    num_logits = num_tokens + len(drafts) if sequence.is_scoring else num_sampled
    return BatchPart(sequence, num_tokens, drafts, num_logits, num_logits - num_sampled)


def _tree_of(sequence: Sequence, *limits: tuple[int, int, int]) -> Tree | None:
    """Return the tree of a sequence's next choices; None if there is no room.

    `limits`: the most tokens, rows and branches. If nothing fits, the next limits are tried: a tree cannot be split,
    so at least one choice is computed although it takes longer than the step should.
    """
    choices, roots = sequence.spec.choices, sequence.tokens[sequence.num_computed :]
    assert choices is not None
    num_done = len(sequence.choice_scores)
    for max_tokens, max_rows, max_branches in limits if limits[0][0] > 0 else ():
        most = min(max_tokens, sequence.tree_room)
        tree = grow(choices, num_done, roots, max_tokens=most, max_rows=max_rows, max_branches=max_branches)
        if tree is not None:
            return tree
    return None


def without_drafts(parts: Items[BatchPart]) -> list[BatchPart]:
    return [part._replace(drafts=(), num_logits=part.num_logits - len(part.drafts)) for part in parts]


def shortest_budget_s(sequences: Iterable[Sequence]) -> float:
    """Return how long a step with prompts may take beside the sequences that decode; infinite if there are none."""
    return min((sequence.budget_s for sequence in sequences if sequence.is_decoding), default=math.inf)


def share_urgency(running: Collection[Sequence], waiting: Collection[Sequence]) -> None:
    """Make each sequence as urgent as the most urgent one that waits for its prefill now, or as it is by itself."""
    for sequence in (*running, *waiting):
        sequence.drop_inherited_urgency()
    for sequence in waiting:
        if (awaited := sequence.awaited_sequence(running)) is not None:
            awaited.inherit_urgency(sequence)


def boost_stalled(running: Collection[Sequence], waiting: Collection[Sequence], now_s: float) -> None:
    """Boost a sequence that made no progress for a minute: it runs before all others until it ends.

    Without this, more urgent requests could delay the sequence forever. Only one sequence is boosted at a time, so that
    urgent requests wait for at most one. Realtime requests may still start before a boosted sequence that lacks cells,
    for another minute (`waits_too_long`).
    A sequence that waits for the prefill of another one is not boosted. One that is computed ahead is not boosted at
    once: its prompt first gets the rank BATCH, and so a share of the time.
    """
    live = (*running, *waiting)
    if len(live) > 1 and not any(sequence.is_boosted for sequence in live):
        own = [each for each in live if each.awaited_sequence(running) is None]
        stalled = min(own, key=lambda sequence: sequence.advanced_s, default=None)
        if stalled is None or now_s - stalled.advanced_s < _MAX_STALL_S:
            return
        if stalled.rank is Rank.AHEAD:
            stalled.own_rank, stalled.advanced_s = Rank.BATCH, now_s
        else:
            stalled.own_rank = Rank.BOOSTED
        stalled.rank = stalled.own_rank


def waits_too_long(sequence: Sequence, now_s: float) -> bool:
    """Whether no sequence may start any more before a boosted one that lacks cells."""
    return now_s - sequence.advanced_s >= 2 * _MAX_STALL_S


class Scheduler:
    """Plans batches of at most `max_batch` tokens and `max_outputs` rows of logits (`max_batch` if None).

    `row_cost` and `max_branches`: see Runner.
    """

    def __init__(
        self,
        max_batch: int,
        itl_budget_s: float,
        cost_model: CostModel,
        *,
        max_outputs: int | None = None,
        row_cost: float = 0.0,
        max_branches: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_batch = max_batch
        self._max_branches = max_branches
        self._max_outputs = max_batch if max_outputs is None else max_outputs
        self._row_cost = row_cost
        self._itl_budget_s = itl_budget_s
        self._cost_model, self._clock = cost_model, clock
        self._batch_time, self._chosen_s = TimeShare(BATCH_SHARE), clock()
        self._retrials = Retrials()  # of the smallest chunk
        self._overhead_s = 0.0  # the part of a step that is not the decode: drafting and sampling
        # How long the step of realtime prompts alone may take that `choose` returned; None if it returned another one.
        self._own_s: float | None = None
        # Whether the planned step is such a step, and whether it has streams.
        self._is_own, self._has_streams = False, False
        # Whether such a step has ended since the latest one with streams, and when that one ended.
        self._was_own, self._streamed_s = False, clock()
        self._has_yielded = False  # whether a realtime prompt has let the streams go first, since they had waited

    def choose(self, running: Items[Sequence], num_cells: int = 0, aside: Sequence | None = None) -> Items[Sequence]:
        """Return the `running` sequences that take part in the next step.

        Sequences of the rank BATCH are left out while a more urgent prompt is computed, or if the step would exceed the
        target of a more urgent stream. They save up BATCH_SHARE of the time. If that pays for their own step, and no
        realtime prompt is computed, they take part, and the other prompts wait for a step. While the side context
        computes a prompt of their rank, their other prompts wait for it, since it takes half of the time for a token.
        Sequences of the rank AHEAD are left out like those of the rank BATCH, but save nothing up, and also while any
        other prompt is computed. Beside streams, realtime prompts may get a step of their own (`_of_realtime`). After
        that, the streams get one.

        `num_cells`: KV cells in use. `aside`: the sequence in the side context, if it is computed between the steps.
        """
        self._own_s = None
        if self._was_own and (streams := [each for each in running if each.rank < Rank.BATCH and each.is_decoding]):
            return streams
        least_urgent, realtime = Rank.INTERACTIVE, Rank.REALTIME  # without a generator: this is done in each step
        for sequence in running:
            if sequence.rank > least_urgent or (sequence.rank is realtime and not sequence.is_decoding):
                break
        else:
            return running  # most steps
        prompts = [sequence for sequence in running if not sequence.is_decoding]
        most_urgent = min((each.rank for each in (prompts if aside is None else [*prompts, aside])), default=Rank.AHEAD)
        if most_urgent < Rank.AHEAD:
            running = [sequence for sequence in running if sequence.rank < Rank.AHEAD]
        if aside is not None and aside.rank is Rank.BATCH:
            running = [sequence for sequence in running if sequence.rank < Rank.BATCH or sequence.is_decoding]
        urgent = [sequence for sequence in running if sequence.rank < Rank.BATCH]
        elapsed_s, self._chosen_s = self._clock() - self._chosen_s, self._clock()
        if most_urgent >= Rank.BATCH:
            limit_s = shortest_budget_s(urgent) - self._overhead_s
            if not urgent or (self._least_s(running, num_cells) or 0.0) <= limit_s:
                self._batch_time.saved_s = 0.0  # they lack nothing
                return running
        batch = [sequence for sequence in running if sequence.rank is Rank.BATCH]
        alone_s = self._least_s(batch, num_cells) or 0.0
        self._batch_time.add(elapsed_s, max(_MAX_BATCH_S, alone_s))
        if most_urgent is Rank.REALTIME:
            return self._of_realtime(urgent, num_cells)
        if not batch or most_urgent < Rank.REALTIME or self._batch_time.saved_s < alone_s:
            return urgent
        if any(not sequence.is_decoding for sequence in batch):
            urgent = [sequence for sequence in urgent if sequence.is_decoding]
        return [*urgent, *batch]

    def _of_realtime(self, urgent: Items[Sequence], num_cells: int) -> Items[Sequence]:
        """Return the sequences of a step while realtime prompts are computed: these, the streams, or both.

        Other prompts wait. With the streams in the same step, a prompt may take much longer: from 64 tokens on, flash
        attention computes whole tiles, with the cells of all sequences of the step. So the quickest of these plans for
        the first tokens is carried out, as predicted:

        1. Each step computes the streams and a part of the prompts, within the target of the streams.
        2. A part of the prompts, then the streams, and so on. A part and the streams together are within the target.
        3. The prompts at once, while all streams wait. This plan is chosen if 1 and 2 would take over _MAX_SLOWDOWN
           times as long as the prompts alone, or if neither can keep the target. It is never chosen beside a stream
           that asked for its target.
        """
        prompts = [each for each in urgent if each.rank is Rank.REALTIME and not each.is_decoding]
        streams = [each for each in urgent if each.is_decoding]
        if any(each.num_output or each.spec.choices is not None or each.is_scoring for each in prompts):
            return urgent
        if not prompts or not streams:
            return prompts or urgent
        costs = self._cost_model
        limit_s = max(shortest_budget_s(streams), shortest_target_s(streams)) - self._overhead_s
        num, depth = sum(each.num_pending for each in prompts), max(each.num_computed for each in prompts)
        own, beside = StepShape(0, num_cells), StepShape.of([(1, each.num_computed) for each in streams], num_cells)
        streams_s = costs.predict(beside)
        if streams_s is None:
            return [*streams, *prompts]
        room_s = limit_s - streams_s

        def divided(shape: StepShape, most_s: float) -> tuple[float, int]:
            """Return the seconds of a step of `shape` with a part of the prompts, and the number of such steps."""
            size = costs.max_tokens_within(most_s, shape, depth, MIN_CHUNK_WITH_STREAMS, most=num)
            return costs.predict(shape.plus(size, depth)) or 0.0, math.ceil(num / size)

        together_s, num_together = divided(beside, limit_s)
        part_s, num_parts = divided(own, room_s)
        whole_s, num_whole = divided(own, math.inf)
        all_together_s, in_turn_s = together_s * num_together, part_s * num_parts + streams_s * (num_parts - 1)
        is_slow = min(all_together_s, in_turn_s) + streams_s > _MAX_SLOWDOWN * whole_s * num_whole
        waited_s = self._clock() - self._streamed_s
        may_wait = all(each.spec.token_s is None for each in streams)
        if may_wait and (is_slow or (together_s > limit_s and part_s > room_s)):
            self._own_s = math.inf
            return prompts
        if all_together_s <= in_turn_s:
            return [*streams, *prompts]
        least_s = costs.predict(own.plus(min(num, MIN_CHUNK_WITH_STREAMS), depth)) or 0.0
        self._has_yielded = not self._has_yielded and waited_s > max(room_s - least_s, streams_s)
        if self._has_yielded:
            return streams
        self._own_s = room_s - waited_s
        return prompts

    def record_prompt(self, sequence: Sequence, num_tokens: int) -> None:
        """Record that tokens of a prompt are computed, in a step or in a side context."""
        if sequence.rank is Rank.BATCH:
            alone_s = self._cost_model.prefill_s(self._max_batch, sequence.num_computed) or 0.0
            self._batch_time.spend(alone_s * num_tokens / self._max_batch)

    def _spend_batch_time(self, parts: Items[BatchPart], num_cells: int) -> None:
        """Spend the time that the parts of rank BATCH in a step would take alone, with large chunks of the prompts."""
        streams, batch = list[BatchPart](), Rank.BATCH
        for part in parts:
            if part.sequence.rank is not batch:
                continue
            if part.sequence.is_decoding:
                streams.append(part)
            else:
                self.record_prompt(part.sequence, part.size)
        if streams:
            shape = StepShape.of([part.shape for part in streams], num_cells)
            self._batch_time.spend(self._cost_model.predict(shape) or 0.0)

    def _least_s(self, sequences: Items[Sequence], num_cells: int) -> float | None:
        """Return the expected seconds of the shortest useful step of these sequences; None if nothing was measured."""
        streams, depth = list[tuple[int, float]](), 0
        for sequence in sequences:
            if sequence.is_decoding:
                streams.append((1, sequence.num_computed))
            else:
                depth = max(depth, sequence.num_computed)
        shape = StepShape.of(streams, num_cells)
        if len(streams) < len(sequences):
            shape = shape.plus(MIN_CHUNK_WITH_STREAMS, depth)
        return self._cost_model.predict(shape)

    def plan(
        self,
        running: Items[Sequence],
        drafts: dict[str, tuple[int, ...]],
        num_cells: int = 0,
        *,
        num_turns: int = 1,
        others: Items[Sequence] = (),
    ) -> list[BatchPart]:
        """Return the next batch for the `running` sequences. There may be at most `max_batch` of them.

        `drafts`: proposed tokens by sequence id. `num_cells`: KV cells in use. `num_turns`: how many groups take turns;
        each gets an equal part of the budget. A group is the sequences of one adapter, or a side context.
        `others`: sequences that wait for the end of the step, but have no part in it.
        """
        own_s, self._own_s = self._own_s, None
        self._is_own = own_s is not None
        decoding: list[Sequence] = []
        prompts: list[Sequence] = []
        for sequence in running:
            (decoding if sequence.is_decoding else prompts).append(sequence)
        self._has_streams = bool(decoding)
        parts = []
        room = self._max_batch - len(decoding)
        for sequence in decoding:
            proposed = drafts.get(sequence.id, ())[:room]
            room -= len(proposed)
            parts.append(_part_of(sequence, 1, proposed))
        if not prompts:
            self._spend_batch_time(parts, num_cells)
            return parts  # most steps: no prediction is needed
        base = StepShape.of([part.shape for part in parts], num_cells)
        prompts = by_share(prompts)
        room = min(room, self._most_prompt_tokens(prompts, [*decoding, *others], base, num_turns, own_s))
        # Decoding sequences and drafts need rows of logits, and each prompt one for its last token. Scoring uses the
        # rest.
        num_spare = self._max_outputs - sum(part.num_logits for part in parts) - len(prompts)
        num_branches = self._max_branches
        for sequence in prompts:
            if sequence.is_choosing:
                num_rows = min(num_spare, self._most_rows(room)) if decoding else num_spare
                num_left = self._max_batch - sum(part.size for part in parts)
                tree = _tree_of(sequence, (room, num_rows, num_branches), (num_left, num_spare, min(num_branches, 1)))
                is_due = sequence.num_computed >= sequence.prompt_end
                if tree is not None and (is_due or len(tree.paths) == sequence.num_unscored):
                    parts.append(BatchPart(sequence, 0, (), tree.num_rows, tree.num_rows, tree))
                    room, num_spare = room - len(tree.tokens), num_spare - tree.num_rows
                    num_branches -= len(tree.paths)
                    continue
                if is_due:
                    continue
            num_tokens = min(sequence.num_until_chunk_end, room)
            if sequence.is_scoring:
                num_tokens = min(num_tokens, num_spare, self._most_scored(room, is_alone=not decoding))
                num_spare -= num_tokens
            if num_tokens > sequence.min_prompt_chunk and sequence.leaves_one(sequence.num_computed + num_tokens):
                num_tokens -= 1
            if num_tokens > 0:
                parts.append(_part_of(sequence, num_tokens))
                room -= num_tokens
        self._spend_batch_time(parts, num_cells)
        return parts

    def record_overhead(self, seconds: float) -> None:
        """Record how many seconds the latest step took in addition to its decode. They count against the budget.

        Call this when the step has ended.
        """
        self._overhead_s += _OVERHEAD_WEIGHT * (seconds - self._overhead_s)
        if self._has_streams:
            self._was_own, self._streamed_s = False, self._clock()
        elif self._is_own:
            self._was_own = True

    def _most_scored(self, room: int, *, is_alone: bool) -> int:
        """Return for how many tokens of a prompt to compute log probabilities in a step, at most.

        `room`: how many prompt tokens could be computed without them. `is_alone`: no sequence decodes.
        """
        return MAX_SCORED if is_alone else min(MAX_SCORED, self._most_rows(room))

    def _most_rows(self, room: int) -> int:
        """Return how many tokens with rows of logits take the time of `room` tokens without, but at least a few."""
        return max(_MIN_SCORED, int(room / (1 + self._row_cost)))

    def _most_prompt_tokens(
        self,
        prompts: Items[Sequence],
        others: Items[Sequence],
        base: StepShape,
        num_turns: int,
        own_s: float | None = None,
    ) -> int:
        """Return how many tokens of the `prompts`, which are in their order, to add to a step.

        `others`: the streams of the step, and all sequences that wait for its end. `base`: the step without prompts.
        `own_s`: how long the step may take if it is one of realtime prompts alone; otherwise None.
        """
        depth, first = max(sequence.num_computed for sequence in prompts), prompts[0]
        num_realtime = sum(sequence.num_pending for sequence in prompts if sequence.rank is Rank.REALTIME)
        if own_s is not None:
            return self._prompt_budget(base, depth, None if own_s == math.inf else own_s, num_realtime)
        limit_s = shortest_budget_s(others)
        # A prompt that waits for the end of the step gets a step soon, unless it is less urgent.
        is_awaited = any(each.rank <= first.rank and not each.is_decoding for each in others)
        if is_awaited:
            limit_s = min(limit_s, self._itl_budget_s)
        if first.rank is Rank.AHEAD:
            limit_s = min(limit_s, self._itl_budget_s if any(each.is_decoding for each in others) else _HURRIED_STEP_S)
        if limit_s == math.inf:
            return self._prompt_budget(base, depth, None)
        budget_s = limit_s / num_turns - self._overhead_s
        # An answer that began elsewhere, and a realtime prompt, may use all of the streams' target. When 16 answers
        # came back from a remote at once, the last one waited 0.6 s with steps within the budget, and 0.3 s with steps
        # of up to 0.25 s.
        longest_s = min(shortest_target_s(others), _HURRIED_STEP_S if is_awaited else math.inf)
        hurried_s = max(budget_s, longest_s - self._overhead_s)
        if any(sequence.spec.delivered for sequence in prompts):
            return self._prompt_budget(base, depth, hurried_s)
        if first.span is not None and base.num_tokens:  # embeddings, of which an image has many, beside streams
            num_tokens = self._prompt_budget(base, depth, PLANNED_SHARE * budget_s, least=MIN_ROWS_WITH_STREAMS)
        else:
            num_tokens = self._prompt_budget(base, depth, budget_s)
        if first.rank is Rank.REALTIME and hurried_s > budget_s and not first.num_output:
            hurried = self._prompt_budget(base, depth, hurried_s, num_realtime)
            num_tokens = max(num_tokens, min(hurried, num_realtime))
        return num_tokens

    def _prompt_budget(
        self,
        base: StepShape,
        depth: int,
        budget_s: float | None,
        num: int | None = None,
        least: int = MIN_CHUNK_WITH_STREAMS,
    ) -> int:
        """Return how many prompt tokens to add to a step. `base`: the shape of the step without them.

        `depth`: how many tokens of a prompt are computed already; of several prompts, the largest number. `budget_s`:
        how long the step may take; None if no stream waits for the end of the step. `num`: the most tokens to return.
        `least`: the fewest, even if they take longer.
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
        within = costs.max_tokens_within(budget_s, base, depth, least, most=num)
        small_s, used_s = (costs.predict(base.plus(count, depth)) or 0.0 for count in (least, within))
        if small_s > used_s:  # with flash attention, a whole tile may be faster
            if self._retrials.is_due(small_s - used_s):
                self._retrials.reset()
                within = least
            else:
                self._retrials.record(used_s)
        return min(most, within)
