"""The engine's interface to a grammar: which tokens may come next. The text layer implements it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class TokenConstraint(Protocol):
    """The state of a grammar after the tokens accepted so far. One request owns it."""

    def allows(self, token: int) -> bool:
        """Whether `token` may come next (end-of-generation tokens too). No side effect."""
        ...

    def mask(self, likeliest: int | None = None) -> NDArray[np.bool_] | None:
        """Return which tokens may come next, shape (num_vocab,); None when all may. Valid until the next call.

        `likeliest` is the token that the model would write without a grammar; the grammar may use it as a hint.
        """
        ...

    def instead_of(self, token: int) -> int | None:
        """Return the token to draw if `token`, the likeliest one, is not allowed; None: the likeliest allowed token."""
        ...

    def accept(self, token: int) -> None:
        """Take a token as generated. It must be allowed."""
        ...

    def forced(self) -> Sequence[int]:
        """Return the tokens that must come next, in order, if the grammar leaves no choice; else an empty sequence."""
        ...
