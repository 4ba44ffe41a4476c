"""The bodies of Ollama's two routes that make embeddings: checked, and turned into one question."""

from __future__ import annotations

from typing import Annotated

from edgeagent.api.ollama.body import OPTIONS
from edgeagent.api.openai.embeddings_body import read_inputs
from edgeagent.api.wire.fields import MAX_INT32, Body, ModelName, between, validate
from edgeagent.api.wire.known_fields import KnownFields
from edgeagent.api.wire.shape import Json
from edgeagent.types import Embed


class OllamaEmbedBody(Body):
    """A text or several, or none. A text that is too long is cut unless `truncate` is false."""

    model: ModelName
    input: str | list[str] | None = None
    truncate: bool | None = None
    dimensions: Annotated[int, between(0, MAX_INT32)] | None = None
    options: Json | None = None
    keep_alive: float | str | None = None

    def query(self) -> Embed | None:
        """Return the question, None where only the model is to be loaded; raise InvalidRequest for a wrong input."""
        if not self.input:
            return None
        inputs = read_inputs(self.input, "input")
        return Embed(inputs, truncate=self.truncate is not False, dimensions=self.dimensions or None)


class OllamaEmbeddingsBody(Body):
    """The older route's: one text or none, cut where it is too long."""

    model: ModelName
    prompt: str | None = None
    options: Json | None = None
    keep_alive: float | str | None = None

    def query(self) -> Embed | None:
        """Return the question, None where only the model is to be loaded; raise InvalidRequest for a long prompt."""
        if not self.prompt:
            return None
        return Embed(read_inputs(self.prompt, "prompt"), truncate=True)


KNOWN = KnownFields.of(OllamaEmbedBody, options=OPTIONS)
KNOWN_OLDER = KnownFields.of(OllamaEmbeddingsBody, options=OPTIONS)


def read_embed(fields: Json) -> tuple[OllamaEmbedBody, Embed | None]:
    """Return the body, checked, and its question, if there is one."""
    body = validate(OllamaEmbedBody, fields)
    return body, body.query()


def read_embeddings(fields: Json) -> tuple[OllamaEmbeddingsBody, Embed | None]:
    """Return the body of the older route, checked, and its question, if there is one."""
    body = validate(OllamaEmbeddingsBody, fields)
    return body, body.query()
