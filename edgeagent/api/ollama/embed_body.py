"""The bodies of Ollama's two routes that make embeddings: checked, and turned into an Embed query."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from edgeagent.api.ollama.body import OPTIONS
from edgeagent.api.openai.embeddings_body import read_inputs
from edgeagent.api.wire.fields import MAX_INT32, KeepAlive, ModelName, Settings, between, validate
from edgeagent.api.wire.known_fields import KnownFields
from edgeagent.api.wire.shape import Json
from edgeagent.types import Embed


class OllamaEmbedBody(Settings):
    """One or more texts, or no text. A text that is too long is cut unless `truncate` is false."""

    model: ModelName
    input: str | Annotated[list[str], Field(fail_fast=True)] | None = None
    truncate: bool | None = None
    dimensions: Annotated[int, between(0, MAX_INT32)] | None = None
    options: Json | None = None
    keep_alive: KeepAlive | None = None


class OllamaEmbeddingsBody(Settings):
    """The body of the older route. It has at most one text, which is cut if it is too long."""

    model: ModelName
    prompt: str | None = None
    options: Json | None = None
    keep_alive: KeepAlive | None = None


KNOWN = KnownFields.of(OllamaEmbedBody, options=OPTIONS)
KNOWN_OLDER = KnownFields.of(OllamaEmbeddingsBody, options=OPTIONS)


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
