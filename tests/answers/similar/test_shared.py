"""Machines that share a log at a real server know the same questions, and learn one boundary and one error."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace as replaced
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edgeagent.answers.lookup import Found
from edgeagent.answers.redis_store import RedisStore
from edgeagent.answers.seal import Seal
from edgeagent.answers.similar import similar_answers
from edgeagent.answers.similar.events import Compared
from edgeagent.answers.similar.guards import refusal
from edgeagent.answers.similar.index import Vector, as_bytes
from edgeagent.answers.similar.similar_answers import SimilarAnswers
from edgeagent.config import AnswersConfig
from edgeagent.errors import BackendUnavailable
from edgeagent.types import GenerateRequest, Message, Sink, WorkerState, replace
from tests.answers.redis_server import RedisServer
from tests.answers.similar.paraphrases import stream
from tests.answers.similar.test_similar import SYSTEM, question
from tests.answers.test_redis import key, opened
from tests.answers.test_store import answer

NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def reads_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each machine read the log for each question."""
    monkeypatch.setattr(similar_answers, "_FRESH_S", 0.0)


def two_wordings() -> tuple[str, str]:
    """Return two questions that no guard keeps apart."""
    asked = [each.text for each in stream("museum", 1, 400)]
    pairs: Iterator[tuple[str, str]] = itertools.combinations(dict.fromkeys(asked), 2)
    return next((first, second) for first, second in pairs if not refusal(second, first))


FIRST, SECOND = two_wordings()


class Embedder:
    """A service whose embedding model gives both wordings nearly one vector, and whose other models are busy."""

    def __init__(self) -> None:
        self.models: Any = self
        self.sha256 = "one file"

    async def locate(self, name: str) -> None: ...

    async def ask(self, name: str, query: Any) -> Any:
        vector = self.vector(query.inputs[0].text)
        return SimpleNamespace(embeddings=[SimpleNamespace(vector=as_bytes(vector))])

    def vector(self, text: str) -> Vector:
        random = np.random.default_rng(5)
        made = random.standard_normal(64)
        made += (0.01 if text == SECOND else 0.0) * random.standard_normal(64)
        return np.asarray(made / np.linalg.norm(made), np.float32)

    def statuses(self) -> list[Any]:
        name = "all-minilm-l6-v2"
        ready = WorkerState.READY
        return [SimpleNamespace(names=(name,), name=name, sha256=self.sha256, num_live=0, is_remote=False, state=ready)]

    async def generate(self, request: GenerateRequest, sink: Sink) -> None:
        raise BackendUnavailable("it is busy")


class Machine:
    """What one machine knows of similar questions."""

    def __init__(self, store: RedisStore, max_error: float) -> None:
        self.store, self.service = store, Embedder()
        options = AnswersConfig(similar=True, max_error=max_error)
        seal: Seal = store._seal
        service: Any = self.service
        self.similar = SimilarAnswers(service, store, seal, options, None, "remote", log=store)

    async def find(self, text: str) -> Found | None:
        """Ask a question; return the kept answer that is given to it."""
        asked = question(SYSTEM, Message("user", text))
        request = replace(asked.request, id=f"request {next(NUMBERS)}")
        self.asked = replaced(asked, request=request)
        found = await self.similar.find(self.asked)
        return found if found is not None and self.similar.give(self.asked, found) else None

    async def learn(self, text: str, number: int) -> None:
        """Ask a question that the model answers; its answer is kept."""
        assert await self.find(text) is None
        self.store.put(key(number), answer(number))
        self.similar.learn(self.asked, key(number), answer(number))
        await self.similar.settled()
        await asyncio.gather(*self.similar._writes)

    @property
    def known(self) -> Any:
        memory = self.similar.memory
        return (
            memory.num_questions,
            {each: known.state() for each, known in memory.boundaries.items()},
            memory.test.state(),
            memory.is_off,
        )


@asynccontextmanager
async def machine(server: RedisServer, folder: Path, max_error: float = 0.5) -> AsyncIterator[Machine]:
    async with opened(server, folder) as store:
        made = Machine(store, max_error)
        await made.similar.start()
        try:
            yield made
        finally:
            await made.similar.close()


async def test_what_one_machine_asked_is_found_on_another(empty: RedisServer, tmp_path: Path) -> None:
    async with machine(empty, tmp_path / "a") as one, machine(empty, tmp_path / "b") as other:
        await one.learn(FIRST, 1)
        found = await other.find(SECOND)
        assert found is not None and (found.key, found.answer) == (key(1), answer(1))
        async with machine(empty, tmp_path / "c", max_error=0.01) as stricter:
            assert await stricter.find(SECOND) is None and stricter.known[0] == 0, "it learns apart"
        for event in (Compared(key(1), 0.99, True), Compared(key(1), 0.8, False), Compared(key(1), 0.9, True, 0.5)):
            await other.similar._share(event)
        await one.find(FIRST)
        await other.find(FIRST)
        assert one.known == other.known and one.similar.status()["num_compared"] == 3
        async with machine(empty, tmp_path / "d") as later:
            await later.find(FIRST)
            assert later.known == one.known
    with empty.client() as client:
        [log] = empty.names(b"learned")
        assert FIRST.encode() not in b"".join(fields[b"event"] for _, fields in client.xrange(log))


async def test_an_error_above_the_bound_turns_all_machines_off(empty: RedisServer, tmp_path: Path) -> None:
    async with machine(empty, tmp_path / "a") as one, machine(empty, tmp_path / "b") as other:
        await one.learn(FIRST, 1)
        assert await other.find(SECOND) is not None
        for _ in range(40):
            await one.similar._share(Compared(key(1), 0.99, False, 0.1))
        assert await one.find(SECOND) is None and one.similar.memory.is_off
        assert await other.find(SECOND) is None and other.similar.memory.is_off
        await asyncio.gather(*one.similar._writes, *other.similar._writes)
        with empty.client() as client:
            log = min(empty.names(b"learned"))  # the other has :off behind it
            client.xtrim(log, maxlen=1, approximate=False)
        async with machine(empty, tmp_path / "c") as later:
            await later.find(SECOND)
            assert later.similar.memory.is_off, "also on a machine that does not see why"
            later.similar.forget(None)
            await later.learn(FIRST, 2)
            for each in (one, other):
                found = await each.find(SECOND)
                assert found is not None and found.key == key(2)


async def test_a_forgotten_question_is_forgotten_everywhere(empty: RedisServer, tmp_path: Path) -> None:
    async with machine(empty, tmp_path / "a") as one, machine(empty, tmp_path / "b") as other:
        await one.learn(FIRST, 1)
        assert await other.find(SECOND) is not None
        other.similar.forget([key(1).hex()[:16]])
        await asyncio.gather(*other.similar._writes)
        assert await one.find(SECOND) is None and one.known[0] == other.known[0] == 0


async def test_another_embedding_model_begins_anew(empty: RedisServer, tmp_path: Path) -> None:
    async with machine(empty, tmp_path / "a") as one:
        await one.learn(FIRST, 1)
        one.service.sha256 = "another file"
        assert await one.find(SECOND) is None and one.known[0] == 0
        one.service.sha256 = "one file"
        assert await one.find(SECOND) is not None


async def test_without_the_log_no_answer_is_given_from_similarity(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    try:
        async with machine(server, tmp_path / "a") as one:
            await one.learn(FIRST, 1)
            assert await one.find(SECOND) is not None
            server.stop()
            assert await one.find(SECOND) is None and one.known[0] == 1
    finally:
        server.stop()
