"""POST /v1/embeddings, and how vectors become JSON."""

from __future__ import annotations

import asyncio
import base64
import sys
from array import array
from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Request
from pydantic_core import to_json
from starlette.responses import Response

from edgeagent.api.context import context_of
from edgeagent.api.openai.text_body import TextsOrTokens, read_tokens
from edgeagent.api.wire.fields import MAX_INT32, ModelName, Settings, between, validate
from edgeagent.api.wire.json_body import read_body
from edgeagent.api.wire.known_fields import KnownFields
from edgeagent.api.wire.shape import Json, Shape
from edgeagent.api.wire.sse import unless_disconnected
from edgeagent.errors import InvalidRequest
from edgeagent.types import Embed, Embedding, TextPrompt, TokenPrompt

MAX_INPUTS = 2048
MAX_CHARS = 1 << 20  # of all texts together


class EmbeddingsBody(Settings):
    """The texts to embed, or their token ids. `dimensions`: return only this many of a vector's first values.

    Unknown fields are ignored.
    """

    input: TextsOrTokens
    model: ModelName | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, between(1, MAX_INT32)] | None = None


KNOWN = KnownFields.of(EmbeddingsBody, "user")


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
