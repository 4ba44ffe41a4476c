"""The interface of a model's vocabulary that the text layer uses. It is implemented elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

_MARKUP = re.compile(r"<[^\s<>]+>|\[[^\s\[\]]+\]")


class Vocabulary(Protocol):
    """Tokens and their bytes."""

    @property
    def num_tokens(self) -> int: ...

    @property
    def bos_text(self) -> str:
        """The text of the token that begins a sequence; empty if the model has none."""
        ...

    @property
    def eos_text(self) -> str:
        """The text of the token that ends a sequence; empty if the model has none."""
        ...

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """Every token that ends generation (EOS, EOT, EOM …)."""
        ...

    def tokenize(self, text: str, *, parse_special: bool, add_bos: bool = False) -> list[int]:
        """Return the tokens of a text.

        parse_special: the text of a control token becomes that token. add_bos: begin with the BOS token if the model
        wants one. Nothing else is added, not even an end token.
        """
        ...

    def piece(self, token: int) -> bytes:
        """Return a token's bytes. Those of a control token are its text, e.g. b"<|im_end|>"."""
        ...

    def is_control(self, token: int) -> bool:
        """Whether the token is a control token. Text becomes such a token only with parse_special."""
        ...

    def is_user_defined(self, token: int) -> bool:
        """Whether the token's text becomes this token even without parse_special, as Qwen's <tool_call> does."""
        ...

    def is_end(self, token: int) -> bool:
        """Whether the token ends generation."""
        ...


@dataclass(frozen=True, slots=True)
class SpecialTexts:
    """Texts that become single tokens.

    The text of a control token becomes that token only with parse_special. The text of a user-defined token always
    becomes that token.
    """

    control: frozenset[str]
    user_defined: frozenset[str]

    def markers(self, known: str) -> frozenset[str]:
        """Return the texts of user-defined tokens that look like markup and occur in `known`.

        `known` is a text that contains all markup with a meaning for the model, such as the source of its chat
        template. Other user-defined tokens, such as <table> or runs of blanks, exist only because their text is common.
        """
        return frozenset(text for text in self.user_defined if _MARKUP.fullmatch(text) and text in known)


def special_texts(vocabulary: Vocabulary) -> SpecialTexts:
    """Return all special texts. Call it once and keep the result, because it reads the whole vocabulary."""
    control: set[str] = set()
    user_defined: set[str] = set()
    for token in range(vocabulary.num_tokens):
        if vocabulary.is_control(token):
            control.add(vocabulary.piece(token).decode("utf-8", "replace"))
        elif vocabulary.is_user_defined(token):
            user_defined.add(vocabulary.piece(token).decode("utf-8", "replace"))
    return SpecialTexts(frozenset(control), frozenset(user_defined))


def control_tokens(vocabulary: Vocabulary, texts: Iterable[str]) -> frozenset[int]:
    """Return the control tokens of these texts. A text that is not a single control token is left out."""
    found: set[int] = set()
    for text in texts:
        match vocabulary.tokenize(text, parse_special=True):
            case [token] if vocabulary.is_control(token):
                found.add(token)
            case _:
                pass
    return frozenset(found)
