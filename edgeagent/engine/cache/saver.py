"""Reads idle prefixes out of the cells into blocks, and removes them from the cells.

Every used cell slows every token of every sequence, so cells should serve live sequences only. An idle prefix is read
out on the engine's thread between two steps, a block at a time. Its cells are freed when another sequence computes.

The rule for when: in idle time, everything. Beside requests, read-outs take 1 % of the steps' time, and as much time as
idle prefixes have cost the steps: plain attention multiplies each token with all cells in use. This is the ski rental
problem. There are two choices: read a prefix out at once, or leave it in the cells for good. The lost time and the
read-outs together take at most twice as long as the better choice. They follow every 25th step, so that few gaps
between tokens become longer. They also follow any step that takes 100 times as long as the read-out. While a client
waits for a first token, they may follow each step, but only the lost time is spent.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Iterable, Sequence
from enum import Enum

from edgeagent.engine.cache.block import MAX_BLOCK_TOKENS, MIN_PART, BlockKey, CachePriority, Importance, TransferRate
from edgeagent.engine.cache.block_table import BlockTable, NextBlocks
from edgeagent.engine.cache.cached_prefix import BlockReference
from edgeagent.engine.cache.slots import Slots
from edgeagent.engine.costs.cost_model import CostModel
from edgeagent.engine.media_tokens import end_beside_one, is_within_one
from edgeagent.engine.runner import CUTTABLE, Runner
from edgeagent.errors import InternalError
from edgeagent.fit.need import BLOCKS_DIVISOR, HOST_DIVISOR
from edgeagent.types import MemoryKind

_SHARE_OF_STEPS = 0.01  # of the time of steps
_NUM_STEPS_BETWEEN = 25  # so that at most one gap in 25 is longer, which does not change the 95th percentile
_LEAST_S = 0.0001  # a smaller loss is no reason to pause: it may be rounding
_IDLE_BUDGET_S = 0.003  # per call of `run_when_idle`; then commands are read
# Checkpoints of one full context take at most 1/8 of the limit of host memory.
_CHECKPOINT_DIVISOR = 8
_LEAST_READY = 2  # blocks, also if host memory is full or no block keeps its buffer


class _Saved(Enum):
    """The outcome of an attempt to read out a block."""

    MORE = "there may be another"
    ALL = "nothing was left to read"
    LATER = "there is no room before the disk has written more"
    UNSAVABLE = "it cannot be read, or is not kept"


class Chain:
    """The blocks at the beginning of a sequence: the key and the end of each.

    Each block begins where the previous block ends.
    """

    def __init__(self, blocks: Iterable[tuple[int, BlockKey]] = ()) -> None:
        self._ends: list[int] = []
        self._keys: list[BlockKey] = []
        for end, key in blocks:
            self.append(end, key)

    @property
    def end(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def key(self) -> BlockKey | None:
        return self._keys[-1] if self._keys else None

    def append(self, end: int, key: BlockKey) -> None:
        """Add the next block, which ends at position `end`."""
        assert end > self.end
        self._ends.append(end)
        self._keys.append(key)

    def pop(self) -> None:
        self._ends.pop()
        self._keys.pop()

    def until(self, length: int) -> list[tuple[int, BlockKey]]:
        """Return (end, key) of the blocks that end at `length` or before."""
        return list(zip(self._ends, self._keys, strict=True))[: bisect.bisect_right(self._ends, length)]


class Saver:
    """Reads one runner's prefixes out of its cells into blocks. Call `begin` and `end` for every sequence."""

    def __init__(
        self,
        runner: Runner,
        slots: Slots,
        blocks: BlockTable,
        costs: CostModel,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slots = slots
        self._blocks = blocks
        self._costs = costs
        self._runner = runner
        self._clock = clock
        self._has_state = runner.memory_kind not in CUTTABLE
        self._chains: dict[int, Chain] = {}  # by sequence id; empty if the model has a state
        self._unsaved: dict[int, CachePriority] = {}  # idle sequences not wholly in blocks, the longest idle first
        self._growing: dict[int, CachePriority] = {}  # live sequences that have full blocks to read out
        # Idle sequences that were read out into blocks, with the cells that only they have. These may be freed.
        self._saved: dict[int, int] = {}
        self._stayed_s = 0.0  # the steps' time that these cells have cost, on a GPU
        self._unsavable: dict[int, CachePriority] = {}  # could not be saved; tried again before they leave the cells
        self._rate = TransferRate()
        self._credit_s = 0.0  # the share of the steps' time that is not spent
        self._lost_s = 0.0  # the steps' time lost to idle prefixes, less the time of read-outs
        self._num_steps = 0  # since the last pause
        self._is_ready = not blocks.token_bytes  # whether memory for the next block is ready
        self._cell_bytes = blocks.token_bytes  # bytes of a token in the latest block
        self._read_bytes = self._cell_bytes  # bytes of a token when it is read out, before a codec packs it
        self._is_copied = blocks.has_codec  # whether a block is a copy and leaves the buffer of its read-out free
        self._state_bytes = 0

    @property
    def has_unsaved(self) -> bool:
        return bool(self._unsaved)

    @property
    def is_done(self) -> bool:
        return self._is_ready and self._is_saved

    def is_saved(self, seq_id: int) -> bool:
        """Whether an idle sequence is saved in blocks, so that its cells may be freed."""
        return seq_id in self._saved

    def begin(self, seq_id: int, known: Sequence[BlockReference]) -> None:
        """Note that a sequence was just claimed.

        `known`: the blocks that its prompt begins with. Blocks that are saved later follow them.
        """
        self._forget(seq_id)
        if not self._has_state:
            self._chains[seq_id] = Chain((reference.end, reference.key) for reference in self._blocks.extendable(known))

    def end(self, seq_id: int, priority: CachePriority) -> None:
        """Note that a sequence was just released. If it is idle now, read its prefix out later if blocks are kept."""
        self._growing.pop(seq_id, None)
        if not self._slots.is_idle(seq_id):
            self._chains.pop(seq_id, None)
        elif self._blocks.is_enabled:
            self._unsaved[seq_id] = priority

    def forget_live(self, seq_id: int) -> None:
        """Read nothing out of a live sequence from now on."""
        self._growing.pop(seq_id, None)
        self._chains.pop(seq_id, None)

    def save_idle(self, seq_id: int) -> None:
        """Read an idle sequence out at once, as far as that is possible now."""
        priority = self._unsaved.get(seq_id)
        if priority is not None and self._save_all(seq_id, priority) is _Saved.ALL:
            del self._unsaved[seq_id]
            self._saved[seq_id] = self._slots.num_unshared(seq_id)

    def run_after_step(self, step_s: float, num_tokens: int, *, pause_s: float, is_awaited: bool) -> None:
        """Read out what the rule of this module allows after a step of `step_s` seconds with `num_tokens` tokens.

        `pause_s`: how many seconds the next step may be delayed at most to make up for lost time. Only the first block
        may take longer. `is_awaited`: whether a client waits for a first token.
        """
        if not self.has_work:
            self._credit_s = self._lost_s = self._num_steps = 0
            return
        self._num_steps += 1
        is_rare = self._num_steps >= _NUM_STEPS_BETWEEN
        self._lost_s += self._idle_cells_s(num_tokens, self._unsaved)
        if is_rare or is_awaited:
            self._make_up(pause_s)
        if is_awaited:
            return
        self._credit_s += step_s * _SHARE_OF_STEPS
        budget_s = self._credit_s if is_rare else step_s * _SHARE_OF_STEPS
        save_s = self._next_save_s
        # Before the first measurement, one block is read out.
        for _ in range(int(budget_s / save_s) if save_s > 0 else int(is_rare)):
            if self.has_work and not self._is_blocked_by_writes:
                self._credit_s = max(0.0, self._credit_s - self._next_save_s)
                self.save_one()
        if is_rare:
            self._credit_s = self._num_steps = 0

    def run_when_idle(self) -> None:
        """Read out prefixes for about 3 ms. Then prepare memory."""
        started_s = self._clock()
        while not self._is_saved and self._clock() - started_s < _IDLE_BUDGET_S:
            self.save_one()
        if self._is_saved and not self._is_ready:
            self._is_ready = not self._prepare()

    def _make_up(self, most_s: float) -> None:
        """Read out idle prefixes for at most the time that they have cost, and for at most `most_s` seconds.

        Only the first block may take longer than `most_s`.
        """
        left_s = most_s
        while not self._is_saved and (save_s := max(_LEAST_S, self._next_save_s)) <= self._lost_s:
            if save_s > left_s and left_s < most_s:
                return
            started_s = self._clock()
            self.save_one()
            took_s = self._clock() - started_s
            self._lost_s = max(0.0, self._lost_s - took_s)
            left_s -= took_s
            if left_s <= 0:
                return

    @property
    def has_work(self) -> bool:
        return bool(self._unsaved or self._growing)

    @property
    def _is_blocked_by_writes(self) -> bool:
        """Whether read-outs must wait until the disk has written more blocks, to make room in memory."""
        return self.has_work and self._blocks.needs_writes

    @property
    def _is_saved(self) -> bool:
        """Whether no idle prefix can be read out now."""
        return not self._unsaved or self._is_blocked_by_writes

    @property
    def _next_save_s(self) -> float:
        """Expected seconds to read out the next block; 0 before the first measurement."""
        seq_id = next(iter(self._unsaved), None)
        if seq_id is None or not self._has_state:
            return self._rate.seconds(self._cell_bytes * self._blocks.block_tokens)
        return self._rate.seconds(self._unread_bytes(seq_id))

    def _idle_cells_s(self, num_tokens: int, idle: Iterable[int]) -> float:
        """Return the expected seconds that idle prefixes add to the computation of tokens; 0 if never measured."""
        num_idle = sum(map(self._slots.num_unshared, idle))
        return self._costs.idle_cells_s(num_tokens, num_idle) if num_idle else 0.0

    def save_one(self) -> None:
        """Read one block out of the cells, if one can be read and kept now. Call it only if `has_work`.

        Idle sequences come first, since their cells can be freed once they are saved.
        """
        self._is_ready = False
        if not self._unsaved:
            seq_id, priority = next(iter(self._growing.items()))
            if self._save_next(seq_id, priority, allow_partial=False) is not _Saved.MORE:
                del self._growing[seq_id]
            return
        seq_id, priority = next(iter(self._unsaved.items()))
        outcome = self._save_next(seq_id, priority, allow_partial=True)
        if outcome in (_Saved.ALL, _Saved.UNSAVABLE):
            del self._unsaved[seq_id]
        if outcome is _Saved.ALL:
            self._saved[seq_id] = self._slots.num_unshared(seq_id)
        elif outcome is _Saved.UNSAVABLE:
            self._unsavable[seq_id] = priority

    def _prepare(self) -> bool:
        """Prepare memory for one later read-out, which is then faster. Return False if none is needed or available.

        When this returns, blocks and free buffers together exceed the limit of host memory by at most two blocks. Until
        the next call, they exceed it by at most an eighth of the limit.
        """
        if self._has_state or not self._cell_bytes:
            return False
        host = self._blocks.stats()
        ready = min(host.max_bytes // HOST_DIVISOR, int(self._runner.num_cells * self._read_bytes) // BLOCKS_DIVISOR)
        block_bytes = int(self._read_bytes * self._blocks.block_tokens)
        # If host memory is full, each block that it drops leaves its buffer for the next block. A copy does so at once.
        least = min(ready, _LEAST_READY * block_bytes)
        left = 0 if self._is_copied else host.max_bytes - host.num_bytes
        return self._runner.prepare(block_bytes, max(min(ready, left), least))

    def save_live(self, seq_id: int, priority: CachePriority, *, is_boundary: bool) -> None:
        """Read out the part of a live sequence that can be read only now.

        Sliding window: full blocks are read out, and at a boundary also a block that is not full. If the priority's
        `turn_end` lies inside a block, the tokens before it are read out first, as a block of their own. Recurrent
        state: it is read out only at a boundary. Full attention: nothing is read out now, since it can be read at any
        time. If there is a disk, `run_after_step` reads out full blocks while the sequence is live, when there is time.
        """
        if not self._blocks.is_enabled:
            return
        match self._runner.memory_kind:
            case MemoryKind.FULL_ATTENTION:
                if self._blocks.disk is not None:
                    self._growing[seq_id] = priority
            case MemoryKind.SLIDING_WINDOW:
                while self._save_next(seq_id, priority, allow_partial=is_boundary) is _Saved.MORE:
                    pass
            case _ if is_boundary:
                self._save_next(seq_id, priority, allow_partial=True)
            case _:
                pass

    def read_out_for_prompt(self, num_tokens: int) -> None:
        """Save idle prefixes if that takes less time than they would add to computing `num_tokens` of a prompt."""
        started_s, seen = self._clock(), list[int]()
        for seq_id in tuple(self._unsaved):
            seen.append(seq_id)
            allowance_s = self._idle_cells_s(num_tokens, seen)
            while seq_id in self._unsaved and not self._is_blocked_by_writes:
                if self._clock() - started_s + self._rate.seconds(self._unread_bytes(seq_id)) > allowance_s:
                    return
                self.save_one()

    def free_saved_cells(self, num_tokens: int) -> None:
        """Free the cells of idle prefixes that are in blocks. Call it before `num_tokens` tokens are computed.

        A GPU computes masked cells in little time, and a bus is slow. There they stay until they have cost the steps as
        much time as their blocks need to come back.
        """
        if not self._runner.is_blocking:
            num_cells = sum(self._saved.values())
            self._stayed_s += self._costs.idle_cells_s(num_tokens, num_cells)
            if self._stayed_s <= self._rate.seconds(
                num_cells * self._cell_bytes + len(self._saved) * self._state_bytes
            ):
                return
            self._stayed_s = 0.0
        for seq_id in tuple(self._saved):
            self._drop(seq_id)

    @property
    def checkpoint_interval(self) -> int:
        """How many prompt tokens to leave between two saved states.

        The states of a full context then take at most an eighth of the limit of host memory.
        """
        budget = max(1, self._blocks.stats().max_bytes // _CHECKPOINT_DIVISOR)
        num_blocks = -(-self._runner.num_cells // MAX_BLOCK_TOKENS)
        return MAX_BLOCK_TOKENS * max(1, -(-self._state_bytes * num_blocks // budget))

    def forget_growing(self) -> None:
        """Stop reading out live sequences until the next `save_live`."""
        self._growing.clear()

    def forget_partition(self, root: BlockKey | None) -> None:
        """Free the cells of a partition's idle sequences (None: of all partitions) without saving them."""
        for seq_id in self._slots.idle_ids:
            if root in (None, self._slots.root(seq_id)):
                self._drop(seq_id)

    def save_evicted(self, seq_id: int) -> None:
        """Note that an idle sequence is about to be evicted: read it out first."""
        priority = self._unsaved.get(seq_id) or self._unsavable.get(seq_id)
        if priority is not None:
            self._save_all(seq_id, priority)
        self._forget(seq_id)

    def close(self) -> None:
        """Read out all unsaved idle prefixes. Hand all blocks to the disk."""
        for seq_id, priority in (self._unsaved | self._unsavable).items():
            while self._save_all(seq_id, priority) is _Saved.LATER and self._blocks.wait_for_room():
                pass
            self._forget(seq_id)
        self._blocks.flush()

    def _unread_bytes(self, seq_id: int) -> float:
        """Return the estimated bytes of an idle sequence that are not in blocks."""
        return self._state_bytes + self._cell_bytes * (self._slots.length(seq_id) - self._chain_end(seq_id))

    def _chain_end(self, seq_id: int) -> int:
        """Return how many of a sequence's tokens were in blocks when it was last checked."""
        chain = self._chains.get(seq_id)
        return 0 if chain is None else min(chain.end, self._slots.length(seq_id))

    def _save_all(self, seq_id: int, priority: CachePriority) -> _Saved:
        while (outcome := self._save_next(seq_id, priority, allow_partial=True)) is _Saved.MORE:
            pass
        return outcome

    def _drop(self, seq_id: int) -> None:
        self._forget(seq_id)
        self._slots.drop(seq_id)

    def _forget(self, seq_id: int) -> None:
        self._chains.pop(seq_id, None)
        self._unsaved.pop(seq_id, None)
        self._growing.pop(seq_id, None)
        self._unsavable.pop(seq_id, None)
        self._saved.pop(seq_id, None)

    def _save_next(self, seq_id: int, priority: CachePriority, *, allow_partial: bool) -> _Saved:
        """Read the next block of a sequence out of the cells. A partial block is read only if `allow_partial`."""
        chain = self._stateful_chain(seq_id) if self._has_state else self._chain(seq_id, priority)
        end = self._next_end(seq_id, chain, priority, allow_partial=allow_partial)
        if end is None:
            if allow_partial:
                self._raise(seq_id, chain, priority)
            return _Saved.ALL
        if not self._runner.can_save(seq_id, chain.end, end):
            return _Saved.UNSAVABLE
        if self._blocks.needs_writes:
            return _Saved.LATER
        own = self._slots.tokens(seq_id, chain.end, end)
        started_s = self._clock()
        try:
            payload = self._runner.save(seq_id, chain.end, end)
            block = self._blocks.make(self._slots.root(seq_id), chain.key, chain.end, own, payload)
        except (InternalError, MemoryError):
            return _Saved.UNSAVABLE  # answers do not need the block
        self._state_bytes = self._runner.state_bytes(seq_id)
        self._cell_bytes = max(0, len(block.payload) - self._state_bytes) / len(own)
        self._read_bytes = max(0, len(payload) - self._state_bytes) / len(own)
        self._is_copied = block.payload is not payload
        is_kept = self._blocks.add(block, priority.at(end))
        self._rate.observe(len(block.payload), self._clock() - started_s)
        if is_kept:
            if not self._has_state and len(own) == self._blocks.block_tokens:
                chain.append(end, block.key)  # as the next call of `_chain` would
            return _Saved.MORE
        # `needed_writes` tells why the offer failed; by now there may be room.
        return _Saved.LATER if self._blocks.needed_writes else _Saved.UNSAVABLE

    def _chain(self, seq_id: int, priority: CachePriority) -> Chain:
        """Update and return the chain of blocks that a sequence's next block follows.

        Only blocks added since the last call are looked up, so a long context costs no more than a short one.
        """
        chain, length = self._chains.setdefault(seq_id, Chain()), self._slots.length(seq_id)
        while chain.key is not None and not self._blocks.is_held(chain.key):
            chain.pop()
        while length - chain.end >= MIN_PART:
            extendable = self._continuation(seq_id, chain, length, priority).extendable
            if extendable is None:
                break
            chain.append(extendable.end, extendable.key)
        return chain

    def _continuation(self, seq_id: int, chain: Chain, length: int, priority: CachePriority) -> NextBlocks:
        size, root = self._blocks.block_tokens, self._slots.root(seq_id)
        end, usual_end = chain.end + size, priority.instructions_end(size)
        full_end = self._full_end(seq_id, chain.end, priority)
        if full_end not in (end, usual_end):
            end = usual_end = full_end
        own = self._slots.tokens(seq_id, chain.end, min(length, end))
        return self._blocks.continuation(root, chain.key, chain.end, own, usual_end)

    def _full_end(self, seq_id: int, start: int, priority: CachePriority) -> int:
        """Return where the full block from `start` on ends: before or behind an image whose cells are one."""
        end, length = priority.block_end(start, self._blocks.block_tokens), self._slots.length(seq_id)
        if end >= length or not is_within_one(self._slots.tokens(seq_id, end, end + 1)[0]):
            return end
        return start + end_beside_one(self._slots.tokens(seq_id, start), end - start, MIN_PART)

    def _next_end(self, seq_id: int, chain: Chain, priority: CachePriority, *, allow_partial: bool) -> int | None:
        """Return where a sequence's next block ends; None if it is still too short, or if all tokens are in blocks."""
        length = self._slots.length(seq_id)
        if self._has_state:
            return length if length >= MIN_PART and chain.end < length else None
        full_end = self._full_end(seq_id, chain.end, priority)
        end = min(full_end, length)
        if end - chain.end < MIN_PART or (end < full_end and not allow_partial):
            return None
        if self._needs_turn_end(seq_id, chain, end, priority):
            return priority.turn_end
        is_held = end == length and self._continuation(seq_id, chain, length, priority).complete is not None
        return None if is_held else end

    def _needs_turn_end(self, seq_id: int, chain: Chain, end: int, priority: CachePriority) -> bool:
        """Whether to read out a block that ends at `turn_end`, before the one that ends at `end`.

        A block of windowed layers cannot be cut, so the next turn could not use the longer block.
        """
        turn_end = priority.turn_end
        return (
            self._runner.memory_kind is MemoryKind.SLIDING_WINDOW
            and chain.end + MIN_PART <= turn_end < end
            and self._continuation(seq_id, chain, turn_end, priority).complete is None
            and self._runner.can_save(seq_id, chain.end, turn_end)
        )

    def _raise(self, seq_id: int, chain: Chain, priority: CachePriority) -> None:
        """Raise the importance of a sequence's blocks to that of the sequence. Call it when no block is left to read.

        VOLATILE blocks are raised too, so they may be written to disk afterwards. If the sequence itself is VOLATILE,
        no block is raised.
        """
        if priority.importance is Importance.VOLATILE:
            return
        length = self._slots.length(seq_id)
        for end, key in chain.until(length):
            self._blocks.raise_importance((key,), priority.at(end))
        if not self._has_state and length - chain.end >= MIN_PART:
            tail = self._continuation(seq_id, chain, length, priority).complete
            if tail is not None and tail.is_whole:
                self._blocks.raise_importance((tail.key,), priority.at(length))

    def _stateful_chain(self, seq_id: int) -> Chain:
        """Return the chain of blocks that a block with the sequence's current state should follow.

        If a chain already ends at the sequence's length, return it. Otherwise drop blocks from the chain's end until
        the new block's cells take more bytes than its state. Each block of a chain has a state, and a restore reads
        them all, so a chain of short blocks would be slow.
        """
        length = self._slots.length(seq_id)
        references = self._blocks.find(self._blocks.walk(self._slots.root(seq_id), self._slots.tokens(seq_id)))
        if not references or references[-1].end < length:
            while references and (length - references[-1].end) * self._cell_bytes <= self._state_bytes:
                references.pop()
        return Chain((reference.end, reference.key) for reference in references)
