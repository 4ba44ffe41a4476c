"""The writer's thread: takes commands from a queue, and writes blocks through `Folder`, the most important ones first.

A partial block waits for a few seconds before it is written, since the conversation's next turn would replace it with a
longer block. Partial blocks that are more important than NORMAL do not wait. All blocks wait while the disk fails. A
block also waits if too little of the hour's allowance is left for its importance. While tokens are computed, the writer
pauses after each block. The more bytes wait to be written, the shorter the pause.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from edgeagent.cache_folder import PARENT_BYTES, ROOT_BYTES, BlockName, RootRecord
from edgeagent.engine.cache.block import MAX_BLOCK_TOKENS, Block, BlockKey, Head, Importance
from edgeagent.engine.cache.disk.file_format import BadBlock, Seal, file_bytes, head_bytes
from edgeagent.engine.cache.disk.files import Files
from edgeagent.engine.cache.disk.folder import Folder, Outcome
from edgeagent.engine.cache.disk.index import Index

_TICK_S = 1.0
_PARTIAL_DELAY_S = 5.0
_MAX_STALE = 1000  # about how many queued writes of withdrawn blocks are kept
# The pause after a write while few bytes are pending, as a multiple of the write's CPU time. The writer then takes 1 %
# of a busy CPU.
_REST_FOR_WORK = 100.0
_REST_STEP_S = 0.05


@dataclass(frozen=True, slots=True)
class Write:
    """Write a pending block to disk. Drop it if the partition's epoch is no longer `epoch`."""

    key: BlockKey
    importance: Importance
    epoch: int


@dataclass(frozen=True, slots=True)
class Touch:
    """Note that blocks were used."""

    keys: tuple[BlockKey, ...]


@dataclass(frozen=True, slots=True)
class Raise:
    """Raise the importance of a block."""

    key: BlockKey
    importance: Importance


@dataclass(frozen=True, slots=True)
class Discard:
    """Remove a block that is no longer needed."""

    key: BlockKey


@dataclass(frozen=True, slots=True)
class DescribePartition:
    """Set the description of a partition."""

    root: BlockKey
    record: RootRecord


@dataclass(frozen=True, slots=True)
class Sweep:
    """Remove the files of forgotten blocks."""


@dataclass(frozen=True, slots=True)
class Close:
    """Write the queued blocks, but begin none after the time `by_s` of the writer's clock. Then end."""

    by_s: float


Command = Write | Touch | Raise | Discard | DescribePartition | Sweep | Close


@dataclass(slots=True)
class _Waiting:
    """A queued write. `due_s`: when it may be done; None if at once."""

    epoch: int
    importance: Importance
    due_s: float | None


