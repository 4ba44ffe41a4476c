"""Queries that generate nothing, such as tokenizing, embedding and ranking texts, and their answers."""

from __future__ import annotations

from msgspec import Struct

from edgeagent.types.requests import ChatPrompt, TextPrompt, TokenPrompt


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
    """A query for a conversation's prompt: the text that the chat template renders, and that text's tokens."""

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
