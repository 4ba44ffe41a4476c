"""A generation request and its parts. Also queries that generate nothing, such as for embeddings, and their answers."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from msgspec import Struct

from edgeagent.types.routing import AnswerSoFar, RouteMode

Role = Literal["system", "user", "assistant", "tool"]


class Tier(StrEnum):
    """The scheduling tiers of requests, in the order in which they are served.

    OpenAI's `service_tier` sets it: "priority" is REALTIME, "flex" and "batch" are BATCH, all else is INTERACTIVE.
    """

    REALTIME = "realtime"
    INTERACTIVE = "interactive"
    BATCH = "batch"


TIER_RANKS = {tier: rank for rank, tier in enumerate(Tier)}
"""The most urgent tier has 0."""


class Target(Struct, frozen=True):
    """A latency target, in seconds: to the first token (TTFT), and from one token to the next (ITL)."""

    first_token_s: float
    token_s: float


class Need(Struct, frozen=True):
    """What a client asks of the latency of its answer. None: nothing beyond the target of the request's tier.

    `first_token_s`: the latest first token. If it is predicted to come later, the request is refused at once. The
    target of a tier refuses nothing. `token_s`: the longest time from one token to the next. `max_prompt_tokens`: the
    longest prompt. `names_tier`: the request names its tier, so its client is told if it gets another one.
    """

    first_token_s: float | None = None
    token_s: float | None = None
    max_prompt_tokens: int | None = None
    names_tier: bool = False


class ToolCall(Struct, frozen=True):
    """A function call that the model made. `arguments` is the JSON text exactly as generated."""

    id: str
    name: str
    arguments: str


MediaKind = Literal["image", "audio"]

MAX_MEDIA = 64
"""The most images and sounds of a request."""
MAX_MEDIA_BYTES = 20 << 20
"""The most bytes of all images and sounds of a request together. They are sent to the worker in one frame."""


class Media(Struct, frozen=True):
    """An image or a sound as the client sent it: the bytes of a file, not decoded. `digest`: their SHA-256."""

    kind: MediaKind
    data: bytes
    digest: bytes

    def __repr__(self) -> str:
        return f"Media({self.kind!r}, {len(self.data)} bytes, {self.digest.hex()[:12]})"


class MediaPlace(Struct, frozen=True, array_like=True):
    """Where a medium stands in a message: before `content[offset:]`. `index`: which one of ChatPrompt.media it is.

    So a text cannot be taken for a medium, whatever a client writes.
    """

    offset: int
    index: int


class Message(Struct, frozen=True):
    """One message of a conversation. The API replaces the role `developer` by `system`.

    `media`: the images and sounds in it, in the order of their offsets. Only messages of users and tools have any.
    """

    role: Role
    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    media: tuple[MediaPlace, ...] = ()


class Tool(Struct, frozen=True):
    """A function the model may call. `parameters` is the JSON text of its JSON schema.

    If `strict` is not set, keywords that cannot be followed are ignored, and a warning names them.
    """

    name: str
    description: str = ""
    parameters: str = '{"type":"object","properties":{}}'
    strict: bool = False


class ToolChoice(Struct, frozen=True):
    """Whether the model may ("auto"), must ("required") or must not ("none") call tools.

    `names`: the tools that it may call; empty: all.
    """

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] = ()


class ChatPrompt(Struct, frozen=True, tag="chat"):
    """A conversation, rendered by the model's own chat template inside the worker.

    `template_kwargs`: a JSON object, as text, of extra variables for the template, for example enable_thinking. Only
    allow-listed variables are in it.
    `truncate`: if the conversation does not fit the context, leave out its oldest messages.
    `media`: the images and sounds of the messages, which name them by their index.
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    template_kwargs: str = "{}"
    truncate: bool = False
    media: tuple[Media, ...] = ()


class TextPrompt(Struct, frozen=True, tag="text"):
    """Raw text, without a template. With `suffix`, fill in the middle, if the model supports it.

    `parse_special`: the text of a control token becomes that token. `files`: names and texts of other files, which the
    model reads before it fills the gap.
    """

    text: str
    suffix: str | None = None
    parse_special: bool = False
    files: tuple[tuple[str, str], ...] = ()


class TokenPrompt(Struct, frozen=True, tag="tokens"):
    """Token ids, used unchanged."""

    tokens: tuple[int, ...]


Prompt = ChatPrompt | TextPrompt | TokenPrompt


