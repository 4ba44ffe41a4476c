"""POST /embedding: vectors of texts in llama-server's own shape."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from edgeagent.api.context import context_of
from edgeagent.api.openai.embeddings import read_inputs, vectors_json
from edgeagent.api.openai.text_body import TextsOrTokens
from edgeagent.api.wire.fields import ModelName, Settings, validate
from edgeagent.api.wire.json_body import read_body
from edgeagent.api.wire.known_fields import KnownFields
from edgeagent.api.wire.shape import Json, Shape
from edgeagent.api.wire.sse import unless_disconnected
from edgeagent.errors import InvalidRequest, NotSupported
from edgeagent.types import Embed

_EUCLIDEAN = 2

router = APIRouter()


class EmbeddingBody(Settings):
    """The texts to embed, or their token ids, in `content` or in `input`."""

    content: TextsOrTokens | None = None
    input: TextsOrTokens | None = None
    model: ModelName | None = None
    embd_normalize: int | None = None


class TextEmbedding(Shape):
    """The vector of one text, normalized to Euclidean length 1, as the only one of a list."""

    index: int
    embedding: list[list[float]]


KNOWN = KnownFields.of(EmbeddingBody, "encoding_format", "user")


def read_embedding(fields: Json) -> tuple[EmbeddingBody, Embed]:
    """Check a body; return it and its Embed query. Raise InvalidRequest or NotSupported, which names the field."""
    body = validate(EmbeddingBody, fields)
    if body.embd_normalize not in (None, _EUCLIDEAN):
        raise NotSupported("embd_normalize must be 2: vectors have Euclidean length 1", param="embd_normalize")
    if body.input is not None:
        return body, Embed(read_inputs(body.input, "input"))
    if body.content is None:
        raise InvalidRequest("content is required: a text, token ids, or a list of either", param="content")
    return body, Embed(read_inputs(body.content, "content"))


@router.post("/embedding")
async def create_embedding(request: Request) -> Response:
    """Return a vector for each text. A client that disconnects cancels the request."""
    service = context_of(request).service
    body, query = await read_body(request, read_embedding, KNOWN)
    model = body.model or service.models.default()
    vectors = await vectors_json(await unless_disconnected(request.receive, service.embed(model, query)))
    entries = [b'{"index":%d,"embedding":[%s]}' % (index, vector) for index, vector in enumerate(vectors)]
    return Response(b"[%s]" % b",".join(entries), media_type="application/json")
