"""Keeps clients' text apart from the template's own text, from rendering to tokenization.

Client text that spells a control token is marked, so that it becomes plain text tokens and never begins a turn. The
mark is put after the first character of such text. All other text is unchanged, so that a template can trim, compare
and split it as usual.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import islice

from edgeagent.errors import InvalidRequest
from edgeagent.text.tool_format import ReasoningMarkers
from edgeagent.text.vocabulary import Vocabulary, any_of

# Any text that looks like a control token. Used if the control tokens are unknown.
_LOOKS_LIKE_CONTROL = re.compile(r"<[^\s<>]{1,64}>|\[/?[A-Z_]{1,32}\]")
_SENTINELS = range(0x10_F000, 0x10_FFFE)
_MEDIA_MARKS = range(0x0F_0000, 0x0F_FFFE)

Mark = Callable[[str], str]
Pieces = tuple[tuple[str, bool], ...]


@dataclass(frozen=True, slots=True)
class Rendered:
    """A rendered prompt. `pieces` holds its text in order, as pairs of a text and whether it is trusted.

    Control tokens in a trusted text are the template's own. open_reasoning: the markers of reasoning that the prompt
    opens but does not close. The model's answer begins inside this reasoning. `media_marks`: the characters that stand
    for images and sounds in the text, one for each place, in the order of the messages.
    """

    text: str
    pieces: Pieces
    open_reasoning: ReasoningMarkers | None = None
    media_marks: str = ""

    def split_at_media(self) -> list[Pieces | int]:
        """Return the pieces between the media, and for each medium the index of its place, in the order of the text."""
        if not self.media_marks:
            return [self.pieces]
        marks = {mark: index for index, mark in enumerate(self.media_marks)}
        at_marks = re.compile(f"([{self.media_marks}])")
        runs: list[Pieces | int] = []
        run: list[tuple[str, bool]] = []
        for text, is_trusted in self.pieces:
            for part in filter(None, at_marks.split(text)):
                if part in marks:
                    runs += [tuple(run), marks[part]]
                    run = []
                else:
                    run.append((part, is_trusted))
        return [*runs, tuple(run)]


def choose_media_marks(num: int, strings: Iterable[str]) -> str:
    """Return `num` characters that are in none of the strings.

    Raise InvalidRequest if the strings have nearly all characters that are assigned to nothing.
    """
    if not num:
        return ""
    used = set().union(*strings)
    marks = "".join(islice((mark for mark in map(chr, _MEDIA_MARKS) if mark not in used), num))
    if len(marks) < num:
        raise InvalidRequest("the messages have too many characters for private use", param="input")
    return marks


class Marker:
    """Marks the texts of control tokens in the strings of one prompt, and finds the marks in the rendered text.

    The parameters of the constructor: `control` matches the texts of control tokens, which are marked in all strings.
    `foreign` matches these texts and also the markers of calls, results and reasoning. Such markers are marked only in
    messages of users and tools. Messages of the assistant may contain them, and templates look for them there.
    `strings` are all strings of the prompt.
    """

    def __init__(
        self, control: re.Pattern[str], strings: Iterable[str], *, foreign: re.Pattern[str] | None = None
    ) -> None:
        text = "\n".join(strings)
        self._control = control
        self._foreign = foreign or control
        # JSON escapes may hide the text of a control token until the template parses the JSON.
        self._is_needed = self._foreign.search(text) is not None or "\\u" in text
        self._sentinel = next(mark for mark in map(chr, _SENTINELS) if mark not in text) if self._is_needed else ""

    def mark(self, text: str) -> str:
        """Return the text with a mark in every part that spells a control token. A second call changes nothing."""
        return self._mark(self._control, text)

    def mark_foreign(self, text: str) -> str:
        """Return the text of a user or a tool, with a mark in every part that `foreign` matches."""
        return self._mark(self._foreign, text)

    def _mark(self, pattern: re.Pattern[str], text: str) -> str:
        if not self._is_needed:
            return text
        return pattern.sub(lambda match: match[0][0] + self._sentinel + match[0][1:], text)

    def split(self, text: str) -> Pieces:
        """Remove the marks from a text. Return its parts in order, each with whether it is trusted."""
        if not self._is_needed:
            return ((text, True),)
        head, *tails = text.split(self._sentinel)
        pieces: list[tuple[str, bool]] = []
        for tail in tails:
            match = self._foreign.match(head[-1:] + tail)
            if match is None or not head:
                head += tail
                continue
            pieces += [(head[:-1], True), (match[0], False)]
            head = (head[-1] + tail)[match.end() :]
        return tuple(piece for piece in (*pieces, (head, True)) if piece[0])


def control_pattern(control_texts: Collection[str] | None) -> re.Pattern[str]:
    """Return a pattern for these texts; if None, for any text that looks like a control token."""
    if control_texts is None:
        return _LOOKS_LIKE_CONTROL
    return any_of(filter(None, map(str.strip, control_texts)))


def tokenize_rendered(rendered: Rendered, vocabulary: Vocabulary) -> list[int]:
    """Return the tokens of a rendered prompt. Only the template's own control tokens become control tokens.

    The text is cut only around client text that would become a control token, because a cut can change the tokens of
    the text next to it. BOS is added once, by the template or by the vocabulary.
    """
    return _tokenize_pieces(rendered.pieces, vocabulary, is_begin=True)


def tokenize_around_media(rendered: Rendered, vocabulary: Vocabulary) -> list[list[int] | int]:
    """Return the tokens before, between and behind the media, and for each medium the index of its place.

    Each text is tokenized alone, as llama.cpp does it. Raise InvalidRequest if the template has not written each medium
    exactly once.
    """
    runs = rendered.split_at_media()
    places = sorted(run for run in runs if isinstance(run, int))
    if places != list(range(len(rendered.media_marks))):
        raise InvalidRequest(
            "the model's chat template does not show each image or sound of this conversation exactly once",
            param="input",
        )
    return [
        run if isinstance(run, int) else _tokenize_pieces(run, vocabulary, is_begin=index == 0)
        for index, run in enumerate(runs)
    ]


def _tokenize_pieces(pieces: Pieces, vocabulary: Vocabulary, *, is_begin: bool) -> list[int]:
    plain: dict[str, list[int] | None] = {}
    runs: list[tuple[str, list[int] | None]] = []
    joined: list[str] = []
    for text, is_trusted in pieces:
        if not is_trusted and text not in plain:
            plain[text] = _plain_tokens(text, vocabulary) if _is_special(text, vocabulary) else None
        if is_trusted or plain[text] is None:
            joined.append(text)
            continue
        runs += [("".join(joined), None), (text, plain[text])]
        joined = []
    runs.append(("".join(joined), None))
    bos = vocabulary.bos_text
    tokens: list[int] = []
    for index, (text, ready) in enumerate(runs):
        add_bos = is_begin and index == 0 and not (bos and text.startswith(bos))
        if ready is not None:
            tokens += ready
        elif text or add_bos:
            tokens += vocabulary.tokenize(text, parse_special=True, add_bos=add_bos)
    return tokens


def _is_special(text: str, vocabulary: Vocabulary) -> bool:
    tokens = vocabulary.tokenize(text, parse_special=True)
    return any(vocabulary.is_control(token) or vocabulary.is_user_defined(token) for token in tokens)


def _plain_tokens(text: str, vocabulary: Vocabulary) -> list[int]:
    """Return the tokens of a text as plain text.

    User-defined tokens are parsed even in plain text. If there are any, the text is cut after its first character to
    avoid them.
    """
    tokens = vocabulary.tokenize(text, parse_special=False)
    if len(text) > 1 and any(map(vocabulary.is_user_defined, tokens)):
        return _plain_tokens(text[:1], vocabulary) + _plain_tokens(text[1:], vocabulary)
    return tokens
