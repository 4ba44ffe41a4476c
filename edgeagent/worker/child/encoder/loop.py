"""The main thread of an embedding or ranking model's worker: computes the open queries in batches."""

from __future__ import annotations

import time
from collections.abc import Callable

from edgeagent.engine.llama.embedder import Rows, truncated
from edgeagent.engine.runner import DecodeCancelled
from edgeagent.errors import EdgeAgentError, NotSupported
from edgeagent.types import (
    Embed,
    Embedding,
    Finished,
    FinishReason,
    QueryAnswer,
    Rerank,
    Score,
    Timings,
    Usage,
    WorkerStatus,
)
from edgeagent.worker.child.encoder.host import EncoderHost, relevance
from edgeagent.worker.child.frame_writer import Frames
from edgeagent.worker.child.job_loop import JobLoop, TextJob, TextJobs
from edgeagent.worker.protocol import AnswerPart, Ask, Cancel, Drop, StepItem, StepResult, Stop, Submit, failed_message


class EncoderJobs(TextJobs):
    """Computes the open queries in batches. The queries take turns: each gets one batch at a time."""

    def __init__(self, host: EncoderHost, frames: Frames, clock: Callable[[], float]) -> None:
        super().__init__(host.encoder, clock)
        self._host = host
        self._encoder = host.encoder
        self._frames = frames
        self.num_batches = 0
        self.num_tokens = 0
        self.expected_s = 0.0

    def step(self) -> None:
        """Compute a batch, if there is a tokenized text."""
        ask_id = self._next()
        if ask_id is None:
            return
        job = self._jobs[ask_id]
        assert job.texts
        num = self._encoder.batch_length(list(job.texts))
        texts = [job.texts[index] for index in range(num)]
        num_tokens = sum(map(len, texts))
        self.expected_s = self._encoder.expected_s(num_tokens)
        try:
            rows = self._host.encode(texts)
        except DecodeCancelled:
            return  # the batch is computed again, unless its question was dropped
        except EdgeAgentError as error:
            self.drop(ask_id)
            self._frames.put(failed_message(ask_id, error))
            return
        finally:
            self.expected_s = 0.0
            self._used_at_s = self._clock()
            self.num_batches += 1
        self.num_tokens += num_tokens
        for _ in texts:
            job.texts.popleft()
        self._answer(ask_id, job, texts, rows)

    def _answer(self, ask_id: str, job: TextJob, texts: list[list[int]], rows: Rows) -> None:
        is_last = not self._end_turn(ask_id, job)
        if isinstance(job.query, Rerank):
            job.scores += [Score(relevance(row), len(text)) for text, row in zip(texts, rows, strict=True)]
            if is_last:
                self._frames.put(AnswerPart(ask_id, QueryAnswer(scores=tuple(job.scores)), is_last=True))
            return
        for index, (text, row) in enumerate(zip(texts, rows, strict=True)):
            vector = truncated(row, job.query.dimensions).astype("<f4").tobytes()
            part = QueryAnswer(embeddings=(Embedding(vector, len(text)),))
            self._frames.put(AnswerPart(ask_id, part, is_last=is_last and index == len(texts) - 1))


class EncoderLoop(JobLoop):
    """The loop of a model that has only whole texts to compute, and no requests."""

    def __init__(self, host: EncoderHost, frames: Frames, clock: Callable[[], float] = time.monotonic) -> None:
        self._encodings = EncoderJobs(host, frames, clock)
        super().__init__(self._encodings, frames)
        self._host = host
        self._encoder = host.encoder

    def submit(self, message: Submit) -> None:
        """Refuse a request to generate text.

        A request with `prefill_only` that does not write to the cache succeeds: its only purpose is to load the model.
        """
        request = message.request
        if request.prefill_only and not request.cache.write:
            ended = Finished(FinishReason.STOP, Usage(), Timings(load_ms=message.load_ms))
            self._frames.put(StepResult(time.monotonic(), (StepItem(request.id, (ended,)),)))
            return
        purpose = "ranks documents" if self._encoder.is_ranking else "embeds texts"
        refusal = NotSupported(
            f"{self._host.info.name} generates no text: it {purpose}. Choose another model.", param="model"
        )
        self._frames.put(failed_message(request.id, refusal))

    def interrupt(self, command: Cancel | Ask | Stop) -> None:
        self.commands.put(command)
        if isinstance(command, Stop):
            self._encoder.request_abort()

    def drop(self, message: Drop) -> None:
        """Drop a query and interrupt the running batch. If the batch belongs to another query, it is computed again."""
        super().drop(message)
        self._encoder.request_abort()

    @property
    def status(self) -> WorkerStatus:
        num_open = len(self._encodings)
        return WorkerStatus(
            num_steps=self._encodings.num_batches,
            step_expected_s=self._encodings.expected_s,
            num_running=min(1, num_open),
            num_waiting=max(0, num_open - 1),
            num_prompt_tokens_total=self._encodings.num_tokens,
            num_threads=self._host.num_threads,
            max_threads=self._host.max_threads,
        )

    @property
    def planned_bytes(self) -> int:
        """0: the encoder's context has its full size from the beginning."""
        return 0

    def _read(self, query: Embed | Rerank) -> list[list[int]]:
        return self._host.read_texts(query)

    def _clear_abort(self) -> None:
        self._encoder.clear_abort()

    def _step(self) -> None:
        self.step_started_at_s = time.monotonic()
        self._encodings.step()
        self.step_started_at_s = 0.0

    def _carry_out(self, command: object) -> None:
        """Answer a PurgeCache. There are no requests and no cached prompts."""
        if isinstance(command, Ask):
            self._frames.put(AnswerPart(command.id, QueryAnswer("0"), is_last=True))
