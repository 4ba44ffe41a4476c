"""Prevents tool calls if none are allowed, so that no part of a call's marker appears in the answer's text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgeagent.text.tool_format import ToolFormat, call_opener
from edgeagent.text.vocabulary import Vocabulary

_LLAMA_START = b'{"name":'


class BannedText:
    """A text that an answer must not contain, and the tokens that would complete it.

    The caller keeps a state and passes it to the methods. The state is the beginning of the banned text that is at the
    end of the answer so far: empty at first, and None once the banned text is no longer possible. With `is_start` of
    the constructor, the text is banned only at the beginning of the answer, and white space is ignored.
    """

    def __init__(self, text: bytes, vocabulary: Vocabulary, *, is_start: bool = False) -> None:
        self._text = text
        self._is_start = is_start
        pieces = ((token, vocabulary.piece(token)) for token in range(vocabulary.num_tokens))
        self._completing = [(token, piece) for token, piece in pieces if text[-1] in piece]
        self._tokens: dict[bytes, NDArray[np.int64]] = {}

    def after(self, state: bytes | None, piece: bytes) -> bytes | None:
        """Return the state after this piece. `state` is the previous result of this method, empty at first.

        The piece must not complete the banned text.
        """
        joined = self._joined(state, piece)
        if joined is None or self._is_start:
            return joined if joined is not None and self._text.startswith(joined) else None
        starts = range(max(0, len(joined) - len(self._text) + 1), len(joined) + 1)
        return next(joined[start:] for start in starts if self._text.startswith(joined[start:]))

    def completes(self, state: bytes | None, piece: bytes) -> bool:
        """Whether the banned text would be complete after this piece."""
        joined = self._joined(state, piece)
        if joined is None:
            return False
        return joined.startswith(self._text) if self._is_start else self._text in joined

    def tokens(self, state: bytes | None) -> NDArray[np.int64]:
        """Return the tokens that would complete the banned text in this state."""
        if state is None:
            return np.zeros(0, dtype=np.int64)
        if state not in self._tokens:
            found = [token for token, piece in self._completing if self.completes(state, piece)]
            self._tokens[state] = np.array(found, dtype=np.int64)
        return self._tokens[state]

    def _joined(self, state: bytes | None, piece: bytes) -> bytes | None:
        return None if state is None else state + (b"".join(piece.split()) if self._is_start else piece)


def banned_texts(tool_format: ToolFormat, vocabulary: Vocabulary) -> tuple[BannedText, ...]:
    """Return the texts that would begin a call in this format. Call it once, because it reads the whole vocabulary."""
    # Ban the marker's part up to the underscore, because a partial marker would be shown to the client. Answers hardly
    # ever contain this part otherwise.
    marker = call_opener(tool_format).partition("_")[0] + "_"
    banned = [BannedText(marker.encode(), vocabulary)]
    if tool_format is ToolFormat.LLAMA:
        banned.append(BannedText(_LLAMA_START, vocabulary, is_start=True))
    return tuple(banned)


class CallBan:
    """Allows free text but not the opening of a call. It is an `engine.sampling.constraint.TokenConstraint`."""

    def __init__(self, vocabulary: Vocabulary, banned: Sequence[BannedText]) -> None:
        self._vocabulary = vocabulary
        self._banned = banned
        self._states: list[bytes | None] = [b""] * len(banned)

    def copy(self) -> CallBan:
        """Return an independent copy of the constraint."""
        twin = CallBan(self._vocabulary, self._banned)
        twin._states = list(self._states)
        return twin

    def allows(self, token: int) -> bool:
        """Whether `token` may come next. This has no side effect."""
        piece = self._vocabulary.piece(token)
        return not any(text.completes(state, piece) for text, state in zip(self._banned, self._states, strict=True))

    def mask(self, likeliest: int | None = None) -> NDArray[np.bool_] | None:  # noqa: ARG002
        """Return which tokens may come next, shape (num_tokens,); None if all may. The array is new at each call."""
        refused = [text.tokens(state) for text, state in zip(self._banned, self._states, strict=True)]
        if not any(map(len, refused)):
            return None
        mask = np.ones(self._vocabulary.num_tokens, dtype=np.bool_)
        for tokens in refused:
            mask[tokens] = False
        return mask

    def instead_of(self, token: int) -> int | None:  # noqa: ARG002
        """Return None: a token is drawn from the allowed ones instead."""
        return None

    def accept(self, token: int) -> None:
        """Record a generated token, which must be allowed."""
        if not self._vocabulary.is_end(token):
            piece = self._vocabulary.piece(token)
            pairs = zip(self._banned, self._states, strict=True)
            self._states = [text.after(state, piece) for text, state in pairs]

    def forced(self) -> Sequence[int]:
        """Return (), because there is always a choice."""
        return ()
