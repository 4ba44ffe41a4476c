"""A model's vocabulary as the text layer uses it, and a wrapper that tokenizes long texts in linear time.

llama.cpp walks a list from the beginning for each special token that it finds in a text. A text with 10,000 special
tokens took 14 s. So such a text is cut after every few hundred special tokens, at places where a cut changes no token.
Each part is tokenized separately.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
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


_LONG = 4096  # characters; shorter texts cannot have enough special tokens to matter
_MAX_SPECIALS = 256

Trie = dict[str, "Trie"]


class LongTextVocabulary:
    """Wraps another vocabulary and tokenizes long texts faster. `special` are its special texts."""

    def __init__(self, vocabulary: Vocabulary, special: SpecialTexts) -> None:
        self._tokenize = vocabulary.tokenize
        self._always = _Cutter(special.user_defined)
        self._all = _Cutter(special.user_defined | special.control)
        self.num_tokens = vocabulary.num_tokens
        self.bos_text, self.eos_text, self.end_tokens = vocabulary.bos_text, vocabulary.eos_text, vocabulary.end_tokens
        # The methods themselves: they are called for each token.
        self.piece, self.is_end = vocabulary.piece, vocabulary.is_end
        self.is_control, self.is_user_defined = vocabulary.is_control, vocabulary.is_user_defined

    def tokenize(self, text: str, *, parse_special: bool, add_bos: bool = False) -> list[int]:
        """Return the same tokens as the wrapped vocabulary, in less time if the text is long.

        Some tokens may differ if about a thousand special texts in a row are next to white space; see `_Cutter._place`.
        """
        if len(text) < _LONG:
            return self._tokenize(text, parse_special=parse_special, add_bos=add_bos)
        tokens: list[int] = []
        for part in (self._all if parse_special else self._always).cut(text):
            tokens += self._tokenize(part, parse_special=parse_special, add_bos=add_bos and not tokens)
        return tokens


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
