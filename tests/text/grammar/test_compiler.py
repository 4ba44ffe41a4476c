import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgeagent.errors import InternalError, InvalidRequest, InvalidToolSchema, NotSupported
from edgeagent.text.grammar.calls import CallBan
from edgeagent.text.grammar.compiler import MAX_CACHED_GRAMMARS, GrammarCompiler
from edgeagent.text.grammar.constraint import Constraint
from edgeagent.text.grammar.fault import grammar_fault
from edgeagent.text.tool_format import THINK, ReasoningMarkers, ToolFormat
from edgeagent.types import JsonObjectFormat, JsonSchemaFormat, OutputFormat, TextFormat, Tool, ToolChoice
from tests.examples import examples
from tests.text.fake_vocabulary import FakeVocabulary

PLAIN = FakeVocabulary()
MARKED = FakeVocabulary(
    ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<think>", "</think>")
)
COMPILERS = {id(vocabulary): GrammarCompiler(vocabulary) for vocabulary in (PLAIN, MARKED)}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = (Tool("get", "", json.dumps(CITY)), Tool("set", "", json.dumps(PERSON)))
GET, SET = '"arguments": {"city": "Paris"}', '"arguments": {"name": "Ada", "age": 36}'


def constraint(
    output_format: OutputFormat = TextFormat(),  # noqa: B008
    tools: tuple[Tool, ...] = (),
    mode: str = "auto",
    names: tuple[str, ...] = (),
    *,
    parallel: bool = True,
    tool_format: ToolFormat = ToolFormat.HERMES,
    vocabulary: FakeVocabulary = MARKED,
    open_reasoning: ReasoningMarkers | None = None,
) -> Constraint:
    choice = ToolChoice(mode, names)  # type: ignore[arg-type]
    compiler = COMPILERS[id(vocabulary)]
    made = compiler.compile(
        output_format, tools, choice, parallel, tool_format, partition="", open_reasoning=open_reasoning
    )
    assert isinstance(made, Constraint)
    return made


def accepts(state: Constraint | CallBan, text: str, vocabulary: FakeVocabulary = MARKED) -> bool:
    """Return whether the text and then the end may be generated; the mask and `allows` must agree at every token."""
    for token in [*vocabulary.tokenize(text, parse_special=True), vocabulary.end_tokens[0]]:
        mask = state.mask()
        allowed = state.allows(token)
        if mask is not None:
            assert mask.shape == (vocabulary.num_tokens,)
            assert bool(mask[token]) == allowed
        if not allowed:
            return False
        forced = list(state.forced())
        state.accept(token)
        assert not forced or vocabulary.text(forced).startswith(vocabulary.text([token]))
    return True


SCHEMA = JsonSchemaFormat(json.dumps(PERSON))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"name": "Ada", "age": 36}', True),
        ('{\n  "name": "é😀\\n",\n  "age": -1\n}', True),
        ('{"name": "Ada", "age": 36', False),
        ('{"name": "Ada"}', False),
        ('{"name": "Ada", "age": "36"}', False),
        ('{"name": "Ada", "age": 36, "x": 1}', False),
        ('{"name": "Ada", "age": 36} ', False),
        ('Here: {"name": "Ada", "age": 36}', False),
        ('{"name": "Ada",' + " " * 100 + '"age": 36}', False),
        ("", False),
    ],
)
@pytest.mark.parametrize("vocabulary", [PLAIN, MARKED])
def test_json_schema(text: str, expected: bool, vocabulary: FakeVocabulary) -> None:
    assert accepts(constraint(SCHEMA, vocabulary=vocabulary), text, vocabulary) is expected


@pytest.mark.parametrize(
    ("text", "expected"), [("{}", True), ('{"a": [1, {"b": null}]}', True), ("[]", False), ("1", False), ("{", False)]
)
def test_json_object(text: str, expected: bool) -> None:
    assert accepts(constraint(JsonObjectFormat()), text) is expected


def test_free_text_has_no_constraint() -> None:
    compiler = COMPILERS[id(PLAIN)]
    assert compiler.compile(TextFormat(), (), ToolChoice(), True, ToolFormat.HERMES, partition="") is None


