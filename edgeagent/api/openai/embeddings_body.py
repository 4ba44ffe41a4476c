"""The bodies of the routes that make embeddings, OpenAI's and Ollama's: checked, and turned into one question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from edgeagent.api.ollama.body import OPTIONS
from edgeagent.api.openai.text_body import read_tokens
from edgeagent.api.wire.fields import MAX_INT32, Body, between, validate
from edgeagent.api.wire.known_fields import KnownFields
from edgeagent.errors import InvalidRequest
from edgeagent.types import Embed, TextPrompt, TokenPrompt

MAX_INPUTS = 2048
MAX_CHARS = 1 << 20  # of all texts together

Fields = dict[str, Any]
Model = Annotated[str, Field(min_length=1, max_length=512)]


class EmbeddingsBody(Body):
    """OpenAI's: texts, or their token ids, one or many."""

    input: str | list[Any]
    model: Model | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, between(1, MAX_INT32)] | None = None

    def query(self) -> Embed:
        """Return the question; raise InvalidRequest that names the input at fault."""
        return Embed(_read_inputs(self.input, "input"), dimensions=self.dimensions)


class OllamaEmbedBody(Body):
    """Ollama's: a text or several, or none. A text that is too long is cut unless `truncate` is false."""

    model: Model
    input: str | list[str] | None = None
    truncate: bool | None = None
    dimensions: Annotated[int, between(0, MAX_INT32)] | None = None
    options: dict[str, Any] | None = None
    keep_alive: float | str | None = None

    def query(self) -> Embed | None:
        """Return the question, None where only the model is to be loaded; raise InvalidRequest for a wrong input."""
        if not self.input:
            return None
        inputs = _read_inputs(self.input, "input")
        return Embed(inputs, truncate=self.truncate is not False, dimensions=self.dimensions or None)


class OllamaEmbeddingsBody(Body):
    """Ollama's older one: one text or none, cut where it is too long."""

    model: Model
    prompt: str | None = None
    options: dict[str, Any] | None = None
    keep_alive: float | str | None = None

    def query(self) -> Embed | None:
        """Return the question, None where only the model is to be loaded; raise InvalidRequest for a long prompt."""
        if not self.prompt:
            return None
        return Embed(_read_inputs(self.prompt, "prompt"), truncate=True)


KNOWN = KnownFields.of(EmbeddingsBody, "user")
KNOWN_OLLAMA = KnownFields.of(OllamaEmbedBody, options=OPTIONS)
KNOWN_OLLAMA_OLDER = KnownFields.of(OllamaEmbeddingsBody, options=OPTIONS)


def read_embeddings(fields: Fields) -> tuple[EmbeddingsBody, Embed]:
    """Return OpenAI's body, checked, and its question."""
    body = validate(EmbeddingsBody, fields)
    return body, body.query()


def read_ollama_embed(fields: Fields) -> tuple[OllamaEmbedBody, Embed | None]:
    """Return Ollama's body, checked, and its question, if there is one."""
    body = validate(OllamaEmbedBody, fields)
    return body, body.query()


def read_ollama_embeddings(fields: Fields) -> tuple[OllamaEmbeddingsBody, Embed | None]:
    """Return the body of Ollama's older route, checked, and its question, if there is one."""
    body = validate(OllamaEmbeddingsBody, fields)
    return body, body.query()


def _read_inputs(raw: str | Sequence[object], name: str) -> tuple[TextPrompt | TokenPrompt, ...]:
    """Return the inputs: one text, one list of token ids, or a list of either."""
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
