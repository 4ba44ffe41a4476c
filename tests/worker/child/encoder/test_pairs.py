"""The texts that a ranking model reads, with the model's own tokens or in its template; its output as a relevance."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest

from edgeagent.engine.llama.model import Model
from edgeagent.errors import ContextLengthExceeded, InvalidRequest
from edgeagent.text.vocabulary import LongTextVocabulary
from edgeagent.types import Rerank
from edgeagent.worker.child.encoder.host import PairReader, relevance
from tests.text.fake_vocabulary import FakeVocabulary


class _Model(FakeVocabulary):
    bos_token: int | None = None
    eos_token: int | None = None
    separator_token: int | None = None
    context_length_trained = 64
    template: str | None = None

    def metadata(self, key: str) -> str | None:
        assert key == "tokenizer.chat_template.rerank"
        return self.template


def read(model: _Model, query: str, *documents: str, max_tokens: int = 64) -> list[list[int]]:
    vocabulary, control = cast(LongTextVocabulary, model), ["<|end|>"]
    return PairReader(cast(Model, model), vocabulary, control, max_tokens).read(Rerank(query, documents))


def test_the_models_tokens_stand_where_its_vocabulary_wants_them() -> None:
    model = _Model()
    assert read(model, "a", "b", "c") == [[97, 98], [97, 99]]
    model.bos_token, model.separator_token = 1, 2
    assert read(model, "a", "b") == [[1, 97, 2, 98]]
    model.eos_token = 3
    assert read(model, "a", "b") == [[1, 97, 3, 2, 98, 3]]


def test_a_template_is_filled_in_once() -> None:
    model = _Model()
    model.template = "Q:{query} D:{document}<|end|>"
    (end,) = model.tokenize("<|end|>", parse_special=True)
    assert read(model, "{document}", "x") == [[*b"Q:{document} D:x", end]]


def test_a_clients_control_token_stays_text() -> None:
    model = _Model()
    (end,) = model.tokenize("<|end|>", parse_special=True)
    assert end not in read(model, "a", "<|end|>")[0]
    model.template = "{query}|{document}<|end|>"
    (tokens,) = read(model, "<|end|>", "x")
    assert tokens == [*b"<|end|>|x", end]


def test_too_long_names_the_document() -> None:
    with pytest.raises(ContextLengthExceeded, match=r"documents\[1\] has 9 tokens with the query") as caught:
        read(_Model(), "a", "b", "12345678", max_tokens=8)
    assert caught.value.param == "documents[1]"
    assert "a larger --ctx, 64 at most" in caught.value.message


def test_a_pair_without_a_token_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"documents\[0\] and the query have no token"):
        read(_Model(), "", "")


@pytest.mark.parametrize(
    ("classes", "expected"),
    [([0.0], 0.5), ([2.0], 0.880797), ([-2.0], 0.119203), ([1000.0], 1.0), ([-1000.0], 0.0), ([0.75, 0.25], 0.75)],
)
def test_relevance(classes: list[float], expected: float) -> None:
    assert relevance(np.array(classes, np.float32)) == pytest.approx(expected, abs=1e-6)
