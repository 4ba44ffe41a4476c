"""A second context of a model that computes one prompt on a thread of its own, and pauses at llama.cpp's graph nodes.

CPU only: llama.cpp asks an abort callback there before each node. A paused thread sleeps in the callback. The other
threads of its graph wait for it at a barrier, where GNU OpenMP lets them sleep too, at once if more threads exist than
cores. The number of threads in the process falls again when this one ends.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

import psutil

from edgeagent.config import EngineConfig
from edgeagent.engine.llama.bindings import system_description
from edgeagent.engine.llama.context import LlamaRunner
from edgeagent.engine.runner import Chunk, DecodeCancelled, OpenSideContext, OutOfCells, Slice
from edgeagent.engine.tuning.attention import Attention
from edgeagent.errors import EdgeAgentError
from edgeagent.fit.need import margin_bytes
from edgeagent.types import MemoryKind

# Cells beyond the prompt's: llama.cpp rounds their number up.
_SPARE_CELLS = 256
# What is taken beside the cells and a copy of them on its way: buffers of the computation.
_SPARE_BYTES = 256 << 20
# A node is over in less; a thread that does not get there is not waited for.
_MAX_PAUSE_S = 1.0


def side_contexts(
    runner: LlamaRunner,
    config: EngineConfig,
    token_bytes: float,
    free_bytes: Callable[[], int] | None = None,
) -> OpenSideContext | None:
    """Return what makes contexts beside the one of `runner`; None where they are not wanted or would not work.

    `token_bytes`: of the cells of one token. Windows and states cannot be copied in parts, and a GPU asks no callback.
    """
    is_on_cpu = runner.memory_kind is MemoryKind.FULL_ATTENTION and runner.model.num_gpu_layers == 0
    if not config.side_prefill or not is_on_cpu or not (runner.num_threads == 1 or barriers_sleep()):
        return None

    def open_context(tokens: Sequence[int], num_known: int, chunk: int) -> LlamaSideContext | None:
        num_cells = len(tokens) + _SPARE_CELLS
        num_bytes = int(2 * num_cells * token_bytes) + _SPARE_BYTES
        if (free_bytes or _free_bytes)() < num_bytes:
            return None
        size = min(chunk, runner.attention.micro_batch)
        own = config.model_copy(
            update={"parallel": 1, "batch": size, "threads": runner.num_threads, "cache_memory_bytes": 0}
        )
        attention = Attention(runner.attention.flash, size)
        make = partial(LlamaRunner, runner.model, own, num_cells=num_cells, attention=attention)
        return LlamaSideContext(make, tokens, num_known, size, num_bytes)

    return open_context


def _free_bytes() -> int:
    memory = psutil.virtual_memory()
    return int(memory.available) - margin_bytes(memory.total)


def barriers_sleep() -> bool:
    """Whether threads that wait at a graph's barrier for a paused one leave their cores to others.

    GNU OpenMP's do. The threads of ggml itself spin there, and other systems' OpenMP was not tried.
    """
    return sys.platform == "linux" and "OPENMP = 1" in system_description()


class LlamaSideContext:
    """See runner.SideContext."""

    def __init__(
        self,
        open_runner: Callable[[], LlamaRunner],
        tokens: Sequence[int],
        num_known: int,
        chunk: int,
        num_bytes: int = 0,
    ) -> None:
        """Begin, paused. `open_runner` makes a context with room for the tokens; it is called on the new thread.

        The first `num_known` tokens are given, the others are computed in chunks.
        """
        self._open_runner = open_runner
        self._tokens = tokens
        self._num_known = num_known
        self._chunk = chunk
        self.num_bytes = num_bytes
        self._state = threading.Condition()
        self._may_run = self._is_closed = self._is_blocked = False
        self._is_apart = False  # makes or frees its context, which takes seconds where it is large
        self._given: deque[Chunk] = deque()
        self._chunks: list[Chunk] = []
        self.is_over = False
        self._thread = threading.Thread(target=self._run, name="side-prefill", daemon=True)
        self._thread.start()

    def give(self, chunk: Chunk) -> None:
        """See SideContext."""
        with self._state:
            self._given.append(chunk)
            self._state.notify_all()

    def resume(self) -> None:
        """See SideContext."""
        with self._state:
            self._may_run = True
            self._state.notify_all()

    def pause(self) -> None:
        """See SideContext."""
        with self._state:
            self._may_run = False
            self._state.wait_for(lambda: self._is_blocked or self.is_over, _MAX_PAUSE_S)

    def wait(self, timeout_s: float) -> None:
        """See SideContext."""
        with self._state:
            self._state.wait_for(lambda: self._chunks or self.is_over, timeout_s)

    def take(self) -> list[Chunk]:
        """See SideContext."""
        with self._state:
            taken, self._chunks = self._chunks, []
            return taken

    def close(self) -> None:
        """See SideContext."""
        with self._state:
            self._is_closed = True
            self._state.notify_all()
            is_apart = self._is_apart
        if not is_apart:
            self._thread.join()
        self._given.clear()
        self._chunks.clear()

    def _run(self) -> None:
        try:
            if not self._must_stop():
                # All cells of a context are written when it is made: gigabytes take seconds, on one core.
                self._let_pass()
                runner = self._open_runner()
                try:
                    self._wait_for_turn()
                    runner.abort_flag.ask(self._must_stop)
                    self._compute(runner)
                finally:
                    self._let_pass()
                    runner.close()
        except (EdgeAgentError, OutOfCells, DecodeCancelled, MemoryError):
            pass  # closed, or not enough memory: the engine computes the rest of the prompt
        finally:
            with self._state:
                self.is_over = True
                self._state.notify_all()

    def _compute(self, runner: LlamaRunner) -> None:
        at = 0
        while at < self._num_known:
            known = self._next_known()
            if known is None or self._must_stop() or not runner.restore(0, known.payload, known.end):
                return
            at = known.end
        while at < len(self._tokens):
            # A token that is computed alone gives other bits than one of a chunk.
            num_left = len(self._tokens) - at
            count = num_left if num_left <= self._chunk else self._chunk - (num_left == self._chunk + 1)
            runner.decode([Slice(0, at, self._tokens[at : at + count], 0)])
            payload = runner.save(0, at, at + count)
            at += count
            with self._state:
                self._chunks.append(Chunk(count, at, payload))
                self._state.notify_all()

    def _next_known(self) -> Chunk | None:
        """Wait for the next cells that are given; None if this is closed."""
        with self._state:
            self._is_blocked = True
            self._state.notify_all()
            self._state.wait_for(lambda: self._given or self._is_closed)
            self._is_blocked = False
            return None if self._is_closed else self._given.popleft()

    def _must_stop(self) -> bool:
        """Wait while this is paused; True if it is to end. It is called before each node."""
        if not self._may_run or self._is_closed:
            self._wait_for_turn()
        return self._is_closed

    def _wait_for_turn(self) -> None:
        with self._state:
            self._is_blocked, self._is_apart = True, False
            self._state.notify_all()
            self._state.wait_for(lambda: self._may_run or self._is_closed)
            self._is_blocked = False

    def _let_pass(self) -> None:
        """Let `pause` and `close` return meanwhile."""
        with self._state:
            self._is_blocked = self._is_apart = True
            self._state.notify_all()
