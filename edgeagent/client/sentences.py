"""Cuts a text that arrives in parts into sentences, for speech output. This module does no I/O.

`packaging/js/edgeagent.js` has the same rules. Both are tested with `tests/client/sentences.json`.
"""

from __future__ import annotations

import re

# What may stand between the end of a sentence and the next one: quotes, brackets, the marks of Markdown.
_CLOSERS = "\"'”’»›)\\]}*_`」』”’）】》〉"
_END = re.compile(
    # A line ends a sentence, so headings and the items of a list are spoken alone.
    rf"(?P<line>\n)|(?P<whole>[。！？｡।॥۔؟።։။។]+)[{_CLOSERS}]*"
    # In French, a space is before the closing quote. The German closing quotes “ and ‘ open a quote in other languages,
    # but not right behind these marks.
    rf"|(?P<mark>[.!?…]+)[{_CLOSERS}“‘]*(?:[ \u00a0\u202f]»)?"
)
_SPACE = re.compile(r"\s*")
# Their dot does not end a sentence, whatever follows.
_TITLE = re.compile(
    "dr|mr|mrs|ms|prof|st|mx|messrs|mme|mlle|hr|fr|frl|dipl|ing|sra|srta|dra|dott|sig|gen|col|lt|capt|sgt|rev|hon|gov|"
    "sen|rep|jun|vs|ca|bzw|sog|vgl|evtl|ggf|gest|geb|approx|св|проф|им|г|ул"
)
# Their dot does not end a sentence if a number follows.
_BEFORE_NUMBER = re.compile(
    "no|nos|nr|núm|num|nº|p|pp|s|vol|figs?|art|ch|sec|ex|eq|kap|abb|bd|tel|ext|стр|рис|"
    "jan|feb|mar|apr|jul|aug|sept?|o[ck]t|nov|de[cz]"
)
# 3. Mai: these letters begin the name of a German month.
_MONTH = re.compile("jan|jän|feb|mär|apr|mai|jun|jul|aug|sep|okt|nov|dez")
_NUM_LETTERS = 3
_LONGEST_WORD = 40


class Sentences:
    """Takes a text in parts, and gives its sentences as soon as each is whole.

    A dot ends a sentence unless it belongs to a number, an abbreviation or a name, or a small letter follows. So a
    Latin sentence is whole when the first letter after it is known, a Chinese or Hindi one when any character is.
    """

    def __init__(self) -> None:
        self._text = ""
        # There is no end of a sentence before this index.
        self._seen = 0

    def add(self, part: str) -> list[str]:
        """Add a part of the text; return the sentences that it completes, without the white space around them."""
        self._text += part
        return self._cut(is_end=False)

    def end(self) -> list[str]:
        """Return what is left, as the text has ended. The next text may follow."""
        sentences = self._cut(is_end=True)
        rest, self._text, self._seen = self._text.strip(), "", 0
        return [*sentences, rest] if rest else sentences

    def _cut(self, *, is_end: bool) -> list[str]:
        sentences: list[str] = []
        start = 0
        while (found := _END.search(self._text, self._seen)) is not None:
            is_whole = self._is_end(start, found, is_end=is_end)
            if is_whole is None:
                self._seen = found.start()
                break
            self._seen = found.end()
            if is_whole:
                sentence = self._text[start : found.end()].strip()
                start = found.end()
                if sentence:
                    sentences.append(sentence)
        else:
            self._seen = len(self._text)
        self._text = self._text[start:]
        self._seen -= start
        return sentences

    def _is_end(self, start: int, found: re.Match[str], *, is_end: bool) -> bool | None:
        """Whether a sentence that begins at `start` ends here; None if that depends on text that is yet to come."""
        if found["line"]:
            return True
        text, end = self._text, found.end()
        space = _SPACE.match(text, end)
        assert space is not None
        if space.end() == len(text):
            # At the end of the text, `end` returns what is left.
            return False if is_end else None
        if found["whole"]:
            # In Japanese, the particle to continues a sentence after its quotation.
            return not (text[end] == "と" and end > found.end("whole"))
        if not space[0]:
            return False  # 3.14, example.com, "?" in an address
        following = text[space.end() : space.end() + _NUM_LETTERS]
        if "\n" in space[0]:
            return True
        if following[0].islower():
            return False
        return found["mark"] != "." or self._ends_at_dot(start, found.start(), following, is_end=is_end)

    def _ends_at_dot(self, start: int, dot: int, following: str, *, is_end: bool) -> bool | None:
        """Whether a single dot, with white space and no small letter behind it, ends the sentence."""
        before = self._text[max(start, dot - _LONGEST_WORD) : dot]
        word = re.split(r"[\s(\[\"'“„«/-]", before)[-1].lower()
        if _TITLE.fullmatch(word) or re.fullmatch(r"(?:\w\.)+\w", word):
            return word in ("a.m", "p.m")
        if len(word) == 1 and word != word.upper():
            return word in ("i", "я")  # J. K. Rowling, z. B.; but: you and I
        if _BEFORE_NUMBER.fullmatch(word):
            return not following[0].isdigit()
        if word.isdigit() and len(word) <= 2:
            if before.strip() == word:
                return False  # the number of an item in a list
            if len(following) < _NUM_LETTERS and not is_end:
                return None
            return not _MONTH.match(following.lower())
        return True
