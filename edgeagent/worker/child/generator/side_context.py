"""A second context of a model, for one prompt. Its own thread computes, and can pause between llama.cpp's graph nodes.

This works only on a CPU, where llama.cpp calls an abort callback after each node. To pause, the thread sleeps in the
callback. The other threads of its graph then wait at a barrier. With GNU OpenMP, waiting threads sleep, and they sleep
at once if there are more threads than cores. When the thread ends, the other threads of its graph end too.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from edgeagent.config import EngineConfig
from edgeagent.engine.llama.bindings import system_description
from edgeagent.engine.llama.context import LlamaRunner
from edgeagent.engine.llama.context_params import num_cells_like
from edgeagent.engine.runner import CUTTABLE, Chunk, ChunkRows, DecodeCancelled, OpenSideContext, OutOfCells, Slice
from edgeagent.errors import EdgeAgentError
from edgeagent.fit.attention import Attention
from edgeagent.fit.need import margin_bytes, num_states
from edgeagent.types import MemoryKind, replace
from edgeagent.usable import usable_memory

# Cells in addition to the prompt's, since llama.cpp rounds their number up.
_SPARE_CELLS = 256
# Memory for compute buffers, in addition to the cells and one copy of them in transfer.
_SPARE_BYTES = 256 << 20
# `pause` waits at most this long. A node takes less time.
_MAX_PAUSE_S = 1.0


def side_contexts(
    runner: LlamaRunner,
    config: EngineConfig,
    token_bytes: float,
    free_bytes: Callable[[], int] | None = None,
) -> OpenSideContext | None:
    """Return a function that opens a side context for the model of `runner`; None if that would not work.

    Side contexts do not work for memory with states only. Hybrids get one for embeddings: their state is copied with
    each chunk. Sliding windows cannot be copied in parts, so they get one for embeddings that are one chunk. They do
    not work on a GPU, which calls no abort callback, or if waiting threads do not sleep (`barriers_sleep`). The
    returned function returns None if there is not enough free memory. `token_bytes` is the size of one token's cells.
    `free_bytes` returns the free memory; by default, that of the machine minus a margin.
    """
    kind = runner.memory_kind
    is_on_cpu = runner.model.num_gpu_layers == 0
    if kind is MemoryKind.RECURRENT or not is_on_cpu or not (runner.num_threads == 1 or barriers_sleep()):
        return None

    def open_context(
        tokens: Sequence[int], num_known: int, chunk: int, media: ChunkRows | None = None
    ) -> LlamaSideContext | None:
        if kind is not MemoryKind.FULL_ATTENTION and media is None:
            return None
        if kind is MemoryKind.SLIDING_WINDOW and media is not None and media.is_causal:
            return None
        num_cells = num_cells_like(runner.model, runner.num_cells, len(tokens) + _SPARE_CELLS)
        size = min(chunk, runner.attention.micro_batch) if media is None or media.is_causal else len(media.rows)
        # With a host cache, a context has fewer idle sequences, each of which has states in a hybrid.
        own = replace(config, parallel=1, batch=size, threads=runner.num_threads, cache_memory_bytes=1)
        state_bytes = max(runner.state_bytes(seq_id) for seq_id in range(runner.num_sequences))
        num_bytes = int(2 * num_cells * token_bytes) + num_states(own) * (1 + runner.max_rewind) * state_bytes
        num_bytes += _SPARE_BYTES
        if (free_bytes or _free_bytes)() < num_bytes:
            return None
        attention = Attention(runner.attention.flash, size)
        make = partial(
            LlamaRunner,
            runner.model,
            own,
            num_cells=num_cells,
            attention=attention,
            max_rewind=0 if kind in CUTTABLE else runner.max_rewind,  # a copied state has the earlier ones too
            like=runner,
        )
        return LlamaSideContext(make, tokens, num_known, size, num_bytes, media)

    return open_context


def _free_bytes() -> int:
    memory = usable_memory()
    return memory.available - margin_bytes(memory.total)


def barriers_sleep() -> bool:
    """Whether threads that wait at a graph's barrier sleep, so that other threads can use their cores.

    GNU OpenMP's threads sleep. ggml's own threads spin. OpenMP on systems other than Linux was not tested.
    """
    return sys.platform == "linux" and "OPENMP = 1" in system_description()


class NodeTimes:
    """Predicts when a graph node ends: each node should take the same time as in the previous chunk.

    Every chunk has the same nodes. An attention node takes longer the more tokens precede the chunk, but two successive
    chunks differ little. All times are those of one clock, in seconds.
    """

    def __init__(self) -> None:
        self._seconds: list[float] = []
        self._index = 0
        self._began_s = 0.0

    def begin(self, now_s: float) -> None:
        """Note that the first node of a chunk begins."""
        self._index, self._began_s = 0, now_s

    def resume(self, now_s: float) -> None:
        """Note that the next node begins after a pause."""
        self._began_s = now_s

    def end(self, now_s: float) -> float:
        """Note that a node has ended; return when the next one should end. If its time is unknown, it counts as 0 s."""
        taken_s, self._began_s = now_s - self._began_s, now_s
        if self._index < len(self._seconds):
            self._seconds[self._index] = taken_s
        else:
            self._seconds.append(taken_s)
        self._index += 1
        return now_s + (self._seconds[self._index] if self._index < len(self._seconds) else 0.0)


class LlamaSideContext:
    """A SideContext of llama.cpp; see engine.runner.SideContext."""

    def __init__(
        self,
        open_runner: Callable[[], LlamaRunner],
        tokens: Sequence[int],
        num_known: int,
        chunk: int,
        num_bytes: int = 0,
        media: ChunkRows | None = None,
    ) -> None:
        """Start the thread in the paused state. The new thread calls `open_runner` to make a context for the tokens.

        The cells of the first `num_known` tokens come through `give`. The other tokens are computed in chunks of at
        most `chunk` tokens; or `media` instead of them. `num_bytes` is the most memory that the context may take.
        """
        self._open_runner = open_runner
        self._tokens = tokens
        self._num_known = num_known
        self._chunk = chunk
        self._media = media
        self.num_bytes = num_bytes
        self._state = threading.Condition()
        self._may_run = self._is_closed = self._is_blocked = False
        self._until_s = math.inf
        self._nodes = NodeTimes()
        self._is_allocating = False  # the thread makes or frees its context, which takes seconds if it is large
        self._given: deque[Chunk] = deque()
        self._chunks: list[Chunk] = []
        self.is_over = False
        self._thread = threading.Thread(target=self._run, name="side-prefill", daemon=True)
        self._thread.start()

    def give(self, chunk: Chunk) -> None:
        with self._state:
            self._given.append(chunk)
            self._state.notify_all()

    def resume(self, until_s: float = math.inf) -> None:
        """Start or continue the computation. It pauses by itself before a node that would end after `until_s`."""
        with self._state:
            self._may_run, self._until_s = True, until_s
            self._state.notify_all()

    def pause(self) -> None:
        with self._state:
            self._may_run = False
            self._state.wait_for(lambda: self._is_blocked or self.is_over, _MAX_PAUSE_S)

    def wait_paused(self, timeout_s: float) -> bool:
        with self._state:
            return self._state.wait_for(lambda: not self._may_run or self.is_over, timeout_s)

    def wait(self, timeout_s: float) -> None:
        with self._state:
            self._state.wait_for(lambda: self._chunks or self.is_over, timeout_s)

    def take(self) -> list[Chunk]:
        with self._state:
            taken, self._chunks = self._chunks, []
            return taken

    def close(self) -> None:
        """End the computation and free the context. Wait for the thread, unless it is making or freeing the context."""
        with self._state:
            self._is_closed = True
            self._state.notify_all()
            is_allocating = self._is_allocating
        if not is_allocating:
            self._thread.join()
        self._given.clear()
        self._chunks.clear()

    def _run(self) -> None:
        try:
            self._wait_for_turn()
            if not self._is_closed:
                # llama.cpp writes all cells of a new context, on one core. Gigabytes take seconds.
                self._enter_allocation()
                runner = self._open_runner()
                try:
                    self._wait_for_turn()
                    runner.abort_flag.ask(self._must_stop)
                    self._compute(runner)
                finally:
                    self._enter_allocation()
                    runner.close()
        except (EdgeAgentError, OutOfCells, DecodeCancelled, MemoryError):
            pass  # closed, or not enough memory: the engine computes the rest of the prompt
        finally:
            with self._state:
                self.is_over = True
                self._state.notify_all()

    def _compute(self, runner: LlamaRunner) -> None:
        media, at, copied = self._media, 0, self._num_known
        runner.place_media(0, () if media is None else media.stretches)
        while at < self._num_known:
            known = self._next_known()
            self._wait_for_turn()
            if known is None or self._is_closed or not runner.restore(0, known.payload, known.end):
                return
            at = known.end
        while at < len(self._tokens):
            # No chunk has one token: computed alone, it would give other bits than in a larger chunk.
            num_left = len(self._tokens) - at
            count = num_left if num_left <= self._chunk else self._chunk - (num_left == self._chunk + 1)
            self._nodes.begin(time.monotonic())
            runner.decode([self._slice(at, count)])
            at += count
            if media is not None and media.is_one and at < len(self._tokens):
                continue
            payload = runner.save(0, copied, at)
            with self._state:
                self._chunks.append(Chunk(at - copied, at, payload))
                self._state.notify_all()
            copied = at

    def _slice(self, at: int, count: int) -> Slice:
        """Return the next `count` tokens, or the embeddings that they stand for."""
        media, tokens = self._media, self._tokens[at : at + count]
        if media is None:
            return Slice(0, at, tokens, 0)
        first, positions = at - self._num_known, media.positions
        return Slice(
            0,
            at if positions is None else self._num_known,
            tokens,
            0,
            rows=media.rows[first : first + count],
            is_causal=media.is_causal,
            positions=None if positions is None else positions[:, first : first + count],
        )

    def _next_known(self) -> Chunk | None:
        """Wait for the next cells from `give`; return None if this context is closed."""
        with self._state:
            self._is_blocked = True
            self._state.notify_all()
            self._state.wait_for(lambda: self._given or self._is_closed)
            self._is_blocked = False
            return None if self._is_closed else self._given.popleft()

    def _must_stop(self) -> bool:
        """Wait while paused; return True if the computation must stop. llama.cpp calls this after each node."""
        end_s = self._nodes.end(time.monotonic())
        if not self._may_run or self._is_closed or end_s > self._until_s:
            self._wait_for_turn(end_s)
            self._nodes.resume(time.monotonic())
        return self._is_closed

    def _wait_for_turn(self, end_s: float = 0.0) -> None:
        """Wait until `resume` or `close`. Pause if the next node would end, at `end_s`, after the limit of `resume`.

        Return at once if the computation is not paused.
        """
        with self._state:
            if end_s > self._until_s:
                self._may_run = False
            self._is_blocked, self._is_allocating = True, False
            self._state.notify_all()
            self._state.wait_for(lambda: self._may_run or self._is_closed)
            self._is_blocked = False

    def _enter_allocation(self) -> None:
        """Allow `pause` and `close` to return while the context is made or freed."""
        with self._state:
            self._is_blocked = self._is_allocating = True
            self._state.notify_all()
