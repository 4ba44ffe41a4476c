"""Embeddings and scores: one for each text, or an error."""

from __future__ import annotations

import pytest

from edgeagent.errors import InternalError
from edgeagent.service.live_service import LiveService
from edgeagent.types import Embed, Embedding, QueryAnswer, Rerank, Score, TextPrompt, TextQuery
from tests.backends.fake import FakeBackend

TEXTS = Embed((TextPrompt("a"), TextPrompt("b")))
DOCUMENTS = Rerank("a", ("b", "c"))


class Answering(FakeBackend):
    """A service that gives one answer to every query."""

    def __init__(self, answer: QueryAnswer) -> None:
        super().__init__()
        self.answer = answer

    async def ask(self, name: str, query: TextQuery) -> QueryAnswer:
        return self.answer


def service(answer: QueryAnswer) -> LiveService:
    return LiveService(Answering(answer), lambda request: request)


def of_lengths(*lengths: int) -> QueryAnswer:
    return QueryAnswer(embeddings=tuple(Embedding(bytes(length), 1) for length in lengths))


async def test_vectors_are_returned_in_order() -> None:
    answer = QueryAnswer(embeddings=(Embedding(b"abcd", 1), Embedding(b"efgh", 2)))
    assert await service(answer).embed("fake", TEXTS) == answer.embeddings


@pytest.mark.parametrize("lengths", [(), (4,), (4, 4, 4), (4, 8), (3, 3)])
async def test_wrong_vectors_are_refused(lengths: tuple[int, ...]) -> None:
    with pytest.raises(InternalError, match=f"^{len(lengths)} embeddings"):
        await service(of_lengths(*lengths)).embed("fake", TEXTS)


async def test_scores_are_returned_in_order() -> None:
    answer = QueryAnswer(scores=(Score(0.5, 1), Score(0.25, 2)))
    assert await service(answer).rank("fake", DOCUMENTS) == answer.scores


@pytest.mark.parametrize("num_scores", [0, 1, 3])
async def test_a_wrong_number_of_scores_is_refused(num_scores: int) -> None:
    with pytest.raises(InternalError, match=f"^{num_scores} scores came for 2 documents$"):
        await service(QueryAnswer(scores=(Score(0.5, 1),) * num_scores)).rank("fake", DOCUMENTS)