CALLS: dict[ToolFormat, tuple[str, str]] = {
    ToolFormat.HERMES: (
        f'<tool_call>\n{{"name": "get", {GET}}}\n</tool_call>',
        f'<tool_call>{{"name":"get",{GET}}}</tool_call>\n<tool_call>\n{{"name": "set", {SET}}}\n</tool_call>',
    ),
    ToolFormat.LLAMA: (
        f'{{"name": "get", {GET}}}'.replace("arguments", "parameters"),
        f'{{"name": "get", {GET}}}; {{"name": "set", {SET}}}'.replace("arguments", "parameters"),
    ),
    ToolFormat.MISTRAL: (
        f'[TOOL_CALLS] [{{"name": "get", {GET}}}]',
        f'[TOOL_CALLS][{{"name": "get", {GET}}}, {{"name": "set", {SET}}}]',
    ),
    ToolFormat.MISTRAL_ARGS: (
        '[TOOL_CALLS]get[ARGS]{"city": "Paris"}',
        '[TOOL_CALLS]get[ARGS]{"city": "Paris"}[TOOL_CALLS]set[ARGS]{"name": "Ada", "age": 36}',
    ),
}


@pytest.mark.parametrize("vocabulary", [PLAIN, MARKED])
@pytest.mark.parametrize("tool_format", ToolFormat)
def test_required_calls(tool_format: ToolFormat, vocabulary: FakeVocabulary) -> None:
    def is_accepted(text: str, *names: str, parallel: bool = True) -> bool:
        state = constraint(
            tools=TOOLS, mode="required", names=names, parallel=parallel, tool_format=tool_format, vocabulary=vocabulary
        )
        return accepts(state, text, vocabulary)

    one, two = CALLS[tool_format]
    assert is_accepted(one)
    assert is_accepted(two)
    assert is_accepted(one, "get")
    assert is_accepted(one, parallel=False)
    assert not is_accepted(two, parallel=False)
    assert not is_accepted(one, "set")
    assert not is_accepted(one.replace("city", "town"))
    assert not is_accepted(one.replace("get", "other"))
    assert not is_accepted(one[:-1])
    assert not is_accepted("")
    assert not is_accepted("Sure. " + one)


@pytest.mark.parametrize("vocabulary", [PLAIN, MARKED])
@pytest.mark.parametrize("tool_format", ToolFormat)
def test_calls_that_the_model_chooses_are_constrained_from_their_marker_on(
    tool_format: ToolFormat, vocabulary: FakeVocabulary
) -> None:
    def is_accepted(text: str, parallel: bool = True) -> bool:
        state = constraint(tools=TOOLS, parallel=parallel, tool_format=tool_format, vocabulary=vocabulary)
        return accepts(state, text, vocabulary)

    one, two = CALLS[tool_format]
    preface = "" if tool_format is ToolFormat.LLAMA else "Let me see.\n"
    assert is_accepted("Just text, 1 < 2 [x] {y}.")
    assert is_accepted("")
    assert is_accepted(preface + one)
    assert is_accepted(preface + two)
    assert not is_accepted(preface + one.replace("city", "town"))
    assert not is_accepted(preface + one.replace("get", "other"))
    assert not is_accepted(preface + one[:-1])
    assert is_accepted(preface + one, parallel=False)
    assert not is_accepted(preface + two, parallel=False)


def test_python_tag_wakes_the_grammar_of_llama_calls() -> None:
    one, two = CALLS[ToolFormat.LLAMA]
    for mode in ("auto", "required"):
        assert accepts(constraint(tools=TOOLS, mode=mode, tool_format=ToolFormat.LLAMA), "<|python_tag|>" + two)
        bad = "<|python_tag|>" + one.replace("city", "town")
        assert not accepts(constraint(tools=TOOLS, mode=mode, tool_format=ToolFormat.LLAMA), bad)
    assert accepts(constraint(tools=TOOLS, tool_format=ToolFormat.LLAMA), 'The object {"a": 1}')


def test_free_text_costs_no_mask() -> None:
    state = constraint(tools=TOOLS)
    for token in MARKED.tokenize("Hello world <tool", parse_special=True):
        assert state.mask() is None
        assert state.forced() == ()
        state.accept(token)


