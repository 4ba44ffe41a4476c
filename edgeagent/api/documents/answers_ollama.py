"""The shapes of the Ollama API's answers, for the documents."""

from __future__ import annotations

from typing import Literal

from edgeagent.api.documents.answers import OpenAnswer
from edgeagent.api.wire.shape import Json


class OllamaRefusal(OpenAnswer):
    """The body of every error of the Ollama API."""

    error: str


class OllamaVersion(OpenAnswer):
    """The version of Ollama whose API this is."""

    version: str
    edgeagent: str


class OllamaModel(OpenAnswer):
    """A model as Ollama lists it."""

    name: str
    model: str
    size: int
    digest: str
    details: Json


class OllamaModels(OpenAnswer):
    """Models as Ollama lists them."""

    models: list[OllamaModel]


class OllamaDescription(OpenAnswer):
    """A model as Ollama describes it."""

    modelfile: str
    parameters: str
    template: str
    details: Json
    model_info: Json
    capabilities: list[str]
    modified_at: str


class OllamaEnd(OpenAnswer):
    """How a generation of Ollama's API ended; durations are nanoseconds."""

    model: str
    created_at: str
    done: bool
    done_reason: str | None = None


class OllamaChatMessage(OpenAnswer):
    """The model's message."""

    role: Literal["assistant"]
    content: str


class OllamaChat(OllamaEnd):
    """A whole answer, or a line of a stream."""

    message: OllamaChatMessage


class OllamaGeneration(OllamaEnd):
    """A whole answer, or a line of a stream."""

    response: str


class OllamaEmbeddings(OpenAnswer):
    """The vectors, in the order of the texts, each of length 1; durations are nanoseconds."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int


class OllamaEmbedding(OpenAnswer):
    """One text's vector, of length 1."""

    embedding: list[float]


class OllamaPull(OpenAnswer):
    """How far a download is."""

    status: str
