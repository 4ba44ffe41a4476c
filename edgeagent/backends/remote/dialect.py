"""What one kind of server takes beside OpenAI's own fields, and how it names itself.

A field that a server does not know is an error with some and ignored by others, so each kind gets only its own.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Penalty = Literal["repetition_penalty", "repeat_penalty"]


class Dialect(Struct, frozen=True):
    """The fields that a kind of server takes.

    `continues`: it continues a last message of the assistant's. `continue_fields`: it must be told to.
    `counts_tokens`: asked to, it counts the answer's tokens in every chunk, which may have several, with their ids.
    `times_tokens`: the same, in llama-server's timings. `penalty`: its name for the repetition penalty. `max_tokens`:
    its name for that limit.
    """

    name: str
    takes_sampling: bool = True
    takes_template_kwargs: bool = True
    takes_token_prompts: bool = False
    takes_cache_salt: bool = False
    continues: bool = False
    continue_fields: bool = False
    counts_tokens: bool = False
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
    reasoning_fields=("reasoning_content", "reasoning"),
)
SGLANG = Dialect("sglang", takes_token_prompts=True, continues=True, continue_fields=True)
# Without the fields newer builds repeat what they continue; older ones do not know them.
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
    """Return the dialect of a server whose models are owned by this, as its /v1/models says."""
    return _BY_OWNER.get(owned_by.lower(), UNKNOWN)
