"""Computes one long prompt in a separate context (the side context) between the steps of live streams.

Usually a prompt is computed in chunks, as a part of the streams' steps. These chunks must be small, so that the steps
stay within the inter-token-latency budget. But small chunks are expensive: each reads all weights again, and flash
attention on a CPU computes fewer than 64 tokens one by one. The side context computes large chunks. For each step of
the streams it pauses within a chunk, before the graph node of llama.cpp that would end too late. Each finished chunk is
copied to the cells of the sequence, so the rest of the engine sees a prompt that progresses.

The side context is closed when the prompt is computed. The last tokens of the prompt, which give logits, are left to a
step of the engine.

Beside streams, the embeddings of an image or a sound get such a context too. If they attend to each other, one step
would have to compute all of them. Otherwise the streams' steps would compute a few at a time, which takes much longer.

While an image or a sound is encoded, on a thread of its own, the streams' steps leave it the same time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from weakref import ref

from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.costs.cost_model import FLASH_TILE, PLANNED_SHARE, CostModel, Retrials, StepShape
from edgeagent.engine.media import Embeddings
from edgeagent.engine.runner import Chunk, ChunkRows, OpenSideContext, Runner, SideContext
from edgeagent.engine.scheduler import (
    BATCH_SHARE,
    MAX_STEP_S,
    MIN_CHUNK_WITH_STREAMS,
    shortest_budget_s,
)
from edgeagent.engine.sequence import Rank, Sequence
from edgeagent.errors import InternalError
from edgeagent.serving_order import by_urgency
from edgeagent.types import MemoryKind

# Possible numbers of tokens of a chunk. The largest that the machine computes within MAX_STEP_S is used. A larger chunk
# has longer graph nodes, so it takes longer to pause.
_CHUNKS = (256, 128, 64, 32)
# A prompt gets no side context if it would take less than this time alone. To open one takes about a tenth of a second.
MIN_ALONE_S = 1.0
# A prompt gets no side context either if its chunks fit the budget of the streams' steps and cost less than this
# multiple of the time that the prompt would take alone.
MIN_GAIN = 1.25
# Beside a model whose steps take 75 ms, a whole step's time would make gaps of 150 ms. The encoder also computes within
# the steps, with a thirtieth of the cores.
_LEAST_FOR_ENCODER = 0.25
# How many embeddings to compute at a time, if they attend only to those before them: a tile of flash attention. More
# have longer graph nodes.
_ROWS = FLASH_TILE
# Beside a model whose steps take 110 ms, a whole step's time makes gaps of 264 ms (95 %), half of it of 204 ms.
_LEAST_FOR_MEDIA = 0.5
_GIVEN_TOKENS = 128  # how many cached tokens to pass to the context at a time: reading them takes milliseconds
_WEIGHT = 0.2  # weight of the latest step or pause in the expected duration of the next one
# A step is expected to take this many mean deviations longer than an average one: if lengths are normally distributed,
# 95 % of them are shorter. Beside an encoder, a step takes up to twice as long as the one before. When that one's time
# was expected, 95 % of four streams' gaps took at most 216 ms of 200.
_NUM_DEVIATIONS = 2.0
_POLL_S = 0.005  # between two checks for a waiting command
ALONE_S = 0.05  # how long one step of the engine waits for a chunk if no stream runs


class SidePrefill:
    """Decides which prompt is computed in a context of its own, the side context. Divides the time with the streams.

    After each step of the streams, the side context computes for the rest of the shortest target of the streams: what
    their next step probably leaves. It gets at least the time of the last step, or of an average step if that is
    shorter; for embeddings, half of that. A prompt of the tier BATCH gets less, and one that is computed ahead gets
    only what is left. So it is for the encoder of images and sounds, except that it gets at least a quarter of the time
    of a step.
    """

    def __init__(
        self,
        open_context: OpenSideContext | None,
        runner: Runner,
        prefixes: PrefixStore,
        itl_budget_s: float,
        cost_model: CostModel,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """If `open_context` is None, there are no side contexts: prompts are computed in the streams' steps.

        `itl_budget_s`: the target of streams that have none.
        """
        self._open_context = open_context
        self._runner = runner
        # Sliding windows and states cannot be copied for a part of the prompt, so only media get a context there.
        self._takes_prompts = runner.memory_kind is MemoryKind.FULL_ATTENTION
        self._prefixes = prefixes
        self._default_s = self._budget_s = itl_budget_s
        self._costs = cost_model
        self._clock = clock
        self._context: SideContext | None = None
        self._chunks: list[Chunk] = []
        self._retrials = Retrials()  # of a chunk in the streams' steps
        # Tokens that were computed before the context was opened: how many were given to it, and how many there are.
        self._num_given, self._num_known = 0, 0
        self._end = 0  # of the tokens that the context computes
        # Expected durations, of a step without prompts and of a pause, and the mean deviation of such a step.
        self._step_s = self._pause_s = self._deviation_s = 0.0
        self._until_s = 0.0  # when the streams' next step is due
        self._unfit: set[Sequence] = set()  # running sequences that get no (other) side context
        self.sequence: Sequence | None = None
        """The sequence whose prompt is computed in the side context. The engine's steps leave it out meanwhile."""
        self.may_compute = False
        """Whether the side context computes after the next step. It waits while there is a more urgent prompt."""
        # A weak reference, since embeddings are encoded only as long as a sequence refers to them.
        self._encoding: tuple[Rank, ref[Embeddings]] | None = None
        self._has_streams = False
        self.is_streams_turn = False
        """Whether the next step is for the streams alone.

        They have just waited for a computation beside them, which took the time that a prompt would need.
        """

    @property
    def shares_time(self) -> bool:
        """Whether the next step should leave a part of the streams' target to what is computed beside it."""
        return self.may_compute or self._is_encoding

    @property
    def _is_encoding(self) -> bool:
        """Whether streams' steps leave time to the encoder."""
        return self._has_streams and self._encoding is not None

    def note_encoding(self, encoding: tuple[Rank, Embeddings] | None) -> None:
        """Note the most urgent embeddings that are encoded now, with the rank of their sequence; None if none are.

        On a GPU, the encoder's work and the steps take turns by themselves.
        """
        self._encoding = None
        if encoding is not None and self._runner.is_blocking:
            self._encoding = encoding[0], ref(encoding[1])

    @property
    def num_bytes(self) -> int:
        """The most bytes of memory that the side context may take; 0 if none is open. Any thread may read this."""
        context = self._context
        return 0 if context is None else context.num_bytes

    def split_running(self, running: Items[Sequence], num_cells: int) -> list[Sequence]:
        """Open a side context if that makes a prompt faster. Return the sequences that remain for the engine's step.

        All sequences remain except the one in the side context. An open side context is replaced only for a more urgent
        prompt. `num_cells`: KV cells in use.
        """
        self._has_streams = any(sequence.is_decoding for sequence in running)
        shortest_s = shortest_budget_s(running)
        self._budget_s = self._default_s if shortest_s == math.inf else shortest_s
        if self._open_context is None:
            return list(running)
        if self._takes_prompts:
            self._open_if_useful(self._open_context, running, num_cells)
        own = self.sequence
        others = [sequence for sequence in running if sequence is not own]
        self.may_compute = own is not None and not any(
            sequence.rank < own.rank for sequence in others if not sequence.is_decoding
        )
        return others

    def split_media(self, media: Items[Sequence], streams: Items[Sequence]) -> list[Sequence]:
        """Open a side context for a chunk of a medium, if `streams` would wait too long for a step with all of it.

        `media`: sequences whose next tokens stand for embeddings that are there. All of them remain for the engine's
        steps, except the one in the side context.
        """
        if self._open_context is not None and self._context is None:
            limit_s = shortest_budget_s(streams)
            for sequence in media:
                span, start = sequence.span, sequence.num_computed
                is_usual = sequence not in self._unfit and not sequence.is_scoring and not sequence.spec.adapter
                if span is None or not is_usual or sequence.num_rows:
                    continue
                alone_s = self._costs.prefill_s(span.end - start, start)
                if alone_s is not None and alone_s > limit_s:
                    rows = span.embeddings.take()
                    assert rows is not None
                    positions = span.positions
                    chunk_rows = ChunkRows(rows[start - span.start :], span.is_causal, positions, sequence.stretches)
                    self._budget_s = limit_s
                    self._open_for(self._open_context, sequence, _ROWS, span.end, chunk_rows)
                    break
        return [sequence for sequence in media if sequence is not self.sequence]

    def wait(self, has_command: Callable[[], bool], running: Iterable[Sequence] = ()) -> bool:
        """Let the side context and the encoder compute until the streams' next step is due, or until they have ended.

        Return False as soon as `has_command` reports a waiting command, otherwise True. Do not wait if one of the
        `running` prompts is more urgent.
        """
        rank, self.is_streams_turn = self._rank, False
        if any(each.rank < rank and each.restoring is None and not each.is_decoding for each in running):
            return True
        has_waited = False
        while (rest_s := self._until_s - self._clock()) > 0:
            if has_command():
                return False
            has_waited = True
            if self._has_ended(min(rest_s, _POLL_S)):
                break
        if has_waited and rank is not Rank.REALTIME and (self._context is None or self._context.is_over):
            self.is_streams_turn = self._has_ended(0.0)
        return True

    def _has_ended(self, timeout_s: float) -> bool:
        """Wait for what is computed beside the steps. Return whether none of it is computed any more."""
        context = None if self._context is None or self._context.is_over else self._context
        if context is not None and (self._give() or not context.wait_paused(timeout_s)):
            return False
        embeddings = None if self._encoding is None else self._encoding[1]()
        if embeddings is None:
            return True
        embeddings.wait(timeout_s)
        try:
            return embeddings.take() is not None
        except InternalError:
            return True  # which ends its sequence

    def wait_alone(self, most_s: float) -> None:
        """Let the side context compute, and wait at most `most_s` seconds for a chunk.

        If the context still lacks cached cells, pass it some instead of waiting. Call this when the engine itself has
        nothing to compute.
        """
        if self._context is not None:
            self._context.resume()
            if not self._give():
                self._context.wait(most_s)

    def pause(self) -> None:
        """Pause the side context, so that the engine can run a step."""
        if self._context is not None:
            started_s = self._clock()
            self._context.pause()
            self._pause_s += _WEIGHT * (self._clock() - started_s - self._pause_s)

    def resume(self, step_s: float, *, has_prompts: bool = False) -> None:
        """Let the side context, if it `may_compute`, and the encoder continue after a step that took `step_s`.

        `has_prompts`: whether the step computed a part of a prompt too. The next one may do so again.
        """
        if self._context is None and not self._is_encoding:
            return
        if not has_prompts:
            average_s = self._step_s or step_s
            self._deviation_s += _WEIGHT * (abs(step_s - average_s) - self._deviation_s)
            self._step_s = average_s + _WEIGHT * (step_s - average_s)
        self._until_s = self._clock()
        if self.shares_time:
            next_s = max(step_s, self._step_s + _NUM_DEVIATIONS * self._deviation_s)
            rest_s = PLANNED_SHARE * self._budget_s - next_s - self._pause_s
            self._until_s += max(rest_s, self._least_share * min(step_s, self._step_s or step_s))
            if self._context is not None and self.may_compute and self._until_s > self._clock():
                self._context.resume(self._until_s)

    @property
    def _rank(self) -> Rank:
        """The rank of what is computed beside the steps."""
        own = Rank.AHEAD if self.sequence is None else self.sequence.rank
        return own if self._encoding is None else min(own, self._encoding[0])

    @property
    def _least_share(self) -> float:
        """How much time is left beside a step at least, as a multiple of the time of that step."""
        if self._rank is Rank.AHEAD:
            return 0.0
        share = BATCH_SHARE / (1 - BATCH_SHARE) if self._rank is Rank.BATCH else 1.0
        if self.sequence is None:
            return min(share, _LEAST_FOR_ENCODER)
        return share if self.sequence.span is None else min(share, _LEAST_FOR_MEDIA)

    def copy(self, make_room: Callable[[], None]) -> list[tuple[Sequence, int]]:
        """Copy the computed chunks to the cells of their sequence. Return (sequence, start of the chunk) for each.

        `make_room` is called if cells are lacking. It must preempt a sequence, perhaps the one in the side context.
        After the last chunk, or if a chunk cannot be copied, close the side context. Then the engine's steps compute
        the rest of the prompt.
        """
        copied: list[tuple[Sequence, int]] = []
        while self._context is not None and self.sequence is not None:
            is_over, sequence = self._context.is_over, self.sequence
            self._chunks = self._chunks or self._context.take()
            if not self._chunks:
                if is_over and sequence.num_computed == self._end:
                    self.close_for(sequence)
                elif is_over:
                    self._give_up()
                break
            chunk, start = self._chunks[0], sequence.num_computed
            assert sequence.seq_id is not None
            if not self._prefixes.slots.reserve(chunk.num_tokens):
                make_room()
            elif self._runner.restore(sequence.seq_id, chunk.payload, chunk.end):
                self._prefixes.slots.append(sequence.seq_id, sequence.tokens[start : chunk.end])
                sequence.num_computed = chunk.end
                sequence.record_progress(self._clock())
                copied.append((sequence, start))
                del self._chunks[0]
            else:
                self._give_up()
        return copied

    def forget(self, sequence: Sequence) -> None:
        """Forget a sequence that ends or gives way. Cells that were copied stay."""
        self.close_for(sequence)
        self._unfit.discard(sequence)

    def close_for(self, sequence: Sequence) -> None:
        """Close the side context if it computes the prompt of `sequence`. Cells that were copied stay."""
        if self._context is not None and sequence is self.sequence:
            self._context.close()
            self._context, self.sequence, self.may_compute = None, None, False
            self._step_s = self._pause_s = self._deviation_s = 0.0
            self._chunks.clear()

    def _give_up(self) -> None:
        """Close the side context for good: its sequence gets no other one. The engine's steps compute the rest."""
        assert self.sequence is not None
        self._unfit.add(self.sequence)
        self.close_for(self.sequence)

    def _open_if_useful(self, open_context: OpenSideContext, running: Items[Sequence], num_cells: int) -> None:
        streams = [sequence for sequence in running if sequence.is_decoding]
        own = self.sequence
        if all(sequence.budget_s == math.inf for sequence in streams):
            return
        base = StepShape.of([(1, sequence.num_computed) for sequence in streams], num_cells)
        for sequence in by_urgency(running):
            if own is not None and sequence.rank >= own.rank:
                return
            has_media = any(
                span.end > sequence.num_computed or span.positions is not None for span in sequence.spec.media
            )
            chunk = 0 if has_media or sequence in self._unfit else self._chunk_of(sequence, base)
            if chunk:
                if own is not None:
                    self.close_for(own)
                self._open_for(open_context, sequence, chunk, _end_of(sequence))
                if self._context is not None:
                    self._retrials.record(self._costs.prefill_s(self._end - self._num_known, self._num_known) or 0.0)
                return

    def _open_for(
        self, open_context: OpenSideContext, sequence: Sequence, chunk: int, end: int, media: ChunkRows | None = None
    ) -> None:
        """Open a side context for a sequence's tokens up to `end`. See OpenSideContext."""
        self._num_given, self._num_known, self._end = 0, sequence.num_computed, end
        self._context = open_context(
            sequence.tokens[:end], self._num_known, chunk, *(() if media is None else (media,))
        )
        if self._context is None:
            self._unfit.add(sequence)
            return
        self.sequence, self._until_s = sequence, self._clock()
        sequence.marks.prefill_s = sequence.marks.prefill_s or self._until_s

    def _give(self) -> bool:
        """Pass the next cached cells of the prompt to the side context. Return False if none are left to pass.

        If the cells cannot be read, close the side context and return True.
        """
        if self._num_given == self._num_known or self._context is None or self.sequence is None:
            return False
        assert self.sequence.seq_id is not None
        start, end = self._num_given, self._num_known
        if self._takes_prompts and not self.sequence.stretches:
            end = min(start + _GIVEN_TOKENS, end)
        try:
            payload = self._runner.save(self.sequence.seq_id, start, end)
        except (InternalError, MemoryError):
            self._give_up()
            return True
        self._context.give(Chunk(end - start, end, payload))
        self._num_given = end
        return True

    def _chunk_of(self, sequence: Sequence, base: StepShape) -> int:
        """Return the chunk size in tokens for a side context; 0 if the prompt should not get one.

        `base`: the shape of a step with one token of each stream.
        """
        start, spec = sequence.num_computed, sequence.spec
        num_tokens = _end_of(sequence) - start
        is_fresh = not sequence.num_output and sequence.restoring is None
        is_shifted = sequence.is_apart or bool(sequence.shifts)
        if not is_fresh or is_shifted or sequence.is_scoring or spec.adapter or num_tokens < _CHUNKS[-1]:
            return 0
        alone_s = self._costs.prefill_s(num_tokens, start)
        if alone_s is None or alone_s < MIN_ALONE_S:
            return 0
        depth = start + num_tokens // 2
        fitting = self._costs.max_tokens_within(self._budget_s, base, depth, MIN_CHUNK_WITH_STREAMS)
        none_s = self._costs.predict(base) or 0.0
        small_s, small = min(
            (
                (self._costs.predict(base.plus(count, depth)) or 0.0, count)
                for count in (MIN_CHUNK_WITH_STREAMS, fitting)
            ),
            key=lambda each: (each[0] - none_s) / each[1],
        )
        is_cheap = (small_s - none_s) * num_tokens < MIN_GAIN * alone_s * small
        # With a side context, the streams' steps would begin a budget apart, or twice a step's time if that is longer.
        if is_cheap and small_s <= max(self._budget_s, 2 * none_s):
            return 0
        extra_s = small_s - none_s - alone_s * small / num_tokens
        if self._retrials.is_due(extra_s):
            self._retrials.reset()
            return 0
        for chunk in _CHUNKS:
            chunk_s = self._costs.predict(StepShape.alone(chunk, depth))
            if chunk <= num_tokens and chunk_s is not None and chunk_s <= MAX_STEP_S:
                return chunk
        return 0


def _end_of(sequence: Sequence) -> int:
    """Return the position where the side context's part of a prompt ends.

    A step of the engine computes the tokens after it, and gives the logits. If it had fewer tokens to compute, the
    logits would differ.
    """
    return sequence.num_prompt - max(2, sequence.min_prompt_chunk)
