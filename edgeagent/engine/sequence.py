"""A request's live tokens inside the engine. It knows token ids, not text."""

from __future__ import annotations

import bisect
import itertools
from array import array
from collections.abc import Sequence as Tokens
from dataclasses import dataclass, field

from edgeagent.engine.cache.block import CachePriority, Importance
from edgeagent.engine.cache.restorer import Restoring
from edgeagent.engine.sampling.sampler import Sampler
from edgeagent.types import Tier


@dataclass(frozen=True, slots=True)
class SequenceSpec:
    """What the engine is asked to generate.

    `max_tokens` bounds the output (None: until the context is full). `partition` separates the prefixes of callers that
    must not see each other's. With `prefill_only` the prompt is computed and nothing is sampled. `delivered` are tokens
    of the output that are there already: another engine generated them, in steps of `step_lengths`; the sampler has
    accepted them. With `num_prompt_logprobs` each of the prompt's tokens but the first is scored, with so many rivals;
    what is to be scored must be computed, so `read_cache` must be false. With `reports_progress` each part of the
    prompt gives an output. `boundaries` are positions in the prompt worth coming back to: the end of the system prompt,
    then others; `num_system` is the first of them, 0 where there are no instructions. Its cached prefix may be written
    to disk if `persist`, stays until it is purged if `pin`, and until the next of its `lane` ends if that has a name.
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
    lane: str = ""

    @property
    def cache_priority(self) -> CachePriority:
        """How important its cached prefix is."""
        kept = Importance.PINNED if self.pin else Importance.IDLE
        return CachePriority(kept if self.persist else Importance.VOLATILE, self.num_system, self.lane)


@dataclass(slots=True)
class Marks:
    """When a sequence reached each stage, time.monotonic seconds; 0 until it does."""

    claimed_s: float = 0.0  # first got a sequence id
    cache_s: float = 0.0  # duration of that lookup and claim
    prefill_s: float = 0.0  # its first step began
    first_token_s: float = 0.0
    last_token_s: float = 0.0


@dataclass(slots=True, eq=False)
class Sequence:
    """A prompt and what has been generated; the engine moves `num_computed` towards `len(tokens)`.

    invariant:  0 ≤ num_computed ≤ len(tokens) ≤ max_length;  num_cached ≤ num_prompt ≤ len(tokens)
    A waiting sequence has no seq_id and num_computed 0. What it first found cached stays `num_cached`, even where it is
    preempted and finds more, or less, when it is admitted again.
    """

    spec: SequenceSpec
    tokens: array[int]
    num_prompt: int
    max_length: int
    order: int  # of arrival
    min_prompt_chunk: int = 1  # see Runner
    seq_id: int | None = None
    num_computed: int = 0
    num_cached: int = 0
    num_scored: int = 0  # prompt tokens whose log probability has been given out
    num_drafted: int = 0
    num_accepted: int = 0
    marks: Marks = field(default_factory=Marks)
    tier: Tier = Tier.INTERACTIVE  # its own, or that of a more urgent one that waits for its prompt
    farthest: int = 0  # the largest `num_computed` so far, since `advanced_s`
    advanced_s: float = 0.0
    is_raised: bool = False  # before all tiers: others kept it from getting further for long
    follows: tuple[Sequence, int] | None = None  # waits until that one has computed so many tokens
    restoring: Restoring | None = None  # while blocks of its beginning are still to come
    restore_started_s: float = 0.0
    num_restored: dict[str, int] = field(default_factory=dict)  # tokens by the tier that they came from
    is_purged: bool = False  # what it has computed is to be forgotten when it ends
    chunk_ends: list[int] = field(default_factory=list)  # where chunks of its prompt end, rising
    batch_ends: list[int] = field(default_factory=list)  # where batches ended that gave its output, rising; see below

    def __post_init__(self) -> None:
        self.tier = self.spec.tier
        for end in itertools.accumulate(self.spec.step_lengths, initial=self.num_prompt - 1):
            self.note_batch(end)

    @property
    def id(self) -> str:
        """The request's id."""
        return self.spec.id

    @property
    def num_usable(self) -> int:
        """How many leading tokens may come from a cache: some must be computed where something is to be sampled.

        Leave enough prompt tokens uncached that logits match a full prefill.
        """
        if not self.spec.read_cache:
            return 0
        num_computed = 0 if self.spec.prefill_only else 1 if self.num_output else self.min_prompt_chunk
        return max(0, len(self.tokens) - num_computed)

    def note_batch(self, end: int) -> None:
        """Note where a batch ended that gave output, if computing it again must give the same answer.

        Sums depend on how many tokens are computed at once: measured on the CPU with plain attention, chunks of two
        tokens or more give the same bits whatever their size, single tokens others. So what was generated is computed
        again in the batches of the first time, of one token mostly, where the same logits give the same tokens.
        """
        if self.spec.sampler.is_repeatable and end >= self.num_prompt:
            self.batch_ends.append(end)

    def leaves_one(self, position: int) -> bool:
        """Whether behind a position one token would be left alone, of several that must be computed together."""
        if self.min_prompt_chunk == 1:
            return False
        start, end = 0, self.num_prompt
        if position >= end:
            index = bisect.bisect_right(self.batch_ends, position)
            if not 0 < index < len(self.batch_ends):
                return False
            start, end = self.batch_ends[index - 1 : index + 1]
        return start < position == end - 1

    def add_chunk_end(self, position: int) -> None:
        """Make a chunk of the prompt end at a position, if that is still to come and what follows is enough for one."""
        is_ahead = self.num_computed < position <= self.num_prompt - self.min_prompt_chunk
        if is_ahead and position not in self.chunk_ends:
            bisect.insort(self.chunk_ends, position)

    @property
    def num_until_chunk_end(self) -> int:
        """Pending tokens up to where the next chunk must end."""
        end = len(self.tokens)
        for ends in (self.chunk_ends, self.batch_ends):
            index = bisect.bisect_right(ends, self.num_computed)
            if index < len(ends):
                end = min(end, ends[index])
        return end - self.num_computed

    @property
    def keeps_prefix(self) -> bool:
        """Whether the prefix it computes may stay for other sequences."""
        return self.spec.write_cache and not self.is_purged

    @property
    def num_output(self) -> int:
        """Generated tokens."""
        return len(self.tokens) - self.num_prompt

    @property
    def num_pending(self) -> int:
        """Tokens not yet computed."""
        return len(self.tokens) - self.num_computed

    @property
    def is_scoring(self) -> bool:
        """Whether log probabilities of the prompt's own tokens are still owed; its first token has none."""
        return self.spec.num_prompt_logprobs is not None and self.num_scored < self.num_prompt - 1

    @property
    def is_decoding(self) -> bool:
        """Whether only the last token is left to compute, and it was generated: one step gives a token."""
        return self.num_pending == 1 and self.num_output > 0
