"""POST /v1/embeddings, and how vectors become JSON."""

from __future__ import annotations

import asyncio
import base64
import sys
from array import array
from collections.abc import Sequence
from typing import Literal

from fastapi import APIRouter, Request
from pydantic_core import to_json
from starlette.responses import Response

from edgeagent.api.context import context_of
from edgeagent.api.openai.embeddings_body import KNOWN, read_embeddings
from edgeagent.api.wire.json_body import read_body
from edgeagent.api.wire.shape import Shape
from edgeagent.api.wire.sse import unless_disconnected
from edgeagent.types import Embedding

router = APIRouter()


class EmbeddingEntry(Shape):
    """The embedding of one text, normalized to Euclidean length 1: numbers, or little-endian float32 in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(Shape):
    """Token counts of all texts together."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsHead(Shape):
    """The fields of the answer except the vectors."""

    object: Literal["list"]
    model: str
    usage: EmbeddingUsage


class Embeddings(EmbeddingsHead):
    """The vectors, in the order of the texts."""

    data: list[EmbeddingEntry]


@router.post("/v1/embeddings")
async def create_embeddings(request: Request) -> Response:
    """Return a vector for each text. A client that disconnects cancels the request."""
    service = context_of(request).service
    body, query = await read_body(request, read_embeddings, KNOWN)
    model = body.model or service.models.default()
    embeddings = await unless_disconnected(request.receive, service.embed(model, query))
    is_base64 = body.encoding_format == "base64"
    entries = [
        b'{"object":"embedding","index":%d,"embedding":%s}' % (index, vector)
        for index, vector in enumerate(await vectors_json(embeddings, is_base64=is_base64))
    ]
    num_tokens = sum(embedding.num_tokens for embedding in embeddings)
    usage = EmbeddingUsage(prompt_tokens=num_tokens, total_tokens=num_tokens)
    return json_response(EmbeddingsHead(object="list", model=model, usage=usage), b'"data":[%s]' % b",".join(entries))


async def vectors_json(embeddings: Sequence[Embedding], *, is_base64: bool = False) -> list[bytes]:
    """Return each vector as JSON text: an array of numbers, or a string of little-endian float32 in base64.

    Millions of numbers take about a second, so the event loop can run other tasks after each vector.
    """
    written: list[bytes] = []
    for embedding in embeddings:
        written.append(_base64(embedding.vector) if is_base64 else _numbers(embedding.vector))
        await asyncio.sleep(0)
    return written


def json_response(fields: Shape, member: bytes) -> Response:
    """Answer with the JSON object `fields` and one more member. `member` is JSON text, for example b'"data":[]'."""
    return Response(b"%s,%s}" % (to_json(fields)[:-1], member), media_type="application/json")


def _base64(vector: bytes) -> bytes:
    return b'"%s"' % base64.b64encode(vector)


def _numbers(vector: bytes) -> bytes:
    numbers = array("f", vector)
    if sys.byteorder == "big":
        numbers.byteswap()
    return to_json(numbers.tolist(), inf_nan_mode="null")
