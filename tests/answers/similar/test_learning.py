"""What the lookup by similarity learns from the model's own answers, and whose questions it keeps."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from edgeagent.answers.answers import Answers
from edgeagent.answers.similar.similar_answers import SimilarAnswers
from edgeagent.service.client_sink import Ending
from edgeagent.types import (
    AnswerPolicy,
    ChatPrompt,
    Embed,
    Embedding,
    GenerateRequest,
    Message,
    QueryAnswer,
    Started,
    TextDelta,
    TextQuery,
    replace,
)
from tests.answers.caches import SEAL, ModelBackend, asking, caching
from tests.answers.test_answers import replace_file
from tests.backends.fake import Act, Gate, finished
from tests.patience import patient


class OneVector(ModelBackend):
    """A backend whose embedding model finds all texts alike. It answers a question once that was embedded."""

    def __init__(self, path: Path) -> None:
        self.embedded = Gate()
        super().__init__(path, self._answer)

    def _answer(self, request: GenerateRequest) -> Iterable[Act]:
        self.embedded = Gate()
        return Started(3, 0), self.embedded, TextDelta("Downstairs."), finished()

    async def ask(self, name: str, query: TextQuery) -> QueryAnswer:
        """Return one vector for all texts."""
        if not isinstance(query, Embed):
            return await super().ask(name, query)
        self.embedded.opened.set()
        return QueryAnswer(embeddings=(Embedding(struct.pack("<4f", 1, 0, 0, 0), 4),))


async def ask(answers: Answers, text: str, policy: AnswerPolicy) -> str:
    """Ask, and return the kind of the kept answer; "" if the model answered."""
    request = asking(text)
    prompt, cache = ChatPrompt((Message("user", text),)), replace(request.cache, answers=policy)
    ending = Ending()
    await answers.generate(replace(request, prompt=prompt, cache=cache), ending)
    assert ending.finished is not None
    origin = ending.finished.timings.origin
    return "" if origin is None else origin.kind


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(patient(10)):
        while not condition():  # noqa: ASYNC110 what is learned is learned in the background, without an event
            await asyncio.sleep(0.001)


async def test_a_client_that_only_reads_teaches_and_leaves_nothing(model_file: Path) -> None:
    backend = OneVector(model_file)
    async with caching(backend, similar=True, embedding_model="fake", max_error=0.1) as answers:
        similar = SimilarAnswers(backend, answers.store, SEAL, answers.options, None, "remote")
        answers.similar = similar
        await similar.start()
        assert await ask(answers, "Where are the toilets?", AnswerPolicy.USE) == ""
        await until(lambda: similar.memory.num_questions == 1)
        assert await ask(answers, "Hello, where are the toilets?", AnswerPolicy.READ) == ""
        await until(lambda: similar.memory.boundary.num_observed == 1)
        await similar.settled()
        assert similar.memory.boundary.num_wrong == 0
        assert similar.memory.num_questions == answers.store.num_answers == 1
        # Their vectors are equal, so one right answer is enough for this bound.
        assert await ask(answers, "Hi, where are the toilets?", AnswerPolicy.READ) == "similar"


async def test_a_lookup_that_fails_leaves_the_question_to_the_model(
    model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = OneVector(model_file)
    async with caching(backend, similar=True, embedding_model="fake") as answers:
        similar = SimilarAnswers(backend, answers.store, SEAL, answers.options, None, "remote")
        answers.similar = similar
        await similar.start()

        def fail(*_: object) -> None:
            raise ArithmeticError("what nobody thought of")

        monkeypatch.setattr(similar.memory, "look_up", fail)
        assert await ask(answers, "Where are the toilets?", AnswerPolicy.USE) == ""
        assert similar.status()["trouble"] == "what nobody thought of"


async def test_what_is_forgotten_before_it_is_learned_is_not_learned(model_file: Path) -> None:
    backend = OneVector(model_file)
    async with caching(backend, similar=True, embedding_model="fake") as answers:
        similar = SimilarAnswers(backend, answers.store, SEAL, answers.options, None, "remote")
        answers.similar = similar  # it is not started, so what is to be learned waits
        assert await ask(answers, "Where are the toilets?", AnswerPolicy.USE) == ""
        assert await answers.forget("") == 1
        await similar.start()
        await similar.settled()
        assert similar.memory.num_questions == 0


async def test_another_file_of_the_embedding_model_begins_anew(model_file: Path) -> None:
    backend = OneVector(model_file)
    async with caching(backend, similar=True, embedding_model="fake") as answers:
        similar = SimilarAnswers(backend, answers.store, SEAL, answers.options, None, "remote")
        answers.similar = similar
        await similar.start()
        for text in ("Where are the toilets?", "When is lunch?"):
            assert await ask(answers, text, AnswerPolicy.USE) == ""
        await similar.settled()
        assert similar.memory.num_questions == 2
        replace_file(model_file)
        backend.reload("fake")
        assert await ask(answers, "Where is the exit?", AnswerPolicy.USE) == ""
        await similar.settled()
        assert similar.memory.num_questions == 1