class DiskWriter:
    """Carries out commands. One thread calls `run`. Other threads may use the public attributes."""

    def __init__(self, files: Files, seal: Seal, index: Index, folder: Folder, *, clock: Callable[[], float]) -> None:
        self._files = files
        self._seal = seal
        self._index = index
        self._folder = folder
        self._clock = clock
        self._waiting: dict[BlockKey, _Waiting] = {}
        self._delayed: dict[BlockKey, None] = {}  # waiting blocks with a due time, in the order of these times
        self._turns: list[tuple[int, int, BlockKey]] = []  # a heap: the most important first, then the oldest
        self._order = itertools.count()
        self._is_open = False
        self.found: dict[bool, SimpleQueue[Head]] = {False: SimpleQueue(), True: SimpleQueue()}
        """Heads of blocks that a scan found: of draft models under True, of target models under False."""
        self.commands: SimpleQueue[Command] = SimpleQueue()
        self.opened: SimpleQueue[None] = SimpleQueue()
        self.closed: SimpleQueue[None] = SimpleQueue()
        self.is_hurried = False
        """Whether to write without pauses, because the process is about to end."""
        self.is_busy: Callable[[], bool] = lambda: False
        self.block_tokens = MAX_BLOCK_TOKENS
        """How many tokens a full block of the target model has.

        A block of a draft model counts as full here only at MAX_BLOCK_TOKENS. Draft models may have smaller full blocks
        (`choose_block_tokens`); these wait for _PARTIAL_DELAY_S like partial ones.
        """
        self.max_pending_bytes = 256 << 20
        """The writer makes no pauses while at least this many bytes are pending."""
        self.pending: dict[BlockKey, Block] = {}
        """Blocks to be written. The engine's thread adds and withdraws blocks; the writer removes finished ones."""
        self.is_stalled = False
        """Whether no block can be written now: after a bug, while the disk fails, or while the allowance is too low."""
        self.is_broken = False
        """Whether a bug ended the thread."""
        self.num_written = 0
        self.num_lost = 0
        """Blocks that were accepted but not written, for example since there was no room, or no time before the end."""

    def run(self) -> None:
        """Carry out commands until Close."""
        try:
            self.open()
            while self._turn(_TICK_S):
                pass
        except Exception as error:  # a bug in the cache must not end the model's process
            traceback.print_exc()
            self._folder.trouble = f"the block store broke: {error!r}"
            self.is_stalled = self.is_broken = True
            self.sweep_broken()
            self.opened.put(None)
            self.closed.put(None)

    def sweep_broken(self) -> None:
        """Remove the files of forgotten blocks after a bug ended the thread. Any thread may call it."""
        try:
            self._folder.sweep()
        except Exception as error:
            self._folder.trouble = f"the block store broke, and purged blocks are not deleted: {error!r}"

    def open(self) -> None:
        """Read the folder, and put the heads of its blocks into `found`."""
        self._folder.open()
        self._is_open = True
        self._announce()
        self.opened.put(None)

    def _announce(self) -> None:
        """Put the heads of blocks that a scan found into `found`, each head once."""
        self._folder.has_found = False
        for entry in sorted(self._index.all(), key=lambda entry: entry.name.start):
            if entry.is_announced:
                continue
            try:
                content = self._files.read_head(entry.name.file_name, head_bytes(entry.name.length))
                head = self._seal.decode_head(content, entry.name)
                entry.is_draft = head.is_draft
                self.found[head.is_draft].put(head)
            except OSError:
                continue  # tried again after the next scan
            except (ValueError, BadBlock):
                entry.is_unreadable = True
            entry.is_announced = True

    def work(self) -> None:
        """Carry out the commands queued so far on the caller's thread, and write the blocks that may be written now."""
        if not self._is_open:
            self.open()
        while self._turn(0.0):
            if self.commands.empty() and not self._can_write:
                return

    def pending_bytes(self) -> int:
        """Return the bytes of all pending blocks; any thread may call it."""
        return sum(block.num_bytes for block in tuple(self.pending.values()))

    @property
    def _can_write(self) -> bool:
        return bool(self._turns) and not self.is_stalled

    def _turn(self, timeout_s: float) -> bool:
        """Carry out the queued commands, write one block with its ancestors, and do the periodic work that is due.

        Wait up to `timeout_s` for a command if no block can be written. Return False after Close.
        """
        wait_s = 0.0 if self._can_write else timeout_s
        with contextlib.suppress(Empty):
            while True:
                command = self.commands.get(timeout=wait_s) if wait_s else self.commands.get_nowait()
                wait_s = 0.0
                if not self._carry_out(command):
                    return False
        self._end_delays(everything=False)
        self._write_next()
        self._folder.tick(is_idle=self.commands.empty() and not self._can_write)
        if self._folder.has_found:
            self._announce()
        return True

    def _carry_out(self, command: Command) -> bool:
        match command:
            case Write(key):
                self._await(command, self.pending.get(key))
            case Touch(keys):
                self._folder.touch(keys)
            case Raise(key, importance):
                self._raise(key, importance)
            case Discard(key):
                if key in self._waiting:
                    self._end(key)
                else:
                    self._folder.discard(key)
            case DescribePartition(root, record):
                self._folder.describe_partition(root, record)
            case Sweep():
                self._folder.sweep()
            case Close(by_s):
                self._write_rest(by_s)
                return False
        return True

    def _write_rest(self, by_s: float) -> None:
        """Write the queued blocks, but begin none after `by_s`. Then close the folder."""
        self._end_delays(everything=True)
        while self._turns and self._clock() <= by_s:
            self._write_next()
            if self.is_stalled:
                break
        self.num_lost += len(self._waiting)
        self._folder.close()
        self.closed.put(None)

    def _await(self, command: Write, block: Block | None) -> None:
        """Queue a write, except of a withdrawn block. A full or important block may be written at once.

        Any other block waits for _PARTIAL_DELAY_S, since a longer block may replace it.
        """
        if block is None:
            return  # withdrawn
        if len(self._waiting) > 2 * len(self.pending) + _MAX_STALE:
            self._forget_withdrawn()
        is_full = len(block.tokens) >= (MAX_BLOCK_TOKENS if block.is_draft else self.block_tokens)
        is_due_now = is_full or command.importance > Importance.NORMAL
        due_s = None if is_due_now else self._clock() + _PARTIAL_DELAY_S
        self._waiting[block.key] = _Waiting(command.epoch, command.importance, due_s)
        if is_due_now:
            self._push(block.key, command.importance)
        else:
            self._delayed[block.key] = None

    def _forget_withdrawn(self) -> None:
        """Drop the writes of withdrawn blocks. While writing is stalled, no other code would drop them."""
        for key in self._waiting.keys() - self.pending.keys():
            self._delayed.pop(key, None)
            del self._waiting[key]
        self._turns = [turn for turn in self._turns if turn[2] in self._waiting]
        heapq.heapify(self._turns)

    def _push(self, key: BlockKey, importance: Importance) -> None:
        self._delayed.pop(key, None)
        self._waiting[key].due_s = None
        heapq.heappush(self._turns, (-int(importance), next(self._order), key))

    def _end_delays(self, *, everything: bool) -> None:
        now_s = self._clock()
        for key in tuple(self._delayed):
            waiting = self._waiting[key]
            if waiting.due_s is not None and waiting.due_s > now_s and not everything:
                return
            self._push(key, waiting.importance)

    def _raise(self, key: BlockKey, importance: Importance) -> None:
        waiting = self._waiting.get(key)
        if waiting is None:
            self._folder.set_importance(key, importance)
        elif importance > waiting.importance:
            waiting.importance = importance
            self._push(key, importance)

    def _write_next(self) -> None:
        """Write the most important block that may be written, after its ancestors."""
        self.is_stalled = self._folder.trouble is not None
        while self._turns and not self.is_stalled:
            rank, _, key = self._turns[0]
            waiting = self._waiting.get(key)
            if waiting is None or -rank != waiting.importance or waiting.due_s is not None:
                heapq.heappop(self._turns)  # written, or queued again with another rank
                continue
            if not self._folder.may_write(waiting.importance):
                self.is_stalled = True
                return
            self._write_chain(key)
            return

    def _write_chain(self, key: BlockKey) -> None:
        chain = [key]
        while (block := self.pending.get(chain[-1])) is not None and block.parent in self._waiting:
            chain.append(block.parent)
        for each in reversed(chain):
            started_s = time.thread_time()
            if self._write(each) is Outcome.LATER:
                self.is_stalled = True
                return
            self._rest(time.thread_time() - started_s)

    def _write(self, key: BlockKey) -> Outcome:
        block, waiting = self.pending.get(key), self._waiting[key]
        outcome = Outcome.LOST
        if block is not None and self._is_writable(block, waiting.epoch):
            outcome = self._publish(block, waiting)
        match outcome:
            case Outcome.LATER:
                return outcome
            case Outcome.WRITTEN:
                self.num_written += 1
            case Outcome.LOST if block is not None:
                self.num_lost += 1
        self._end(key)
        return outcome

    def _end(self, key: BlockKey) -> None:
        self._delayed.pop(key, None)
        self._waiting.pop(key, None)
        self.pending.pop(key, None)

    def _is_writable(self, block: Block, epoch: int) -> bool:
        """Whether a block may be written: it is not on disk, its parent is, and the partition was not forgotten.

        A first block needs no parent.
        """
        if epoch != self._index.epoch(block.root) or self._index.find(block.key) is not None:
            return False
        return block.parent == block.root or self._index.find(block.parent) is not None

    def _publish(self, block: Block, waiting: _Waiting) -> Outcome:
        name = BlockName(
            block.root[:ROOT_BYTES],
            block.parent[:PARENT_BYTES],
            block.key,
            block.start,
            len(block.tokens),
            int(waiting.importance),
        )
        parts, num_bytes = self._seal.encode(block), file_bytes(block)
        return self._folder.write(name, parts, num_bytes, waiting.epoch, is_draft=block.is_draft)

    def _rest(self, worked_s: float) -> None:
        """Pause after a write that took `worked_s` of CPU time. End the pause when no tokens are being computed.

        The threads that compute wait for each other at every layer. If the writer takes CPU time from one, all wait.
        """
        spare = 1.0 - self.pending_bytes() / max(1, self.max_pending_bytes)
        until_s = self._clock() + worked_s * _REST_FOR_WORK * spare
        while not self.is_hurried and self.is_busy() and (left_s := until_s - self._clock()) > 0:
            time.sleep(min(left_s, _REST_STEP_S))
