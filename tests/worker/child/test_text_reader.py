"""The texts of an Embed: their first and last tokens, and their maximum length."""

from __future__ import annotations

from typing import cast

import pytest

from edgeagent.engine.llama.model import Model
from edgeagent.errors import ContextLengthExceeded, InvalidRequest, NotSupported
from edgeagent.text.vocabulary import LongTextVocabulary
from edgeagent.types import Embed, TextPrompt, TokenPrompt
from edgeagent.worker.child.prompt import TextReader
from tests.text.fake_vocabulary import FakeVocabulary


class _Model(FakeVocabulary):
    bos_token: int | None = None
    eos_token: int | None = None
    context_length_trained = 9

    @property
    def frame_tokens(self) -> tuple[list[int], list[int]]:
        return ([token] if token is not None else [] for token in (self.bos_token, self.eos_token))  # type: ignore[return-value]


@pytest.fixture
def model() -> _Model:
    return _Model()


def read(
    model: _Model, *inputs: str | tuple[int, ...], max_tokens: int = 8, length: int = 4, **fields: object
) -> object:
    vocabulary = cast(LongTextVocabulary, model)
    prompts = tuple(TextPrompt(text) if isinstance(text, str) else TokenPrompt(text) for text in inputs)
    return TextReader(cast(Model, model), vocabulary, max_tokens, length).read(Embed(prompts, **fields))  # type: ignore[arg-type]


def test_texts_and_token_ids(model: _Model) -> None:
    assert read(model, "ab", (1, 2, 3)) == [[97, 98], [1, 2, 3]]


def test_a_text_stands_between_the_models_own_tokens(model: _Model) -> None:
    model.bos_token, model.eos_token = 1, model.end_tokens[0]
    assert read(model, "ab", (97,)) == [[1, 97, 98, model.eos_token], [97]]
    assert read(model, "\x01ab<|end|>") == [[1, 97, 98, model.eos_token]]


def test_too_long_names_both_counts(model: _Model) -> None:
    model.bos_token = 1
    with pytest.raises(ContextLengthExceeded, match=r"input\[1\] has 10 tokens, but at most 8") as caught:
        read(model, "a", "abcdefghi")
    assert caught.value.param == "input[1]"
    assert caught.value.message.endswith("or serve a model that was trained for more than 9 tokens.")
    model.bos_token = None
    with pytest.raises(ContextLengthExceeded, match="a larger --ctx, 9 at most"):
        read(model, "abcdefghi")


def test_truncate_keeps_the_models_own_tokens(model: _Model) -> None:
    model.bos_token, model.eos_token = 1, 2
    assert read(model, "abcdefghi", truncate=True) == [[1, *b"abcdef", 2]]
    assert read(model, tuple(range(9)), truncate=True) == [list(range(8))]


def test_nothing_to_embed(model: _Model) -> None:
    with pytest.raises(InvalidRequest, match="input is empty"):
        read(model, "")


def test_an_unknown_token(model: _Model) -> None:
    with pytest.raises(InvalidRequest, match="Token 99999"):
        read(model, (99999,))


def test_more_dimensions_than_there_are(model: _Model) -> None:
    with pytest.raises(InvalidRequest, match="dimensions is 5, but this model's embeddings have 4"):
        read(model, "a", dimensions=5)


def test_a_model_without_embeddings(model: _Model) -> None:
    with pytest.raises(NotSupported, match="no embeddings"):
        read(model, "a", length=0)
