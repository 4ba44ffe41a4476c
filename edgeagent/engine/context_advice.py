"""What to do about a prompt that the context does not hold."""

from __future__ import annotations


def longer_context(num_tokens: int, num_trained: int) -> str:
    """Return how so many tokens would fit; beyond `num_trained` (0: not known), no context of this model helps."""
    if not num_trained:
        return "start edgeagent with a larger --ctx"
    if num_tokens > num_trained:
        return f"serve a model that was trained for more than {num_trained} tokens"
    return f"start edgeagent with a larger --ctx, {num_trained} at most"
