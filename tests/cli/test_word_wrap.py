"""What a terminal shows of a streamed answer: lines that end between words."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from edgeagent.cli.word_wrap import PLAIN, WordWrap
from tests.examples import examples

CODE = "```python\nresult = one_name(first) + another_name(second)\n```"


def lines(*pieces: str, num_columns: int = 20) -> list[str]:
    """Return the lines that the pieces become, without the blanks at their ends."""
    wrap = WordWrap()
    return [line.rstrip() for line in screen("".join(wrap.wrap(piece, num_columns) for piece in pieces)).split("\n")]


def screen(output: str) -> str:
    """Return the text that output leaves on a terminal: backspaces and a clear erase the end of a line."""
    while erase := re.search("\b+\x1b\\[K", output):
        kept, num_columns = output[: erase.start()], erase[0].count("\b")
        while num_columns > 0:
            num_columns -= cell_len(kept[-1])
            kept = kept[:-1]
        output = kept + output[erase.end() :]
    assert "\b" not in output
    return output


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The quick brown fox jumps over the dog.", ["The quick brown fox", "jumps over the dog."]),
        ("short\n\nand two  blanks", ["short", "", "and two  blanks"]),
        ("see https://example.com/a/very/long/path here", ["see", "https://example.com/a/very/long/path", "here"]),
        (
            f"Run this code now:\n{CODE}\nThat was all the code.",
            ["Run this code now:", *CODE.split("\n"), "That was all the", "code."],
        ),
        ("Type `git add --all` and then commit", ["Type", "`git add --all` and", "then commit"]),
        ("One ` alone does not stop all for ever and ever", ["One", "` alone does not stop all for ever and", "ever"]),
        ("一二三四五六七八九十一二", ["一二三四五六七八九", "十一二"]),
        ("a\tb\tc and more text", ["a\tb\tc", "and more text"]),
        ("Run this code: `a\tb c d` now", ["Run this code:", "`a b c d` now"]),
    ],
)
def test_lines_end_between_words(text: str, expected: list[str]) -> None:
    assert lines(text) == expected
    assert lines(*text) == expected  # one character at a time


def test_a_piece_is_shown_at_once_and_a_word_too_long_for_its_line_moves() -> None:
    wrap = WordWrap()
    assert wrap.wrap("one tw", 10) == "one tw"
    assert wrap.wrap("o three", 10) == "o \nthree"
    assert wrap.wrap(" fou", 10) == " fou"
    assert wrap.wrap("r", 10) == "\b\b\b\x1b[K\nfour"


def test_the_width_may_change_within_a_text() -> None:
    wrap = WordWrap()
    assert wrap.wrap("one two ", 20) + wrap.wrap("three ", 10) + wrap.wrap("four", 30) == "one two \nthree four"


@settings(max_examples=examples(200))
@given(st.lists(st.text("ab c`\n一", max_size=9)), st.integers(3, 12))
def test_only_blanks_and_line_ends_differ_from_the_text(pieces: list[str], num_columns: int) -> None:
    text = "".join(pieces)
    shown = lines(*pieces, num_columns=num_columns)
    assert "".join(shown).replace(" ", "") == re.sub(r"\s", "", text)
    words = [word for line in shown for word in line.split()]
    plain = "`" not in text and "一" not in text
    assert not plain or words == text.split()


STYLE = re.compile(r"\x1b\[[0-9;]+m")
BOLD, CODE = "\x1b[0;1m", "\x1b[0;36m"


def styled(*pieces: str, num_columns: int = 40) -> str:
    """Return what a terminal gets for the pieces, to its end."""
    wrap = WordWrap(is_styled=True)
    return "".join(wrap.wrap(piece, num_columns) for piece in pieces) + wrap.end()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("## A title\nand text", f"{BOLD}## A title\n{PLAIN}and text"),
        ("#1 of all", f"{BOLD}#{PLAIN}1 of all"),
        ("so **very bold** it is", f"so **{BOLD}very bold**{PLAIN} it is"),
        ("2 ** 3 and 4 * 5", "2 ** 3 and 4 * 5"),
        ("say `x = **y**` so", f"say {CODE}`x = **y**`{PLAIN} so"),
        ("not ended **bold", f"not ended **{BOLD}bold{PLAIN}"),
        ("a\n~~~\n# x\n~~~\nb", f"a\n~~~\n{CODE}# x\n~~~\n{PLAIN}b"),
    ],
)
def test_markdown_has_styles_and_stays_as_it_is(text: str, expected: str) -> None:
    assert styled(text) == expected
    assert styled(*text) == expected
    assert STYLE.sub("", expected) == text


def test_a_word_that_moves_keeps_the_styles_within_it() -> None:
    wrap = WordWrap(is_styled=True)
    assert wrap.wrap("one two`a", 10) == f"one two{CODE}`a"
    assert wrap.wrap("b`", 10) == f"\b\b\b\b\b\x1b[K\n{PLAIN}two{CODE}`ab`{PLAIN}"


@settings(max_examples=examples(200))
@given(st.lists(st.text("ab #*`~\n一", max_size=9)), st.integers(3, 12))
def test_styles_change_no_line(pieces: list[str], num_columns: int) -> None:
    plain = WordWrap()
    shown = styled(*pieces, num_columns=num_columns)
    assert STYLE.sub("", shown) == "".join(plain.wrap(piece, num_columns) for piece in pieces)
    changes = STYLE.findall(shown)
    assert not changes or changes[-1] == PLAIN
