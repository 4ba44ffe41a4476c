"""Embeds texts in chunks between the engine's steps.

While streams are generated, embedding gets a small share of the time, in chunks too short to delay a stream visibly.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from edgeagent.engine.llama.embedder import Rows, truncated
from edgeagent.errors import EdgeAgentError
from edgeagent.types import Embed, Embedding, QueryAnswer
from edgeagent.worker.child.frame_writer import Frames
from edgeagent.worker.protocol import AnswerPart, failed_message

_SHARE = 0.2  # the share of time that embedding gets while something is generated
_BUDGET_SHARE = 0.3  # of the inter-token-latency budget: the limit for one chunk while something is generated
_IDLE_S = 60.0  # the memory is freed after this time without use


class Embedder(Protocol):
    """Computes embedding vectors; see engine.llama.embedder."""

    num_chunks: int

    @property
    def is_open(self) -> bool: ...
    def begin(self, tokens: Sequence[int]) -> None: ...
    def advance(self, budget_s: float, num_threads: int) -> Rows | None: ...
    def close(self) -> None: ...


@dataclass(slots=True)
class _Job:
    """An Embed in progress.

    `texts` has the tokens of each text that is still to compute; None until the texts are tokenized. `is_begun`:
    whether the first of these texts has been begun.
    """

    dimensions: int | None
    texts: deque[list[int]] | None = None
    is_begun: bool = False


class Embeddings:
    """Computes the open Embed queries. They take turns, one text each. Only the main thread uses this class."""

    def __init__(
        self, embedder: Embedder, frames: Frames, itl_budget_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._embedder = embedder
        self._frames = frames
        self._itl_budget_s = itl_budget_s
        self._clock = clock
        self._jobs: dict[str, _Job] = {}
        self._not_before_s = 0.0
        self._used_at_s = 0.0

    @property
    def has_work(self) -> bool:
        """Whether there is a tokenized text to compute."""
        return self._next() is not None

    @property
    def num_chunks(self) -> int:
        """How many chunks have been computed. The daemon's watchdog takes an increase as progress."""
        return self._embedder.num_chunks

    def add(self, ask_id: str, query: Embed) -> None:
        """Add an Embed. Its tokens come later, through `give`."""
        self._jobs.setdefault(ask_id, _Job(query.dimensions))

    def give(self, ask_id: str, texts: Sequence[list[int]]) -> None:
        """Set the tokens of an Embed's texts. Do nothing if the Embed was dropped."""
        if ask_id in self._jobs:
            self._jobs[ask_id].texts = deque(texts)

    def drop(self, ask_id: str) -> None:
        """Drop an Embed; an unknown or answered id is ignored."""
        self._jobs.pop(ask_id, None)

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

    def wake_after_s(self) -> float | None:
        """Return in how many seconds `free_if_idle` can free memory; None if an Embed is open or no memory is used."""
        if self._jobs or not self._embedder.is_open:
            return None
        return max(0.0, self._used_at_s + _IDLE_S - self._clock())

    def free_if_idle(self) -> None:
        """Free the embedder's memory if no Embed is open and the embedder has not been used for a minute."""
        if self._embedder.is_open and not self._jobs and self._clock() - self._used_at_s >= _IDLE_S:
            self._embedder.close()

    def _next(self) -> str | None:
        # If a text was begun, finish it first: the embedder handles one text at a time.
        ready = [ask_id for ask_id, job in self._jobs.items() if job.texts is not None]
        return next((ask_id for ask_id in ready if self._jobs[ask_id].is_begun), ready[0] if ready else None)

    def _advance(self, ask_id: str, job: _Job, budget_s: float, num_threads: int) -> None:
        assert job.texts
        if not job.is_begun:
            self._embedder.begin(job.texts[0])
            job.is_begun = True
        vector = self._embedder.advance(budget_s, num_threads)
        if vector is None:
            return
        num_tokens = len(job.texts.popleft())
        job.is_begun = False
        embedding = Embedding(truncated(vector, job.dimensions).astype("<f4").tobytes(), num_tokens)
        self.drop(ask_id)
        if job.texts:
            self._jobs[ask_id] = job  # moved to the end, so that a short question does not wait for a long one
        self._frames.put(AnswerPart(ask_id, QueryAnswer(embeddings=(embedding,)), is_last=not job.texts))
