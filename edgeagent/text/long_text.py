"""A vocabulary that tokenizes long texts in linear time.

llama.cpp walks a list from the beginning for each special token that it finds in a text. A text with 10,000 special
tokens took 14 s. So such a text is cut after every few hundred special tokens, at places where a cut changes no token.
Each part is tokenized separately.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from edgeagent.text.vocabulary import SpecialTexts, Vocabulary

_LONG = 4096  # characters; shorter texts cannot have enough special tokens to matter
_MAX_SPECIALS = 256

Trie = dict[str, "Trie"]


class LongTextVocabulary:
    """Wraps another vocabulary and tokenizes long texts faster. `special` are its special texts."""

    def __init__(self, vocabulary: Vocabulary, special: SpecialTexts) -> None:
        self._vocabulary = vocabulary
        self._always = _Cutter(special.user_defined)
        self._all = _Cutter(special.user_defined | special.control)

    @property
    def num_tokens(self) -> int:
        """The number of tokens in the vocabulary."""
        return self._vocabulary.num_tokens

    @property
    def bos_text(self) -> str:
        """The text of the token that begins a sequence."""
        return self._vocabulary.bos_text

    @property
    def eos_text(self) -> str:
        """The text of the token that ends a sequence."""
        return self._vocabulary.eos_text

    @property
    def end_tokens(self) -> tuple[int, ...]:
        """Every token that ends generation."""
        return self._vocabulary.end_tokens

    def tokenize(self, text: str, *, parse_special: bool, add_bos: bool = False) -> list[int]:
        """Return the same tokens as the wrapped vocabulary, in less time if the text is long.

        Some tokens may differ if about a thousand special texts in a row are next to white space; see `_Cutter._place`.
        """
        if len(text) < _LONG:
            return self._vocabulary.tokenize(text, parse_special=parse_special, add_bos=add_bos)
        tokens: list[int] = []
        for part in (self._all if parse_special else self._always).cut(text):
            tokens += self._vocabulary.tokenize(part, parse_special=parse_special, add_bos=add_bos and not tokens)
        return tokens

    def piece(self, token: int) -> bytes:
        """Return a token's bytes."""
        return self._vocabulary.piece(token)

    def is_control(self, token: int) -> bool:
        """Whether the token is a control token."""
        return self._vocabulary.is_control(token)

    def is_user_defined(self, token: int) -> bool:
        """Whether text becomes this token even without parse_special."""
        return self._vocabulary.is_user_defined(token)

    def is_end(self, token: int) -> bool:
        """Whether the token ends generation."""
        return self._vocabulary.is_end(token)


class _Cutter:
    """Cuts long texts into parts. Each cut is at the start or the end of a special text."""

    def __init__(self, special: Iterable[str]) -> None:
        texts = [text for text in special if text]
        self._pattern = any_of(texts)
        self._longest = max(map(len, texts), default=0)

    def cut(self, text: str) -> Iterator[str]:
        """Yield the parts of a text. A part has a few hundred special texts at most, or more if it cannot be cut."""
        start = num = 0
        for match in self._pattern.finditer(text):
            num += 1
            if num < _MAX_SPECIALS:
                continue
            place = self._place(text, match, is_urgent=num >= 4 * _MAX_SPECIALS)
            if place is not None and place > start:
                yield text[start:place]
                start, num = place, 0
        yield text[start:]

    def _place(self, text: str, match: re.Match[str], *, is_urgent: bool) -> int | None:
        """Return the end or the start of a special text, where a cut changes no token; None if neither can be used.

        1. The index must not be inside another special text that begins earlier, because llama.cpp takes the longest
           first.
        2. It must not be next to white space, because special tokens of a few vocabularies include adjacent white
           space. `is_urgent` lifts this rule, because the part is already very long. The cut may then change a token.
        """
        behind = (match.end(), text[match.end() : match.end() + 1])
        before = (match.start(), text[match.start() - 1 : match.start()])
        for place, neighbour in (behind, before):
            if (is_urgent or not neighbour.isspace()) and not self._is_inside(text, place):
                return place
        return None

    def _is_inside(self, text: str, place: int) -> bool:
        for start in range(max(0, place - self._longest + 1), place):
            match = self._pattern.match(text, start)
            if match is not None and match.end() > place:
                return True
        return False


def any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern that matches the longest of these texts at a position. Without texts, it matches nothing.

    The texts form a trie, so texts with a common beginning are not tried one by one.
    """
    root: Trie = {}
    for text in texts:
        node = root
        for char in text:
            node = node.setdefault(char, {})
        node[""] = {}
    return re.compile(_regex(root) if root else "(?!)")


def _regex(node: Trie) -> str:
    branches = []
    for char, child in node.items():
        if char:
            literal = re.escape(char)
            while len(child) == 1 and "" not in child:
                ((char, child),) = child.items()
                literal += re.escape(char)
            branches.append(literal + _regex(child))
    if not branches:
        return ""
    group = f"(?:{'|'.join(branches)})"
    return f"{group}?" if "" in node else group
