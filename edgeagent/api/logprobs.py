"""How the probabilities of tokens look on the wire, in both of OpenAI's APIs."""

from __future__ import annotations

from collections.abc import Sequence

from edgeagent.types import TokenLogprob

# JSON has no -inf; OpenAI writes this for a token that could not come.
_MIN_LOGPROB = -9999.0

Body = dict[str, object]


def token_logprobs(tokens: Sequence[TokenLogprob]) -> list[Body]:
    """Return tokens with their log-probabilities, and those of each one's likeliest rivals."""
    return [{**_body(token), "top_logprobs": [_body(rival) for rival in token.top]} for token in tokens]


def _body(token: TokenLogprob) -> Body:
    return {
        "token": token.piece.decode(errors="replace"),
        "logprob": max(token.logprob, _MIN_LOGPROB),
        "bytes": list(token.piece),
    }
