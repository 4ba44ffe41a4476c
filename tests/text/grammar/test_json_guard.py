import json
from typing import Any

import pytest

from edgeagent.text.grammar.compiler import GrammarCompiler
from edgeagent.text.grammar.constraint import Constraint
from edgeagent.text.grammar.json_guard import MAX_EQUAL_ELEMENTS, MAX_PERIODIC_BYTES, MAX_REPEATS
from edgeagent.text.tool_format import ToolFormat
from edgeagent.types import JsonObjectFormat, JsonSchemaFormat, TextFormat, Tool, ToolChoice
from tests.text.fake_vocabulary import FakeVocabulary
from tests.text.grammar.test_compiler import MARKED, accepts, constraint

SIXTEEN = "1" * 16


@pytest.mark.parametrize("schema", [{"type": "number"}, {"type": ["number", "null"], "minimum": 0}, {}, True])
@pytest.mark.parametrize(
    ("number", "expected"),
    [
        ("0", True),
        (SIXTEEN, True),
        (SIXTEEN + "1", False),
        (f"{SIXTEEN}.{SIXTEEN}", True),
        (f"1.{SIXTEEN}1", False),
        (f"0.{'0' * 17}", False),
    ],
)
def test_digits_of_numbers_are_bounded(schema: Any, number: str, expected: bool) -> None:
    form = JsonSchemaFormat(json.dumps({"type": "object", "properties": {"a": schema}, "required": ["a"]}))
    assert accepts(constraint(form), f'{{"a": {number}}}') is expected
    assert accepts(constraint(form), f'{{"a":{number}}}') is expected


@pytest.mark.parametrize(
    ("number", "expected"), [("1e99", True), ("1e-99", True), ("-1.5E+07", True), ("1e100", False), ("1e-0000", False)]
)
def test_exponents_are_bounded(number: str, expected: bool) -> None:
    assert accepts(constraint(JsonSchemaFormat('{"type": "number"}')), number) is expected


def test_digits_are_bounded_wherever_json_is_written() -> None:
    long = SIXTEEN + "1"
    assert not accepts(constraint(JsonObjectFormat()), f'{{"a": [{long}]}}')
    assert accepts(
        constraint(JsonObjectFormat()), f'{{"a": [{SIXTEEN}, -{SIXTEEN}, "{long}", "\\\\" , 1]}}'.replace(" ,", ",")
    )
    tools = (Tool("get", "", '{"properties": {"a": {"type": "integer"}}}'),)
    for mode in ("auto", "required"):
        for number, expected in ((SIXTEEN, True), (long, False)):
            call = f'<tool_call>\n{{"name": "get", "arguments": {{"a": {number}}}}}\n</tool_call>'
            assert accepts(constraint(TextFormat(), tools, mode), call) is expected


@pytest.mark.parametrize("number", [10**20, 1e-20])
def test_digits_that_the_schema_asks_for_may_be_written(number: float) -> None:
    state = constraint(JsonSchemaFormat(f'{{"const": {json.dumps(number)}}}'))
    written = ""
    while (mask := state.mask()) is not None and not mask[MARKED.end_tokens[0]]:
        token = int(mask.nonzero()[0][0])
        state.accept(token)
        written += MARKED.text([token])
    assert json.loads(written) == number


