"""POST /v1/rerank, in the shape that Jina's and Cohere's clients, llama-server and vLLM share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, NotRequired

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import Field

from edgeagent.api.context import context_of
from edgeagent.api.openai.embeddings import EmbeddingUsage
from edgeagent.api.wire.fields import MAX_INT32, Body, ModelName, Settings, between, validate
from edgeagent.api.wire.json_body import read_body
from edgeagent.api.wire.known_fields import KnownFields
from edgeagent.api.wire.shape import Json, Shape
from edgeagent.api.wire.sse import unless_disconnected
from edgeagent.errors import InvalidRequest
from edgeagent.types import Rerank, Score

MAX_DOCUMENTS = 2048
MAX_CHARS = 1 << 20
"""The most characters of a rerank: those of its documents, plus those of its query once for each document."""

router = APIRouter()


class Document(Body):
    """A document as an object; other fields are ignored."""

    text: str


class RerankBody(Settings):
    """A query and the documents to rank.

    top_n: return only this many of the most relevant documents. return_documents: repeat the documents' texts.
    """

    query: Annotated[str, Field(min_length=1)]
    documents: Annotated[list[str | Document], Field(fail_fast=True, min_length=1, max_length=MAX_DOCUMENTS)]
    model: ModelName | None = None
    top_n: Annotated[int, between(1, MAX_INT32)] | None = None
    return_documents: bool | None = None

    def texts(self) -> tuple[str, ...]:
        """Return the documents' texts."""
        return tuple(document if isinstance(document, str) else document.text for document in self.documents)


class RankedText(Shape):
    """A document's text."""

    text: str


class RankedDocument(Shape):
    """A document's index in the request, its relevance from 0 to 1, and its text if the request asked for texts."""

    index: int
    relevance_score: float
    document: NotRequired[RankedText]


class Ranking(Shape):
    """The documents, the most relevant first."""

    object: Literal["list"]
    model: str
    results: list[RankedDocument]
    usage: EmbeddingUsage


KNOWN = KnownFields.of(RerankBody, "user")


def read_rerank(fields: Json) -> tuple[RerankBody, Rerank]:
    """Check a body; return it, and the Rerank that asks the model for the scores. Raise InvalidRequest."""
    body = validate(RerankBody, fields)
    texts = body.texts()
    num_chars = sum(map(len, texts)) + len(texts) * len(body.query)
    if num_chars > MAX_CHARS:
        raise InvalidRequest(
            f"documents have {num_chars} characters, with the query once for each; at most {MAX_CHARS} at a time",
            param="documents",
        )
    return body, Rerank(body.query, texts)


@router.post("/v1/rerank")
async def rerank(request: Request) -> JSONResponse:
    """Return the documents' relevance, the most relevant first. A client that disconnects cancels the request."""
    service = context_of(request).service
    body, query = await read_body(request, read_rerank, KNOWN)
    model = body.model or service.models.default()
    scores = await unless_disconnected(request.receive, service.rank(model, query))
    num_tokens = sum(score.num_tokens for score in scores)
    ranking: Ranking = {
        "object": "list",
        "model": model,
        "results": _results(body, query.documents, scores),
        "usage": {"prompt_tokens": num_tokens, "total_tokens": num_tokens},
    }
    return JSONResponse(ranking)


def _results(body: RerankBody, documents: Sequence[str], scores: Sequence[Score]) -> list[RankedDocument]:
    """Return the `top_n` most relevant documents. Documents of equal relevance stay in the request's order."""
    order = sorted(range(len(scores)), key=lambda index: (-scores[index].relevance, index))
    results: list[RankedDocument] = []
    for index in order[: body.top_n]:
        result: RankedDocument = {"index": index, "relevance_score": scores[index].relevance}
        if body.return_documents:
            result["document"] = {"text": documents[index]}
        results.append(result)
    return results
