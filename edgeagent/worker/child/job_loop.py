"""The main thread of a worker: takes commands, computes step by step, and sends frames.

Every request ends exactly once. Every query ends exactly once too, except if it is dropped or if the worker stops. This
module uses queues, and knows neither pipes nor threads.
"""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, Queue
from typing import Any, Protocol

from edgeagent.process_settings import give_back_freed_memory
from edgeagent.types import Embed, Rerank, Score, WorkerStatus
from edgeagent.worker.child.frame_writer import Frames
from edgeagent.worker.protocol import Ask, Cancel, Stop, Submit

_IDLE_S = 60.0  # the memory for whole texts is freed after this time without use


class _Device(Protocol):
    """What computes whole texts; see engine.llama.embedder and engine.llama.encoder."""

    @property
    def is_open(self) -> bool: ...
    def close(self) -> None: ...


class Interruptible(Protocol):
    """A context whose running computation another thread may interrupt."""

    def request_abort(self) -> None: ...
    def clear_abort(self) -> None: ...


@dataclass(slots=True)
class TextJob:
    """An Embed or a Rerank in progress.

    `texts` has the tokens of each text that is still to compute; None until the texts are tokenized. `is_begun`:
    whether the first of these texts has been begun. `scores` has the scores of a Rerank's earlier texts.
    """

    query: Embed | Rerank
    texts: deque[list[int]] | None = None
    is_begun: bool = False
    scores: list[Score] = field(default_factory=list)


class TextJobs:
    """The open queries that compute whole texts. They take turns. Only the main thread uses this class."""

    def __init__(self, device: _Device, clock: Callable[[], float] = time.monotonic) -> None:
        self._device = device
        self._clock = clock
        self._jobs: dict[str, TextJob] = {}
        self._used_at_s = clock()

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def has_work(self) -> bool:
        return self._next() is not None

    def add(self, ask_id: str, query: Embed | Rerank) -> None:
        """Add a query. Its tokens come later, through `give`."""
        self._jobs.setdefault(ask_id, TextJob(query))

    def give(self, ask_id: str, texts: Sequence[list[int]]) -> None:
        """Set the tokens of a query's texts. Do nothing if the query was dropped."""
        if ask_id in self._jobs:
            self._jobs[ask_id].texts = deque(texts)

    def drop(self, ask_id: str) -> None:
        """Drop a query; an unknown or answered id is ignored."""
        self._jobs.pop(ask_id, None)

    def wake_after_s(self) -> float | None:
        """Return in how many seconds `free_if_idle` can free memory; None if a query is open or no memory is used."""
        if self._jobs or not self._device.is_open:
            return None
        return max(0.0, self._used_at_s + _IDLE_S - self._clock())

    def free_if_idle(self) -> None:
        """Free the memory if no query is open and nothing was computed for a minute."""
        if self.wake_after_s() == 0.0:
            self._device.close()
            give_back_freed_memory()

    def _next(self) -> str | None:
        # If a text was begun, finish it first: the embedder handles one text at a time.
        ready = [ask_id for ask_id, job in self._jobs.items() if job.texts]
        return next((ask_id for ask_id in ready if self._jobs[ask_id].is_begun), ready[0] if ready else None)

    def _end_turn(self, ask_id: str, job: TextJob) -> bool:
        """Move a query to the end, so that a short one does not wait for a long one. Return False if it is done."""
        self.drop(ask_id)
        if job.texts:
            self._jobs[ask_id] = job
        return bool(job.texts)


class JobLoop(ABC):
    """The queue of commands, and the loop that carries them out and computes.

    The reader thread reads the two attributes below `commands` for pongs. The preparer writes the last one.
    """

    def __init__(self, jobs: TextJobs, runner: Interruptible, frames: Frames) -> None:
        self._jobs = jobs
        self._runner = runner
        self._frames = frames
        self.commands: Queue[Any] = Queue()
        self.step_started_at_s = 0.0
        self.preparing = "", 0.0
        """The id of the request whose prompt is prepared now, and since when; ("", 0.0) if there is none."""

    def run(self) -> None:
        """Carry out commands and compute until a Stop command."""
        while self.turn():
            pass

    def turn(self) -> bool:
        """End the step in progress, carry out the queued commands, and begin a step. Without work, wait for a command.

        After a minute without whole texts, free their memory. Return False after a Stop command, True otherwise.
        """
        is_idle = not self._has_work
        self._finish_step()
        # Clear the flag before reading commands, so that a later interruption sets it again and is not lost.
        self._runner.clear_abort()
        for command in self._queued(is_idle=is_idle):
            match command:
                case Ask(ask_id, Embed() | Rerank() as query):
                    self._jobs.add(ask_id, query)
                case partial():
                    command()
                case _:
                    if isinstance(command, Cancel):
                        self._jobs.drop(command.id)
                    self._carry_out(command)
                    if isinstance(command, Stop):
                        return False
        self._step()
        self._jobs.free_if_idle()
        return True

    @abstractmethod
    def submit(self, message: Submit) -> None:
        """Take a request; any thread may call it."""

    @abstractmethod
    def interrupt(self, command: Cancel | Ask | Stop) -> None:
        """Queue a command from the reader thread, and interrupt a long step that would delay it."""

    def ask(self, message: Ask) -> None:
        """Queue an Embed or a Rerank. Its tokens follow later, see `read_texts`. Any thread may call it."""
        self.commands.put(message)

    def read_texts(self, ask_id: str, query: Embed | Rerank) -> None:
        """Tokenize a query's texts and queue the tokens for the main thread. Another thread calls this method.

        If tokenizing fails, drop the query and raise the error.
        """
        try:
            self.commands.put(partial(self._jobs.give, ask_id, self._read(query)))
        except BaseException:
            self.commands.put(partial(self._jobs.drop, ask_id))
            raise

    @property
    @abstractmethod
    def status(self) -> WorkerStatus:
        """The worker's counters and times. Any thread may read them, even in the middle of a step."""

    @property
    @abstractmethod
    def planned_bytes(self) -> int:
        """The most memory that the worker may have taken since its load, in bytes. Any thread may read it."""

    @abstractmethod
    def _read(self, query: Embed | Rerank) -> list[list[int]]:
        """Return the tokens of each text of a query; another thread calls it."""

    def _finish_step(self) -> None:  # noqa: B027
        """Wait for the step in progress, if there is one, and send its outputs."""

    @abstractmethod
    def _step(self) -> None:
        """Begin a step, if there is work."""

    @abstractmethod
    def _carry_out(self, command: Any) -> None:
        """Carry out a command about requests or the prompt cache. At a Stop, cancel all requests."""

    @property
    def _has_work(self) -> bool:
        return self._jobs.has_work

    def _queued(self, *, is_idle: bool) -> Iterator[Any]:
        """Yield the queued commands. If idle, first wait for one. Commands that come later stay queued."""
        with contextlib.suppress(Empty):
            yield self.commands.get(block=is_idle, timeout=self._wake_after_s() if is_idle else None)
            for _ in range(self.commands.qsize()):
                yield self.commands.get_nowait()

    def _wake_after_s(self) -> float | None:
        """Return the maximum time in seconds to wait for a command; None for no limit."""
        return self._jobs.wake_after_s()