def test_text_goes_on_freely_after_a_call() -> None:
    one, _ = CALLS[ToolFormat.HERMES]
    assert accepts(constraint(tools=TOOLS), f"{one}\nDone. {one} {one}")
    assert not accepts(constraint(tools=TOOLS, parallel=False), f"{one} Done.")


def test_an_answer_in_a_format_or_calls() -> None:
    one, two = CALLS[ToolFormat.HERMES]
    for text, expected in (
        ('{"name": "Ada", "age": 36}', True),
        (one, True),
        (two, True),
        ("text", False),
        ("{}", False),
    ):
        assert accepts(constraint(SCHEMA, TOOLS), text) is expected


@pytest.mark.parametrize("tool_format", [ToolFormat.HERMES, ToolFormat.MISTRAL, ToolFormat.MISTRAL_ARGS])
@pytest.mark.parametrize("vocabulary", [PLAIN, MARKED])
@pytest.mark.parametrize("open_reasoning", [None, THINK])
def test_a_model_that_means_to_answer_calls_nothing(
    tool_format: ToolFormat, vocabulary: FakeVocabulary, open_reasoning: ReasoningMarkers | None
) -> None:
    state = constraint(SCHEMA, TOOLS, tool_format=tool_format, vocabulary=vocabulary, open_reasoning=open_reasoning)
    for token in vocabulary.tokenize("so</think>\n\n" if open_reasoning else "", parse_special=True):
        state.accept(token)
    opener = vocabulary.tokenize(CALLS[tool_format][0], parse_special=True)[0]
    hello, brace = (
        vocabulary.tokenize("Hello", parse_special=False)[0],
        vocabulary.tokenize("{", parse_special=False)[0],
    )

    def allowed(state: Constraint, likeliest: int | None) -> tuple[bool, bool]:
        mask = state.mask(likeliest)
        assert mask is not None
        return bool(mask[opener]), bool(mask[brace])

    for likeliest, expected in ((hello, False), (vocabulary.end_tokens[0], False), (opener, True), (brace, True)):
        assert allowed(state, likeliest) == (expected, True)
        assert allowed(state.copy(), likeliest) == (expected, True)
    assert allowed(state, None) == (True, True)
    assert state.allows(opener)
    one, _ = CALLS[tool_format]
    for text in (one, '{"name": "Ada", "age": 36}'):
        assert accepts(state.copy(), text, vocabulary)


@pytest.mark.parametrize("vocabulary", [PLAIN, MARKED])
def test_reasoning_that_the_prompt_opened_is_free(vocabulary: FakeVocabulary) -> None:
    one, _ = CALLS[ToolFormat.HERMES]
    thought = 'so <tool_call>{"x": {} then </thin\n</think>\n\n'
    answer = '{"name": "Ada", "age": 36}'

    def is_accepted(text: str, *args: Any, **kwargs: Any) -> bool:
        return accepts(constraint(*args, **kwargs, vocabulary=vocabulary, open_reasoning=THINK), text, vocabulary)

    assert is_accepted(thought + answer, SCHEMA)
    assert not is_accepted(thought + "text", SCHEMA)
    assert is_accepted(thought + one, TextFormat(), TOOLS, "required")
    assert not is_accepted(thought + "text", TextFormat(), TOOLS, "required")
    assert is_accepted(thought + "text " + one, TextFormat(), TOOLS)
    assert not is_accepted(thought + one.replace("city", "town"), TextFormat(), TOOLS)


@pytest.mark.parametrize("vocabulary", [PLAIN, MARKED])
def test_a_call_marker_in_reasoning_wakes_nothing(vocabulary: FakeVocabulary) -> None:
    one, _ = CALLS[ToolFormat.HERMES]
    state = constraint(tools=TOOLS, vocabulary=vocabulary)
    assert accepts(state, f"\n<think>I could <tool_call> now</think>{one}", vocabulary)
    state = constraint(tools=TOOLS, vocabulary=vocabulary)
    assert not accepts(state, f"<think>so</think>{one.replace('city', 'town')}", vocabulary)