class TextFormat(Struct, frozen=True, tag="text"):
    """Free text."""


class JsonObjectFormat(Struct, frozen=True, tag="json_object"):
    """Any JSON object."""


class JsonSchemaFormat(Struct, frozen=True, tag="json_schema"):
    """JSON that validates against `schema` (JSON text).

    If `strict` is not set, keywords that cannot be followed are ignored, and a warning names them.
    """

    schema: str
    name: str = "response"
    strict: bool = True


OutputFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


class SamplingParams(Struct, frozen=True):
    """How the next token is sampled. None means the model's default in `ModelInfo.sampling`; a seed of None is random.

    temperature 0 is greedy. Penalties count the last `repeat_last_n` tokens. `logit_bias`: pairs of a token id and the
    value that is added to its logit. Order of effect: logit bias, penalties, top-k, top-p, min-p, temperature.
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


class AnswerPolicy(StrEnum):
    """What a request lets the answer cache do: USE also keeps its answer, READ only takes a kept one, NONE neither."""

    USE = "use"
    READ = "read"
    NONE = "none"


class CachePolicy(Struct, frozen=True):
    """What the prefix cache may do with a request, and what the answer cache may do.

    `read`: reuse cached prefixes. `write`: keep this request's tokens in the cache. `partition`: the client whose
    requests share the cached prompt. It is derived from the credential, never from a field that a client sends.
    `persist`: the cache may write to disk. `pin`: keep the prompt cached until it is purged. `lane`: the id of
    a conversation; "" for none. The router keeps its requests at one backend.
    `answers`: what the answer cache may do. A request that no client has sent leaves it out.
    """

    read: bool = True
    write: bool = True
    partition: str = ""
    persist: bool = True
    pin: bool = False
    lane: str = ""
    answers: AnswerPolicy = AnswerPolicy.NONE


HOPS_HEADER = "X-EdgeAgent-Hops"
"""The header that carries `GenerateRequest.num_hops` to a remote. It stops requests that circle between edgeagents."""


MAX_TOOLS = 512
"""The most tools of a request. The daemon refuses more, and so does the worker."""
MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH = 64 << 10, 32
"""Limits of a client's JSON schema, for the daemon and the worker."""
AHEAD_TOKENS = 64
"""The most tokens of an answer that is generated before it is asked for. Speech takes 3 to 4 tokens a second, so these
are 15 s of it: the rest is generated while they are spoken. More would be lost each time that the user goes on."""


