"""Long texts tokenized in parts give the same tokens as in one piece, whatever special texts they hold."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.text import vocabulary as module
from edgeagent.text.vocabulary import LongTextVocabulary, any_of, special_texts
from tests.text.fake_vocabulary import FakeVocabulary

VOCABULARY = FakeVocabulary(("<a>", "<ab>", "b><"), user_defined=("<t>", "    ", "t><t"), bos_text="<s>", adds_bos=True)
PARTS = ["<a>", "<ab>", "b>", "<", "<t>", "t>", " ", "    ", "<s>", "é", "Hello", "<|end|>", "\n"]
SPECIAL = special_texts(VOCABULARY)


def test_short_texts_are_left_alone() -> None:
    vocabulary = LongTextVocabulary(VOCABULARY, SPECIAL)
    assert vocabulary.tokenize("Hello", parse_special=True, add_bos=True) == [VOCABULARY.token("<s>"), 256]


@pytest.mark.parametrize("parse_special", [True, False])
@pytest.mark.parametrize("add_bos", [True, False])
@given(parts=st.lists(st.sampled_from(PARTS), max_size=60))
def test_parts_give_the_tokens_of_the_whole(parse_special: bool, add_bos: bool, parts: list[str]) -> None:
    text = "".join(parts)
    expected = VOCABULARY.tokenize(text, parse_special=parse_special, add_bos=add_bos)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_LONG", 0)
        patch.setattr(module, "_MAX_SPECIALS", 2)
        vocabulary = LongTextVocabulary(VOCABULARY, SPECIAL)
        assert vocabulary.tokenize(text, parse_special=parse_special, add_bos=add_bos) == expected


@pytest.mark.parametrize("text", ["<a>" * 5000, "<a> " * 5000, "<a>x" * 5000, "x<a>" * 5000])
def test_a_text_of_special_texts_is_cut_often(text: str) -> None:
    sizes: list[int] = []

    class Counting(FakeVocabulary):
        def tokenize(self, text: str, *, parse_special: bool, add_bos: bool = False) -> list[int]:
            sizes.append(len(re.findall("<a>", text)))
            return super().tokenize(text, parse_special=parse_special, add_bos=add_bos)

    counting = Counting(("<a>",))
    tokens = LongTextVocabulary(counting, special_texts(counting)).tokenize(text, parse_special=True)
    assert max(sizes) <= 1024
    assert counting.text(tokens) == text


@given(
    st.lists(st.text("<a|b>", min_size=1, max_size=4), max_size=8, unique=True),
    st.text("<a|b>", max_size=40),
)
def test_the_longest_text_is_found(texts: list[str], text: str) -> None:
    plain = re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) if texts else "(?!)")
    assert any_of(texts).findall(text) == plain.findall(text)


def test_every_other_question_goes_to_the_vocabulary_itself() -> None:
    vocabulary = LongTextVocabulary(VOCABULARY, SPECIAL)
    assert vocabulary.num_tokens == VOCABULARY.num_tokens
    assert (vocabulary.bos_text, vocabulary.eos_text) == ("<s>", "<|end|>")
    assert vocabulary.end_tokens == VOCABULARY.end_tokens
    for token in (
        65,
        VOCABULARY.token("<a>"),
        *VOCABULARY.end_tokens,
        *VOCABULARY.tokenize("<t>", parse_special=False),
    ):
        assert vocabulary.piece(token) == VOCABULARY.piece(token)
        assert vocabulary.is_control(token) == VOCABULARY.is_control(token)
        assert vocabulary.is_user_defined(token) == VOCABULARY.is_user_defined(token)
        assert vocabulary.is_end(token) == VOCABULARY.is_end(token)