def test_what_came_with_the_marker_is_part_of_the_call() -> None:
    # One token holds the marker's end and a line break.
    assert ">\n" in PLAIN.text(PLAIN.tokenize("<tool_call>\n", parse_special=True)[-1:])
    state = constraint(tools=TOOLS, vocabulary=PLAIN)
    for token in PLAIN.tokenize('<tool_call>\n{"', parse_special=True):
        state.accept(token)
    assert state.mask() is not None
    assert not state.allows(ord("x"))
    assert PLAIN.text(list(state.forced())).startswith("name")


def test_a_copy_goes_its_own_way() -> None:
    for state in (constraint(SCHEMA), constraint(tools=TOOLS, mode="required"), constraint(tools=TOOLS)):
        one, _ = CALLS[ToolFormat.HERMES]
        text = '{"name": "Ada", "age": 36}' if state.allows(ord("{")) and state.mask() is not None else one
        tokens = MARKED.tokenize(text, parse_special=True)
        for token in tokens[:4]:
            state.accept(token)
        twin = state.copy()
        for token in tokens[4:]:
            twin.accept(token)
        assert twin.allows(MARKED.end_tokens[0])
        assert not state.allows(MARKED.end_tokens[0])
        assert accepts(state, MARKED.text(tokens[4:]))


def test_an_answer_that_is_complete_may_only_end() -> None:
    state = constraint(JsonSchemaFormat('{"const": "a"}'))
    for token in MARKED.tokenize('"a"', parse_special=False):
        state.accept(token)
    mask = state.mask()
    assert mask is not None
    assert mask.nonzero()[0].tolist() == list(MARKED.end_tokens)
    assert state.forced() == ()
    state.accept(MARKED.end_tokens[0])
    with pytest.raises(InternalError):
        state.accept(ord("x"))


def test_forced_tokens_spell_what_must_come() -> None:
    state = constraint(JsonSchemaFormat('{"const": {"city": "Paris"}}'))
    state.accept(MARKED.tokenize('{"', parse_special=False)[0])
    forced = list(state.forced())
    assert MARKED.text(forced).startswith("city")
    for token in forced:
        assert state.allows(token)
        state.accept(token)


def refused(schema: object) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as error:
        constraint(JsonSchemaFormat(schema if isinstance(schema, str) else json.dumps(schema)))
    assert type(error.value) is InvalidRequest
    assert error.value.param == "text.format"
    assert "\n" not in error.value.message
    return error.value


def test_schemas_that_cannot_be_followed_are_refused() -> None:
    schemas: tuple[object, ...] = (
        {"type": 123},
        {"type": "string", "pattern": "("},
        {"type": "string", "pattern": "[b-a]"},
        {"$ref": "#"},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"$ref": "#/$defs/missing"},
        {"$ref": "http://127.0.0.1:1/schema"},
        {"type": "string", "not": {"const": "a"}},
        {"allOf": [{"type": "string"}, {"type": "integer"}]},
        {"enum": []},
        "{",
        "[" * 10_000,
        '{"a":' * 10_000,
    )
    for schema in schemas:
        refused(schema)


def test_a_pattern_s_error_is_said_whole() -> None:
    assert refused({"type": "string", "pattern": "("}).message.endswith("regex parse error: unclosed group")


def test_keywords_that_are_not_known_are_ignored_when_not_strict() -> None:
    schema = '{"type": "string", "not": {"const": "a"}}'
    assert accepts(constraint(JsonSchemaFormat(schema, strict=False)), '"b"')


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "integer"}, "minItems": 10**9},
        {"type": "string", "minLength": 10**9},
        {"type": "string", "pattern": "^((a{1,1000}){1,1000}){1,1000}$"},
        {"type": "string", "pattern": "(a+)+$"},
        {"type": "string", "pattern": "^(.*a.{20}){20}$"},
        {"enum": [f"v{index}" for index in range(5000)]},
        {"anyOf": [{"properties": {f"k{index}": {"type": "string"}}} for index in range(500)]},
    ],
)
def test_schemas_that_look_like_bombs_compile_or_are_refused(schema: object) -> None:
    try:
        state = constraint(JsonSchemaFormat(json.dumps(schema)))
        state.mask()
    except InvalidRequest:
        return
    assert not state.allows(ord("x"))


