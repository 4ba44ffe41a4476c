"""Embeds texts in chunks between the engine's steps.

While streams are generated, embedding gets a small share of the time, in chunks too short to delay a stream visibly.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from edgeagent.engine.llama.embedder import Rows, truncated
from edgeagent.errors import EdgeAgentError
from edgeagent.types import Embed, Embedding, QueryAnswer
from edgeagent.worker.child.frame_writer import Frames
from edgeagent.worker.child.job_loop import TextJob, TextJobs
from edgeagent.worker.protocol import AnswerPart, failed_message

_SHARE = 0.2  # the share of time that embedding gets while something is generated
_BUDGET_SHARE = 0.3  # of the inter-token-latency budget: the limit for one chunk while something is generated


class Embedder(Protocol):
    """Computes embedding vectors; see engine.llama.embedder."""

    num_chunks: int

    @property
    def is_open(self) -> bool: ...
    def begin(self, tokens: Sequence[int]) -> None: ...
    def advance(self, budget_s: float, num_threads: int) -> Rows | None: ...
    def close(self) -> None: ...


class Embeddings(TextJobs):
    """Computes the open Embed queries. They take turns, one text each."""

    def __init__(
        self, embedder: Embedder, frames: Frames, itl_budget_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(embedder, clock)
        self._embedder = embedder
        self._frames = frames
        self._itl_budget_s = itl_budget_s
        self._not_before_s = 0.0

    @property
    def num_chunks(self) -> int:
        """How many chunks have been computed. The daemon's watchdog takes an increase as progress."""
        return self._embedder.num_chunks

    def step(self, *, is_busy: bool, num_threads: int) -> None:
        """Compute a chunk if one is due. If the engine is busy with requests, fewer chunks are due."""
        ask_id = self._next()
        started_s = self._clock()
        if ask_id is None or (is_busy and started_s < self._not_before_s):
            return
        job = self._jobs[ask_id]
        try:
            self._advance(ask_id, job, self._itl_budget_s * (_BUDGET_SHARE if is_busy else 1.0), num_threads)
        except EdgeAgentError as error:
            self.drop(ask_id)
            self._frames.put(failed_message(ask_id, error))
        self._used_at_s = self._clock()
        self._not_before_s = self._used_at_s + (self._used_at_s - started_s) * (1 / _SHARE - 1)

    def _advance(self, ask_id: str, job: TextJob, budget_s: float, num_threads: int) -> None:
        assert job.texts and isinstance(job.query, Embed)
        if not job.is_begun:
            self._embedder.begin(job.texts[0])
            job.is_begun = True
        vector = self._embedder.advance(budget_s, num_threads)
        if vector is None:
            return
        num_tokens = len(job.texts.popleft())
        job.is_begun = False
        embedding = Embedding(truncated(vector, job.query.dimensions).astype("<f4").tobytes(), num_tokens)
        is_last = not self._end_turn(ask_id, job)
        self._frames.put(AnswerPart(ask_id, QueryAnswer(embeddings=(embedding,)), is_last=is_last))
