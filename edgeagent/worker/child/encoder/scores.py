"""Turns a ranking model's output for a pair into one score. Pure."""

from __future__ import annotations

import math

from edgeagent.engine.llama.embedder import Rows


def relevance(classes: Rows) -> float:
    """Return how relevant a document is, from 0 to 1.

    `classes` is the model's output for a pair of query and document: one value for each class. If there
    is one class, its value is a logit, which the logistic function maps to a score. If there are several classes, their
    values are probabilities, and the first one is that of "relevant" ("yes" in Qwen3-Reranker).
    """
    first = float(classes[0])
    if len(classes) > 1:
        return first
    # Choose the form of the logistic function that cannot overflow.
    return 1 / (1 + math.exp(-first)) if first >= 0 else math.exp(first) / (1 + math.exp(first))