@pytest.mark.parametrize(
    "tools",
    [
        (Tool("get", "", '{"type": 123}', strict=True),),
        (Tool("get", "", '{"type": "string"}', strict=True),),
        (Tool("get", "", '{"type": ["string", "null"]}', strict=True),),
        (Tool("get", "", '{"$ref": "#/$defs/a", "$defs": {"a": {"type": "string"}}}', strict=True),),
        (Tool("get", "", '{"properties": {"a": {"pattern": "("}}}', strict=True),),
        (Tool("get", "", "[]", strict=True),),
        (Tool("get", "", "{", strict=True),),
        (Tool("get", "", '{"properties": {"a": {"$ref": "http://x/y"}}}', strict=True),),
        (Tool("get"), Tool("get")),
        (Tool(""),),
        (Tool('a"b'),),
        (Tool("x" * 200),),
        tuple(Tool(f"t{index}") for index in range(1000)),
    ],
)
@pytest.mark.parametrize("mode", ["auto", "required"])
def test_tools_that_cannot_be_followed_are_refused(tools: tuple[Tool, ...], mode: str) -> None:
    with pytest.raises(InvalidToolSchema) as error:
        constraint(tools=tools, mode=mode)
    assert error.value.param == "tools"


NODE = {"type": "object", "properties": {"x": {"type": "integer"}, "n": {"$ref": "#"}}, "required": ["x"]}


@pytest.mark.parametrize(
    "schema",
    [
        {**NODE, "type": ["object", "null"]},
        {"properties": {"x": {"type": "integer"}}},
        {"$ref": "#/$defs/a", "$defs": {"a": NODE}},
        {"$ref": "#/$defs/a", "$defs": {"a": {**NODE, "type": ["null", "object"]}}, "title": "a"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"properties": {"x": {"type": "integer"}}}}},
        {"anyOf": [{"type": "string"}, {"type": "null"}, NODE]},
    ],
)
def test_arguments_are_objects_whatever_else_the_schema_allows(schema: object) -> None:
    tools = (Tool("f", "", json.dumps(schema)),)
    for value, expected in (('{"x": 1}', True), ("null", False), ('"a"', False), ("[]", False)):
        text = f'<tool_call>{{"name": "f", "arguments": {value}}}</tool_call>'
        assert accepts(constraint(tools=tools), text) is expected


def test_a_circle_of_references_is_named() -> None:
    assert refused({"$ref": "#"}).message == (
        "format 'response': the schema cannot be followed: no value fits it; see whether its `$ref` leads in a circle"
    )
    with pytest.raises(InvalidToolSchema, match="circle"):
        constraint(tools=(Tool("f", "", '{"$ref": "#"}', strict=True),))


def test_a_choice_without_its_tool_is_refused() -> None:
    for tools, names in (((), ()), (TOOLS, ("other",))):
        with pytest.raises(InvalidRequest) as error:
            constraint(tools=tools, mode="required", names=names)
        assert error.value.param == "tool_choice"


def test_references_stay_within_their_own_tool() -> None:
    def tool(name: str, value: object) -> Tool:
        parameters = {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/v"}},
            "required": ["a"],
            "$defs": {"v": value},
        }
        return Tool(name, "", json.dumps(parameters))

    tools = (tool("one", {"type": "integer"}), tool("two", {"type": "boolean"}))
    for name, value, expected in (
        ("one", "1", True),
        ("two", "true", True),
        ("one", "true", False),
        ("two", "1", False),
    ):
        text = f'<tool_call>{{"name": "{name}", "arguments": {{"a": {value}}}}}</tool_call>'
        assert accepts(constraint(tools=tools), text) is expected


class Clients:
    """A compiler that several clients use, and how many grammars it has checked."""

    def __init__(self) -> None:
        self.num_checked = 0
        self._compiler = GrammarCompiler(PLAIN, self._check)

    def num_new(self, client: str, schema: object, *, strict: bool = False) -> int:
        """Let a client ask for a schema; return how many grammars were checked for that."""
        before = self.num_checked
        wanted = JsonSchemaFormat(json.dumps(schema), strict=strict)
        with suppress(InvalidRequest):
            self._compiler.compile(wanted, (), ToolChoice(), True, ToolFormat.HERMES, partition=client)
        return self.num_checked - before

    def _check(self, grammar: str) -> str:
        self.num_checked += 1
        return grammar_fault(grammar)


