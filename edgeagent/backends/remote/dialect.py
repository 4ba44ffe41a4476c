"""The fields that each kind of server accepts besides OpenAI's own, and the names by which servers are recognised.

Some servers reject unknown fields and others ignore them, so each kind of server gets only the fields it knows.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Penalty = Literal["repetition_penalty", "repeat_penalty"]


class Dialect(Struct, frozen=True):
    """The fields that a kind of server accepts.

    `takes_sampling`: it accepts top_k, min_p and a repetition penalty.
    `takes_token_prompts`: it accepts a prompt of token ids. `takes_cache_salt`: it accepts `cache_salt`.
    `continues`: it can continue a final message with the assistant role. `continue_fields`: the request needs extra
    fields for this.
    `counts_tokens`: on request, every chunk has the number of tokens so far. `returns_ids`: on request, every chunk has
    the ids of its tokens.
    `times_tokens`: on request, every chunk has llama-server's timings, with the number of tokens so far.
    `reasoning_fields`: its names for the reasoning of a message. `penalty` and `max_tokens`: its names for the
    repetition penalty and for the limit on output tokens in chats.
    """

    name: str
    takes_sampling: bool = True
    takes_template_kwargs: bool = True
    takes_token_prompts: bool = False
    takes_cache_salt: bool = False
    continues: bool = False
    continue_fields: bool = False
    counts_tokens: bool = False
    returns_ids: bool = False
    times_tokens: bool = False
    reasoning_fields: tuple[str, ...] = ("reasoning_content",)
    penalty: Penalty = "repetition_penalty"
    has_repeat_last_n: bool = False
    max_tokens: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"


# The server's kind is unknown. Send a field only if the request has it and most servers take it.
UNKNOWN = Dialect("")
VLLM = Dialect(
    "vllm",
    takes_token_prompts=True,
    takes_cache_salt=True,
    continues=True,
    continue_fields=True,
    counts_tokens=True,
    returns_ids=True,
    reasoning_fields=("reasoning_content", "reasoning"),
)
SGLANG = Dialect("sglang", takes_token_prompts=True, continues=True, continue_fields=True, counts_tokens=True)
# Without `continue_fields`, newer builds repeat the message that they continue. Older builds ignore these fields.
LLAMA_SERVER = Dialect(
    "llamacpp",
    takes_token_prompts=True,
    continues=True,
    continue_fields=True,
    times_tokens=True,
    penalty="repeat_penalty",
    has_repeat_last_n=True,
)
EDGEAGENT = Dialect("edgeagent", continues=True, continue_fields=True, penalty="repeat_penalty", has_repeat_last_n=True)
OPENAI = Dialect(
    "openai",
    takes_sampling=False,
    takes_template_kwargs=False,
    reasoning_fields=(),
    max_tokens="max_completion_tokens",
)
_BY_OWNER = {
    "vllm": VLLM,
    "sglang": SGLANG,
    "llamacpp": LLAMA_SERVER,
    "edgeagent": EDGEAGENT,
    "openai": OPENAI,
    "openai-internal": OPENAI,
    "system": OPENAI,
}


def dialect_of(owned_by: str) -> Dialect:
    """Return the dialect of a server from the `owned_by` of its models in /v1/models; UNKNOWN for other values."""
    return _BY_OWNER.get(owned_by.lower(), UNKNOWN)
