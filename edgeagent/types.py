"""The values that cross package and process boundaries. No behaviour, no I/O.

They are msgspec structs rather than dataclasses because most of them travel down the worker's pipe as they are, and
msgspec encodes tagged unions of structs only. Field names are the wire names on that pipe. JSON documents whose shape
is the client's business (tool parameters, schemas, arguments) travel as JSON text.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace as replace  # these values with some fields changed, for all who have them

Role = Literal["system", "user", "assistant", "tool"]


class Tier(StrEnum):
    """How urgent a request is; order of service among waiting prompts follows the order given here."""

    REALTIME = "realtime"
    INTERACTIVE = "interactive"
    BATCH = "batch"


class FinishReason(StrEnum):
    """Why a response ended. An error is an exception, not a finish reason."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CANCELLED = "cancelled"


# --- what a client asked -----------------------------------------------------------------------------------------


class ToolCall(Struct, frozen=True):
    """A call the model made. `arguments` is JSON text exactly as generated."""

    id: str
    name: str
    arguments: str


class Message(Struct, frozen=True):
    """One turn of a conversation. `developer` is folded into `system` at the edge."""

    role: Role
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


class Tool(Struct, frozen=True):
    """A function the model may call. `parameters` is the JSON text of its JSON schema."""

    name: str
    description: str = ""
    parameters: str = '{"type":"object","properties":{}}'
    strict: bool = False


class ToolChoice(Struct, frozen=True):
    """Whether tools may, must or must not be called; `names` narrows the set (empty: all)."""

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] = ()


