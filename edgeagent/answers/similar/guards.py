"""Rules that refuse an answer from similarity. They compare two questions' texts, and can only refuse.

An embedding places "approve the refund" next to "deny the refund", and "room 3" next to "room 5". Each rule looks for
one such difference. A rule that does not know a language finds nothing in it; it never allows what another rule
refuses.

Numbers, dates, times, units, names, quoted text, scripts and lengths are compared in any language that is written in
Latin letters. Antonyms, kinds of questions, words that point to a context, and numbers written as words are known in
English, German, French, Spanish and Italian; negations and the most usual words of context in more (see words.py).
Languages are told apart by their script, and those five by their most usual words. In Chinese and Japanese, which have
no spaces, the characters that carry meaning must be the same, in the same order: "from Beijing to Shanghai" and back
have the same ones.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from copy import copy
from functools import lru_cache
from itertools import pairwise

from edgeagent.answers.similar.words import (
    ASKED,
    CONTEXT,
    COURTESIES,
    KOREAN_NEGATION,
    LANGUAGES,
    NEGATIONS,
    OBLIGED,
    OPEN,
    PARTICLES,
    POINTING,
    POLITELY_ONLY,
    PREFIXES,
    TITLES,
    TO_US,
    TO_YOU,
    Language,
    joined,
)

MAX_CHARACTERS = 1000
"""A longer question has more in it than a vector of its whole text can tell apart, so it is never compared."""

# Without the article that French and Italian join to a word: l'entrée, dell'arte.
_WORD = re.compile(r"[^\W\d_]{1,4}(?='[^\W\d_]{3})|[^\W\d_]+(?:'[^\W\d_]+)*")
_NUMBER = re.compile(r"(?:(?<!\w)-)?\d+(?:[.,:/-]\d+)*")
_QUOTED = re.compile(r"[\"“”„«»‹›‘`]([^\"“”„«»‹›‘’`]{1,200})[\"“”«»‹›’`]|(?<!\w)'([^']{1,200})'(?!\w)")
_CHARACTER = re.compile(r"[\u3400-\u9fff\uf900-\ufaff\u30a0-\u30ff]|ない|なく|なかった|ません|なし")
_CODE = re.compile(r"[a-z]\d|\d[a-z]|[@#\\_{}<>=$€£%+*&|]|\w\.\w|://", re.IGNORECASE)
# Gate B. One beside a hyphen or an apostrophe is part of a word.
_LETTER = re.compile(r"(?<![\w'-])[a-z](?![\w'-])", re.IGNORECASE)
# Here a letter is none of the words of one letter: gate a, salle C. "Row" and "block" are verbs too: block a card.
_NAMED_LETTER = re.compile(
    r"(?:\b(?i:gate|hall|room|platform|terminal|vitamin[ae]?|hepatitis) (?i:[a-hj-z])|[^\W\d_A-Z] [A-HJ-Z])(?![\w'-])"
)
# A dash before a number, if no number or word is before it; "au moins 5" is "at least 5".
_SIGN = re.compile(r"(?<!\w)(?:[\u2010\u2013]|(?<!al |lo |au )(?:minus|moins|menos|meno) )(?=\d)", re.IGNORECASE)
# "May I" is no month, nor is "how late may I".
_MAY = re.compile(
    r"(?i:\b(?:in|until|till|since|by|of|mid) may\b|\b(?:early|late) may\b(?! (?:i|we|you|one|a|the)\b))"
    r"|(?<=[a-z] )May\b"
)
_SENTENCE_ENDS = ".!?:;\n"
# A dot behind it ends no sentence: Dr. Meyer, Mrs. Smith, St. Mary, J. Smith.
_SHORT_FORM = re.compile(r"\b(?!Hi\b|Hey\b)[^\W\d_a-zà-ÿ][^\W\d_]{0,3}\.$")
_MAX_RATIO = 3.0
_MIN_FRAME = 2  # words, with the one that differs
_MIN_STEM = 4
_MAX_READ = 64  # texts that need not be read again: a question is compared with several kept ones
_NOTHING: frozenset[str] = frozenset()


def refusal(asked: str, kept: str) -> str:
    """Return the name of the rule by which an answer to `kept` may not answer `asked`; "" if no rule refuses."""
    if max(len(asked), len(kept)) > MAX_CHARACTERS:
        return "length"
    languages = frozenset(_text(asked).languages | _text(kept).languages) or frozenset(LANGUAGES)
    first, second = _read(asked, languages), _read(kept, languages)
    return next((name for name, refuses in RULES.items() if refuses(first, second)), "")


def refusal_alone(asked: str) -> str:
    """Return the name of the rule by which no kept answer may ever answer `asked`; "" if there is none.

    Of a text and itself, no other rule refuses any.
    """
    if len(asked) > MAX_CHARACTERS:
        return "length"
    text = _text(asked)
    known = joined(frozenset(text.languages) or frozenset(LANGUAGES))
    if text.points(known):
        return "context"
    return "" if text.said(known) else "length"


class _Text:
    """What the rules compare of one text."""

    def __init__(self, text: str) -> None:
        plain = unicodedata.normalize("NFKC", text).replace("’", "'").replace("\N{MINUS SIGN}", "-")
        self.text = _SIGN.sub("-", plain)
        self._found = [(match.group(), match.start()) for match in _WORD.finditer(self.text)]
        self.words = [word.lower().removesuffix("'s") for word, _ in self._found]  # the men's room
        counts = {name: sum(word in known.fillers for word in self.words) for name, known in LANGUAGES.items()}
        most = max(counts.values())
        self.languages = {name for name, count in counts.items() if count == most} if most else set()
        letters = {character for word in self.words for character in word if character.isalpha()}
        self.scripts = {unicodedata.name(letter, "UNKNOWN").partition(" ")[0] for letter in letters}

    def said(self, known: Language) -> list[str]:
        """Return the words that have a content of their own."""
        return [word for word in self.words if word not in known.fillers]

    def points(self, known: Language) -> bool:
        """Whether it means something only at a time or a place."""
        has_word = not (known.context.isdisjoint(self.words) and CONTEXT.isdisjoint(self.words))
        return has_word or POINTING.search(self.text.lower()) is not None

    def read(self, known: Language) -> None:
        """Find what the rules look for, with the words of a language or of several."""
        self.content = self.said(known)
        self.names = self._names() - known.fillers - known.dates.keys()
        self.opposites = {word: known.opposites[word] for word in self.words if word in known.opposites}
        self.behind = self._behind(known)
        negations = known.negations | NEGATIONS
        self.num_negations = sum(word.endswith("n't") or word in negations for word in self.words)
        self.num_negations += len(KOREAN_NEGATION.findall(self.text)) - len(POLITELY_ONLY.findall(self.text.lower()))
        self.has_context = self.points(known)
        digits = (_plain(match.group()) for match in _NUMBER.finditer(self.text))
        self.numbers = Counter([*digits, *self._meanings(known.numbers)])
        self.units = set(self._meanings(known.units))
        self.dates = {*self._meanings(known.dates), *(["may"] if _MAY.search(self.text) else [])}
        self.quotes = {(match.group(1) or match.group(2)).strip().lower() for match in _QUOTED.finditer(self.text)}
        self.characters = [each for each in _CHARACTER.findall(self.text) if each not in PARTICLES]
        letters = {match.group().lower() for match in _LETTER.finditer(self.text)} - known.fillers
        letters.update(found[-1].lower() for found in _NAMED_LETTER.findall(self.text))
        self.codes = {word.lower().rstrip(".,!?;:)") for word in self.text.split() if _CODE.search(word)} | letters
        self.asks = self._asks()
        plain = self.text.lower()
        self.is_duty = OBLIGED.search(plain) is not None and OPEN.search(plain) is None
        self.ways = {name for name, pattern in (("to us", TO_US), ("to you", TO_YOU)) if pattern.search(plain)}

    def _asks(self) -> set[str]:
        """Return what is asked for: {"time"} for "what time do you open"."""
        found: set[str] = set()
        for start in range(len(self.words)):
            for length in (3, 2, 1):
                if kinds := ASKED.get(" ".join(self.words[start : start + length])):
                    found |= kinds
                    break
        return found

    def _behind(self, known: Language) -> dict[str, set[str]]:
        """Return which words with opposites stand before a word: {"church": {"to"}} for "to the church"."""
        found: dict[str, set[str]] = {}
        before = ""
        for word in self.words:
            if word in known.opposites:
                before = word
            elif before and word not in known.fillers:
                found.setdefault(word, set()).add(before)
                before = ""
        return found

    def named(self, names: set[str]) -> list[str]:
        """Return which of these names the text has, in their order, in whatever case."""
        return list(dict.fromkeys(word for word in self.words if word in names))

    def _meanings(self, table: dict[str, str]) -> list[str]:
        return [table[word] for word in self.words if word in table]

    def _names(self) -> set[str]:
        """Return the words that are written with a capital letter as names are, in lower case.

        The first word of a sentence is one only if another such word follows it. A word behind a title is one in any
        case. Otherwise a text without capital letters has no names; but a name of the other text is looked for in it
        (see `_other_names`).
        """
        found = {word for title, word in pairwise(self.words) if title in TITLES and word not in TITLES}
        for index, (word, start) in enumerate(self._found):
            following = self._found[index + 1 : index + 2]
            has_second = any(each[0].isupper() and at == start + len(word) + 1 for each, at in following)
            is_title = word.lower() in TITLES
            if word[0].isupper() and not is_title and (has_second or not self._begins(start)):
                found.add(word.lower().removesuffix("'s"))
        return found

    def _begins(self, start: int) -> bool:
        before = self.text[:start].rstrip(" \t\"'“„«([-¿¡*")
        return not before or (before[-1] in _SENTENCE_ENDS and not _SHORT_FORM.search(before))


@lru_cache(_MAX_READ)
def _text(text: str) -> _Text:
    return _Text(text)


@lru_cache(_MAX_READ)
def _read(text: str, languages: frozenset[str]) -> _Text:
    """Return a text that was read with the words of these languages."""
    read = copy(_text(text))
    read.read(joined(languages))
    return read


def _plain(number: str) -> str:
    """Return a number without separators of thousands and without zeros that change nothing: 1000 for 1,000.0."""
    text = re.sub(r"[,.](?=\d{3}(?:\D|$))", "", number).replace(",", ".")
    return re.sub(r"\.0+$", "", text).lstrip("0") or "0"


def _opposed(first: _Text, second: _Text) -> bool:
    """Whether a word of one text has its opposite only in the other: by the lists, or by how the two are made."""
    mine, other = set(first.words) - set(second.words), set(second.words) - set(first.words)
    return any(
        not first.opposites.get(word, _NOTHING).isdisjoint(other)
        or any(_is_reversed(word, each) or _is_reversed(each, word) for each in other)
        for word in mine
    )


def _is_reversed(word: str, other: str) -> bool:
    """Whether `word` is the other behind a prefix that reverses it, or the lessee of a lessor."""
    stem = word.removesuffix("s").removesuffix("ee")
    return any(word == prefix + other for prefix in PREFIXES) or (
        stem + "ee" in word and other.removesuffix("s") in (stem + "er", stem + "or")
    )


def _other_question(first: _Text, second: _Text) -> bool:
    """Whether they ask for other things: when and where, what may and what must be done, who does it for whom."""
    if first.asks and second.asks and first.asks.isdisjoint(second.asks):
        return True
    if first.num_negations == 0 and first.is_duty != second.is_duty:
        return True
    return bool(first.ways and second.ways) and first.ways.isdisjoint(second.ways)


def _other_names(first: _Text, second: _Text) -> bool:
    """Whether a name of one text is not in the other, in whatever case."""
    return not (first.names <= {*second.words} and second.names <= {*first.words})


def _hidden_names(first: _Text, second: _Text) -> bool:
    """Whether less than half of the words are common where names do not show, since neither has a capital letter."""
    if any(text.characters or text.text != text.text.lower() for text in (first, second)):
        return False
    pair = set(first.content), set(second.content)
    num_common = min(
        sum(any(word == other or _are_forms(word, other) for other in others) for word in words)
        for words, others in (pair, pair[::-1])
    )
    return 2 * num_common < min(map(len, pair))


def _other_units(first: _Text, second: _Text) -> bool:
    return bool(first.units and second.units) and first.units != second.units


def _one_word(first: _Text, second: _Text) -> bool:
    """Whether only one word differs: "a ticket for adults" and "a ticket for children".

    Such a word may be a synonym. No rule knows that, so the model answers.
    """
    return any(
        len(mine) == len(other)
        and len(mine) >= _MIN_FRAME
        and len(pairs := [(one, two) for one, two in zip(mine, other, strict=True) if one != two]) == 1
        and not _are_forms(*pairs[0])
        for mine, other in (
            (first.content, second.content),
            ([word for word in text.words if word not in COURTESIES] for text in (first, second)),
        )
    )


def _are_forms(first: str, second: str) -> bool:
    """Whether two words look like forms of one word, such as opens and opening."""
    short, long = sorted((first, second), key=len)
    return long.startswith(short[: max(_MIN_STEM, len(short) - 1)])


def _other_order(first: _Text, second: _Text) -> bool:
    """Whether both say something of other things: "from Leeds to York" and "from York to Leeds".

    1. They have the same words in another order.
    2. Both have the same names in another order, whatever else they say.
    3. A word stands behind "from" in one, and behind "to" in the other, or behind two other opposites.
    """
    if first.content != second.content and sorted(first.content) == sorted(second.content):  # 1
        return True
    names = first.names | second.names
    both = set(first.named(names)) & set(second.named(names))
    if first.named(both) != second.named(both):  # 2
        return True
    return any(  # 3
        mine != other and any(not first.opposites[word].isdisjoint(other) for word in mine)
        for behind, mine in first.behind.items()
        if (other := second.behind.get(behind))
    )


def _other_language(first: _Text, second: _Text) -> bool:
    if first.scripts != second.scripts and first.words and second.words:
        return True
    return bool(first.languages and second.languages) and not first.languages & second.languages


def _other_length(first: _Text, second: _Text) -> bool:
    """Whether one says several times as much as the other, or one says nothing."""
    short, long = sorted((len(first.content), len(second.content)))
    return short == 0 or long > _MAX_RATIO * short


RULES: dict[str, Callable[[_Text, _Text], bool]] = {
    "context": lambda first, second: first.has_context or second.has_context,
    "language": _other_language,
    "length": _other_length,
    "numbers": lambda first, second: first.numbers != second.numbers,
    "dates": lambda first, second: first.dates != second.dates,
    "units": _other_units,
    "negation": lambda first, second: first.num_negations != second.num_negations,
    "antonyms": _opposed,
    "names": _other_names,
    "characters": lambda first, second: first.characters != second.characters,
    "small_letters": _hidden_names,
    "quoted": lambda first, second: first.quotes != second.quotes,
    "codes": lambda first, second: first.codes != second.codes,
    "order": _other_order,
    "one_word": _one_word,
    "question": _other_question,
}
"""Each rule's name, and whether it refuses. The names are those of the metric's label and of `answers stats`."""
