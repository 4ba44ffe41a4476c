"""Vectors and ranks of texts: POST /v1/embeddings, llama-server's /embedding, and /v1/rerank."""

from __future__ import annotations

import asyncio
import base64
import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, NotRequired

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import Field
from pydantic_core import to_json
from starlette.responses import Response

from edgeagent.api.context import context_of
from edgeagent.api.gate.access import client_of
from edgeagent.api.openai.text_body import TextsOrTokens, read_tokens
from edgeagent.api.wire.body import Body, Settings, between, read_body, validate
from edgeagent.api.wire.fields import MAX_INT32, ModelName
from edgeagent.api.wire.route import Routes
from edgeagent.api.wire.shape import Json, Shape
from edgeagent.api.wire.sse import unless_disconnected
from edgeagent.credentials.keys import Scope
from edgeagent.errors import InvalidRequest, NotSupported
from edgeagent.types import Embed, Embedding, Rerank, Score, TextPrompt, TokenPrompt

routes = Routes()


MAX_INPUTS = 2048
MAX_CHARS = 1 << 20
"""The most characters of all texts together. A rerank counts its query once for each document."""


class EmbeddingsBody(Settings):
    """The texts to embed, or their token ids. `dimensions`: return only this many of a vector's first values.

    Unknown fields are ignored.
    """

    without_effect = ("user",)

    input: TextsOrTokens
    model: ModelName | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, between(1, MAX_INT32)] | None = None


def read_embeddings(fields: Json) -> tuple[EmbeddingsBody, Embed]:
    """Check a body; return it and its Embed query. Raise InvalidRequest, which names the field or input at fault."""
    body = validate(EmbeddingsBody, fields)
    return body, Embed(read_inputs(body.input, "input"), dimensions=body.dimensions)


def read_inputs(raw: str | Sequence[object], name: str) -> tuple[TextPrompt | TokenPrompt, ...]:
    """Check the inputs to embed, and return them; raise InvalidRequest.

    `raw`: one text, one list of token ids, or a list of texts and lists of token ids. `name`: the field's name, for the
    error.
    """
    match raw:
        case str() | [int(), *_]:
            inputs = [_read_input(raw, name)]
        case []:
            raise InvalidRequest(f"{name} is empty; it must be text, token ids, or a list of either", param=name)
        case _:
            if len(raw) > MAX_INPUTS:
                raise InvalidRequest(f"{name} holds {len(raw)} texts; at most {MAX_INPUTS} at a time", param=name)
            inputs = [_read_input(item, f"{name}[{index}]") for index, item in enumerate(raw)]
    num_chars = sum(len(text.text) for text in inputs if isinstance(text, TextPrompt))
    if num_chars > MAX_CHARS:
        raise InvalidRequest(f"{name} has {num_chars} characters; at most {MAX_CHARS} at a time", param=name)
    return tuple(inputs)


def _read_input(raw: object, path: str) -> TextPrompt | TokenPrompt:
    match raw:
        case "" | []:
            raise InvalidRequest(f"{path} is empty; it must have at least one token", param=path)
        case str():
            return TextPrompt(raw)
        case list():
            return TokenPrompt(read_tokens(raw, path))
    raise InvalidRequest(f"{path} must be text or a list of token ids, not {raw!r:.80}", param=path)


class EmbeddingEntry(Shape):
    """The embedding of one text, normalized to Euclidean length 1: numbers, or little-endian float32 in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(Shape):
    """Token counts of all texts together."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(Shape):
    """The vectors, in the order of the texts."""

    object: Literal["list"]
    model: str
    usage: EmbeddingUsage
    data: list[EmbeddingEntry]


@routes.add("POST /v1/embeddings", Scope.INFER, "openai", body=EmbeddingsBody, answer=Embeddings)
async def create_embeddings(request: Request) -> Response:
    """Return a vector for each text. A client that disconnects cancels the request."""
    service = context_of(request).service
    body, query = await read_body(request, read_embeddings, EmbeddingsBody)
    model = body.model or service.models.default()
    embeddings = await unless_disconnected(request.receive, service.embed(model, query, client_of(request)))
    is_base64 = body.encoding_format == "base64"
    entries = (
        b'{"object":"embedding","index":%d,"embedding":%s}' % (index, vector)
        for index, vector in enumerate(await vectors_json(embeddings, is_base64=is_base64))
    )
    num_tokens = sum(embedding.num_tokens for embedding in embeddings)
    usage = EmbeddingUsage(prompt_tokens=num_tokens, total_tokens=num_tokens)
    return await json_response({"object": "list", "model": model, "usage": usage}, "data", entries)


