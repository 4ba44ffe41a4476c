"""An answer cache in front of a scripted backend that has a model with a real file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from edgeagent.answers.answers import Answers
from edgeagent.answers.seal import Seal
from edgeagent.answers.store import EmbeddedStore
from edgeagent.config import AnswersConfig
from edgeagent.types import (
    AnswerPolicy,
    CachePolicy,
    GenerateRequest,
    ModelFile,
    ModelStatus,
    SamplingParams,
    TextPrompt,
    WorkerState,
    replace,
)
from edgeagent.worker.parent.pool.loading import identity
from tests.backends.fake import FakeBackend, Script, echo
from tests.patience import patient

GREEDY = SamplingParams(temperature=0)
SEAL = Seal(bytes(32))


class ModelBackend(FakeBackend):
    """A FakeBackend whose models have the file `path`. `reload` loads it again."""

    def __init__(self, path: Path, script: Script = echo, models: tuple[str, ...] = ("fake",)) -> None:
        super().__init__(script, models)
        self._path = path
        self._loaded = identity(path)

    def statuses(self) -> list[ModelStatus]:
        """Return the models, ready, with their file."""
        files = {"": ModelFile(str(self._path), self._loaded)}
        return [replace(status, files=files, state=WorkerState.READY) for status in super().statuses()]

    def reload(self, name: str) -> None:
        """Load the present file."""
        super().reload(name)
        self._loaded = identity(self._path)


def asking(request_id: str, text: str = "one two", client: str = "", **given: Any) -> GenerateRequest:
    """Return a greedy request that may use the cache."""
    cache = CachePolicy(partition=client, answers=AnswerPolicy.USE)
    fields: dict[str, Any] = {"sampling": GREEDY, "cache": cache, "client": client} | given
    return GenerateRequest(request_id, "fake", TextPrompt(text), **fields)


@asynccontextmanager
async def caching(
    backend: FakeBackend, path: Path | None = None, budget_s: float = patient(10), **options: Any
) -> AsyncIterator[Answers]:
    """Yield a cache in front of a backend, with its store in a file, or in memory."""
    config = AnswersConfig(**({"exact": True} | options))
    store = EmbeddedStore(path, SEAL, config, budget_s=budget_s)
    answers = Answers(backend, store, SEAL, config, patient(10), look_s=0.0)
    await answers.start()
    try:
        yield answers
    finally:
        await answers.close()