def test_a_number_above_an_excluded_zero_comes_to_its_end() -> None:
    state = constraint(JsonSchemaFormat('{"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}'))
    for token in MARKED.tokenize("0." + "0" * 16, parse_special=False):
        assert state.allows(token)
        state.accept(token)
    mask = state.mask()
    assert mask is not None
    assert {MARKED.text([token]) for token in mask.nonzero()[0].tolist()} == set("123456789")
    state.accept(ord("7"))
    assert state.allows(MARKED.end_tokens[0])
    assert not state.allows(ord("0"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a":1,"b":"x"}', True),
        ('{"a": 1, "b": "x"}', True),
        ('{\n  "a": 1,\n  "b": "x"\n}', True),
        ('{\n\t"a": 1,\n\t"b": "x"\n}', True),
        ('{ "a": 1, "b": "x"\n}', True),
        ('{"a": 1,\n"b": "x"\n}', True),
        ('{"a" : 1, "b": "x"}', False),
        ('{"a"\n: 1, "b": "x"}', False),
        ('{"a":\n1, "b": "x"}', False),
        ('{"a": 1\n, "b": "x"}', False),
        ('{"a": 1\n  , "b": "x"}', False),
        ('{"a": 1, "b": "x" }', False),
        ('{"a": 1 , "b": "x"}', False),
        ('{"a":  1, "b": "x"}', False),
        ('{"a": 1,\n\n"b": "x"}', False),
        ('{"a": 1,\n' + " " * 17 + '"b": "x"}', False),
        ('{"a": 1, "b": "x  :  , \\" 11111111111111111111"}', True),
    ],
)
def test_white_space_is_what_models_have_seen(text: str, expected: bool) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
    assert accepts(constraint(JsonSchemaFormat(json.dumps(schema))), text) is expected
    assert accepts(constraint(JsonObjectFormat()), text) is expected
    call = f'<tool_call>\n{{"name": "get", "arguments": {text}}}\n</tool_call>'
    assert accepts(constraint(tools=(Tool("get", "", json.dumps(schema)),)), call) is expected


@pytest.mark.parametrize("name", ["date-time", "time", "duration"])
def test_texts_of_a_format_are_bounded(name: str) -> None:
    start = {"date-time": "2025-01-01T00:00:00.", "time": "00:00:00.", "duration": "P1Y"}[name]
    state = constraint(JsonSchemaFormat(json.dumps({"type": "string", "format": name})))
    text = f'"{start}' + "1" * 60
    assert not accepts(state, text + 'Z"')


def test_a_list_is_written_as_models_have_seen_it() -> None:
    form = JsonSchemaFormat('{"type": "array", "items": {"type": "object", "properties": {"a": {"type": "integer"}}}}')
    for text in ("[]", '[{}, {"a": 1}]', '[{"a":1},{"a":2}]', '[\n  {\n    "a": 1\n  },\n  {}\n]'):
        assert accepts(constraint(form), text)
    for text in ("[{} , {}]", "[{}\n, {}]", '[{"a": 1} ]'):
        assert not accepts(constraint(form), text)


