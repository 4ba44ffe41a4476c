"""The engine's interface to a grammar: which tokens may come next. The text layer implements it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class TokenConstraint(Protocol):
    """The state of a grammar after the tokens accepted so far. Each request has its own."""

    def allows(self, token: int) -> bool:
        """Whether `token`, which may be an end-of-generation token, may come next. No side effect."""
        ...

    def mask(self, likeliest: int | None = None) -> NDArray[np.bool_] | None:
        """Return which tokens may come next, shape (num_vocab,); None if all tokens may.

        The array is valid until the next call. `likeliest`: the likeliest token without the grammar, as a hint that
        the grammar may use.
        """
        ...

    def instead_of(self, token: int) -> int | None:
        """Return the token to use instead of `token`, which is the likeliest one but not allowed.

        None means to draw one of the allowed tokens as usual.
        """
        ...

    def accept(self, token: int) -> None:
        """Advance the grammar by a generated token. The token must be allowed."""
        ...

    def forced(self) -> Sequence[int]:
        """Return the next tokens up to the place where the grammar leaves a choice; empty if that is the next place."""
        ...
