"""Plain data that describes a cached prefix: where its parts are, and how far it is restored.

PrefixStore and its parts (Slots, BlockTable, Restorer and Saver) make and change these objects, and move the cells and
blocks that the objects describe. Other modules only read the objects.
"""

from __future__ import annotations

from array import array
from collections import deque
from dataclasses import dataclass, field, replace

from edgeagent.engine.cache.block import BlockKey

MIN_LOST = 256
"""A prompt is compared with earlier ones if at least this many tokens are computed. To compute them takes 100 times as
long as the comparison, also with a small model."""


@dataclass(frozen=True, slots=True)
class Run:
    """`length` tokens that two prompts have: the earlier one from position `old` on, the new one from `new` on."""

    old: int
    new: int
    length: int


@dataclass(frozen=True, slots=True)
class Divergence:
    """The difference of a prompt to an earlier one: both have the same first `at` tokens.

    `earlier`: the tokens of the earlier prompt. `runs`: what both have behind position `at`, in order.
    """

    at: int
    earlier: array[int]
    runs: tuple[Run, ...]

    @property
    def num_lost(self) -> int:
        """How many tokens behind the difference both prompts have."""
        return sum(run.length for run in self.runs)


@dataclass(frozen=True, slots=True)
class CellPrefix:
    """A prefix in cells: the first `length` tokens of a sequence. If there is none, `seq_id` is None."""

    length: int = 0
    seq_id: int | None = None


@dataclass(frozen=True, slots=True)
class BlockReference:
    """A block to restore at position `start`, from memory or from disk.

    The block has `length` tokens. The first `num_tokens` of them are wanted, without the first `skip`. If `is_shifted`,
    they are moved by `shift` positions. A read moves `num_bytes`.
    """

    is_in_memory: bool
    key: BlockKey
    start: int
    num_tokens: int
    length: int
    num_bytes: int
    is_shifted: bool = False
    skip: int = 0
    shift: int = 0

    def shifted(self, run: Run) -> BlockReference:
        """Return the reference to the part of the block that is in a run, moved to the new position of the run."""
        skip, end = max(0, run.old - self.start), min(self.end, run.old + run.length)
        return replace(self, num_tokens=end - self.start, is_shifted=True, skip=skip, shift=run.new - run.old)

    @property
    def end(self) -> int:
        return self.start + self.num_tokens

    @property
    def is_whole(self) -> bool:
        return self.num_tokens == self.length


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """The cached part of a prompt: first the cells of `cell_prefix`, then the blocks `to_restore`.

    `known`: all blocks that were found for the prompt, also those that need no restore.
    """

    root: BlockKey
    cell_prefix: CellPrefix
    to_restore: list[BlockReference]
    known: list[BlockReference]

    @property
    def end(self) -> int:
        """How many leading tokens of the prompt need not be computed."""
        return self.to_restore[-1].end if self.to_restore else self.cell_prefix.length


@dataclass(slots=True)
class Restoring:
    """A live sequence that is being restored, with the blocks still to restore."""

    seq_id: int
    tokens: array[int]
    references: deque[BlockReference]
    unasked: deque[BlockReference] = field(default_factory=deque)  # still to request from the disk, in order
    requested: set[BlockKey] = field(default_factory=set)  # from the disk, and not received yet
    read: set[BlockKey] = field(default_factory=set)  # read from disk
    num_restored: dict[str, int] = field(default_factory=dict)  # tokens by tier

    @property
    def num_tokens(self) -> int:
        return sum(self.num_restored.values())
