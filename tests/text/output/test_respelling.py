"""The tokens of a respelling spell the existing text, and may continue after it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from edgeagent.text.output.respelling import RespellConstraint, num_open

PIECES = [b"</s>", b"break", b"breakfast", b"b", b"re", b"akfast", b"ak", b"x", b" ", b"reak", b""]


class Words:
    """A vocabulary of PIECES; the first is a control token that ends generation."""

    num_tokens = len(PIECES)

    def piece(self, token: int) -> bytes:
        return PIECES[token]

    def is_control(self, token: int) -> bool:
        return token == 0

    def is_end(self, token: int) -> bool:
        return token == 0


class Inner:
    """A grammar that allows some tokens, and records the accepted ones."""

    def __init__(self, *allowed: bytes) -> None:
        self.allowed = [PIECES.index(piece) for piece in allowed]
        self.accepted: list[int] = []

    def allows(self, token: int) -> bool:
        return token in self.allowed

    def mask(self, likeliest: int | None = None) -> NDArray[np.bool_] | None:
        return np.isin(np.arange(len(PIECES)), self.allowed)

    def instead_of(self, token: int) -> int | None:
        return self.allowed[0]

    def accept(self, token: int) -> None:
        self.accepted.append(token)

    def forced(self) -> Sequence[int]:
        return self.allowed[:1]


def allowed(respelling: RespellConstraint) -> set[bytes]:
    mask = respelling.mask()
    tokens = range(len(PIECES)) if mask is None else np.flatnonzero(mask)
    assert {token for token in range(len(PIECES)) if respelling.allows(token)} == set(tokens)
    return {PIECES[token] for token in tokens}


@pytest.mark.parametrize(
    ("pieces", "num"),
    [
        ([], 0),
        ([b"a"], 1),
        ([b"a", b"b"], 2),
        ([b" a", b"b"], 2),
        ([b"a", b" b"], 1),
        ([b" ", b"b"], 2),
        ([b"a", b"."], 1),
        ([b".", b"b"], 1),
        ([b"\n", b"b"], 1),
        ([b"\xe4", b"\xbd", b"\xa0"], 3),
        ([b"a"] * 9, 6),
    ],
)
def test_a_word_that_may_not_be_over_is_open(pieces: list[bytes], num: int) -> None:
    assert num_open(pieces) == num


def test_the_text_is_spelled_by_any_tokens_and_may_go_on() -> None:
    respelling = RespellConstraint(Words(), b"break", None)  # type: ignore[arg-type]
    assert allowed(respelling) == {b"break", b"breakfast", b"b"}
    assert respelling.forced() == () and respelling.instead_of(7) is None
    respelling.accept(PIECES.index(b"b"))
    assert allowed(respelling) == {b"re", b"reak"}
    respelling.accept(PIECES.index(b"re"))
    assert allowed(respelling) == {b"akfast", b"ak"}
    respelling.accept(PIECES.index(b"akfast"))
    assert allowed(respelling) == set(PIECES)


def test_a_grammar_holds_as_well() -> None:
    inner = Inner(b"b", b"x")
    respelling = RespellConstraint(Words(), b"break", inner)  # type: ignore[arg-type]
    assert allowed(respelling) == {b"b"}
    assert respelling.forced() == () and respelling.instead_of(7) is None
    respelling.accept(PIECES.index(b"b"))
    mask = respelling.mask()
    assert mask is not None and {PIECES[token] for token in np.flatnonzero(mask)} == {b"b", b"x"}, "it has its own way"
    respelling.accept(PIECES.index(b"x"))
    assert allowed(respelling) == {b"b", b"x"}
    assert list(respelling.forced()) == [3] and respelling.instead_of(7) == 3
    assert inner.accepted == [3, 7]
