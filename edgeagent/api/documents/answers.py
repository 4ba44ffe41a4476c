"""What routes answer, as the documents show it. The tests hold real answers against these."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, RootModel

from edgeagent.types import WorkerState


class Answer(BaseModel):
    """An object that may have more fields than these."""

    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)


class Error(Answer):
    """What went wrong."""

    message: str
    """What happened, the value, and what to do."""
    type: str
    param: str | None
    """The field at fault."""
    code: str
    """One of the codes in this document's description; they stay what they are."""


class Refusal(Answer):
    """The body of every error, but for the Ollama API's."""

    error: Error


class OllamaRefusal(Answer):
    """The body of every error of the Ollama API."""

    error: str


class HealthError(Answer):
    """Why the daemon is not ready, in llama-server's words."""

    code: int
    message: str
    type: str


class NotHealthy(Answer):
    """The answer of a daemon that is not ready."""

    error: HealthError


class Health(Answer):
    """The daemon is up, and the default model is loaded."""

    status: Literal["ok"]


class Ready(Answer):
    """A token was generated a moment ago."""

    status: Literal["ready"]


class Version(Answer):
    """What runs."""

    version: str
    llama_cpp_commit: str | None
    llama_cpp_python: str | None
    python: str


class ModelDetails(Answer):
    """edgeagent's own part of a model."""

    state: WorkerState


class Model(Answer):
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    edgeagent: ModelDetails


class ModelList(Answer):
    """The models that are served."""

    object: Literal["list"]
    data: list[Model]


class Timings(Answer):
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


class Handover(Answer):
    """A generation that went on elsewhere."""

    after_tokens: int
    reason: str


class Run(Answer):
    """Where a generation ran and why, and the milliseconds of its stages."""

    route: str
    reason: str
    stages_ms: dict[str, float]
    handovers: list[Handover] = []


class ChatUsage(Answer):
    """Token counts of a chat completion."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: dict[str, int]


class ChatFunction(Answer):
    """What the model calls with what; the arguments are JSON text."""

    name: str
    arguments: str


class ChatToolCall(Answer):
    """A call the model makes."""

    id: str
    type: Literal["function"]
    function: ChatFunction


class ChatAnswer(Answer):
    """What the model says."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    tool_calls: list[ChatToolCall] | None = None


class ChatChoice(Answer):
    """One of the answers."""

    index: int
    message: ChatAnswer
    finish_reason: Literal["stop", "length", "tool_calls"]
    logprobs: dict[str, Any] | None


class ChatCompletion(Answer):
    """A whole chat completion. Streamed, it is server-sent events of `chat.completion.chunk`, and `[DONE]`."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: ChatUsage
    timings: Timings
    edgeagent: Run


class TextChoice(Answer):
    """One of the texts."""

    text: str
    index: int
    logprobs: dict[str, Any] | None
    finish_reason: str | None


class TextCompletion(Answer):
    """A whole completion of raw text. Streamed, it is server-sent events of the same shape, and `[DONE]`."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[TextChoice]
    usage: ChatUsage
    timings: Timings
    edgeagent: Run


class TokenPiece(Answer):
    """A token and its text, or its bytes where it is a part of a character."""

    id: int
    piece: str | list[int]


class Tokens(Answer):
    """A text's tokens."""

    tokens: list[int] | list[TokenPiece]


class Content(Answer):
    """The text of tokens."""

    content: str


class RenderedPrompt(Answer):
    """What the model's chat template makes of a conversation."""

    prompt: str


class Props(Answer):
    """The default model's settings, under llama-server's names."""

    default_generation_settings: dict[str, Any]
    total_slots: int
    model_alias: str
    model_path: str
    chat_template: str | None


class Slot(Answer):
    """Room for a request."""

    id: int
    n_ctx: int
    is_processing: bool


class Slots(RootModel[list[Slot]]):
    """As many slots as requests can run at a time."""


class WorkerReport(Answer):
    """What a model's process does."""

    num_running: int
    num_waiting: int
    tokens_per_second: float


class ModelReport(Answer):
    """A model and its process."""

    name: str
    state: WorkerState
    progress: float
    cause: str | None
    pid: int | None
    num_restarts: int
    info: dict[str, Any] | None
    worker: WorkerReport | None


class Status(Answer):
    """What the daemon runs."""

    version: str
    pid: int
    uptime_s: float
    is_draining: bool
    num_connections: int
    num_live_requests: int
    num_requests_total: int
    tokens_per_second: float
    default_model: str
    models: list[ModelReport]


class Stopping(Answer):
    """The daemon drains and ends."""

    status: Literal["stopping"]
    num_live_requests: int


class Reloading(Answer):
    """The model is being loaded anew."""

    status: Literal["reloading"]
    model: str


class CachePart(Answer):
    """What the cache on disk holds of one model and client."""

    model: str | None
    client: str | None
    num_blocks: int
    num_tokens: int
    num_bytes: int
    unused_s: float


class CacheReport(Answer):
    """What the cache on disk holds."""

    dir: str
    parts: list[CachePart]


class Purged(Answer):
    """The prompts are forgotten."""

    status: Literal["purged"]


class Warmed(Answer):
    """The prompt is computed, and kept."""

    num_prompt_tokens: int
    num_cached_tokens: int


class OllamaVersion(Answer):
    """The version of Ollama whose API this is."""

    version: str
    edgeagent: str


class OllamaModel(Answer):
    """A model as Ollama lists it."""

    name: str
    model: str
    size: int
    digest: str
    details: dict[str, Any]


class OllamaModels(Answer):
    """Models as Ollama lists them."""

    models: list[OllamaModel]


class OllamaDescription(Answer):
    """A model as Ollama describes it."""

    modelfile: str
    parameters: str
    template: str
    details: dict[str, Any]
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class OllamaEnd(Answer):
    """How a generation of Ollama's API ended; durations are nanoseconds."""

    model: str
    created_at: str
    done: bool
    done_reason: str | None = None


class OllamaChatMessage(Answer):
    """What the model says."""

    role: Literal["assistant"]
    content: str


class OllamaChat(OllamaEnd):
    """A whole answer, or a line of a stream."""

    message: OllamaChatMessage


class OllamaGeneration(OllamaEnd):
    """A whole answer, or a line of a stream."""

    response: str


class OllamaPull(Answer):
    """How far a download is."""

    status: str


class ResponseDeleted(Answer):
    """A stored response is forgotten."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class ItemPage(Answer):
    """Some of the items that a response answered."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str
    last_id: str
    has_more: bool


class InputTokens(Answer):
    """How long a prompt is."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class Compaction(Answer):
    """A conversation made shorter: `output` is the input of a new one."""

    id: str
    object: Literal["response.compaction"]
    created_at: int
    output: list[dict[str, Any]]
    usage: dict[str, Any]
