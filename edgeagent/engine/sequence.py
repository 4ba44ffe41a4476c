"""A sequence: one request inside the engine, with its tokens and progress. It holds token ids, not text."""

from __future__ import annotations

import bisect
import itertools
import math
from array import array
from collections.abc import Container, Iterable
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field
from enum import IntEnum

from edgeagent.engine.cache.block import CachePriority, Importance
from edgeagent.engine.cache.cached_prefix import Divergence, Restoring, Run
from edgeagent.engine.choices import Choices
from edgeagent.engine.media import MediaSpan
from edgeagent.engine.runner import Stretch
from edgeagent.engine.sampling.sampler import Sampler
from edgeagent.types import Tier

# If there are more output tokens than this, they are computed again in large chunks: one by one would take seconds.
_MAX_STEPWISE = 512


class BatchEnds:
    """The positions where a sequence's output batches ended, ascending. An output batch is one that gave output."""

    def __init__(self, ends: Iterable[int] = ()) -> None:
        self._ends = list(ends)

    @classmethod
    def of_steps(cls, num_prompt: int, lengths: Tokens[int]) -> BatchEnds:
        """Return the ends of past output batches. `lengths`: how many output tokens each batch gave.

        For example, a prompt of 10 tokens and the lengths (1, 1) give the ends 10 and 11: the first output token came
        from the batch that computed the end of the prompt.
        """
        return cls(end for end in itertools.accumulate(lengths, initial=num_prompt - 1) if end >= num_prompt)

    def record(self, end: int) -> None:
        self._ends.append(end)

    def forget(self) -> None:
        """Forget all ends, so that output is computed again in chunks of any size."""
        self._ends.clear()

    def forget_if_many(self, num_tokens: int) -> None:
        """Forget all ends if `num_tokens`, the output tokens to compute again, are too many to do one by one."""
        if num_tokens > _MAX_STEPWISE:
            self._ends.clear()

    def after(self, position: int) -> int | None:
        """Return the first recorded batch end after `position`; None if there is none."""
        index = bisect.bisect_right(self._ends, position)
        return self._ends[index] if index < len(self._ends) else None

    def around(self, position: int) -> tuple[int, int] | None:
        """Return the start and end of the batch that computed the token at `position`; None if unknown."""
        index = bisect.bisect_right(self._ends, position)
        return (self._ends[index - 1], self._ends[index]) if 0 < index < len(self._ends) else None


_MAX_MIN_PROMPT_CHUNK = 2
"""The largest value of Runner.min_prompt_chunk."""


class Rank(IntEnum):
    """How urgent a sequence is. The smaller rank is more urgent.

    BOOSTED: it made no progress for long (see `scheduler.boost_stalled`). REALTIME, INTERACTIVE and BATCH are the
    tiers. AHEAD: it computes what may be asked for later, in time that no other sequence uses.
    """

    BOOSTED = 0
    REALTIME = 1
    INTERACTIVE = 2
    BATCH = 3
    AHEAD = 4


def partition_of(partition: str, adapter: str) -> str:
    """Return the partition of the prefix cache for a caller's `partition` and an adapter ("" for none)."""
    return f"{partition}\n{adapter}" if adapter else partition


# Up to this many last tokens of a prompt are computed with its choices, if these fit into one step: two would take
# longer. They are not kept, so a later prompt with the same end computes them again.
_MAX_ROOTS = 32