async def vectors_json(embeddings: Sequence[Embedding], *, is_base64: bool = False) -> list[bytes]:
    """Return each vector as JSON text: an array of numbers, or a string of little-endian float32 in base64.

    Millions of numbers take about a second, so the event loop can run other tasks after each vector.
    """
    written: list[bytes] = []
    for embedding in embeddings:
        vector = embedding.vector
        written.append(b'"%s"' % base64.b64encode(vector) if is_base64 else _numbers(vector))
        await asyncio.sleep(0)
    return written


async def json_response(fields: Json, name: str, entries: Iterable[bytes]) -> Response:
    """Answer with the JSON object `fields` and one more member, a list with these entries, each as JSON text.

    The entries may have tens of megabytes, so they are made and joined beside the event loop.
    """
    head = b'%s,"%s":' % (to_json(fields)[:-1], name.encode())
    return Response(await asyncio.to_thread(_listed, entries, head, b"}"), media_type="application/json")


def _listed(entries: Iterable[bytes], head: bytes = b"", tail: bytes = b"") -> bytes:
    return b"%s[%s]%s" % (head, b",".join(entries), tail)


def _numbers(vector: bytes) -> bytes:
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return to_json(numbers.tolist(), inf_nan_mode="null")


class EmbeddingBody(Settings):
    """The texts to embed, or their token ids, in `content` or in `input`."""

    without_effect = ("encoding_format", "user")

    content: TextsOrTokens | None = None
    input: TextsOrTokens | None = None
    model: ModelName | None = None
    embd_normalize: int | None = None


class TextEmbedding(Shape):
    """The vector of one text, normalized to Euclidean length 1, as the only one of a list."""

    index: int
    embedding: list[list[float]]


def read_embedding(fields: Json) -> tuple[EmbeddingBody, Embed]:
    """Check a body; return it and its Embed query. Raise InvalidRequest or NotSupported, which names the field."""
    body = validate(EmbeddingBody, fields)
    if body.embd_normalize not in (None, 2):
        raise NotSupported("embd_normalize must be 2: vectors have Euclidean length 1", param="embd_normalize")
    if body.input is not None:
        return body, Embed(read_inputs(body.input, "input"))
    if body.content is None:
        raise InvalidRequest("content is required: a text, token ids, or a list of either", param="content")
    return body, Embed(read_inputs(body.content, "content"))


@routes.add("POST /embedding", Scope.INFER, "llama-server", body=EmbeddingBody, answer=list[TextEmbedding])
async def create_embedding(request: Request) -> Response:
    """Return a vector for each text. A client that disconnects cancels the request."""
    service = context_of(request).service
    body, query = await read_body(request, read_embedding, EmbeddingBody)
    model = body.model or service.models.default()
    embeddings = await unless_disconnected(request.receive, service.embed(model, query, client_of(request)))
    vectors = await vectors_json(embeddings)
    entries = (b'{"index":%d,"embedding":[%s]}' % (index, vector) for index, vector in enumerate(vectors))
    return Response(await asyncio.to_thread(_listed, entries), media_type="application/json")


MAX_DOCUMENTS = 2048


class Document(Body):
    """A document as an object; other fields are ignored."""

    text: str


class RerankBody(Settings):
    """A query and the documents to rank.

    top_n: return only this many of the most relevant documents. return_documents: repeat the documents' texts.
    """

    without_effect = ("user",)

    query: Annotated[str, Field(min_length=1)]
    documents: Annotated[list[str | Document], Field(fail_fast=True, min_length=1, max_length=MAX_DOCUMENTS)]
    model: ModelName | None = None
    top_n: Annotated[int, between(1, MAX_INT32)] | None = None
    return_documents: bool | None = None

    def texts(self) -> tuple[str, ...]:
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


@routes.add("POST /v1/rerank", Scope.INFER, "llama-server", body=RerankBody, answer=Ranking)
async def rerank(request: Request) -> JSONResponse:
    """Return the documents' relevance, the most relevant first. A client that disconnects cancels the request."""
    service = context_of(request).service
    body, query = await read_body(request, read_rerank, RerankBody)
    model = body.model or service.models.default()
    scores = await unless_disconnected(request.receive, service.rank(model, query, client_of(request)))
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
