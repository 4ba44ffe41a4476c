"""The main thread of an embedding or ranking model's worker: takes commands and sends frames.

Every request ends exactly once. Every query ends exactly once too, except if it is dropped or if the worker stops. This
module uses queues, and knows neither pipes nor threads.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from edgeagent.engine.llama.embedder import Rows, truncated
from edgeagent.engine.runner import DecodeCancelled
from edgeagent.errors import EdgeAgentError, NotSupported
from edgeagent.types import (
    Embed,
    Embedding,
    Finished,
    FinishReason,
    PurgeCache,
    QueryAnswer,
    Rerank,
    Score,
    Timings,
    Usage,
    WorkerStatus,
)
from edgeagent.worker.child.encoder.host import EncoderHost
from edgeagent.worker.child.encoder.scores import relevance
from edgeagent.worker.child.frame_writer import Frames
from edgeagent.worker.child.text_reader import TextsReady
from edgeagent.worker.protocol import AnswerPart, Ask, Cancel, Drop, StepItem, StepResult, Stop, Submit, failed_message

_IDLE_S = 60.0  # the memory is freed after this time without use


@dataclass(slots=True)
class _Job:
    """A query in progress.

    `texts` has the tokens of each text that is still to compute; None until the texts are tokenized. `scores` has the
    scores that are computed already; it stays empty for an Embed.
    """

    query: Embed | Rerank
    texts: deque[list[int]] | None = None
    scores: list[Score] = field(default_factory=list)


Command = Cancel | Ask | Drop | Stop | TextsReady


class EncoderLoop:
    """Computes the open queries in batches. The queries take turns: each gets one batch at a time."""

    def __init__(self, host: EncoderHost, frames: Frames, clock: Callable[[], float] = time.monotonic) -> None:
        self._host = host
        self._encoder = host.encoder
        self._frames = frames
        self._clock = clock
        self.commands: SimpleQueue[Command] = SimpleQueue()
        self._jobs: dict[str, _Job] = {}
        self._used_at_s = clock()
        self._num_batches = 0
        self._num_tokens = 0
        # Read by the reader thread for pongs.
        self.step_started_at_s = self._expected_s = 0.0
        self.preparing_since_s = 0.0
        self.preparing_id = ""

    def run(self) -> None:
        """Carry out commands and compute batches until a Stop command."""
        while self.turn():
            pass

    def turn(self) -> bool:
        """Carry out the queued commands, then compute a batch. If there is no work, first wait for a command.

        After a minute without work, free the encoder's memory. Return False after a Stop command, True otherwise.
        """
        # Clear the flag before reading commands, so that a later interruption sets it again and is not lost.
        self._encoder.clear_abort()
        if not self._take_commands():
            return False
        ask_id = self._next()
        if ask_id is not None:
            self._compute(ask_id, self._jobs[ask_id])
        elif self._wake_after_s() == 0.0:
            self._encoder.close()
        return True

    def submit(self, message: Submit) -> None:
        """Refuse a request to generate text; any thread may call it.

        A request with `prefill_only` that does not write to the cache succeeds: its only purpose is to load the model.
        """
        request = message.request
        if request.prefill_only and not request.cache.write:
            ended = Finished(FinishReason.STOP, Usage(), Timings(load_ms=message.load_ms))
            self._frames.put(StepResult(time.monotonic(), (StepItem(request.id, (ended,)),)))
            return
        self._frames.put(
            failed_message(
                request.id,
                NotSupported(
                    f"{self._host.info.name} generates no text: it {self._purpose}. Choose another model.",
                    param="model",
                ),
            )
        )

    def interrupt(self, command: Cancel | Ask | Stop) -> None:
        """Queue a command from the reader thread. For a Stop, also interrupt the running batch."""
        self.commands.put(command)
        if isinstance(command, Stop):
            self._encoder.request_abort()

    def ask(self, message: Ask) -> None:
        """Queue a query. Its tokens follow later, in a TextsReady command. Any thread may call this method."""
        self.commands.put(message)

    def drop(self, message: Drop) -> None:
        """Drop a query and interrupt the running batch; any thread may call this method.

        If the batch belongs to another query, it is computed again.
        """
        self.commands.put(message)
        self._encoder.request_abort()

    def read_texts(self, ask_id: str, query: Embed | Rerank) -> None:
        """Tokenize a query's texts and queue the tokens for the main thread. Another thread calls this method.

        If tokenizing fails, drop the query and raise the error.
        """
        try:
            self.commands.put(TextsReady(ask_id, self._host.read_texts(query)))
        except BaseException:
            self.commands.put(Drop(ask_id))
            raise

    @property
    def planned_bytes(self) -> int:
        """0: the encoder's context has its full size from the beginning."""
        return 0

    @property
    def status(self) -> WorkerStatus:
        """The worker's counters and times; any thread may read them."""
        num_open = len(self._jobs)
        return WorkerStatus(
            num_steps=self._num_batches,
            step_expected_s=self._expected_s,
            num_running=min(1, num_open),
            num_waiting=max(0, num_open - 1),
            num_prompt_tokens_total=self._num_tokens,
            num_threads=self._host.num_threads,
            max_threads=self._host.max_threads,
        )

    @property
    def _purpose(self) -> str:
        return "ranks documents" if self._encoder.is_ranking else "embeds texts"

    def _take_commands(self) -> bool:
        for command in self._queued(can_wait=self._next() is None):
            match command:
                case Ask(ask_id, PurgeCache()):
                    self._frames.put(AnswerPart(ask_id, QueryAnswer("0"), is_last=True))
                case Ask(ask_id, Embed() | Rerank() as query):
                    self._jobs.setdefault(ask_id, _Job(query))
                case TextsReady(ask_id, texts):
                    if ask_id in self._jobs:
                        self._jobs[ask_id].texts = deque(texts)
                case Drop(ask_id):
                    self._jobs.pop(ask_id, None)
                case Stop():
                    return False
        return True

    def _queued(self, *, can_wait: bool) -> Iterator[Command]:
        """Yield the queued commands. With `can_wait`, first wait for a command, at most `_wake_after_s`."""
        with contextlib.suppress(Empty):
            yield self.commands.get(block=can_wait, timeout=self._wake_after_s())
            for _ in range(self.commands.qsize()):
                yield self.commands.get_nowait()

    def _wake_after_s(self) -> float | None:
        """Return in how many seconds the idle memory can be freed; None if there is work or nothing to free."""
        if self._jobs or not self._encoder.is_open:
            return None
        return max(0.0, self._used_at_s + _IDLE_S - self._clock())

    def _next(self) -> str | None:
        return next((ask_id for ask_id, job in self._jobs.items() if job.texts), None)

    def _compute(self, ask_id: str, job: _Job) -> None:
        assert job.texts
        num = self._encoder.batch_length(list(job.texts))
        texts = [job.texts[index] for index in range(num)]
        num_tokens = sum(map(len, texts))
        self._expected_s = self._encoder.expected_s(num_tokens)
        self.step_started_at_s = time.monotonic()
        try:
            rows = self._host.encode(texts)
        except DecodeCancelled:
            return  # the batch is computed again, unless its question was dropped
        except EdgeAgentError as error:
            del self._jobs[ask_id]
            self._frames.put(failed_message(ask_id, error))
            return
        finally:
            self.step_started_at_s = self._expected_s = 0.0
            self._used_at_s = self._clock()
            self._num_batches += 1
        self._num_tokens += num_tokens
        for _ in texts:
            job.texts.popleft()
        self._answer(ask_id, job, texts, rows)

    def _answer(self, ask_id: str, job: _Job, texts: list[list[int]], rows: Rows) -> None:
        is_last = not job.texts
        del self._jobs[ask_id]
        if not is_last:
            self._jobs[ask_id] = job  # moved to the end, so that a short question does not wait for a long one
        if isinstance(job.query, Rerank):
            job.scores += [Score(relevance(row), len(text)) for text, row in zip(texts, rows, strict=True)]
            if is_last:
                self._frames.put(AnswerPart(ask_id, QueryAnswer(scores=tuple(job.scores)), is_last=True))
            return
        for index, (text, row) in enumerate(zip(texts, rows, strict=True)):
            vector = truncated(row, job.query.dimensions).astype("<f4").tobytes()
            part = QueryAnswer(embeddings=(Embedding(vector, len(text)),))
            self._frames.put(AnswerPart(ask_id, part, is_last=is_last and index == len(texts) - 1))
