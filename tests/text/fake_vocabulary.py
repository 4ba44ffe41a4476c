"""A vocabulary of all bytes, some words and some control tokens, for tests that need no model."""

from __future__ import annotations

WORDS = (
    "Hello",
    " world",
    "Paris",
    '{"',
    '": "',
    '"}',
    '":',
    "name",
    "arguments",
    "city",
    "  ",
    ">\n",
    "tool",
    "</",
    "user",
)


class FakeVocabulary:
    """Tokens 0 to 255 are bytes; then words (longest match first), then control tokens, the last of which ends.

    `user_defined` are further words, which are found in a text before anything else.
    """

    def __init__(
        self,
        control: tuple[str, ...] = (),
        *,
        user_defined: tuple[str, ...] = (),
        bos_text: str = "",
        adds_bos: bool = False,
    ) -> None:
        self.bos_text = bos_text
        self.eos_text = "<|end|>"
        control = (*control, *([bos_text] if bos_text else []), self.eos_text)
        self._all_words = (*WORDS, *user_defined)
        self._user_defined = user_defined
        pieces = [bytes([byte]) for byte in range(256)] + [word.encode() for word in self._all_words]
        self._first_control = len(pieces)
        self._pieces = pieces + [text.encode() for text in control]
        self._adds_bos = adds_bos
        self.num_tokens = len(self._pieces)
        self.end_tokens: tuple[int, ...] = (self.num_tokens - 1,)
        self._control = {text: self._first_control + index for index, text in enumerate(control)}
        self._words = [*user_defined, *sorted(WORDS, key=len, reverse=True)]

    def token(self, text: str) -> int:
        """Return the control token with this text."""
        return self._control[text]

    def tokenize(self, text: str, *, parse_special: bool, add_bos: bool = False) -> list[int]:
        tokens = [self._control[self.bos_text]] if add_bos and self._adds_bos else []
        while text:
            token, length = self._next_token(text, parse_special)
            tokens += token
            text = text[length:]
        return tokens

    def _next_token(self, text: str, parse_special: bool) -> tuple[list[int], int]:
        if parse_special:
            for control in sorted(self._control, key=len, reverse=True):
                if text.startswith(control):
                    return [self._control[control]], len(control)
        for word in self._words:
            if text.startswith(word):
                return [256 + self._all_words.index(word)], len(word)
        return list(text[0].encode("utf-8", "replace")), 1

    def piece(self, token: int) -> bytes:
        return self._pieces[token]

    def is_control(self, token: int) -> bool:
        return token >= self._first_control

    def is_user_defined(self, token: int) -> bool:
        return 256 + len(WORDS) <= token < self._first_control

    def is_end(self, token: int) -> bool:
        return token in self.end_tokens

    def text(self, tokens: list[int]) -> str:
        """Return the text of tokens, control tokens included."""
        return b"".join(map(self.piece, tokens)).decode("utf-8", "replace")
