"""Vocabularies are compared token by token."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeagent.store.gguf.header import GgufHeader, first_difference, read_header
from tests.store.gguf_bytes import I32, MODEL_KEYS, STRING, GgufBytes, array


def model(path: Path, tokens: list[object]) -> GgufHeader:
    keys = [each for each in MODEL_KEYS if b"tokenizer.ggml.tokens" not in each and b"token_type" not in each]
    keys.insert(3, array("tokenizer.ggml.tokens", STRING, tokens))
    keys.append(array("tokenizer.ggml.token_type", I32, [1] * len(tokens)))
    return read_header(GgufBytes(keys=tuple(keys)).write(path))


def test_the_same_tokens_at_other_places_of_the_file_are_the_same(tmp_path: Path) -> None:
    one = read_header(GgufBytes().write(tmp_path / "one.gguf"))
    other = model(tmp_path / "other.gguf", ["a", "b", "ab", "<|end|>"])
    assert one.tokens_at != other.tokens_at
    assert first_difference(one, other) is None


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (["a", "b", "AB", "<|end|>"], "token 2 is 'ab' in {one} and 'AB' in {other}"),
        (["a", "b", "ab"], "token 3 is '<|end|>' in {one} and missing in {other}"),
        (["a", b"\xff", "ab", "<|end|>"], "token 1 is 'b' in {one} and '\ufffd' in {other}"),
        (["x" * 99, "b", "ab", "<|end|>"], "token 0 is 'a' in {one} and '" + "x" * 40 + "'… in {other}"),
    ],
)
def test_the_first_token_that_differs_is_named(tmp_path: Path, tokens: list[object], words: str) -> None:
    one, other = model(tmp_path / "1.gguf", ["a", "b", "ab", "<|end|>"]), model(tmp_path / "2.gguf", tokens)
    assert first_difference(one, other) == words.format(one=one.path, other=other.path)


def test_a_file_without_a_vocabulary_is_not_judged(tmp_path: Path) -> None:
    bare = GgufBytes(keys=tuple(each for each in MODEL_KEYS if b"tokenizer.ggml.to" not in each))
    other = read_header(bare.write(tmp_path / "bare.gguf"))
    assert first_difference(model(tmp_path / "1.gguf", ["a"]), other) is None
