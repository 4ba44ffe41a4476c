"""POST /v1/rerank on a fake backend: every form of body, the order of the results, and what is refused."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from edgeagent.errors import NotSupported
from edgeagent.types import QueryAnswer, Rerank, Score
from tests.api.services import Answering
from tests.daemon.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")

DOCUMENTS = ["rain", "sun", "moon"]
SCORES = (Score(0.25, 4), Score(0.75, 3), Score(0.25, 5))


async def rank(daemon: Running, **fields: Any) -> httpx.Response:
    return await daemon.http.post(f"{daemon.url}/v1/rerank", json={"query": "q", "documents": DOCUMENTS} | fields)


@pytest.fixture(autouse=True)
def answering(backend: Answering) -> Answering:
    backend.answer = QueryAnswer(scores=SCORES)
    return backend


async def test_the_most_relevant_comes_first_and_the_earlier_of_equals(daemon: Running, answering: Answering) -> None:
    reply = await rank(daemon)
    assert reply.json() == {
        "object": "list",
        "model": "fake",
        "results": [
            {"index": 1, "relevance_score": 0.75},
            {"index": 0, "relevance_score": 0.25},
            {"index": 2, "relevance_score": 0.25},
        ],
        "usage": {"prompt_tokens": 12, "total_tokens": 12},
    }


async def test_the_best_with_their_texts(daemon: Running) -> None:
    reply = await rank(daemon, documents=["rain", {"text": "sun", "id": 7}, "moon"], top_n=1, return_documents=True)
    assert reply.json()["results"] == [{"index": 1, "relevance_score": 0.75, "document": {"text": "sun"}}]
    assert len((await rank(daemon, top_n=9)).json()["results"]) == 3


async def test_the_question(daemon: Running, backend: Answering) -> None:
    backend.answer = None
    await rank(daemon, documents=["a", {"text": "b"}])
    assert backend.queries[-1] == Rerank("q", ("a", "b"))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"query": ""}, "query"),
        ({"query": None}, "query"),
        ({"documents": []}, "documents"),
        ({"documents": "rain"}, "documents"),
        ({"documents": [7]}, "documents[0]"),
        ({"documents": ["x"] * 2049}, "documents"),
        ({"documents": ["x" * (1 << 20)]}, "documents"),
        ({"top_n": -2}, "top_n"),
    ],
)
async def test_what_is_refused(daemon: Running, fields: dict[str, Any], param: str) -> None:
    reply = await rank(daemon, **fields)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"].startswith(param)


async def test_a_model_that_ranks_nothing(daemon: Running, backend: Answering) -> None:
    backend.answer = NotSupported("This model ranks no documents.", param="model")
    reply = await rank(daemon)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "model")