def test_a_bracket_and_a_line_s_end_in_one_token_take_a_comma_at_once() -> None:
    vocabulary = FakeVocabulary(user_defined=("}\n",))
    compiler = GrammarCompiler(vocabulary)
    schema = {
        "properties": {"a": {"type": "object", "properties": {}}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    }
    state = compiler.compile(
        JsonSchemaFormat(json.dumps(schema)), (), ToolChoice(), True, ToolFormat.HERMES, partition=""
    )
    assert isinstance(state, Constraint)
    assert accepts(state.copy(), '{"a": {}\n, "b": 1}', vocabulary)
    assert not accepts(state.copy(), '{"a": {}\n  , "b": 1}', vocabulary)


@pytest.mark.parametrize("char", ["3", " ", r"\n", r"\t"])
def test_a_string_that_repeats_one_digit_or_blank_comes_to_its_end(char: str) -> None:
    form = JsonSchemaFormat('{"type": "string"}')
    assert accepts(constraint(form), f'"x{char * MAX_REPEATS}y"')
    assert accepts(constraint(form), f'"x{char * (MAX_REPEATS + 1)}"')
    assert not accepts(constraint(form), f'"x{char * (MAX_REPEATS + 4)}"')
    assert not accepts(constraint(form), f'"x{char * (MAX_REPEATS + 3)}y"')
    assert accepts(constraint(form), '"' + "ab34" * MAX_REPEATS + "-" * 3 * MAX_REPEATS + '"')
    assert not accepts(constraint(form), '"' + r"\n " * MAX_REPEATS + '"')
    longer = JsonSchemaFormat(json.dumps({"type": "string", "minLength": 2 * MAX_REPEATS}))
    assert accepts(constraint(longer), f'"{char * 2 * MAX_REPEATS}"')


class TestTheEndWithinAString:
    """If a model would end its answer inside a string, the string is closed."""

    def state(self, schema: dict[str, Any], text: str) -> Any:
        state = constraint(JsonSchemaFormat(json.dumps(schema)))
        for token in MARKED.tokenize(text, parse_special=False):
            assert state.allows(token)
            state.accept(token)
        return state

    def test_it_becomes_a_quote(self) -> None:
        quote, markers = ord('"'), MARKED.tokenize("</tool_call><|end|>", parse_special=True)
        state = self.state({"type": "string"}, '"Hello')
        for token in markers:
            assert not state.allows(token)
            assert state.instead_of(token) == quote
        assert state.instead_of(ord("\n")) is None

    @pytest.mark.parametrize(
        ("schema", "text"),
        [
            ({"type": "string"}, '"Hello\\'),
            ({"type": "string", "minLength": 9}, '"Hello'),
            ({"enum": ["Hello world"]}, '"Hello'),
            ({"type": "array", "items": {"type": "string"}}, '["Hello"'),
            ({"type": "integer"}, "1"),
        ],
    )
    def test_it_does_not_where_a_quote_would_not_end_the_text(self, schema: dict[str, Any], text: str) -> None:
        assert self.state(schema, text).instead_of(MARKED.end_tokens[0]) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1, "b": 1, "c": {"a": 1}}', True),
        ('{"a": 1, "a": 2}', True),
        ('{"a": 1, "a": 2, "b": 3}', False),
        ('{"a": "x", "a": "x", "a": "x"}', False),
        ('{"a": {"b": 1}, "a": {"b": 1}, "c": 2}', False),
        ('{"a": {"b": 1}, "a": {"b": [1, 2], "c": "1, 2"}}', True),
        ('[{"a": 1, "a": {"b": 1, "c": [1, 2]}}, 1]', True),
        ('{"a": [{"a": 1}, {"a": 1}, {"a": 2}]}', True),
    ],
)
def test_an_object_that_repeats_a_key_has_to_end(text: str, expected: bool) -> None:
    assert accepts(constraint(JsonSchemaFormat("{}")), text) is expected


@pytest.mark.parametrize("element", ["0", '"a"', "[1, 2]", '{"a": "b, c"}', "null"])
def test_an_array_of_equal_elements_has_to_end(element: str) -> None:
    state = constraint(JsonSchemaFormat("{}"))
    assert accepts(state.copy(), "[" + ", ".join([element] * MAX_EQUAL_ELEMENTS) + "]")
    assert not accepts(state.copy(), "[" + ", ".join([element] * (MAX_EQUAL_ELEMENTS + 1)) + "]")
    mixed = [element if index % 100 else "7" for index in range(3 * MAX_EQUAL_ELEMENTS)]
    assert accepts(state, "[" + ", ".join(mixed) + "]")


def test_an_array_goes_on_if_the_schema_asks_for_more_equal_elements() -> None:
    many = MAX_EQUAL_ELEMENTS + 10
    schema = {"type": "array", "items": {"const": 1}, "minItems": many}
    assert accepts(constraint(JsonSchemaFormat(json.dumps(schema))), json.dumps([1] * many))


@pytest.mark.parametrize("phrase", ["la ", "no, never! ", "-", "ab\\n"])
def test_a_string_that_repeats_a_phrase_has_to_end(phrase: str) -> None:
    state = constraint(JsonSchemaFormat('{"type": "string"}'))
    often = phrase * (MAX_PERIODIC_BYTES // len(phrase) - 1)
    assert accepts(state.copy(), f'"{often} and more"')
    assert not accepts(state.copy(), f'"{often + phrase * 3}and more"')
    varied = "".join(f"{phrase}{index} " for index in range(200))
    assert accepts(state, f'"{varied}"')
