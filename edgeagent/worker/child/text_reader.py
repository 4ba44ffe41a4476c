"""Turns the texts of an Embed into tokens. A text that is too long is refused, or truncated with `Embed.truncate`."""

from __future__ import annotations

from edgeagent.engine.context_room import longer_context
from edgeagent.engine.llama.model import Model
from edgeagent.errors import ContextLengthExceeded, InvalidRequest, NotSupported
from edgeagent.text.vocabulary import LongTextVocabulary
from edgeagent.types import Embed, TextPrompt, TokenPrompt
from edgeagent.worker.child.prompt import check_tokens


class TextReader:
    """Tokenizes an Embed's texts; any thread may use it."""

    def __init__(self, model: Model, vocabulary: LongTextVocabulary, max_tokens: int, length: int) -> None:
        """`max_tokens` limits each text.

        `length` is the number of dimensions of the model's embeddings; 0 if it has none.
        """
        self._model = model
        self._vocabulary = vocabulary
        self._max_tokens = max_tokens
        self._length = length

    def read(self, query: Embed) -> list[list[int]]:
        """Return the tokens of each text; raise InvalidRequest, ContextLengthExceeded or NotSupported."""
        if self._length == 0:
            raise NotSupported(
                "This model gives no embeddings: it ranks documents, for /v1/rerank. Choose another model.",
                param="model",
            )
        if query.dimensions is not None and query.dimensions > self._length:
            raise InvalidRequest(
                f"dimensions is {query.dimensions}, but this model's embeddings have {self._length}; ask for no more",
                param="dimensions",
            )
        is_alone = len(query.inputs) == 1
        return [
            self._read(text, "input" if is_alone else f"input[{index}]", truncate=query.truncate)
            for index, text in enumerate(query.inputs)
        ]

    def _read(self, prompt: TextPrompt | TokenPrompt, name: str, *, truncate: bool) -> list[int]:
        """Return a text's tokens, with the tokens that the model expects at the beginning and at the end.

        Text that spells a control token becomes that token, as in llama-server and Ollama. If the prompt has token ids,
        nothing is added to them.
        """
        head: list[int] = []
        tail: list[int] = []
        match prompt:
            case TokenPrompt(tokens):
                check_tokens(self._model, tokens, name)
                body = list(tokens)
            case TextPrompt(text):
                head, tail = self._model.frame_tokens
                body = self._vocabulary.tokenize(text, parse_special=True)
                # A client that writes these tokens itself must not get them twice.
                head = [] if body[: len(head)] == head else head
                tail = [] if tail and body[-len(tail) :] == tail else tail
        if not head and not body and not tail:
            raise InvalidRequest(f"{name} is empty; it must have at least one token.", param=name)
        num_tokens = len(head) + len(body) + len(tail)
        if num_tokens > self._max_tokens and not truncate:
            raise ContextLengthExceeded(
                f"{name} has {num_tokens} tokens, but at most {self._max_tokens} can be embedded at once. Shorten or "
                f"split it, or {longer_context(num_tokens, self._model.context_length_trained)}.",
                param=name,
                served_by="local",
            )
        return [*head, *body[: self._max_tokens - len(head) - len(tail)], *tail]
