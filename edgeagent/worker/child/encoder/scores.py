"""Turns what a ranking model says of a pair into one number. Pure."""

from __future__ import annotations

import math

from edgeagent.engine.llama.embedder import Rows


def relevance(classes: Rows) -> float:
    """Return how relevant a document is, 0 to 1.

    A model with one class gives a logit, whose logistic function is meant. One with several gives probabilities, of
    which the first is that of "relevant" (Qwen3-Reranker's "yes").
    """
    first = float(classes[0])
    if len(classes) > 1:
        return first
    # Of the two forms of the same function, the one that cannot overflow.
    return 1 / (1 + math.exp(-first)) if first >= 0 else math.exp(first) / (1 + math.exp(first))
