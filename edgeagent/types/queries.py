"""What a client asks of a model's text tools, without generating, and the answer."""

from __future__ import annotations

from msgspec import Struct

from edgeagent.types.requests import ChatPrompt, TextPrompt, TokenPrompt


class Tokenize(Struct, frozen=True, tag="tokenize"):
    """The tokens of a text.

    add_bos: the beginning token first, where the model wants one. with_pieces: the bytes of each token too.
    """

    text: str
    add_bos: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class Detokenize(Struct, frozen=True, tag="detokenize"):
    """The text of tokens, control tokens' too."""

    tokens: tuple[int, ...]


class RenderPrompt(Struct, frozen=True, tag="render"):
    """The text that a model's chat template renders for a conversation, and its tokens."""

    prompt: ChatPrompt


class PurgeCache(Struct, frozen=True, tag="purge"):
    """Not about text: forget the cached prompts of a partition, None: of all. The answer's text is how many went."""

    partition: str | None = None


class Embed(Struct, frozen=True, tag="embed"):
    """The meaning of texts as vectors of length 1, one for each.

    truncate: cut a text that is too long; else it is refused. dimensions: how many of a vector's first numbers to keep.
    """

    inputs: tuple[TextPrompt | TokenPrompt, ...]
    truncate: bool = False
    dimensions: int | None = None


class Rerank(Struct, frozen=True, tag="rerank"):
    """How relevant each document is to a query, in the order of the documents."""

    query: str
    documents: tuple[str, ...]


TextQuery = Tokenize | Detokenize | RenderPrompt | PurgeCache | Embed | Rerank


class Embedding(Struct, frozen=True):
    """A text's vector, float32 in little-endian order, and how many tokens the text had."""

    vector: bytes
    num_tokens: int


class Score(Struct, frozen=True):
    """A document's relevance, 0 to 1, and how many tokens it had with the query."""

    relevance: float
    num_tokens: int


class TextAnswer(Struct, frozen=True):
    """What a TextQuery asked for: tokens, with the bytes of each where asked, or text, or both; or embeddings; or
    scores."""

    text: str = ""
    tokens: tuple[int, ...] = ()
    pieces: tuple[bytes, ...] = ()
    embeddings: tuple[Embedding, ...] = ()
    scores: tuple[Score, ...] = ()