@dataclass(frozen=True, slots=True)
class SequenceSpec:
    """A request to the engine.

    - `max_tokens`: limit of the output. If None, the output may fill the context.
    - `partition`: callers with different partitions do not share cached prefixes.
    - `read_cache`: the prompt may be restored from the cache. `write_cache`: its prefix may stay in the cache.
    - `prefill_only`: compute the prompt and generate nothing.
    - `delivered`: output tokens that another engine has generated. The sampler has already accepted them.
    - `step_lengths`: how many of the delivered tokens came from each step of that engine.
    - `num_prompt_logprobs`: return the log probability of each prompt token except the first, with this many
      alternatives. All tokens must be computed for this, so `read_cache` must be false. None: not requested.
    - `reports_progress`: return an output after each chunk of the prompt.
    - `boundaries`: positions in the prompt where other prompts are likely to diverge. Empty if the memory needs none.
    - `num_system`: the prompt's leading tokens that are instructions and tools; 0 if there are none.
    - `persist`: the cached prefix may be written to disk.
    - `pin`: the cached prefix stays until it is purged. This needs `persist`.
    - `adapter`: the identity of the adapter that computes the sequence; "" for none.
    - `is_exact`: no cells of an earlier prompt are moved for it.
    - `draft_tokens`: how many tokens to draft in each step, if possible. If None, as many as speed up the output.
    - `due_s`: when the first token is due, by the engine's clock; infinite if at no particular time.
    - `token_s`: the longest time from one output token to the next that the client asked for. If None, steps with
      prompts keep the engine's budget in the tiers REALTIME and INTERACTIVE, and may take any time in the tier BATCH.
    - `target_s`: the target of the tier for that time. It counts if the client asked for none.
    - `is_ahead`: the sequence is computed ahead of a request that may never come, so its rank is AHEAD.
    - `choices`: compute the log probability of each of these texts behind the prompt, and generate nothing.
    - `media`: the parts of the prompt that stand for images and sounds, in order. Text follows the last one.
    """

    id: str
    prompt: Tokens[int]
    sampler: Sampler
    max_tokens: int | None = None
    tier: Tier = Tier.INTERACTIVE
    partition: str = ""
    read_cache: bool = True
    write_cache: bool = True
    prefill_only: bool = False
    delivered: Tokens[int] = ()
    step_lengths: Tokens[int] = ()
    num_prompt_logprobs: int | None = None
    reports_progress: bool = False
    boundaries: Tokens[int] = ()
    num_system: int = 0
    persist: bool = True
    pin: bool = False
    adapter: str = ""
    is_exact: bool = False
    draft_tokens: int | None = None
    due_s: float = math.inf
    token_s: float | None = None
    target_s: float = math.inf
    is_ahead: bool = False
    choices: Choices | None = None
    media: Tokens[MediaSpan] = ()

    @property
    def rank(self) -> Rank:
        return Rank.AHEAD if self.is_ahead else Rank[self.tier.name]

    @property
    def cache_partition(self) -> str:
        """The request's cache partition. Each adapter has its own, since adapters compute different KV cells."""
        return partition_of(self.partition, self.adapter)

    @property
    def cache_priority(self) -> CachePriority:
        """The importance of the request's cached prefix. It decides when the prefix is saved and evicted."""
        kept = Importance.PINNED if self.pin else Importance.NORMAL
        # A request that repeats the prompt computes its last tokens again (see `Sequence.num_usable`).
        turn_end = min(max(self.boundaries, default=len(self.prompt)), len(self.prompt) - _MAX_MIN_PROMPT_CHUNK)
        importance = kept if self.persist else Importance.VOLATILE
        return CachePriority(importance, self.num_system, max(0, turn_end))


