"""How the log probabilities of tokens look on the wire, in both forms that OpenAI's APIs have."""

from __future__ import annotations

import math
from collections.abc import Sequence

from edgeagent.api.wire.shape import Shape
from edgeagent.types import TokenLogprob

# JSON has no -inf. OpenAI writes this number for a token with probability 0.
_MIN_LOGPROB = -9999.0


class Rival(Shape):
    """A token, its bytes, and its log probability."""

    token: str
    logprob: float
    bytes: list[int]


class Scored(Rival):
    """A token that was generated, and its alternatives: the likeliest tokens at its position."""

    top_logprobs: list[Rival]


class ChatLogprobs(Shape):
    """The log probabilities of an answer's tokens."""

    content: list[Scored]
    refusal: None


class LlamaRival(Rival):
    """A token with its id, as llama-server writes it."""

    id: int


class LlamaScored(LlamaRival):
    """A token that was generated, and the likeliest tokens at its position, as llama-server writes them."""

    top_logprobs: list[LlamaRival]


class TextLogprobs(Shape):
    """Log probabilities of tokens, in lists of equal length. The first token of a prompt has null.

    `text_offset` counts characters. `top_logprobs` is null if none were requested.
    """

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


def token_logprobs(tokens: Sequence[TokenLogprob]) -> list[Scored]:
    """Return the JSON of tokens: each token's log probability, and its alternatives with their log probabilities."""
    return [{**_body(token), "top_logprobs": [_body(alternative) for alternative in token.top]} for token in tokens]


def llama_logprobs(tokens: Sequence[TokenLogprob]) -> list[LlamaScored]:
    """Return the JSON of tokens as `token_logprobs` does, with the tokens' ids."""
    return [
        {**_llama_body(token), "top_logprobs": [_llama_body(alternative) for alternative in token.top]}
        for token in tokens
    ]


def _llama_body(token: TokenLogprob) -> LlamaRival:
    return {"id": token.token, **_body(token)}


def _body(token: TokenLogprob) -> Rival:
    return {
        "token": token.piece.decode(errors="replace"),
        "logprob": max(token.logprob, _MIN_LOGPROB),
        "bytes": list(token.piece),
    }


def legacy_logprobs(tokens: Sequence[TokenLogprob], num_alternatives: int) -> TextLogprobs:
    """Return the field `logprobs` of a completion. The first token of a prompt has None instead of a log probability.

    Each token is among its own alternatives, as in OpenAI's API. If `num_alternatives` is 0, `top_logprobs` is None.
    """
    return {
        "tokens": [_name(token) for token in tokens],
        "token_logprobs": [None if math.isnan(token.logprob) else max(token.logprob, _MIN_LOGPROB) for token in tokens],
        "top_logprobs": [_alternatives(token) for token in tokens] if num_alternatives else None,
        "text_offset": [token.start for token in tokens],
    }


def _alternatives(token: TokenLogprob) -> dict[str, float] | None:
    if math.isnan(token.logprob):
        return None
    return {_name(alternative): max(alternative.logprob, _MIN_LOGPROB) for alternative in (*token.top, token)}


def _name(token: TokenLogprob) -> str:
    """Return a token's text, or `bytes:` and hex codes if its bytes are not whole characters.

    OpenAI does the same. So different tokens have different names.
    """
    try:
        return token.piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.piece)
