"""Asks a model for the vectors or scores of texts, and checks that there is one vector or score for each text."""

from __future__ import annotations

from collections.abc import Sequence

from edgeagent.errors import InternalError
from edgeagent.service.service import Service
from edgeagent.types import Embed, Embedding, Rerank, Score


async def embed(service: Service, model: str, query: Embed) -> Sequence[Embedding]:
    """Return the vectors, one for each input, in the same order.

    Raise the errors of Service.ask, or InternalError if the number or the length of the vectors is wrong.
    """
    embeddings = (await service.ask(model, query)).embeddings
    lengths = {len(embedding.vector) for embedding in embeddings}
    if len(embeddings) != len(query.inputs) or len(lengths) != 1 or max(lengths) % 4:
        raise InternalError(f"{len(embeddings)} embeddings of {lengths} bytes came for {len(query.inputs)} texts")
    return embeddings


async def score(service: Service, model: str, query: Rerank) -> Sequence[Score]:
    """Return the scores, one for each document, in the same order.

    Raise the errors of Service.ask, or InternalError if the number of scores is wrong.
    """
    scores = (await service.ask(model, query)).scores
    if len(scores) != len(query.documents):
        raise InternalError(f"{len(scores)} scores came for {len(query.documents)} documents")
    return scores
