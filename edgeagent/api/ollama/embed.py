"""POST /api/embed and its older form /api/embeddings: embeddings of texts, in Ollama's shapes."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Annotated

from fastapi import Request
from pydantic import Field
from starlette.responses import Response

from edgeagent.api.context import context_of
from edgeagent.api.gate.access import client_of, is_owners
from edgeagent.api.ollama.body import OPTIONS, known_name
from edgeagent.api.openai.embeddings import json_response, read_inputs, vectors_json
from edgeagent.api.wire.body import Settings, between, read_body, validate
from edgeagent.api.wire.fields import MAX_INT32, KeepAlive, ModelName
from edgeagent.api.wire.route import Routes
from edgeagent.api.wire.shape import Json, Shape
from edgeagent.api.wire.sse import unless_disconnected
from edgeagent.credentials.keys import Scope
from edgeagent.types import Embed, Embedding


class OllamaEmbedBody(Settings):
    """One or more texts, or no text. A text that is too long is cut unless `truncate` is false."""

    known_options = OPTIONS

    model: ModelName
    input: str | Annotated[list[str], Field(fail_fast=True)] | None = None
    truncate: bool | None = None
    dimensions: Annotated[int, between(0, MAX_INT32)] | None = None
    options: Json | None = None
    keep_alive: KeepAlive | None = None


class OllamaEmbeddingsBody(Settings):
    """The body of the older route. It has at most one text, which is cut if it is too long."""

    known_options = OPTIONS

    model: ModelName
    prompt: str | None = None
    options: Json | None = None
    keep_alive: KeepAlive | None = None


def read_embed(fields: Json) -> tuple[OllamaEmbedBody, Embed | None]:
    """Check a body; return it and its Embed query, which is None if there is no text. Raise InvalidRequest."""
    body = validate(OllamaEmbedBody, fields)
    if not body.input:
        return body, None
    inputs = read_inputs(body.input, "input")
    return body, Embed(inputs, truncate=body.truncate is not False, dimensions=body.dimensions or None)


def read_embeddings(fields: Json) -> tuple[OllamaEmbeddingsBody, Embed | None]:
    """Like `read_embed`, for the body of the older route."""
    body = validate(OllamaEmbeddingsBody, fields)
    return body, Embed(read_inputs(body.prompt, "prompt"), truncate=True) if body.prompt else None


routes = Routes()


class OllamaEmbeddings(Shape):
    """The embeddings in the order of the texts, each normalized to Euclidean length 1. Durations are in nanoseconds."""

    model: str
    total_duration: int
    load_duration: int
    prompt_eval_count: int
    embeddings: list[list[float]]


class OllamaEmbedding(Shape):
    """The embedding of one text, normalized to Euclidean length 1. It is empty if there is no text."""

    embedding: list[float]


@routes.add("POST /api/embed", Scope.INFER, "ollama", body=OllamaEmbedBody, answer=OllamaEmbeddings)
async def create(request: Request) -> Response:
    """Return a vector for each text. Without a text, only load the model.

    A client that disconnects cancels the request.
    """
    began_ns = time.monotonic_ns()
    body, query = await read_body(request, read_embed, OllamaEmbedBody)
    embeddings, loaded_ns = await _embed(request, body, query)
    vectors = await vectors_json(embeddings)
    head: Json = {
        "model": body.model,
        "total_duration": time.monotonic_ns() - began_ns,
        "load_duration": loaded_ns - began_ns,
        "prompt_eval_count": sum(embedding.num_tokens for embedding in embeddings),
    }
    return await json_response(head, "embeddings", vectors)


@routes.add("POST /api/embeddings", Scope.INFER, "ollama", body=OllamaEmbeddingsBody, answer=OllamaEmbedding)
async def create_one(request: Request) -> Response:
    """Return the vector of one text. Without a text, only load the model and return an empty vector.

    A client that disconnects cancels the request.
    """
    body, query = await read_body(request, read_embeddings, OllamaEmbeddingsBody)
    embeddings, _ = await _embed(request, body, query)
    vectors = await vectors_json(embeddings)
    return Response(b'{"embedding":%s}' % (vectors[0] if vectors else b"[]"), media_type="application/json")


async def _embed(
    request: Request, body: OllamaEmbedBody | OllamaEmbeddingsBody, query: Embed | None
) -> tuple[Sequence[Embedding], int]:
    """Load the model and run the query; return the vectors, and the time.monotonic_ns at which the model was loaded.

    If `query` is None, there are no vectors. The body's `keep_alive` has an effect only if the owner sends it. If it is
    0, the model is unloaded after the query.
    """
    service = context_of(request).service
    model = known_name(service, body.model)
    kept_s = body.keep_alive if is_owners(request) else None
    is_unloaded_after = query is not None and kept_s == 0.0
    await _load(request, model, None if is_unloaded_after else kept_s)
    loaded_ns = time.monotonic_ns()
    if query is None:
        return (), loaded_ns
    embeddings = await unless_disconnected(request.receive, service.embed(model, query, client_of(request)))
    if is_unloaded_after:
        await _load(request, model, kept_s)
    return embeddings, loaded_ns


async def _load(request: Request, model: str, kept_s: float | None) -> None:
    """Load a model. `kept_s`: from now on, how many seconds it stays loaded without use; None changes nothing."""
    loading = context_of(request).service.load(model, f"ollama-{secrets.token_hex(12)}", kept_s)
    await unless_disconnected(request.receive, loading)
