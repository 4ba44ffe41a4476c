"""The writer's thread: takes commands off a queue, one at a time, and has the keeper carry them out.

A block that is not full waits until its conversation has been quiet for a while: as long as it goes on, the next turn
brings a longer block in its place. The writer leaves the processor alone while tokens are computed.
"""

from __future__ import annotations

import contextlib
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue

from edgeagent.cache_folder import PARENT_BYTES, ROOT_BYTES, About, BlockName
from edgeagent.engine.block_store.format import Seal, file_bytes
from edgeagent.engine.block_store.index import Index
from edgeagent.engine.block_store.keeper import Keeper
from edgeagent.engine.blocks import MAX_BLOCK_TOKENS, Block, BlockKey, Importance

_TICK_S = 1.0
_SETTLE_S = 5.0
# Of a busy machine's time the writer takes a hundredth.
_REST_FOR_WORK = 100.0
_REST_STEP_S = 0.05


@dataclass(frozen=True, slots=True)
class Write:
    """Publish a block, unless its partition was forgotten since `epoch`."""

    block: Block
    importance: Importance
    epoch: int


@dataclass(frozen=True, slots=True)
class Touch:
    """Blocks were used."""

    keys: tuple[BlockKey, ...]


@dataclass(frozen=True, slots=True)
class Raise:
    """A block matters more than it did."""

    key: BlockKey
    importance: Importance


@dataclass(frozen=True, slots=True)
class Discard:
    """A block is of no use any more."""

    key: BlockKey


@dataclass(frozen=True, slots=True)
class Introduce:
    """What a root stands for."""

    root: BlockKey
    about: About


@dataclass(frozen=True, slots=True)
class Sweep:
    """Remove the files of what is forgotten."""


@dataclass(frozen=True, slots=True)
class Close:
    """Write what waits, as far as there is time, and end."""


Command = Write | Touch | Raise | Discard | Introduce | Sweep | Close


class Writer:
    """Carries out commands. `run` is a thread's; `close_by_s` and `is_busy` are set by others."""

    def __init__(self, seal: Seal, index: Index, keeper: Keeper, *, ticks: Callable[[], float]) -> None:
        self._seal = seal
        self._index = index
        self._keeper = keeper
        self._ticks = ticks
        self._settling: dict[BlockKey, tuple[float, Write]] = {}  # in the order in which they are due
        self._is_open = False
        self.commands: SimpleQueue[Command] = SimpleQueue()
        self.opened: SimpleQueue[None] = SimpleQueue()
        self.closed: SimpleQueue[None] = SimpleQueue()
        self.close_by_s: float | None = None
        self.is_busy: Callable[[], bool] = lambda: False
        self.pending: dict[BlockKey, Importance] = {}
        """What was asked to be written and is not yet: who asks adds to it, the writer takes away."""
        self.taken_bytes = 0
        """Of all writes that are done with, one way or the other."""
        self.num_written = 0
        self.num_lost = 0
        """Writes that came to nothing."""

    def run(self) -> None:
        """Serve until Close."""
        try:
            self.open()
            while self._turn(_TICK_S):
                pass
        except Exception as error:  # the thread's edge: a cache that broke must not take the model with it
            traceback.print_exc()
            self._keeper.trouble = f"the block store broke: {error!r}"
            self.opened.put(None)
            self.closed.put(None)

    def open(self) -> None:
        """Look at what is there."""
        self._keeper.open()
        self._is_open = True
        self.opened.put(None)

    def work(self) -> None:
        """Carry out what has been asked for so far, without a thread."""
        if not self._is_open:
            self.open()
        while self._turn(0.0):
            if self.commands.empty():
                return

    def _turn(self, timeout_s: float) -> bool:
        """Carry out one command and what else is due; False when closed."""
        command: Command | None = None
        with contextlib.suppress(Empty):
            command = self.commands.get(timeout=timeout_s) if timeout_s else self.commands.get_nowait()
        match command:
            case Write():
                self._settle_or_write(command)
            case Touch(keys):
                self._keeper.touch(keys)
            case Raise():
                self._raise(command)
            case Discard(key):
                self._discard(key)
            case Introduce(root, about):
                self._keeper.introduce(root, about)
            case Sweep():
                self._keeper.sweep()
            case Close():
                self._write_settled(everything=True)
                self._keeper.close()
                self.closed.put(None)
                return False
        self._write_settled(everything=False)
        self._keeper.tick(is_idle=self.commands.empty())
        return True

    def _settle_or_write(self, command: Write) -> None:
        is_full = len(command.block.tokens) >= MAX_BLOCK_TOKENS
        if is_full or command.importance > Importance.IDLE:
            self._write(command)
        else:
            self._settling[command.block.key] = (self._ticks() + _SETTLE_S, command)

    def _write_settled(self, *, everything: bool) -> None:
        now_s = self._ticks()
        while self._settling:
            due_s, command = next(iter(self._settling.values()))
            if due_s > now_s and not everything:
                return
            self._write(command)

    def _raise(self, command: Raise) -> None:
        if command.key in self._settling:
            _, write = self._settling[command.key]
            self._write(replace(write, importance=command.importance))
        else:
            self._keeper.set_importance(command.key, command.importance)

    def _discard(self, key: BlockKey) -> None:
        if key in self._settling:
            self._end(self._settling[key][1].block)
        else:
            self._keeper.discard(key)

    def _write(self, command: Write) -> None:
        block, started_s = command.block, time.thread_time()
        if block.parent in self._settling:
            self._write(self._settling[block.parent][1])
        is_late = self.close_by_s is not None and self._ticks() > self.close_by_s
        if not is_late and self._is_writable(command) and self._publish(command):
            self.num_written += 1
        else:
            self.num_lost += 1
        self._end(block)
        self._rest(time.thread_time() - started_s)

    def _end(self, block: Block) -> None:
        self._settling.pop(block.key, None)
        self.pending.pop(block.key, None)
        self.taken_bytes += block.num_bytes

    def _is_writable(self, command: Write) -> bool:
        """Whether a block is still wanted: not forgotten, not there, its parent written."""
        block = command.block
        if command.epoch != self._index.epoch(block.root) or self._index.find(block.key) is not None:
            return False
        return block.parent == block.root or self._index.find(block.parent) is not None

    def _publish(self, command: Write) -> bool:
        block = command.block
        name = BlockName(
            block.root[:ROOT_BYTES],
            block.parent[:PARENT_BYTES],
            block.key,
            block.start,
            len(block.tokens),
            int(command.importance),
        )
        return self._keeper.write(name, self._seal.encode(block), file_bytes(block), command.epoch)

    def _rest(self, worked_s: float) -> None:
        """Leave the processor to those who compute tokens: its threads wait for each other at every layer."""
        until_s = self._ticks() + worked_s * _REST_FOR_WORK
        while self.close_by_s is None and self.is_busy() and (left_s := until_s - self._ticks()) > 0:
            time.sleep(min(left_s, _REST_STEP_S))
