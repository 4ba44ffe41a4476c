from typing import Any

import pytest

from tests.clients.json_cut import fault_of, is_unbounded

TEXT: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}}
TEXT["required"] = ["a", "b"]
BOUNDED = {"type": "object", "properties": {"a": {"enum": ["x"]}, "b": {"type": "integer"}}}
LIST = {"type": "array", "items": TEXT}
MAP = {"type": "object", "additionalProperties": {"type": "integer"}}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (TEXT, '{"a": "x", "b": 1}'),
        (TEXT, '{\n  "a": "x \\" 12345678901234567890                        ",\n  "b": 1\n}'),
        (LIST, "[]"),
        (MAP, '{"x": 1, "y": 1234567890123456}'),
    ],
)
def test_whole_answers_have_no_fault(schema: dict[str, Any], text: str) -> None:
    assert fault_of(schema, text, is_cut=False) is None


@pytest.mark.parametrize(
    ("schema", "text", "words"),
    [
        (TEXT, '{"a": "x"}', "required"),
        (TEXT, '{"a": "x", "b": 1, "c": 1}', "Additional properties"),
        (TEXT, '{"a": "x", "b": "1"}', "integer"),
        (TEXT, '{"a": "x", "b": 123456789012345678}', "digits"),
        (TEXT, '{"a": "x" , "b": 1}', "white space"),
        (TEXT, '{"a": "x",' + " " * 20 + '"b": 1}', "white space"),
        (TEXT, '{"a": "x"', "Expecting|delimiter"),
        (TEXT, "Here you are", "Expecting"),
    ],
)
def test_whole_answers_with_a_fault(schema: dict[str, Any], text: str, words: str) -> None:
    fault = fault_of(schema, text, is_cut=False)
    assert fault is not None
    assert any(word in fault for word in words.split("|")), fault


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (TEXT, '{"a": "x x x x x'),
        (TEXT, '{"a": "'),
        (TEXT, '{"a": "x\\'),
        (TEXT, '{"a": "x", "b'),
        (LIST, '[{"a": "x", "b": 1}, {"a": "x", "b": 1}, {'),
        (LIST, '[{"a": "x", "b": 1}, {"a": "x", "b": 1},'),
        (MAP, '{"x": 1, "y": 12'),
    ],
)
def test_what_the_schema_leaves_unbounded_may_be_cut(schema: dict[str, Any], text: str) -> None:
    assert fault_of(schema, text, is_cut=True) is None


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (BOUNDED, '{"a": "x", "b": 1'),
        (TEXT, '{"a": "x", "b": 1, "c": 1, "d'),
        (TEXT, '{"a": "x", "b": 1, "c": "x x x'),
        (TEXT, '{"a": "x", "b": 11111111111111111111'),
        (TEXT, '{"a": "x",' + "\n" * 30),
        (LIST, '[{"a": "x", "b": 1}, {"a": "x", "b": 1, "c": [{}, {}'),
        (TEXT, '{"a": 1, "b'),
    ],
)
def test_what_was_cut_for_another_reason(schema: dict[str, Any], text: str) -> None:
    assert fault_of(schema, text, is_cut=True) is not None


def test_what_is_unbounded() -> None:
    for schema in (TEXT, LIST, MAP, {"anyOf": [{"type": "null"}, {"type": "string"}]}):
        assert is_unbounded(schema)
    for schema in (BOUNDED, {"type": "string", "maxLength": 3}, {"type": "array", "maxItems": 2, "items": BOUNDED}):
        assert not is_unbounded(schema)
