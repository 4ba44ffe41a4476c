"""The engine: sequences in, tokens out, one batch at a time.

There are no separate prefill and decode phases. A step plans a batch of prompt tokens, generated tokens and drafts,
computes it, and keeps the accepted tokens. So each step raises `num_computed` of its sequences. The engine is
single-threaded and handles token ids, not text.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from functools import partial

from edgeagent.engine.adapter_turns import AdapterTurns
from edgeagent.engine.admission import Admission
from edgeagent.engine.cache.block import common_length, to_array
from edgeagent.engine.cache.prefix_store import PrefixStore
from edgeagent.engine.choices import MAX_CHOICE_TOKENS
from edgeagent.engine.context_room import output_room
from edgeagent.engine.costs.cost_model import PredictionError, StepShape
from edgeagent.engine.media import Embeddings, MediaSpan
from edgeagent.engine.runner import CUTTABLE, DecodeCancelled, OpenSideContext, OutOfCells, Runner
from edgeagent.engine.scheduler import (
    BatchPart,
    Scheduler,
    boost_stalled,
    share_urgency,
    waits_too_long,
    without_drafts,
)
from edgeagent.engine.sequence import Rank, Sequence, SequenceSpec, partition_of
from edgeagent.engine.shift_check import CHECK_ID, ShiftCheck
from edgeagent.engine.side_prefill import ALONE_S, SidePrefill
from edgeagent.engine.speculation.draft_model import PromptWarmer
from edgeagent.engine.speculation.proposals import Drafters, Proposals
from edgeagent.engine.step_costs import StepCosts
from edgeagent.engine.step_in_progress import StepInProgress
from edgeagent.engine.verification import Output, Verifier
from edgeagent.errors import InternalError
from edgeagent.serving_order import by_share, by_urgency
from edgeagent.types import CacheStatus, FinishReason, MemoryKind, WorkerStatus

# Shares of the inter-token-latency budget, for one sequence's restore and for read-outs between two steps, by estimate.
_BUDGET_SHARE_TO_RESTORE, _BUDGET_SHARE_TO_READ_OUT = 0.1, 0.1
_WAIT_FOR_DISK_S = 0.05  # until the disk has probably written the queued blocks
_LOAD_WAIT_S = 0.005  # how long to wait for a block from disk when there is nothing else to do
_NO_ERROR = PredictionError(0.0, 0.0)  # too few steps were measured, or there is no draft model


@dataclass(slots=True)
class _Batch:
    """A batch that the runner computes, or has computed.

    `began_s`: when its planning began. `started_s`: when `Runner.submit` began. `ended_s`: when the batch was computed;
    None if that was not waited for yet. `error`: what the runner raised. `has_switched`: whether it is the first with
    another adapter, which took `switch_s`. `plain_s`: how long the batch would take without its drafts; None if it has
    none or if that is unknown.
    """

    parts: list[BatchPart]
    shape: StepShape
    expected_s: float | None
    began_s: float
    started_s: float
    ended_s: float | None = None
    has_switched: bool = False
    switch_s: float = 0.0
    plain_s: float | None = None
    error: Exception | None = None


class Engine:
    """Runs sequences on a runner. `add` and `cancel` change the set of sequences.

    Between `begin_step` and `finish_step`, a GPU computes. `step` is both.
    """

    def __init__(
        self,
        runner: Runner,
        *,
        max_running: int,
        itl_budget_s: float = 0.1,
        drafters: Drafters | None = None,
        prefixes: PrefixStore | None = None,
        num_trained: int = 0,
        adapters: Items[str] = (),
        open_side: OpenSideContext | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`prefixes`: the prefix cache and step costs of `runner`. If None, prefixes evicted from the cells are lost.
        `drafters`: they draft no more tokens than the memory can take back, perhaps none. `num_trained`: the context
        length that the model was trained for; 0 if unknown. `adapters`: ids of adapters that sequences may use.
        `open_side` opens contexts that compute long prompts between steps (see side_prefill). None: no such contexts.
        """
        self._runner, self._num_trained, self._clock = runner, num_trained, clock
        self.max_running = min(max_running, runner.max_batch)  # each running sequence has a token in every batch
        """The most sequences that run at a time."""
        self.prefixes = prefixes or PrefixStore(runner, clock=clock)
        """The prefix cache, with the KV cells."""
        self.cost_model = self.prefixes.costs
        """The measured costs of the runner's steps."""
        self._scheduler = Scheduler(
            runner.max_batch,
            itl_budget_s,
            self.cost_model,
            max_outputs=runner.max_outputs,
            row_cost=runner.row_cost,
            max_branches=runner.max_branches,
            clock=clock,
        )
        self._costs = StepCosts(runner, self.prefixes, itl_budget_s)
        self._admission = Admission(runner, self.prefixes, clock)
        self._itl_budget_s, self._restore_budget_s = itl_budget_s, itl_budget_s * _BUDGET_SHARE_TO_RESTORE
        drafters = (drafters or Drafters()).within(runner.max_rewind, are_even=runner.memory_kind not in CUTTABLE)
        self._stores = [self.prefixes] if drafters.model is None else [self.prefixes, drafters.model.prefixes]
        self.proposals = Proposals(drafters, self.cost_model, clock, runner.is_end)
        """Proposes drafts, and records how many of their tokens are accepted."""
        self._shift_check = ShiftCheck()
        self._verifier = Verifier(runner, self.prefixes, self.proposals, self._shift_check.note, clock)
        # An interrupted step destroys a recurrent state, and with it the whole prefix; a sliding window may have moved.
        self.current_step = StepInProgress(runner.memory_kind is MemoryKind.FULL_ATTENTION)
        self._side = SidePrefill(open_side, runner, self.prefixes, itl_budget_s, self.cost_model, clock)
        self._warmer = PromptWarmer(drafters.model)
        self._adapters, self._turns = tuple(adapters), AdapterTurns()
        self._waiting, self._running = dict[str, Sequence](), dict[str, Sequence]()
        self._num_added = self._num_steps = 0
        self._batch: _Batch | None = None  # submitted and not finished
        self._finished: _Batch | None = None  # the latest finished batch, until `save_step`
        self._outputs: list[Output] = []  # of the next `finish_step`
        self._was_media = False  # whether the latest batch had embeddings
        self._advanced: list[tuple[Sequence, int]] = []  # sequences of the latest step, with their length before it

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        if self._running or self._waiting or self._outputs or self._batch is not None:
            return True
        return self._shift_check.is_due or not (
            self._warmer.is_done and all(prefixes.saver.is_done for prefixes in self._stores)
        )

    def refresh(self) -> None:
        """Add all blocks on disk to the prefix trees at once. Without this call, each lookup adds a few of them."""
        for prefixes in self._stores:
            prefixes.blocks.poll()

    @property
    def wake_after_s(self) -> float | None:
        """Seconds after which `has_work` may become true without a command; None if it will not."""
        return _WAIT_FOR_DISK_S if any(prefixes.saver.has_unsaved for prefixes in self._stores) else None

    @property
    def num_live(self) -> int:
        """Number of sequences that run or wait."""
        return len(self._running) + len(self._waiting)

    @property
    def context_length(self) -> int:
        """Most tokens one sequence can have, prompt and output together."""
        return self._runner.num_cells

    @property
    def max_choice_tokens(self) -> int:
        """The most tokens of a choice: as many as a step has room for beside the most streams that can run."""
        room = min(self._runner.max_batch, self._runner.max_outputs)
        return max(1, min(MAX_CHOICE_TOKENS, room - self.max_running - 1))

    def status(self) -> WorkerStatus:
        """Return the engine's part of a worker's status. Any thread may call it, even in the middle of a step."""
        rates = self._costs.rates
        error, draft_error = ([prefixes.costs.error or _NO_ERROR for prefixes in self._stores] + [_NO_ERROR])[:2]
        return WorkerStatus(
            num_steps=self._num_steps,
            step_expected_s=self.current_step.expected_s,
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_cells_used=self.prefixes.slots.num_cells_used,
            num_cells=self._runner.num_cells,
            prefill_tokens_per_s=rates[0],
            prefill_tokens_per_s_beside=rates[1],
            token_s=rates[2],
            step_error_median=error.median,
            step_error_p95=error.p95,
            draft_step_error_median=draft_error.median,
            draft_step_error_p95=draft_error.p95,
            drafts=self.proposals.tally.counts(),
            draft_gain=self.proposals.tally.gain,
            shift=self._shift_check.status() if self._runner.can_shift else None,
            memory_cache=self.memory_cache(),
        )

    def memory_cache(self) -> CacheStatus:
        """Return the counts of the blocks in memory, of the draft model too. Any thread may call it."""
        each = [prefixes.blocks.stats() for prefixes in self._stores]
        return CacheStatus(
            num_blocks=sum(cache.num_blocks for cache in each),
            num_bytes=sum(cache.num_bytes for cache in each),
            max_bytes=sum(cache.max_bytes for cache in each),
            num_hits=sum(cache.num_hits for cache in each),
            num_misses=sum(cache.num_misses for cache in each),
            num_offered=sum(cache.num_offered for cache in each),
            num_dropped=sum(cache.num_dropped for cache in each),
            num_evicted=sum(cache.num_evicted for cache in each),
        )

    @property
    def planned_bytes(self) -> int:
        """The most memory that cached blocks and a side context may take now, in bytes. Any thread may read it."""
        return self.memory_cache().num_bytes + self._side.num_bytes

    def add(self, spec: SequenceSpec) -> Sequence:
        """Queue a new sequence and return it. Raise ContextLengthExceeded or InternalError; see `output_room`."""
        if CHECK_ID in self._running or CHECK_ID in self._waiting:
            self.cancel(CHECK_ID)  # it goes on from its cached part when nothing else is to do
        assert spec.id not in self._waiting and spec.id not in self._running, f"{spec.id} is live"
        num_output = output_room(spec, self.context_length, self._num_trained)
        if spec.media:
            spec = replace(spec, media=tuple(self._cached(span, spec) for span in spec.media))
        sequence = Sequence.of(spec, num_output, self._num_added, self._runner.min_prompt_chunk, self._clock())
        self._num_added += 1
        if spec.token_s is None and sequence.rank < Rank.BATCH:
            sequence.budget_s = self._itl_budget_s
        self._waiting[spec.id] = sequence
        return sequence

    def _cached(self, span: MediaSpan, spec: SequenceSpec) -> MediaSpan:
        """Return a chunk of a medium whose embeddings come from the cache, if they are there."""
        embeddings = self.prefixes.media.cached(
            span.embeddings,
            spec.prompt[span.start : span.end],
            spec.cache_partition,
            spec.cache_priority.importance,
            reads=spec.read_cache,
            writes=spec.write_cache,
        )
        return replace(span, embeddings=embeddings)

    def has_embeddings(self, partition: str, tokens: Items[int]) -> bool:
        """Whether the embeddings that these tokens stand for are in the cache. Any thread may call it."""
        return self.prefixes.media.is_held(tokens, partition)

    def step_helps(self, spec: SequenceSpec) -> bool:
        """Whether a new prompt is probably computed sooner if it begins with the running step's tokens, once it ended.

        Any thread may call it.
        """
        batch = self._batch
        if batch is None or batch.expected_s is None or len(batch.parts) != 1 or batch.parts[0].tree is not None:
            return False
        (part,) = batch.parts
        sequence, start = part.sequence, part.sequence.num_computed
        if not spec.read_cache or spec.cache_partition != sequence.spec.cache_partition:
            return False
        num_shared = common_length(sequence.tokens[: start + part.num_tokens], to_array(spec.prompt)) - start
        left_s = batch.started_s + batch.expected_s - self._clock()
        return left_s <= batch.expected_s * num_shared / part.num_tokens

    def cancel(self, sequence_id: str, num_output: int | None = None) -> Sequence | None:
        """End a sequence at once and return it; None if the id is unknown. Its computed tokens may stay cached.

        `num_output`: how many of its output tokens belong to the answer; None for all. Later ones are not cached. If a
        batch is submitted, wait for it. Its other outputs are those of the next `finish_step`.
        """
        if self._batch is not None:
            self._outputs = self.finish_step()
        sequence = self._waiting.pop(sequence_id, None)
        if sequence is None:
            sequence = self._running.pop(sequence_id, None)
            if sequence is None:
                return None
            if num_output is not None and sequence.num_computed > sequence.num_prompt + num_output:
                assert sequence.seq_id is not None
                self.prefixes.slots.cut(sequence.seq_id, sequence.num_prompt + num_output)
            self._release(sequence)
        self._outputs = [output for output in self._outputs if output.sequence is not sequence]
        return sequence

    def admit(self) -> list[Output]:
        """Start waiting sequences and continue restores. Return an output for each sequence whose restore is over.

        Call it before `begin_step`, and never between `begin_step` and `finish_step`.
        """
        if self._runner.memory_kind is not MemoryKind.FULL_ATTENTION:
            self._checkpoint()  # the next step would overwrite the states
        running = self._running.values()
        if not self._waiting and all(sequence.is_decoding for sequence in running):
            return []  # most steps
        share_urgency(running, self._waiting.values())
        boost_stalled(running, self._waiting.values(), self._clock())
        for sequence in running:
            self._admission.begin_shift(sequence)
        restored = [sequence for sequence in by_urgency(running) if sequence.restoring is not None]
        outputs = [output for sequence in restored for output in self._advance_admission(sequence)]
        if self._is_full:
            return outputs
        is_short_of_cells = is_long_short = False
        for sequence in by_share(self._waiting.values(), running):
            less_urgent = self._less_urgent(sequence)
            is_full = len(running) >= self.max_running and not less_urgent
            if is_full or (is_short_of_cells and (sequence.rank is not Rank.REALTIME or is_long_short)):
                break
            if self._admission.must_wait(sequence, running):
                continue
            if not self._claim(sequence, less_urgent):
                if not sequence.is_boosted:
                    break
                is_short_of_cells = True
                is_long_short = waits_too_long(sequence, self._clock())
                continue
            del self._waiting[sequence.id]
            self._running[sequence.id] = sequence
            self._admission.make_way(sequence, is_alone=len(running) == 1)
            outputs += self._advance_admission(sequence)
        return outputs

    @property
    def _is_full(self) -> bool:
        """Whether no waiting sequence can start: there is no place, and none runs that is less urgent."""
        if len(self._running) < self.max_running:
            return False
        most_urgent = min((sequence.spec.rank for sequence in self._waiting.values()), default=Rank.AHEAD)
        return all(sequence.rank <= most_urgent for sequence in self._running.values())

    def _claim(self, sequence: Sequence, less_urgent: Items[Sequence]) -> bool:
        """Give a waiting sequence a place in the steps and its cached prefix. Return False if there is no room for it.

        If it needs the place or the cells of `less_urgent` running sequences, they are preempted, the first one first.
        """
        running = self._running.values()
        if self._admission.is_refused(sequence):
            return False
        if len(running) < self.max_running and self._admission.claim(sequence, is_alone=not running):
            return True
        if not less_urgent or not self._admission.fits_without(sequence, less_urgent):
            return False
        for victim in less_urgent:
            self._preempt(victim)
            if len(running) < self.max_running and self._admission.claim(sequence, is_alone=not running):
                return True
        return False

    def _less_urgent(self, sequence: Sequence) -> list[Sequence]:
        """Return the running sequences that give way to a waiting one, in the order in which they are preempted.

        Among equally urgent ones, those come last that would have to compute their tokens again. A boosted sequence
        waits for its place, so it interrupts no answer of a more urgent tier.
        """
        found = [each for each in reversed(by_share(self._running.values())) if each.rank > sequence.spec.rank]
        return sorted(found, key=lambda each: (-each.rank, not (each.keeps_prefix and each.spec.read_cache)))

    def _advance_admission(self, sequence: Sequence) -> list[Output]:
        restoring = sequence.restoring
        num_before = 0 if restoring is None else restoring.num_tokens
        is_ready = self._admission.advance(sequence, self._restore_budget_s)
        # A restored block counts as a step, so that a slow disk is not mistaken for a hang.
        self._num_steps += restoring is not None and restoring.num_tokens > num_before
        if not is_ready:
            return []
        output = Output(sequence)
        if sequence.num_pending == 0:
            output.finish_reason = FinishReason.STOP
            self._end(sequence)
        return [output]

    def step(self, has_command: Callable[[], bool] = lambda: False) -> list[Output]:
        """Compute the next batch and wait for it. Return all outputs of `admit` and `finish_step`."""
        outputs = self.admit()
        self.begin_step(has_command)
        outputs += self.finish_step()
        self.save_step()
        return outputs

    def begin_step(self, has_command: Callable[[], bool] = lambda: False) -> bool:
        """Plan the next batch and give it to the runner. Return whether it is being computed now.

        A GPU computes it while this thread goes on; on a CPU it is computed when this method returns. Call
        `finish_step` next. While a batch is being computed, call only `wait`, `save_step` and `cancel` before it.

        If `has_command` reports a waiting command, a long step is postponed, but never twice in a row.
        """
        assert self._batch is None, "the last batch is not finished"
        if not self._side.wait(has_command, self._running.values()):
            return False
        self._outputs += self._take_side_chunks()
        if self._advanced and self._runner.memory_kind is not MemoryKind.FULL_ATTENTION:
            self._checkpoint()  # what was copied; the next step would overwrite its states
        self._outputs += self._end_unreadable()
        began_s = self._clock()
        parts = self._plan()
        if not parts:
            self._use_idle_moment(has_command)
            return False
        self._warmer.pause()
        self.prefixes.saver.free_saved_cells(sum(part.size for part in parts))
        shape, min_tokens = self._costs.padded(parts)
        expected_s = self.cost_model.predict(shape)
        # Streams count as interactive ones at most, so those of the tier realtime give way to its prompts too.
        sequences = [part.sequence for part in parts]
        rank = min(max(each.rank, Rank.INTERACTIVE) if each.is_decoding else each.rank for each in sequences)
        if not self.current_step.begin(shape.num_tokens, expected_s, rank, has_command):
            return False
        self._batch = batch = _Batch(parts, shape, expected_s, began_s, self._clock())
        try:
            batch.has_switched = self._turns.apply(self._runner)
            self._runner.submit([part.slice for part in parts], min_tokens)
        except (DecodeCancelled, OutOfCells, InternalError) as error:
            batch.error = error
        if self._runner.is_blocking:
            self.wait()
        if self.proposals.has_drafted:
            batch.plain_s = self._costs.plain_s(parts)
        return not self._runner.is_blocking

    def wait(self) -> None:
        """Wait until the submitted batch is computed, if there is one. `finish_step` draws its tokens.

        Call it before work that takes long, which would count as the time of the batch.
        """
        batch = self._batch
        if batch is None or batch.ended_s is not None:
            return
        try:
            if batch.error is None:
                self._runner.wait()
        except (DecodeCancelled, OutOfCells, InternalError) as error:
            batch.error = error
        batch.ended_s = self._clock()

    def finish_step(self) -> list[Output]:
        """Wait for the submitted batch, draw its tokens, and return the outputs. Return at once if there is none.

        An interrupted batch (see Runner.submit) gives no outputs. Its tokens are planned again. The next step cannot be
        interrupted, so at least every second step completes, however many cancels arrive.
        """
        outputs, self._outputs = self._outputs, []
        batch = self._batch
        if batch is None:
            return outputs
        self.wait()
        self._batch = None
        try:
            if batch.error is not None:
                raise batch.error
        except DecodeCancelled:
            self._take_back(batch.parts)
            self._num_steps += 1
            self.current_step.record(was_interrupted=True)
            return outputs
        except OutOfCells:  # nothing was computed: such steps alone would be a hang
            return outputs + self._make_room(batch.parts)
        except InternalError as error:
            return outputs + self._fail(batch.parts, error)
        finally:
            self.current_step.end()
        assert batch.ended_s is not None
        resumed_s = batch.ended_s if self._runner.is_blocking else self._clock()
        self._num_steps += 1
        self.current_step.record(was_interrupted=False)
        step_s = batch.ended_s - batch.started_s
        self._advanced += [(part.sequence, part.sequence.num_computed) for part in batch.parts if part.tree is None]
        has_prompts = any(not part.sequence.is_decoding for part in batch.parts)
        outputs += self._verify_all(batch.parts, batch.started_s)
        if batch.plain_s is not None:
            self.proposals.note_step(len(batch.parts), step_s, batch.plain_s)
        batch.switch_s = self._turns.record(step_s, batch.expected_s if batch.has_switched else None)
        self._finished = batch
        self._side.resume(step_s, has_prompts=has_prompts)
        self._scheduler.record_overhead(batch.started_s - batch.began_s + self._clock() - resumed_s)
        return outputs

    def save_step(self) -> None:
        """Learn from the latest step, and copy some prefixes from the cells into blocks.

        Send the new tokens first: it takes milliseconds if there is something to copy. If a GPU computes, call it after
        `begin_step`.
        """
        self._checkpoint()
        batch, self._finished = self._finished, None
        if batch is None or batch.ended_s is None:
            return
        step_s = batch.ended_s - batch.started_s
        self._costs.observe(batch.shape, step_s - batch.switch_s, self._running.values())
        if any(prefixes.saver.has_work for prefixes in self._stores):
            self.wait()
        if self._batch is not None and self._batch.error is not None:
            return  # after a failed batch, the cells may be incomplete until `finish_step`
        has_streams = any(sequence.num_output for sequence in self._running.values())
        pause_s = self._itl_budget_s * _BUDGET_SHARE_TO_READ_OUT if has_streams else math.inf
        is_awaited = any(not sequence.is_decoding for sequence in self._running.values())
        for prefixes in self._stores:
            prefixes.costs.fit_if_due()
            prefixes.saver.run_after_step(step_s, batch.shape.num_tokens, pause_s=pause_s, is_awaited=is_awaited)

    def _checkpoint(self) -> None:
        """Save the states of the latest step, which the next step overwrites, and mark full blocks to be saved."""
        for sequence, start in self._advanced:
            # An ended sequence left an idle prefix, which is saved as a whole.
            if self._running.get(sequence.id) is sequence:
                self._admission.checkpoint(sequence, start)
        self._advanced.clear()

    def close(self) -> None:
        """Cancel all sequences, and write idle prefixes to the disk cache, if there is one. Call no method after it."""
        for sequence_id in [*self._waiting, *self._running]:
            self.cancel(sequence_id)
        self._warmer.pause()
        for prefixes in self._stores:
            prefixes.close()
        self.prefixes.close_disk()

    def purge(self, partition: str | None = None, done: Callable[[int], None] | None = None) -> int:
        """Forget the cached prefixes of a partition, or of all partitions if None. Return how many blocks were removed.

        Running and preempted sequences continue, but leave no prefix when they end. `done` gets the same number, on the
        disk's thread once it has removed the files that it can; at once if there is no disk.
        """
        # Waiting sequences that were preempted had begun before the purge too.
        begun = [sequence for sequence in self._waiting.values() if sequence.marks.claimed_s]
        for sequence in (*self._running.values(), *begun):
            if partition is None or sequence.spec.partition == partition:
                sequence.is_purged = True
        self._warmer.purge(partition)
        self._shift_check.forget(partition)
        partitions = [None] if partition is None else [partition_of(partition, each) for each in ("", *self._adapters)]
        num_gone = sum(prefixes.purge(each) for prefixes in self._stores for each in partitions)
        if done is not None:
            self.prefixes.after_purge(partial(done, num_gone))
        return num_gone

    def _plan(self) -> list[BatchPart]:
        """Plan the next batch and reserve its cells. If there are too few, drop all drafts, then preempt sequences."""
        while self._running:
            num_cells = self.prefixes.slots.num_cells_used
            texts, media, restoring = list[Sequence](), list[Sequence](), list[Sequence]()
            for sequence in self._running.values():
                if sequence.restoring is not None:
                    restoring.append(sequence)
                else:
                    (texts if sequence.span is None else media).append(sequence)
            if self._side.is_streams_turn and (streams := [each for each in texts if each.is_decoding]):
                texts, media = streams, []
            is_awaited = any(not sequence.is_decoding for sequence in self._running.values())
            self.proposals.note_waiting(is_first_awaited=is_awaited)
            parts = self._plan_media(media, texts, num_cells)
            if not parts:
                in_steps = self._side.split_running(texts, num_cells)
                running = self._scheduler.choose(
                    in_steps, num_cells, self._side.sequence if self._side.may_compute else None
                )
                waiting = [each for each in (*restoring, *self._waiting.values()) if each.rank is Rank.REALTIME]
                if len(running) < len(in_steps):
                    waiting += [sequence for sequence in in_steps if sequence not in running]
                num_others = int(self._side.shares_time)
                choosing = self._limit_trees(running)
                parts = self._plan_turn(running, num_cells, num_others, waiting)
                if not parts and choosing:
                    self._preempt_last()  # not even one choice fits beside the others
                    continue
            if self._reserve(parts):
                return parts
            if self.proposals.withdraw() and self._reserve(parts := without_drafts(parts)):
                return parts
            assert len(self._running) > 1, "one sequence always fits: it is no longer than the number of cells"
            self._preempt_last()
        return []

    def _plan_turn(
        self, running: Items[Sequence], num_cells: int, num_others: int, waiting: Items[Sequence]
    ) -> list[BatchPart]:
        """Plan a batch of the sequences whose adapter has its turn.

        Nothing is drafted for those with an adapter, and nothing while a realtime prompt is computed, since it would
        wait for longer steps.

        `num_cells`: KV cells in use. `num_others`: how many side contexts compute between the steps; each counts as one
        more turn. `waiting`: sequences that wait for the end of the step.
        """
        chosen = self._turns.take(running)
        is_urgent = any(each.rank is Rank.REALTIME and not each.is_decoding for each in self._running.values())
        drafts = self.proposals.propose([] if self._turns.current or is_urgent else chosen, num_cells)
        num_turns = num_others + 1
        if len(chosen) < len(running):
            num_turns = num_others + len({sequence.spec.adapter for sequence in running})
            others = [each for each in running if each.spec.adapter != self._turns.current and each.is_decoding]
            waiting = [*waiting, *others]
        return self._scheduler.plan(chosen, drafts, num_cells, num_turns=num_turns, others=waiting)

    def _plan_media(self, media: Items[Sequence], texts: Items[Sequence], num_cells: int) -> list[BatchPart]:
        """Plan a batch of embeddings, if some are there and it is their turn.

        `media`: sequences whose next tokens stand for embeddings. `texts`: the others. llama.cpp takes either tokens or
        embeddings in a batch, so text has every second batch. If the runner `can_mix`, the streams have their tokens in
        each batch. Only one sequence has embeddings in a batch, since the attention of a whole chunk holds for all.
        """
        streams = [each for each in texts if each.is_decoding]
        ready = [each for each in media if each.span is not None and each.span.embeddings.take() is not None]
        ready = self._side.split_media(ready, streams)
        if not ready:
            self._was_media = False
            return []
        self._side.note_encoding(None)  # the time beside the streams' steps is for these batches
        sequence = by_share(ready)[0]
        span = sequence.span
        assert span is not None
        is_whole = not span.is_causal or (span.is_one and sequence.is_one_whole)
        if is_whole or not self._runner.can_mix or any(each.spec.adapter for each in (sequence, *streams)):
            streams = []
        most_urgent = min(each.rank for each in (sequence, *streams))
        if any(each.rank >= Rank.BATCH and each.rank > most_urgent for each in streams):
            streams = []  # the scheduler chooses which of them have steps
        waiting = [each for each in texts if each not in streams]
        self._was_media = not (self._was_media and waiting)
        if not self._was_media:
            return []
        # Streams that are not in this batch wait for it and for their own, so it gets half of their target.
        num_others = int(self._side.may_compute if streams else bool(waiting))
        parts = self._plan_turn([*streams, sequence], num_cells, num_others, waiting)
        num_left = span.end - sequence.num_computed - sequence.num_rows
        if streams:
            return [
                BatchPart(sequence, min(num_left, part.num_tokens), (), 0, 0) if part.sequence is sequence else part
                for part in parts
            ]
        num_tokens = num_left if is_whole else min(num_left, parts[0].num_tokens)
        if self._runner.max_whole < num_tokens < num_left:
            num_tokens -= num_tokens % self._runner.max_whole  # whole micro-batches: each reads all weights
        return [BatchPart(sequence, num_tokens, (), 0, 0)]

    def _end_unreadable(self) -> list[Output]:
        """Have the next chunk of each sequence's media encoded. End the sequences whose chunk cannot be, with an error.

        No chunk is encoded before the one before it is computed: both would use the same cores.
        """
        outputs = []
        encoding: tuple[Rank, Embeddings] | None = None
        for sequence in list(self._running.values()):
            if sequence.restoring is not None or not sequence.spec.media:
                continue
            span = next((span for span in sequence.spec.media if span.end > sequence.num_computed), None)
            try:
                is_missing = span is not None and span.embeddings.take() is None
                if span is not None and is_missing and (encoding is None or sequence.rank < encoding[0]):
                    encoding = sequence.rank, span.embeddings
            except InternalError as error:
                self._end(sequence)
                outputs.append(Output(sequence, error=error))
        self._side.note_encoding(encoding)
        return outputs

    def _limit_trees(self, running: Items[Sequence]) -> list[Sequence]:
        """Limit the trees of the sequences that are to compute one to the cells that are left, and return these."""
        choosing = [sequence for sequence in running if sequence.is_choosing]
        if choosing:
            num_left = self.prefixes.slots.num_available - sum(not sequence.is_choosing for sequence in running)
            for sequence in choosing:
                sequence.tree_room = num_left
        return choosing

    def _reserve(self, parts: Items[BatchPart]) -> bool:
        num_unrecorded = sum(sequence.num_rows for sequence in self._running.values())
        return self.prefixes.slots.reserve(num_unrecorded + sum(part.size for part in parts))

    def _take_side_chunks(self) -> list[Output]:
        """Pause the side context and copy its chunks into the cells. Return outputs if the request reports progress."""
        self._side.pause()
        copied = self._side.copy(self._preempt_last)
        if copied:
            sequence, start = copied[0]
            self._scheduler.record_prompt(sequence, max(0, sequence.num_computed - start))
        self._advanced += copied
        self._num_steps += len(copied)
        return [Output(sequence) for sequence, _ in copied if sequence.spec.reports_progress]

    def _use_idle_moment(self, has_command: Callable[[], bool]) -> None:
        """Wait for the side context, or for blocks that are read from disk. Do background work if no sequence runs."""
        restorings = [sequence.restoring for sequence in self._running.values() if sequence.restoring is not None]
        spans = [sequence.span for sequence in self._running.values() if sequence.restoring is None and sequence.span]
        if self._side.sequence is not None:
            self._side.wait_alone(_LOAD_WAIT_S if restorings or spans else ALONE_S)
        elif spans and spans[0] is not None:
            self._await(spans[0].embeddings, _LOAD_WAIT_S if restorings else ALONE_S, has_command)
        elif self._running:
            self.prefixes.restorer.wait(restorings, _LOAD_WAIT_S)
        else:
            for prefixes in self._stores:
                prefixes.saver.run_when_idle()
            self._warmer.run_when_idle()
            if self._shift_check.is_due and self._warmer.is_done and not self._waiting:
                self.add(self._shift_check.spec())

    def _await(self, embeddings: Embeddings, most_s: float, has_command: Callable[[], bool]) -> None:
        """Wait for embeddings, but not if a command waits. To plan a step each time would take the encoder's cores."""
        until_s = self._clock() + most_s
        with contextlib.suppress(InternalError):  # the next step ends their sequence
            while self._clock() < until_s and not has_command() and embeddings.take() is None:
                embeddings.wait(_LOAD_WAIT_S)

    def _verify_all(self, parts: Items[BatchPart], started_s: float) -> list[Output]:
        """Verify the drafts of a computed batch and sample next tokens. `started_s`: when the batch's decode began."""
        outputs, row, drawn = list[Output](), 0, self._verifier.draw(parts)
        for part in parts:
            sequence = part.sequence
            if sequence.marks.prefill_s == 0.0:
                sequence.marks.prefill_s = started_s
            in_prompt = sequence.num_output == 0
            output = self._verifier.verify(part, row, drawn)
            if in_prompt and sequence.num_output:
                sequence.drop_inherited_urgency()  # no other sequence waits for its prefill any more
            row += part.num_logits
            sequence.record_progress(started_s)
            if output.is_last:
                self._end(sequence)
            has_news = output.tokens or output.prompt_logprobs or (in_prompt and sequence.spec.reports_progress)
            if has_news or output.is_last:
                outputs.append(output)
        return outputs

    def _preempt_last(self) -> None:
        self._preempt(by_share(self._running.values())[-1])

    def _preempt(self, sequence: Sequence) -> None:
        """Move a running sequence back to the waiting ones. Later its tokens are restored or computed again."""
        del self._running[sequence.id]
        self._release(sequence)
        sequence.seq_id, sequence.num_computed, sequence.num_rows = None, 0, 0
        self._waiting[sequence.id] = sequence

    def _take_back(self, parts: Items[BatchPart]) -> None:
        """Undo an interrupted batch, so that its tokens can be planned again."""
        names = [part.sequence.id for part in parts]
        if self._runner.memory_kind not in CUTTABLE:
            self._forget_states()
            names = list(self._running)
        for name in names:
            self._verifier.rewind(self._running[name])

    def _forget_states(self) -> None:
        """Empty the memory of all sequences, also of idle ones and of those that were not in the interrupted batch.

        While llama.cpp computes a batch, it also moves the states of other sequences. So after an interruption, any
        state may be incomplete.
        """
        for sequence in list(self._running.values()):
            assert sequence.seq_id is not None
            self.prefixes.slots.reset(sequence.seq_id)
            self._side.close_for(sequence)
            sequence.batch_ends.forget()  # to compute all output again token by token would take too long
            if sequence.restoring is not None:
                self._preempt(sequence)
        self.prefixes.saver.forget_partition(None)

    def _make_room(self, parts: Items[BatchPart]) -> list[Output]:
        """Free cells after OutOfCells: evict a prefix, or preempt a sequence. If only one sequence runs, fail it."""
        if self.prefixes.slots.evict_one():
            return []
        if len(self._running) > 1:
            # It would find no cells again, although enough seem to be free, until another sequence gives up some.
            last = by_share(self._running.values())[-1]
            self._preempt(last)
            self._admission.refuse(last)
            return []
        return self._fail(parts, InternalError("the KV cache has no room for a batch that must fit", served_by="local"))

    def _fail(self, parts: Items[BatchPart], error: InternalError) -> list[Output]:
        """End the sequences of a failed batch with an error. Drop their memory, since its state is unknown."""
        outputs = []
        for part in parts:
            sequence = part.sequence
            assert sequence.seq_id is not None
            del self._running[sequence.id]
            self.prefixes.slots.reset(sequence.seq_id)
            self._release(sequence)
            outputs.append(Output(sequence, error=error))
        self._take_back([])
        return outputs

    def _end(self, sequence: Sequence) -> None:
        del self._running[sequence.id]
        self._release(sequence)
        if sequence.spec.prefill_only:
            self._warmer.add(sequence)

    def _release(self, sequence: Sequence) -> None:
        assert sequence.seq_id is not None
        self._side.forget(sequence)
        self.proposals.release(sequence)
        self._admission.release(sequence)
        if not self._running:
            self._costs.update_rates(())
