"""How log probabilities look on the wire: whole characters, odd bytes, tokens that could not come."""

from __future__ import annotations

import math

import pytest

from edgeagent.api.wire.generation import legacy_logprobs, token_logprobs
from edgeagent.types import TokenLogprob

RIVALS = (TokenLogprob(1, b"b", -2.0), TokenLogprob(2, b"\xc3", -3.0))
TOKEN = TokenLogprob(0, "é".encode(), -1.0, RIVALS, start=4)
FIRST = TokenLogprob(3, b"a", math.nan, RIVALS)
IMPOSSIBLE = TokenLogprob(4, b"z", -math.inf, (TokenLogprob(5, b"y", -math.inf),))


def test_a_token_has_its_bytes_and_its_alternatives() -> None:
    assert token_logprobs([TOKEN]) == [
        {
            "token": "é",
            "logprob": -1.0,
            "bytes": [0xC3, 0xA9],
            "top_logprobs": [
                {"token": "b", "logprob": -2.0, "bytes": [0x62]},
                # Half of a character has a replacement as its text; its bytes are exact.
                {"token": "\ufffd", "logprob": -3.0, "bytes": [0xC3]},
            ],
        }
    ]


def test_a_token_without_rivals_has_an_empty_list() -> None:
    assert token_logprobs([TokenLogprob(0, b"", 0.0)]) == [
        {"token": "", "logprob": 0.0, "bytes": [], "top_logprobs": []}
    ]


def test_what_could_not_come_has_a_number_that_json_can_write() -> None:
    (scored,) = token_logprobs([IMPOSSIBLE])
    assert (scored["logprob"], scored["top_logprobs"][0]["logprob"]) == (-9999.0, -9999.0)
    lists = legacy_logprobs([IMPOSSIBLE], 1)
    assert (lists["token_logprobs"], lists["top_logprobs"]) == ([-9999.0], [{"y": -9999.0, "z": -9999.0}])


def test_completions_have_lists_of_equal_length() -> None:
    assert legacy_logprobs([FIRST, TOKEN], 2) == {
        "tokens": ["a", "é"],
        "token_logprobs": [None, -1.0],
        "top_logprobs": [None, {"b": -2.0, "bytes:\\xc3": -3.0, "é": -1.0}],
        "text_offset": [0, 4],
    }


def test_a_token_that_is_its_own_likeliest_is_named_once() -> None:
    token = TokenLogprob(0, b"a", -0.5, (TokenLogprob(0, b"a", -0.5), TokenLogprob(1, b"b", -1.0)))
    assert legacy_logprobs([token], 2)["top_logprobs"] == [{"a": -0.5, "b": -1.0}]


def test_without_rivals_there_is_no_list_of_them() -> None:
    lists = legacy_logprobs([TOKEN], 0)
    assert lists["top_logprobs"] is None
    assert lists["tokens"] == ["é"]


def test_no_tokens_have_empty_lists() -> None:
    assert token_logprobs([]) == []
    assert legacy_logprobs([], 1) == {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}


@pytest.mark.parametrize(
    ("piece", "name"),
    [
        (b"\xff\x00", "bytes:\\xff\\x00"),
        ("é".encode()[1:], "bytes:\\xa9"),
        # The letter is written in hex too.
        (b"a\xc3", "bytes:\\x61\\xc3"),
        (b"\n", "\n"),
    ],
)
def test_a_token_that_is_not_whole_characters_is_named_by_its_bytes(piece: bytes, name: str) -> None:
    assert legacy_logprobs([TokenLogprob(0, piece, -1.0)], 0)["tokens"] == [name]
