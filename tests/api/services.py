"""Backends that stand in for the whole service behind the API, and the model that they report."""

from __future__ import annotations

import asyncio

from edgeagent.types import (
    DeviceInfo,
    MemoryKind,
    ModelInfo,
    ModelStatus,
    QueryAnswer,
    SamplingParams,
    TextQuery,
    WorkerState,
    WorkerStatus,
)
from tests.backends.fake import FakeBackend

INFO = ModelInfo(
    name="org/repo:Q4_K_M",
    path="/models/x.gguf",
    architecture="llama",
    description="llama 5M",
    size_bytes=1,
    num_params=2,
    num_vocab=3,
    context_length=4096,
    context_length_trained=8192,
    max_sequences=8,
    memory_kind=MemoryKind.FULL_ATTENTION,
    supports_tools=True,
    supports_reasoning=False,
    sampling=SamplingParams(),
    devices=(DeviceInfo("CPU", "a processor", "cpu", 10, 5),),
    llama_cpp_commit="abc1234",
    load_ms=1234.56,
    num_parallel=4,
)


class OneModel(FakeBackend):
    """A backend with one model in a given state."""

    def __init__(
        self, state: WorkerState, *, info: ModelInfo | None = None, worker: WorkerStatus | None = None
    ) -> None:
        super().__init__(models=(INFO.name,))
        self.status = ModelStatus(INFO.name, state, 0.5, info, worker, 4711, 2, "signal 9")

    def statuses(self) -> list[ModelStatus]:
        return [self.status]


class Answering(FakeBackend):
    """A backend that answers queries with `answer`, raises it, or waits until `gate` is set."""

    def __init__(self, models: tuple[str, ...] = ("fake",)) -> None:
        super().__init__(models=models)
        self.answer: QueryAnswer | Exception | None = None  # None: answer as FakeBackend does
        self.asked, self.gate, self.left = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.gate.set()

    def reset(self) -> None:
        """Restore the initial state, except for queries that are still open."""
        self.answer = None
        self.asked.clear()
        self.gate.set()
        self.left.clear()
        self.unloaded.clear()

    async def ask(self, name: str, query: TextQuery) -> QueryAnswer:
        self.asked.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.left.set()
            raise
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer or await super().ask(name, query)
