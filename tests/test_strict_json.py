"""JSON text that a hostile client may send."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeagent.errors import InvalidRequest
from edgeagent.strict_json import MAX_JSON_OBJECTS, MAX_JSON_VALUES, parse_json

BAD = {
    "empty": b"",
    "utf-8": b'"\xff"',
    "utf-8 surrogate": b'"\xed\xa0\x80"',
    "utf-16": '{"a":1}'.encode("utf-16"),
    "bom": b'\xef\xbb\xbf{"a":1}',
    "lone surrogate key": b'{"\\udfff":1}',
    "nul": b'["\\u0000"]',
    "raw nul": b'["\x00"]',
    "duplicate": b'{"a":1,"b":{"c":1,"c":2}}',
    "nan": b'{"a":NaN}',
    "infinity": b"[Infinity]",
    "-infinity": b"[-Infinity]",
    "1e400": b"[1e400]",
    "-1e400": b"[-1e400]",
    "huge integer": b"[" + b"9" * 5000 + b"]",
    "huge negative integer": b"[-" + b"9" * 400 + b"]",
    "trailing": b'{"a":1} x',
    "two": b"{}{}",
    "single quotes": b"{'a':1}",
    "comment": b"{}//x",
    "trailing comma": b"[1,]",
    "depth": b"[" * 65 + b"]" * 65,
    "depth 100k": b"[" * 100_000,
    "depth 100k objects": b'{"a":' * 100_000,
}
# The beginning, what is repeated, how often, and the end.
LARGE = {
    "values beside strings": (b'["x",', b"0,", MAX_JSON_VALUES + 1, b'"\\\\"]'),
    "escapes without end": (b'"', b'\\",', 2_000_000, b""),
    "quotes without end": (b"", b'"",', 2_000_000, b""),
    "backslashes": (b"[", b"\\,", 2_000_000, b""),
    "objects": (b"[", b"{},", MAX_JSON_OBJECTS, b"{}]"),
    "values": (b"[", b"0,", MAX_JSON_VALUES + 1, b"0]"),
}


@pytest.mark.parametrize("body", list(BAD.values()), ids=list(BAD))
def test_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_json(body)


@pytest.mark.parametrize(("begin", "part", "count", "end"), LARGE.values(), ids=LARGE)
def test_a_large_one_is_refused(begin: bytes, part: bytes, count: int, end: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_json(begin + part * count + end)


def test_half_a_surrogate_pair_is_replaced_in_text_and_refused_elsewhere() -> None:
    """A client that cut a text within an emoji sends it again with each turn, so the text must not be refused."""
    body = b'{"messages":[{"content":["a\\ud83d","\\ude00b","\\ud83d\\ude00"]}],"\\ud83d\\ude00":1}'
    texts = ["a\ufffd", "\ufffdb", "\N{GRINNING FACE}"]
    assert parse_json(body) == {"messages": [{"content": texts}], "\N{GRINNING FACE}": 1}
    with pytest.raises(InvalidRequest, match=r"^a key of tools\[0\]\.f holds .* half of a surrogate pair: 'x\\ud83d'$"):
        parse_json(b'{"tools":[{"f":{"x\\ud83d":1}}]}')
    with pytest.raises(InvalidRequest, match=r"^messages\[1\]\.content holds a NUL character") as caught:
        parse_json(b'{"messages":[{},{"content":"a\\u0000"}]}')
    assert caught.value.param == "messages[1].content"


def test_lone_surrogate_in_a_str() -> None:
    with pytest.raises(InvalidRequest):
        parse_json('"\ud800"')


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b"[" * 64 + b"]" * 64, None),
        (b"[" * 64 + b"1" + b"]" * 64, None),
        (b'["\\ud83d\\ude00"]', ["\N{GRINNING FACE}"]),
        (b'["\\\\u0000"]', ["\\u0000"]),
        (b"[18446744073709551615,-9223372036854775808]", [2**64 - 1, -(2**63)]),
        (b"[18446744073709552000,-9223372036854775809,1%s]" % (b"0" * 300), [2.0**64, -(2.0**63), 1e300]),
        ('{"é":-0.0}', {"é": 0.0}),
        (b'"' + b"," * (MAX_JSON_VALUES + 1) + b'"', "," * (MAX_JSON_VALUES + 1)),
        (b"[" + b"{}," * (MAX_JSON_OBJECTS - 1) + b"{}]", [{}] * MAX_JSON_OBJECTS),
        (b'["\\\\","' + b'\\",' * 300_000 + b'"]', ["\\", '",' * 300_000]),
    ],
)
def test_accepted(body: bytes | str, value: object) -> None:
    parsed = parse_json(body)
    assert value is None or parsed == value


_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _text,
    lambda child: st.lists(child) | st.dictionaries(_text, child),
    max_leaves=30,
)


@given(_json, st.booleans())
def test_agrees_with_json(value: object, ascii_only: bool) -> None:
    assert parse_json(json.dumps(value, ensure_ascii=ascii_only)) == value


@given(st.binary(max_size=200))
def test_only_ever_raises_invalid_request(body: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        parse_json(body)


def test_a_hostile_body_costs_little() -> None:
    """The work grows with the size of the body. If it grew with the square, this test would exceed its time limit."""
    for body in (b'"' + b'\\",' * 2_000_000, b"[" * 8_000_000, b"[" + b"[]," * 2_500_000, b'{"' * 4_000_000):
        with pytest.raises(InvalidRequest):
            parse_json(body)