class ChatPrompt(Struct, frozen=True, tag="chat"):
    """A conversation, rendered by the model's own chat template inside the worker.

    `template_kwargs` is JSON text of an object with allow-listed extra template variables (enable_thinking and such).
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    template_kwargs: str = "{}"


class TextPrompt(Struct, frozen=True, tag="text"):
    """Raw text, no template. With `suffix`, fill in the middle, where the model can."""

    text: str
    suffix: str | None = None
    parse_special: bool = False


class TokenPrompt(Struct, frozen=True, tag="tokens"):
    """Token ids, taken as they are."""

    tokens: tuple[int, ...]


Prompt = ChatPrompt | TextPrompt | TokenPrompt


class TextFormat(Struct, frozen=True, tag="text"):
    """Free text."""


class JsonObjectFormat(Struct, frozen=True, tag="json_object"):
    """Any JSON object."""


class JsonSchemaFormat(Struct, frozen=True, tag="json_schema"):
    """JSON that validates against `schema` (JSON text)."""

    schema: str
    name: str = "response"
    strict: bool = True


OutputFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


class SamplingParams(Struct, frozen=True):
    """How the next token is drawn. None means the model's own default (`ModelInfo.sampling`, which lacks only a seed).

    temperature 0 is greedy. Penalties look at the last `repeat_last_n` tokens. Order of effect: logit bias, penalties,
    top-k, top-p, min-p, temperature (llama.cpp's default chain).
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()


class CachePolicy(Struct, frozen=True):
    """What the prefix cache may do with a request. `partition` is derived from the credential, never from a field.

    Without `persist` nothing of it goes to disk; with `pin` its prompt stays until it is purged.
    """

    read: bool = True
    write: bool = True
    partition: str = ""
    persist: bool = True
    pin: bool = False


class GenerateRequest(Struct, frozen=True):
    """One generation, as typed at the edge and carried unchanged to the worker.

    max_tokens None: until the context is full. logprobs None: off; n: the chosen token and the n likeliest others.
    prefill_only: compute and cache the prompt, produce nothing. timeout_s bounds the whole request. echo: the prompt's
    own text comes first, with the log probabilities of its tokens where `logprobs` asks for them (then nothing of the
    prompt is read from the cache). reports_progress: say how much of the prompt is computed while it is.
    """

    id: str
    model: str
    prompt: Prompt
    sampling: SamplingParams = SamplingParams()
    format: OutputFormat = TextFormat()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    tier: Tier = Tier.INTERACTIVE
    timeout_s: float | None = None
    prefill_only: bool = False
    cache: CachePolicy = CachePolicy()
    echo: bool = False
    reports_progress: bool = False


# --- what a client asks of a model's text tools, without generating ------------------------------------------------


class Tokenize(Struct, frozen=True, tag="tokenize"):
    """The tokens of a text. add_bos: the beginning token first, where the model wants one."""

    text: str
    add_bos: bool = False
    parse_special: bool = True


class Detokenize(Struct, frozen=True, tag="detokenize"):
    """The text of tokens, control tokens' too."""

    tokens: tuple[int, ...]


class RenderPrompt(Struct, frozen=True, tag="render"):
    """The text that a model's chat template makes of a conversation, and its tokens."""

    prompt: ChatPrompt


class PurgeCache(Struct, frozen=True, tag="purge"):
    """Not about text: forget the cached prompts of a partition, None: of all. The answer's text is how many went."""

    partition: str | None = None


TextQuery = Tokenize | Detokenize | RenderPrompt | PurgeCache


class TextAnswer(Struct, frozen=True):
    """What a TextQuery asked for: tokens with the bytes of each, or text, or both."""

    text: str = ""
    tokens: tuple[int, ...] = ()
    pieces: tuple[bytes, ...] = ()


# --- what a backend yields ---------------------------------------------------------------------------------------


class TokenLogprob(Struct, frozen=True, omit_defaults=True):
    """Natural-log probability of one token under the unmodified distribution, and of its likeliest rivals.

    `start`: where its text begins in the content, or in the prompt, in characters. NaN: nothing comes before the token.
    """

    token: int
    piece: bytes
    logprob: float
    top: tuple[TokenLogprob, ...] = ()
    start: int = 0


class Usage(Struct, frozen=True):
    """Token counts; cached is the part of the prompt that was reused instead of computed."""

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_reasoning_tokens: int = 0


class Handover(Struct, frozen=True):
    """A stream that lost its place went on elsewhere, or on the place's successor, after so many output tokens."""

    source: str
    target: str
    num_tokens: int
    reason: str


class Timings(Struct, frozen=True):
    """Milliseconds by stage. `delivery_ms`, `route`/`reason` and `handovers` are filled in outside the worker.

    queue: accepted → taken up by the worker's scheduler; load: wait for the model; render: template and tokenizer;
    cache: lookup and restore; prefill: the prompt's uncached tokens; first_token: accepted → first token sampled;
    decode: first → last token; delivery: mean from leaving the engine to having been written to the client.
    """

    queue_ms: float = 0.0
    load_ms: float = 0.0
    render_ms: float = 0.0
    cache_ms: float = 0.0
    prefill_ms: float = 0.0
    first_token_ms: float = 0.0
    decode_ms: float = 0.0
    delivery_ms: float = 0.0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    route: str = "local"
    reason: str = ""
    handovers: tuple[Handover, ...] = ()


class Started(Struct, frozen=True, tag="started"):
    """The prompt is rendered, tokenized, looked up in the cache and being computed."""

    num_prompt_tokens: int
    num_cached_tokens: int


class PromptProgress(Struct, frozen=True, tag="progress"):
    """So many of the prompt's tokens are computed or were cached. Comes only where `reports_progress` is set."""

    num_tokens: int


class PromptText(Struct, frozen=True, tag="prompt"):
    """More of the prompt itself, before any of the answer. Comes only where `echo` is set."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class TextDelta(Struct, frozen=True, tag="text"):
    """More of the answer: whole UTF-8 characters, no part of a stop string."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class ReasoningDelta(Struct, frozen=True, tag="reasoning"):
    """More of the model's reasoning."""

    text: str


class ToolCallStarted(Struct, frozen=True, tag="call"):
    """The model began its `index`-th call; the name is complete."""

    index: int
    id: str
    name: str


class ToolCallDelta(Struct, frozen=True, tag="args"):
    """More JSON text of a call's arguments."""

    index: int
    arguments: str


class Finished(Struct, frozen=True, tag="finished"):
    """The end, exactly once. `stop_string` is the client's stop string that ended it, if one did."""

    reason: FinishReason
    usage: Usage
    timings: Timings
    stop_string: str | None = None


Delta = Started | PromptProgress | PromptText | TextDelta | ReasoningDelta | ToolCallStarted | ToolCallDelta | Finished


class Step(Struct, frozen=True):
    """What one engine step brought a request: deltas in order, the token ids behind them, and when (time.monotonic)."""

    deltas: tuple[Delta, ...]
    tokens: tuple[int, ...] = ()
    at_s: float = 0.0


# --- what is known of a model and its worker -----------------------------------------------------------------------


class MemoryKind(StrEnum):
    """What a model's memory can forget: see `engine.runner`."""

    FULL_ATTENTION = "full_attention"
    SLIDING_WINDOW = "sliding_window"
    RECURRENT = "recurrent"
    HYBRID = "hybrid"


class DeviceInfo(Struct, frozen=True):
    """A compute device as llama.cpp names it."""

    name: str
    description: str
    kind: Literal["cpu", "gpu", "accelerator"]
    memory_total_bytes: int = 0
    memory_free_bytes: int = 0


class ModelInfo(Struct, frozen=True):
    """A loaded model. `sampling` holds the model's defaults, complete but for the seed.

    `sandbox` names what its process may not do, in words.
    """

    name: str
    path: str
    architecture: str
    description: str
    size_bytes: int
    num_params: int
    num_vocab: int
    context_length: int
    context_length_trained: int
    max_sequences: int
    memory_kind: MemoryKind
    has_chat_template: bool
    supports_tools: bool
    supports_reasoning: bool
    sampling: SamplingParams
    devices: tuple[DeviceInfo, ...] = ()
    num_gpu_layers: int = 0
    num_layers: int = 0
    draft: str | None = None
    llama_cpp_commit: str = ""
    system_description: str = ""
    sandbox: tuple[str, ...] = ()
    load_ms: float = 0.0
    chat_template: str = ""
    supports_infill: bool = False


class CacheStatus(Struct, frozen=True):
    """What a tier of the prefix cache holds and has done. `trouble`: why nothing is kept at the moment."""

    num_blocks: int = 0
    num_bytes: int = 0
    max_bytes: int = 0
    num_hits: int = 0
    num_misses: int = 0
    num_offered: int = 0
    num_dropped: int = 0
    num_evicted: int = 0
    read_bytes_per_s: float = 0.0
    trouble: str | None = None


class WorkerStatus(Struct, frozen=True):
    """What a worker reports of itself with every pong.

    Times are time.monotonic; `step_started_at_s` is 0 between steps, `preparing_since_s` while no prompt is prepared.
    """

    num_steps: int = 0
    step_started_at_s: float = 0.0
    preparing_since_s: float = 0.0
    num_running: int = 0
    num_waiting: int = 0
    num_cells_used: int = 0
    num_cells: int = 0
    num_cached_tokens: int = 0
    num_prompt_tokens_total: int = 0
    num_cached_tokens_total: int = 0
    num_tokens_from_memory_total: int = 0
    """Of the cached ones, those that came back from host memory; the others were in cells, or on disk."""
    num_tokens_from_disk_total: int = 0
    num_output_tokens_total: int = 0
    tokens_per_second: float = 0.0
    num_threads: int = 0
    rss_bytes: int = 0
    memory_cache: CacheStatus | None = None
    disk_cache: CacheStatus | None = None


class WorkerState(StrEnum):
    """A worker's life."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    FAILED = "failed"
    QUARANTINED = "quarantined"


UNUSABLE = (WorkerState.FAILED, WorkerState.QUARANTINED)


class ModelStatus(Struct, frozen=True):
    """A model the daemon serves: known, loading, ready, failed or quarantined, and why.

    Failed: it cannot be loaded. Quarantined: it killed its workers. After `retry_after_s` the next request tries again.
    """

    name: str
    state: WorkerState
    progress: float = 0.0
    info: ModelInfo | None = None
    worker: WorkerStatus | None = None
    pid: int | None = None
    num_restarts: int = 0
    cause: str | None = None
    retry_after_s: float | None = None
