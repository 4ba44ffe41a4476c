import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.text.output.calls import MalformedError, read_space, read_string, read_value

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


def _read(text: str) -> tuple[str, str]:
    """Return the part of the value at the start of a text that was kept, and the unread rest."""
    kept: list[str] = []
    reader = read_value(text[0], kept.append)
    try:
        next(reader)
        for index, char in enumerate(text[1:], 1):
            try:
                reader.send(char)
            except StopIteration as stop:
                return "".join(kept), stop.value + text[index + 1 :]
    except StopIteration as stop:
        return "".join(kept), stop.value
    raise EOFError("".join(kept))


@given(_JSON, st.sampled_from([None, 2]), st.booleans())
def test_a_value_is_kept_as_it_is_written(value: Any, indent: int | None, ensure_ascii: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)
    assert _read(text + ";rest") == (text, ";rest")


@pytest.mark.parametrize(
    "text",
    [
        *("{'a': 1}", '{"a" 1}', '{"a": 1,}', "{a: 1}", '{"a": }', "{]"),
        *("[1, ]", "[1 2]", "[}", "01;", "1.;", "-;", "+1;", "NaN;", "Infinity", "tru;", "nil"),
        *('"\\x"', '"\\u12g4"'),
    ],
)
def test_what_is_no_json_is_malformed(text: str) -> None:
    with pytest.raises(MalformedError):
        _read(text)


def test_a_line_break_in_a_string_becomes_an_escape() -> None:
    kept, _ = _read('["a\nb\tc"] ')
    assert json.loads(kept) == ["a\nb\tc"]


def test_depth_is_bounded() -> None:
    assert _read("[" * 60 + "]" * 60)[0] == "[" * 60 + "]" * 60
    with pytest.raises(MalformedError):
        _read("[" * 70)


def test_an_unfinished_value_waits_for_more() -> None:
    with pytest.raises(EOFError, match=r'\{"a": \[1, "x'):
        _read('{"a": [1, "x')


@given(st.text())
def test_a_string_is_read_as_its_value(text: str) -> None:
    reader = read_string('"')
    next(reader)
    with pytest.raises(StopIteration) as stop:
        for char in json.dumps(text)[1:]:
            reader.send(char)
    assert stop.value.value == text


def test_a_lone_surrogate_becomes_a_replacement_character() -> None:
    for written, text in ((r'a\ud83d\ude00"', "a\U0001f600"), (r'a\ud83d"', "a\ufffd"), (r'\ude00b"', "\ufffdb")):
        reader = read_string('"')
        next(reader)
        with pytest.raises(StopIteration) as stop:
            for char in written:
                reader.send(char)
        assert stop.value.value == text


def test_space_is_read_to_the_next_character() -> None:
    reader = read_space()
    next(reader)
    assert [reader.send(char) for char in " \n\t"] == [None, None, None]
    with pytest.raises(StopIteration) as stop:
        reader.send("x")
    assert stop.value.value == "x"
