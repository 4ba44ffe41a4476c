"""What routes answer, as the documents show it. The tests hold real answers against these."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from edgeagent.api.wire.shape import Json
from edgeagent.types import WorkerState


class OpenAnswer(BaseModel):
    """An object that may have more fields than these."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)


class Error(OpenAnswer):
    """What went wrong."""

    message: str
    """What happened, the value, and what to do."""
    type: str
    param: str | None
    """The field at fault."""
    code: str
    """One of the codes in this document's description; they stay what they are."""


class Refusal(OpenAnswer):
    """The body of every error, but for the Ollama API's."""

    error: Error


class ModelDetails(OpenAnswer):
    """edgeagent's own part of a model."""

    state: WorkerState


class Model(OpenAnswer):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    edgeagent: ModelDetails
    parent: str | None = None
    """The model whose LoRA adapter this one is; only such a one has it."""


class ModelList(OpenAnswer):
    """The models that are served."""

    object: Literal["list"]
    data: list[Model]


class Timings(OpenAnswer):
    """llama-server's figures of one generation."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float


class Handover(OpenAnswer):
    """A hand-over: the generation went on with another worker, or at another place."""

    after_tokens: int
    reason: str


class RunsAt(OpenAnswer):
    """Where a generation runs: on this machine or at a remote, under which name there, and why."""

    served_by: str
    model: str
    reason: str
    model_sha256: str | None = None
    host: str | None = None
    region: str | None = None


class Run(OpenAnswer):
    """Where a generation ran and why, and the milliseconds of its stages."""

    route: str
    reason: str
    stages_ms: dict[str, float]
    handovers: list[Handover] = []
    served_by: str | None = None
    model: str | None = None
    model_sha256: str | None = None
    host: str | None = None
    region: str | None = None


class ChatUsage(OpenAnswer):
    """Token counts of a chat completion."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: dict[str, int]


class ChatFunction(OpenAnswer):
    """The function that the model calls; the arguments are JSON text."""

    name: str
    arguments: str


class ChatToolCall(OpenAnswer):
    """A call the model makes."""

    id: str
    type: Literal["function"]
    function: ChatFunction


class ChatAnswer(OpenAnswer):
    """The model's message."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    tool_calls: list[ChatToolCall] | None = None
    function_call: ChatFunction | None = None
    """The call, where the request has `functions` in place of tools."""


class ChatChoice(OpenAnswer):
    """One of the answers."""

    index: int
    message: ChatAnswer
    finish_reason: Literal["stop", "length", "tool_calls", "function_call"]
    logprobs: Json | None


class ChatCompletion(OpenAnswer):
    """A whole chat completion. Streamed, it is server-sent events of `chat.completion.chunk`, and `[DONE]`."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: ChatUsage
    timings: Timings
    edgeagent: Run


class TextChoice(OpenAnswer):
    """One of the texts."""

    text: str
    index: int
    logprobs: Json | None
    finish_reason: str | None


class TextCompletion(OpenAnswer):
    """A whole completion of raw text. Streamed, it is server-sent events of the same shape, and `[DONE]`."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: ChatUsage
    timings: Timings
    edgeagent: Run


class EmbeddingEntry(OpenAnswer):
    """One text's vector, of length 1: numbers, or little-endian float32 in base64."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(OpenAnswer):
    """Token counts of all texts together."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(OpenAnswer):
    """The vectors, in the order of the texts."""

    object: Literal["list"]
    data: list[EmbeddingEntry]
    model: str
    usage: EmbeddingUsage


class RankedText(OpenAnswer):
    """A document's text."""

    text: str


class RankedDocument(OpenAnswer):
    """A document's place in the list that was sent, and its relevance, 0 to 1; its text where that was asked for."""

    index: int
    relevance_score: float
    document: RankedText | None = None


class Ranking(OpenAnswer):
    """The documents, the most relevant first."""

    object: Literal["list"]
    model: str
    results: list[RankedDocument]
    usage: EmbeddingUsage


class ResponseDeleted(OpenAnswer):
    """A stored response is forgotten."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class ItemPage(OpenAnswer):
    """Some of the items that a response answered."""

    object: Literal["list"]
    data: list[Json]
    first_id: str
    last_id: str
    has_more: bool


class InputTokens(OpenAnswer):
    """A prompt's number of tokens."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class Compaction(OpenAnswer):
    """A conversation made shorter: `output` is the input of a new one."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[Json]
    usage: Json