LOOK_AHEAD = {"type": "string", "pattern": "^(?=a)a$"}


@pytest.mark.parametrize(("schema", "strict"), [({"const": 1}, True), (LOOK_AHEAD, False), (LOOK_AHEAD, True)])
def test_two_clients_do_not_share_what_was_compiled_or_refused(schema: object, strict: bool) -> None:
    clients = Clients()
    first = clients.num_new("one", schema, strict=strict)
    again = clients.num_new("one", schema, strict=strict)
    assert first > 0
    assert again < first or strict
    assert clients.num_new("two", schema, strict=strict) == first
    assert clients.num_new("two", schema, strict=strict) == again


def test_the_last_grammars_of_a_client_are_kept() -> None:
    clients = Clients()
    for index in range(MAX_CACHED_GRAMMARS + 20):
        clients.num_new("one", {"const": index})
        clients.num_new("one", {"const": 0})
    assert clients.num_new("one", {"const": 0}) == 0
    assert clients.num_new("one", {"const": MAX_CACHED_GRAMMARS + 19}) == 0
    assert clients.num_new("one", {"const": 1}) == 1


def test_a_client_with_many_grammars_does_not_evict_those_of_others() -> None:
    clients = Clients()
    for client in ("two", "three"):
        clients.num_new(client, {"const": "kept"})
    for index in range(MAX_CACHED_GRAMMARS + 20):
        clients.num_new("one", {"const": index})
    assert [clients.num_new(client, {"const": "kept"}) for client in ("two", "three")] == [0, 0]


@pytest.mark.parametrize("num_bytes", [1024, 1025, 70_000])
def test_a_vocabulary_with_a_very_long_token_can_be_constrained(num_bytes: int) -> None:
    vocabulary = FakeVocabulary(("!" * num_bytes,), user_defined=("-" * num_bytes,))
    compiler = GrammarCompiler(vocabulary)
    made = compiler.compile(JsonObjectFormat(), (), ToolChoice(), True, ToolFormat.HERMES, partition="")
    assert isinstance(made, Constraint)
    assert accepts(made, '{"city": "--"}', vocabulary)


def test_a_vocabulary_without_an_end_cannot_be_constrained() -> None:
    vocabulary = FakeVocabulary()
    vocabulary.end_tokens = ()
    with pytest.raises(NotSupported):
        GrammarCompiler(vocabulary).compile(JsonObjectFormat(), (), ToolChoice(), True, ToolFormat.HERMES, partition="")


@settings(max_examples=examples(60))
@given(st.text(max_size=8), st.integers(-(10**12), 10**12), st.sampled_from([None, 2]), st.booleans())
def test_everything_that_fits_the_schema_may_be_written(
    name: str, age: int, indent: int | None, ascii_only: bool
) -> None:
    text = json.dumps({"name": name, "age": age}, indent=indent, ensure_ascii=ascii_only)
    if "\x7f" not in text:
        assert accepts(constraint(SCHEMA), text)


@settings(max_examples=examples(60))
@given(st.data())
def test_whatever_the_mask_allows_fits_the_schema(data: st.DataObject) -> None:
    state = constraint(
        JsonSchemaFormat(
            json.dumps({**PERSON, "properties": {"name": {"enum": ["a", "b"]}, "age": {"type": "integer"}}})
        )
    )
    tokens: list[int] = []
    while len(tokens) < 200:
        mask = state.mask()
        assert mask is not None
        token = int(data.draw(st.sampled_from(mask.nonzero()[0].tolist())))
        if MARKED.is_end(token):
            answer = json.loads(MARKED.text(tokens))
            assert answer.keys() == {"name", "age"}
            assert isinstance(answer["age"], int)
            return
        state.accept(token)
        tokens.append(token)


def test_a_format_that_grows_too_large_while_it_is_followed_is_the_clients_error() -> None:
    properties = {f"field{number}": {"type": "string", "maxLength": 9} for number in range(500)}
    state = constraint(JsonSchemaFormat(json.dumps({"properties": properties, "additionalProperties": True}), "large"))
    with pytest.raises(InvalidRequest, match="too complex to follow"):
        for token in MARKED.tokenize('{"field3": "abc", "field7": "abc", "', parse_special=True):
            state.accept(token)