class GenerateRequest(Struct, frozen=True):
    """One generation, usually made from a client's body. Later stages pass on copies with some fields set.

    max_tokens: None means until the context is full.
    logprobs: return log probabilities, with this many alternatives for each token; None: return none.
    prefill_only: compute and cache the prompt, but generate nothing.
    is_ahead: compute it before it is needed, in time that no other request uses. With `prefill_only`, the last user
    message may grow: its last word, and what follows it in the prompt, are computed last.
    timeout_s: the most seconds that the whole request may take (None: no limit).
    is_part: the beginning of another request, which is measured as a whole. It counts as an answer only if it fails.
    waited_s: how long its client has waited before the service gets it, behind others or for a summary. It counts in
    `timeout_s` and in `need.first_token_s`; the service subtracts it from them.
    echo: send the text of the prompt first. If `logprobs` is set, the prompt's tokens get log probabilities too, and
    the prompt is not read from the cache.
    reports_progress: send PromptProgress while the prompt is computed.
    route: where the request and its credential allow it to run (None: no limit).
    asked_route: the mode that the request itself names, or its conversation if it names none; `route` may be stricter.
    With REMOTE_ONLY, this machine does not compute the request, whatever `route` is.
    client: the client's name, empty for the owner; see `credentials.keys.Client`.
    so_far: the part of the answer that the client already has. The generation continues it.
    keep_alive_s: from now on, how long the model stays loaded after its last use (None: unchanged; infinity: forever).
    adapter: the adapter to compute with, "" for none. It is set when the request is given to a worker. Until then only
    `model` names the adapter.
    num_hops: how many other edgeagents forwarded the request.
    choices: compute how likely each of these texts is as the whole answer, and generate nothing. Empty: generate.
    draft_tokens: how many tokens to draft at each step, within the engine's limit (0: none; None: the engine chooses).
    is_whole: the client gets the answer as a whole, so its steps may come a moment later, several at once.
    max_prompt_tokens: the longest prompt that its tier allows (None: no limit). `need` may have a smaller limit.
    warnings: in what the request was changed because of its tier; `Started.warnings` begins with them.
    target: the latency to aim at, from `need` and the target of `tier`. The router sets it. None: the worker's own.
    """

    id: str
    model: str
    prompt: Prompt
    sampling: SamplingParams = SamplingParams()
    format: OutputFormat = TextFormat()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    logprobs: int | None = None
    tier: Tier = Tier.INTERACTIVE
    timeout_s: float | None = None
    is_part: bool = False
    waited_s: float = 0.0
    prefill_only: bool = False
    is_ahead: bool = False
    cache: CachePolicy = CachePolicy()
    echo: bool = False
    reports_progress: bool = False
    route: RouteMode | None = None
    asked_route: RouteMode | None = None
    client: str = ""
    so_far: AnswerSoFar | None = None
    keep_alive_s: float | None = None
    adapter: str = ""
    num_hops: int = 0
    draft_tokens: int | None = None
    is_whole: bool = False
    need: Need = Need()
    target: Target | None = None
    max_prompt_tokens: int | None = None
    warnings: tuple[str, ...] = ()

    @property
    def is_unasked(self) -> bool:
        """Whether it is an answer that no client has asked for yet. It may be cancelled at any time."""
        return self.is_ahead and not self.prefill_only

    @property
    def latest_first_token_s(self) -> float | None:
        """Within how many seconds the first token must come. If it cannot, the request is refused. None: no limit."""
        limits = [limit_s for limit_s in (self.need.first_token_s, self.timeout_s) if limit_s is not None]
        return min(limits, default=None)

    @property
    def longest_prompt(self) -> int | None:
        """The most tokens of the prompt: the smaller limit of its tier and its own; None if it has none."""
        limits = (self.max_prompt_tokens, self.need.max_prompt_tokens)
        return min((limit for limit in limits if limit is not None), default=None)


class Tokenize(Struct, frozen=True, tag="tokenize"):
    """A query for the tokens of a text.

    add_bos: begin with the beginning-of-text token, if the model wants one. parse_special: the text of a control token
    becomes that token. with_pieces: return each token's bytes too.
    """

    text: str
    add_bos: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class Detokenize(Struct, frozen=True, tag="detokenize"):
    """A query for the text of tokens, including control tokens."""

    tokens: tuple[int, ...]


class RenderPrompt(Struct, frozen=True, tag="render"):
    """A query for a conversation's prompt: the text that the chat template renders, and that text's tokens.

    Numbers below 0 stand among the tokens for the parts of images and sounds.
    """

    prompt: ChatPrompt


class PurgeCache(Struct, frozen=True, tag="purge"):
    """A command to delete the cached prompts of a partition, or of all partitions if `partition` is None.

    The text of the answer is the number of deleted blocks.
    """

    partition: str | None = None


class Embed(Struct, frozen=True, tag="embed"):
    """A query for the embeddings of texts: for each text a vector, normalized to Euclidean length 1.

    truncate: cut a text that is too long instead of refusing it. dimensions: return only this many of a vector's first
    values (None: all).
    """

    inputs: tuple[TextPrompt | TokenPrompt, ...]
    truncate: bool = False
    dimensions: int | None = None


class Rerank(Struct, frozen=True, tag="rerank"):
    """A query for the relevance of each document to the text `query`. The scores are in the order of the documents."""

    query: str
    documents: tuple[str, ...]


TextQuery = Tokenize | Detokenize | RenderPrompt | PurgeCache | Embed | Rerank


class Embedding(Struct, frozen=True):
    """A text's vector, float32 in little-endian order, and how many tokens were computed for the text."""

    vector: bytes
    num_tokens: int


class Score(Struct, frozen=True):
    """A document's relevance, 0 to 1, and the number of tokens of document and query together."""

    relevance: float
    num_tokens: int


class QueryAnswer(Struct, frozen=True):
    """The answer to a TextQuery. Embed sets `embeddings`, and Rerank `scores`. The others set `text`, `tokens` or both.

    `pieces`: the bytes of each token, if a Tokenize asks for them.
    """

    text: str = ""
    tokens: tuple[int, ...] = ()
    pieces: tuple[bytes, ...] = ()
    embeddings: tuple[Embedding, ...] = ()
    scores: tuple[Score, ...] = ()