@dataclass(slots=True)
class Marks:
    """When a sequence reached each stage, in seconds of time.monotonic (0: not yet). Only `cache_s` is a duration."""

    claimed_s: float = 0.0  # its cached prefix was claimed and restored
    cache_s: float = 0.0  # how long the lookup, claim and restore of the prefix took
    prefill_s: float = 0.0  # its first step began
    first_token_s: float = 0.0
    last_token_s: float = 0.0


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt and the tokens generated so far. Each step of the engine computes more of the tokens.

    Invariants: 0 ≤ num_computed ≤ len(tokens) ≤ max_length, and num_cached ≤ num_prompt ≤ len(tokens). A waiting
    sequence has no seq_id, and its num_computed is 0. `num_cached`: the prompt tokens that came from the cache at the
    first admission. It keeps that value if the sequence is preempted and admitted again.
    """

    spec: SequenceSpec
    tokens: array[int]
    num_prompt: int
    max_length: int
    order: int  # of arrival: earlier sequences have smaller numbers
    min_prompt_chunk: int = 1  # see Runner
    seq_id: int | None = None
    num_computed: int = 0
    num_cached: int = 0
    num_rows: int = 0  # embeddings behind num_computed that the runner has; see `MediaSpan.is_one`
    is_one_whole: bool = False  # the next such chunk is computed in one step
    num_scored: int = 0  # prompt tokens whose log probability was returned
    choice_scores: list[float] = field(default_factory=list)  # log probabilities of the choices so far, in their order
    tree_room: int = 0  # the most cells that a tree of choices may take in the next step
    num_drafted: int = 0
    num_accepted: int = 0
    marks: Marks = field(default_factory=Marks)
    own_rank: Rank = Rank.INTERACTIVE  # that of its spec, or a more urgent one if it made no progress for long
    rank: Rank = Rank.INTERACTIVE  # its own, or that of a more urgent sequence that waits for its prefill
    due_s: float = math.inf  # its own, or that of a sequence that waits for its prefill
    target_s: float = math.inf  # that its client asked for, or that of its tier
    budget_s: float = math.inf  # how long a step with prompts may take beside it: its target if asked, or a default
    farthest: int = 0  # the largest `num_computed` so far, reached at `advanced_s`
    advanced_s: float = 0.0
    awaited_prefill: tuple[Sequence, int] | None = None  # it waits until that sequence has computed this many tokens
    refused_at: int = -1  # Slots.num_releases when it did not fit into the cells
    restoring: Restoring | None = None  # set while blocks of its prefix are being restored
    restore_started_s: float = 0.0
    num_restored: dict[str, int] = field(default_factory=dict)  # number of tokens by the tier that held them
    divergence: Divergence | None = None  # from an earlier prompt, if most of this one is computed because of it
    shifts: list[Run] = field(default_factory=list)  # of the earlier prompt; their cells will be moved
    num_shifted: int = 0  # prompt tokens whose cells were moved; keeps its value too
    is_apart: bool = False  # it has or gets moved cells; no other sequence may use its cells
    is_purged: bool = False  # its computed tokens are forgotten when it ends
    chunk_ends: list[int] = field(default_factory=list)  # where chunks of its prompt end, ascending
    batch_ends: BatchEnds = field(default_factory=BatchEnds)  # of the batches that gave its output

    id: str = field(init=False)
    cache_priority: CachePriority = field(init=False)

    def __post_init__(self) -> None:
        self.id, self.cache_priority = self.spec.id, self.spec.cache_priority
        self.own_rank = self.rank = self.spec.rank
        self.due_s = self.spec.due_s
        self.target_s = self.spec.target_s
        if self.spec.token_s is not None:
            self.target_s = self.budget_s = self.spec.token_s
        if self.spec.sampler.is_repeatable:
            self.batch_ends = BatchEnds.of_steps(self.num_prompt, self.spec.step_lengths)

    @classmethod
    def of(cls, spec: SequenceSpec, num_output: int, order: int, min_prompt_chunk: int, now_s: float) -> Sequence:
        """Return a waiting sequence. It may generate at most `num_output` tokens, delivered ones included."""
        tokens = array("i", [*spec.prompt, *spec.delivered])
        num_prompt = len(spec.prompt)
        return cls(
            spec,
            tokens,
            num_prompt,
            num_prompt + num_output,
            order,
            min_prompt_chunk=min_prompt_chunk,
            advanced_s=now_s,
        )

    @property
    def num_usable(self) -> int:
        """How many leading tokens may come from the cache; 0 if the request may not read it.

        One or more last tokens are computed, so that the logits match those of a full prefill. A prefill-only sequence
        needs no logits, so all its tokens may come from the cache.
        """
        if not self.spec.read_cache:
            return 0
        num_computed = 0 if self.spec.prefill_only else 1 if self.num_output else self.min_prompt_chunk
        return max(0, len(self.tokens) - num_computed)

    @property
    def client(self) -> str:
        return self.spec.partition

    def awaited_sequence(self, running: Container[Sequence]) -> Sequence | None:
        """Return the running sequence whose prefill this one waits for; None if there is none."""
        if self.awaited_prefill is None:
            return None
        sequence, length = self.awaited_prefill
        return sequence if sequence in running and sequence.num_computed < length else None

    def drop_inherited_urgency(self) -> None:
        self.rank, self.due_s = self.own_rank, self.spec.due_s

    def inherit_urgency(self, other: Sequence) -> None:
        """Become at least as urgent as `other`, which waits for the prefill of this sequence."""
        self.rank, self.due_s = min(self.rank, other.rank), min(self.due_s, other.due_s)

    def record_batch(self, end: int) -> None:
        """Record the position where a batch ended, if the batch gave output and the sampler is repeatable."""
        if self.spec.sampler.is_repeatable and end >= self.num_prompt:
            self.batch_ends.record(end)

    def record_progress(self, now_s: float) -> None:
        """Set `advanced_s` to `now_s` if `num_computed` is larger than ever before."""
        if self.num_computed > self.farthest:
            self.farthest, self.advanced_s = self.num_computed, now_s

    def leaves_one(self, position: int) -> bool:
        """Whether a chunk that ends at `position` would leave a single token, which would be computed alone.

        Such a token gets slightly other logits than in a chunk, so a chunk must not end there. This applies to chunks
        of a prompt, and of an output batch that is computed again (see replay). If `min_prompt_chunk` is 1, the logits
        are the same, and the result is False.
        """
        if self.min_prompt_chunk == 1:
            return False
        start, end = self._run_around(position)
        if position >= self.prompt_end:
            around = self.batch_ends.around(position)
            if around is None:
                return False
            start, end = around
        return start < position == end - 1

    @property
    def span(self) -> MediaSpan | None:
        """The chunk of an image or a sound that is computed next; None if it is text."""
        if not self.spec.media:
            return None  # most sequences; this is asked several times in each step
        return next((span for span in self.spec.media if span.start <= self.num_computed < span.end), None)

    @property
    def stretches(self) -> list[Stretch]:
        """Where its prompt has fewer positions than tokens."""
        media = (span for span in self.spec.media if span.positions is not None)
        return [Stretch(span.start, span.end, span.num_positions) for span in media]

    def _run_around(self, position: int) -> tuple[int, int]:
        """Return the start and end of the text, or of the chunk of a medium, in which a position of the prompt is."""
        start = 0
        for span in self.spec.media:
            for end in (span.start, span.end):
                if start <= position < end:
                    return start, end
                start = end
        return start, self.prompt_end

    def behind_medium(self, position: int) -> int:
        """Return the end of the chunk of a medium that `position` lies within, or `position` if it lies within none."""
        return next((span.end for span in self.spec.media if span.start < position < span.end), position)

    def add_chunk_end(self, position: int) -> None:
        """Make a chunk of the prompt end at `position`.

        Ignore the position if it is already computed, or if fewer than `min_prompt_chunk` prompt tokens follow it.
        """
        is_ahead = self.num_computed < position <= self.num_prompt - self.min_prompt_chunk
        if is_ahead and position not in self.chunk_ends:
            bisect.insort(self.chunk_ends, position)

    @property
    def num_until_chunk_end(self) -> int:
        """How many tokens to compute until a chunk or output batch (see replay) must end, or until the last token."""
        end = len(self.tokens) if self.spec.choices is None else self.prompt_end
        index = bisect.bisect_right(self.chunk_ends, self.num_computed)
        if index < len(self.chunk_ends):
            end = min(end, self.chunk_ends[index])
        if self.spec.media and self.num_computed < self.prompt_end:
            end = min(end, self._run_around(self.num_computed)[1])
        batch_end = self.batch_ends.after(self.num_computed)
        if batch_end is not None:
            end = min(end, batch_end)
        return end - self.num_computed

    @property
    def prompt_end(self) -> int:
        """Where the part of the prompt ends that stays in the sequence. Only trees of choices compute the rest."""
        return self.num_prompt if self.spec.choices is None else max(0, self.num_prompt - self.min_prompt_chunk)

    @property
    def is_choosing(self) -> bool:
        """Whether the next step may compute a tree of choices. Before `prompt_end`, it must be that of all choices."""
        if self.spec.choices is None or self.num_pending > _MAX_ROOTS:
            return False
        return all(span.end <= self.num_computed for span in self.spec.media)

    @property
    def num_unscored(self) -> int:
        """How many choices are left to compute."""
        return 0 if self.spec.choices is None else len(self.spec.choices.tokens) - len(self.choice_scores)

    @property
    def num_needed(self) -> int:
        """How many cells the sequence must have room for when it starts."""
        return len(self.tokens) + (1 if self.spec.choices is None else self.spec.choices.longest)

    @property
    def is_boosted(self) -> bool:
        return self.rank is Rank.BOOSTED

    @property
    def keeps_prefix(self) -> bool:
        """Whether its computed prefix may stay in the cache for later sequences."""
        return self.spec.write_cache and not self.is_purged and not self.is_apart

    @property
    def is_open(self) -> bool:
        """Whether its last message may grow, so that a later revision of it replaces its end."""
        return self.spec.is_ahead and self.spec.prefill_only

    @property
    def num_output(self) -> int:
        """How many tokens were generated, delivered ones included."""
        return len(self.tokens) - self.num_prompt

    @property
    def num_pending(self) -> int:
        return len(self.tokens) - self.num_computed

    @property
    def is_scoring(self) -> bool:
        """Whether the request asks for log probabilities of prompt tokens that were not returned yet."""
        return self.spec.num_prompt_logprobs is not None and self.num_scored < self.num_prompt - 1

    @property
    def is_decoding(self) -> bool:
        """Whether only the last generated token is left to compute, so that the next step gives another token."""
        num_tokens = len(self.tokens)
        return num_tokens - self.num_computed == 1 and num_tokens > self.num_prompt


def shortest_target_s(sequences: Iterable[Sequence]) -> float:
    """Return the shortest target of the sequences that decode, in seconds per token; infinite if they have none."""
    return min((sequence.target_s for sequence in sequences if sequence.is_decoding), default=math.inf)
