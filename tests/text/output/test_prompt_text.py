"""Prompts returned as text: complete, in order, each token at its position."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from edgeagent.text.output.prompt_text import PromptEcho
from edgeagent.types import PromptText, TokenLogprob
from tests.text.fake_vocabulary import FakeVocabulary

VOCABULARY = FakeVocabulary(("<|im_start|>",), bos_text="<s>", adds_bos=True)


def tokens_of(text: str, *, add_bos: bool = False) -> list[int]:
    return VOCABULARY.tokenize(text, parse_special=True, add_bos=add_bos)


def scores_of(tokens: Sequence[int]) -> list[TokenLogprob]:
    return [TokenLogprob(token, VOCABULARY.piece(token), -1.0) for token in tokens[1:]]


def echo(tokens: Sequence[int], text: str | None = None, *, num_added: int = 0, is_scored: bool = True) -> PromptEcho:
    return PromptEcho(VOCABULARY, tokens, text, num_added=num_added, is_scored=is_scored)


def test_text_that_is_not_scored_comes_at_once_and_once() -> None:
    prompt = echo(tokens_of("Hello world", add_bos=True), "Hello world", num_added=1, is_scored=False)
    assert prompt.take() == (PromptText("Hello world"),)
    assert prompt.take() == ()


def test_token_ids_are_given_back_as_text_with_their_control_tokens() -> None:
    assert echo(tokens_of("<|im_start|>user Hello"), is_scored=False).take() == (PromptText("<|im_start|>user Hello"),)


def test_scores_come_with_the_whole_prompt_the_first_token_without_one() -> None:
    tokens = tokens_of("Hello é!", add_bos=True)
    prompt = echo(tokens, "Hello é!", num_added=1)
    scores = scores_of(tokens)
    prompt.add(scores[:2])
    prompt.add(scores[2:])
    (part,) = prompt.take()
    assert part.text == "Hello é!"
    assert [(logprob.piece, logprob.start) for logprob in part.logprobs] == [
        (b"<s>", 0),
        (b"Hello", 0),
        (b" ", 5),
        (b"\xc3", 6),
        (b"\xa9", 6),
        (b"!", 7),
    ]
    assert math.isnan(part.logprobs[0].logprob)
    assert [logprob.logprob for logprob in part.logprobs[1:]] == [-1.0] * 5


@pytest.mark.parametrize("num", [1, 2559, 2560, 2561, 6000])
def test_a_long_prompt_comes_in_parts(num: int) -> None:
    text = "é" * (num // 2) + "x" * (num % 2)
    tokens = tokens_of(text)
    prompt = echo(tokens, text)
    prompt.add(scores_of(tokens))
    parts = prompt.take()
    assert "".join(part.text for part in parts) == text
    assert [logprob.token for part in parts for logprob in part.logprobs] == tokens
    assert all(len(part.logprobs) <= 2560 for part in parts)


def test_parts_are_smaller_where_tokens_have_rivals() -> None:
    tokens = tokens_of("x" * 300)
    rivals = tuple(TokenLogprob(1, b"\1", -2.0) for _ in range(20))
    prompt = echo(tokens, "x" * 300)
    prompt.add([replace(score, top=rivals) for score in scores_of(tokens)])
    assert [len(part.text) for part in prompt.take()] == [121, 121, 58]


def test_a_long_text_comes_in_parts() -> None:
    text = "Hello world" * 20_000
    parts = echo(tokens_of(text), text, is_scored=False).take()
    assert len(parts) > 1
    assert "".join(part.text for part in parts) == text


def test_a_blank_that_the_vocabulary_puts_before_a_text_is_no_part_of_it() -> None:
    prompt = echo(tokens_of(" Hello"), "Hello")
    prompt.add(scores_of(tokens_of(" Hello")))
    (part,) = prompt.take()
    assert part.text == "Hello"
    assert [logprob.start for logprob in part.logprobs] == [0, 0]
