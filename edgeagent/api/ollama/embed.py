"""POST /api/embed and its older form /api/embeddings: embeddings of texts, in Ollama's shapes."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

from fastapi import APIRouter, Request
from starlette.responses import Response

from edgeagent.api.context import context_of
from edgeagent.api.gate.access import is_owners
from edgeagent.api.ollama.embed_body import KNOWN, KNOWN_OLDER, read_embed, read_embeddings
from edgeagent.api.ollama.wire import known_name
from edgeagent.api.openai.embeddings import embed, json_response, vectors_json
from edgeagent.api.wire.fields import keep_alive_s
from edgeagent.api.wire.json_body import read_body
from edgeagent.api.wire.shape import Shape
from edgeagent.api.wire.sse import unless_disconnected
from edgeagent.types import Embed, Embedding

router = APIRouter()


class OllamaEmbeddingsHead(Shape):
    """The fields of the answer beside the embeddings. Durations are in nanoseconds."""

    model: str
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaEmbeddings(OllamaEmbeddingsHead):
    """The texts' embeddings, in order, each normalized to Euclidean length 1. Durations are in nanoseconds."""

    embeddings: list[list[float]]


class OllamaEmbedding(Shape):
    """The embedding of one text, normalized to Euclidean length 1. It is empty if there is no text."""

    embedding: list[float]


@router.post("/api/embed")
async def create(request: Request) -> Response:
    """Return a vector for each text, with durations in nanoseconds; cancelled if the client disconnects.

    Without a text the model is only loaded.
    """
    began_ns = time.monotonic_ns()
    context = context_of(request)
    body, query = await read_body(request, read_embed, KNOWN)
    model = known_name(context.service, body.model)
    kept_s = _kept_s(request, body.keep_alive)
    await _load(request, model, kept_s, is_used=query is not None)
    loaded_ns = time.monotonic_ns()
    embeddings = () if query is None else await _embed(request, model, query, kept_s)
    vectors = await vectors_json(embeddings)
    head: OllamaEmbeddingsHead = {
        "model": body.model,
        "total_duration": time.monotonic_ns() - began_ns,
        "load_duration": loaded_ns - began_ns,
        "prompt_eval_count": sum(embedding.num_tokens for embedding in embeddings),
    }
    return json_response(head, b'"embeddings":[%s]' % b",".join(vectors))


@router.post("/api/embeddings")
async def create_one(request: Request) -> Response:
    """Return one text's vector, or an empty vector if there is no text; cancelled if the client disconnects."""
    context = context_of(request)
    body, query = await read_body(request, read_embeddings, KNOWN_OLDER)
    model = known_name(context.service, body.model)
    kept_s = _kept_s(request, body.keep_alive)
    await _load(request, model, kept_s, is_used=query is not None)
    if query is None:
        return Response(b'{"embedding":[]}', media_type="application/json")
    embeddings = await _embed(request, model, query, kept_s)
    [vector] = await vectors_json(embeddings)
    return Response(b'{"embedding":%s}' % vector, media_type="application/json")


async def _embed(request: Request, model: str, query: Embed, kept_s: float | None) -> Sequence[Embedding]:
    """Return the vectors. If the model is kept for 0 seconds, unload it afterwards."""
    embeddings = await unless_disconnected(request.receive, embed(context_of(request).service, model, query))
    if kept_s == 0.0:
        await _load(request, model, kept_s)
    return embeddings


async def _load(request: Request, model: str, kept_s: float | None, *, is_used: bool = False) -> None:
    """Load a model, and set how long it stays loaded.

    `is_used`: a request uses the model next, so a `kept_s` of 0 is ignored here.
    """
    kept_s = None if is_used and kept_s == 0.0 else kept_s
    loading = context_of(request).service.load(model, f"ollama-{secrets.token_hex(12)}", kept_s)
    await unless_disconnected(request.receive, loading)


def _kept_s(request: Request, keep_alive: float | str | None) -> float | None:
    """Return how long the model stays loaded from now on; None if the client does not say, or is not the owner."""
    kept_s = None if keep_alive is None else keep_alive_s(keep_alive)
    return kept_s if is_owners(request) else None
