"""The key of a kept answer: a digest of all that decides what the model answers.

Each field of a request is either in FIELDS or in LEFT_OUT, with the reason. A test compares both with the class, so a
new field cannot be overlooked.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from msgspec import msgpack

from edgeagent import __version__
from edgeagent.config import EngineConfig
from edgeagent.types import GenerateRequest

KEY_BYTES = 32
FORM = 2
"""The form of keys and of kept answers. An answer of another form, or of another version of edgeagent, is not found."""

FIELDS = (
    *("prompt", "sampling", "format", "max_tokens", "stop", "choices", "logprobs", "echo"),
    # What its tier changed in the request is told with the answer.
    "warnings",
)
"""The fields that are in the key as they are."""
LEFT_OUT = {
    "id": "each request has its own",
    "model": "Question.model, its canonical name, is in the key",
    "adapter": "it is part of the model's name",
    "client": "Question.partition is in the key",
    "cache": "Question.partition is in the key; the rest is about prompts",
    "tier": "when it is computed, not what",
    "need": "limits of time; its max_prompt_tokens is in the key, as longest_prompt",
    "max_prompt_tokens": "it is in the key, as longest_prompt",
    "target": "when it is computed, not what",
    "timeout_s": "a limit of time",
    "is_part": "how it is measured",
    "waited_s": "when it is computed, not what",
    "prefill_only": "such a request has no answer",
    "is_ahead": "such a request is not looked up",
    "so_far": "such a request is not looked up",
    "reports_progress": "a kept answer has no progress to report",
    "route": "where it is computed; see rules.kept_elsewhere",
    "asked_route": "where it is computed; see rules.kept_elsewhere",
    "keep_alive_s": "how long the model stays loaded",
    "num_hops": "the way of the request",
    "draft_tokens": "how fast it is computed",
    "is_whole": "in how many pieces it is sent",
}
"""The fields that are not in the key, each with the reason."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a client asks, with all that decides the answer.

    - `model`: its canonical name, with +ADAPTER.
    - `identity`: changes when the file of the model or of the adapter does; REMOTE for a remote's model.
    - `partition`: whose answers these are; see rules.partition_of.
    - `day`: the present date if the model's chat template shows it, else "".
    - `content`: the hash of these files, which is in the key instead of `identity` if machines share a store; else "".
    - `computed`: how the model is computed; see computed_by. "" for a remote's model.
    """

    request: GenerateRequest
    model: str
    identity: str
    partition: str
    day: str = ""
    content: str = ""
    computed: str = ""

    def key(self, secret: bytes) -> bytes:
        """Return the key of its answer. Without the secret, the key does not show what was asked."""
        files = self.content or self.identity
        return digest((self.model, files, self.computed, self.partition, self.day, *_values(self.request)), secret)


def computed_by(config: EngineConfig) -> str:
    """Return what changes a model's numbers beside its files: the owner's options, and the version of llama.cpp.

    It is equal on machines with equal options. The length of the context is among them, since a few models have other
    RoPE factors for long ones.
    """
    try:
        bindings = version("llama-cpp-python")
    except PackageNotFoundError:
        bindings = ""
    options = (config.kv_type_k, config.kv_type_v, config.flash_attention, config.cache_type, config.ctx)
    return " ".join(map(str, (bindings, *options)))


def digest(values: tuple[object, ...], secret: bytes) -> bytes:
    """Return the keyed digest of values that msgpack can encode; types.Struct among them."""
    content = msgpack.encode((FORM, __version__, *values))
    return hashlib.blake2b(content, key=secret, person=b"edgeagent answer", digest_size=KEY_BYTES).digest()


def sharing_key(request: GenerateRequest, model: str) -> bytes:
    """Return what two requests must have in common to share one answer as it comes, as bytes.

    That is more than a kept answer needs: the same client, tier and limits of routing, and the same form of delivery.
    """
    told = (request.client, request.cache.partition, request.tier, request.route, request.asked_route)
    form = (request.num_hops, request.is_whole, request.reports_progress, request.draft_tokens, request.need.token_s)
    return msgpack.encode((model, *told, *form, *_values(request)))


def _values(request: GenerateRequest) -> tuple[object, ...]:
    return (*(getattr(request, name) for name in FIELDS), request.longest_prompt)
