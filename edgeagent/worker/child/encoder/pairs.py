"""Turns a query and its documents into the texts that a ranking model reads, and the model's output into a score."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence

from edgeagent.engine.context_room import longer_context
from edgeagent.engine.llama.embedder import Rows
from edgeagent.engine.llama.model import Model
from edgeagent.errors import ContextLengthExceeded, InvalidRequest
from edgeagent.text.template.rendered import Marker, Rendered, control_pattern, tokenize_rendered
from edgeagent.text.vocabulary import LongTextVocabulary
from edgeagent.types import Rerank

_TEMPLATE_KEY = "tokenizer.chat_template.rerank"
_GAP = re.compile(r"\{(query|document)\}")


class PairReader:
    """Tokenizes pairs of a query and a document; any thread may use it.

    If a model has its own template for pairs, the template is filled in. Otherwise the pair is built as in
    llama-server: BOS query EOS SEP document EOS, without the special tokens that the vocabulary lacks.
    """

    def __init__(
        self, model: Model, vocabulary: LongTextVocabulary, control_texts: Collection[str], max_tokens: int
    ) -> None:
        self._model = model
        self._vocabulary = vocabulary
        self._control = control_pattern(control_texts)
        self._max_tokens = max_tokens
        self._template = model.metadata(_TEMPLATE_KEY)

    def read(self, query: Rerank) -> list[list[int]]:
        """Return the tokens of each pair, in the order of the documents.

        Raise ContextLengthExceeded for a pair that is too long, and InvalidRequest for a pair without tokens.
        """
        pairs = self._filled(query) if self._template is not None else self._joined(query)
        for index, tokens in enumerate(pairs):
            self._check_length(len(tokens), index)
        return pairs

    def _filled(self, query: Rerank) -> list[list[int]]:
        assert self._template is not None
        return [self._fill(self._template, query.query, document) for document in query.documents]

    def _fill(self, template: str, query: str, document: str) -> list[int]:
        """Return the tokens of a filled-in template. Client text that spells a control token stays plain text."""
        marker = Marker(self._control, (query, document))
        texts = {"query": marker.mark(query), "document": marker.mark(document)}
        text = _GAP.sub(lambda gap: texts[gap[1]], template)
        return tokenize_rendered(Rendered(text, marker.split(text)), self._vocabulary)

    def _joined(self, query: Rerank) -> list[list[int]]:
        model = self._model
        head = [] if model.bos_token is None else [model.bos_token]
        end = [] if model.eos_token is None else [model.eos_token]
        between = end if model.separator_token is None else [*end, model.separator_token]
        asked = self._tokens(query.query)
        return [[*head, *asked, *between, *self._tokens(document), *end] for document in query.documents]

    def _tokens(self, text: str) -> Sequence[int]:
        return self._vocabulary.tokenize(text, parse_special=False)

    def _check_length(self, num_tokens: int, index: int) -> None:
        if num_tokens == 0:
            raise InvalidRequest(
                f"documents[{index}] and the query have no tokens; one must have some", param=f"documents[{index}]"
            )
        if num_tokens > self._max_tokens:
            raise ContextLengthExceeded(
                f"documents[{index}] has {num_tokens} tokens with the query, but at most {self._max_tokens} can be "
                "ranked at once. Shorten or split it, or "
                f"{longer_context(num_tokens, self._model.context_length_trained)}.",
                param=f"documents[{index}]",
                served_by="local",
            )


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
