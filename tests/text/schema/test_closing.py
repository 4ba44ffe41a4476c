import contextlib
import itertools
import json
import random
from typing import Any

import jsonschema_rs
import pytest

from edgeagent.errors import InvalidRequest, InvalidToolSchema
from edgeagent.text.schema.closing import SchemaError, WorkLimit, close_objects
from edgeagent.text.schema.reading import followable, parse_schema
from edgeagent.types import JsonSchemaFormat, Tool
from tests.clients.schemas import Sent, all_sent
from tests.text.grammar.test_compiler import MARKED, accepts, constraint

STRING, NUMBER = {"type": "string"}, {"type": "integer"}


def named(**properties: Any) -> dict[str, Any]:
    """Return an object schema as most clients write it: without additionalProperties."""
    return {"type": "object", "properties": properties}


def is_written(schema: dict[str, Any], value: object, *, strict: bool = True) -> bool:
    """Return whether the grammar allows the value; assert that an allowed value is valid by the original schema."""
    written = accepts(constraint(JsonSchemaFormat(json.dumps(schema), strict=strict)), json.dumps(value))
    assert not written or jsonschema_rs.is_valid(schema, value)
    return written


BASE = named(a=NUMBER)
PETS = {
    "cat": {**named(kind={"const": "cat"}, lives=NUMBER), "required": ["kind"]},
    "dog": {**named(kind={"const": "dog"}, tricks=NUMBER), "required": ["kind"]},
}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (named(a=NUMBER), [{}, {"a": 1}], [{"b": 1}, {"a": 1, "b": 1}]),
        ({"properties": {"a": NUMBER}}, [{}, {"a": 1}], [{"b": 1}, 1, "a", []]),
        (named(a=named(b=NUMBER)), [{"a": {"b": 1}}], [{"a": {"c": 1}}]),
        ({"type": "array", "items": BASE}, [[], [{"a": 1}]], [[{"b": 1}]]),
        ({"type": "array", "prefixItems": [BASE]}, [[{"a": 1}]], [[{"b": 1}]]),
        ({"type": ["object", "null"], "properties": {"a": NUMBER}}, [None, {"a": 1}], [{"b": 1}]),
        ({"type": "object", "properties": {}}, [{}], [{"a": 1}]),
        # Required names without a description must be written.
        ({**BASE, "required": ["b"]}, [{"b": 1}, {"a": 1, "b": [{}]}], [{"a": 1}, {"b": 1, "c": 1}]),
        # A schema that states which keys are allowed is not changed.
        ({"type": "object"}, [{}, {"x": {"y": 1}}], []),
        ({"type": "object", "additionalProperties": NUMBER}, [{}, {"x": 1}], [{"x": "1"}]),
        ({**BASE, "additionalProperties": True}, [{"a": 1, "x": "1"}], []),
        ({**BASE, "additionalProperties": NUMBER}, [{"a": 1, "x": 1}], [{"x": "1"}]),
        ({**BASE, "patternProperties": {"^x": NUMBER}}, [{"a": 1, "x1": 1}], [{"x1": "1"}]),
        ({**BASE, "unevaluatedProperties": False}, [{"a": 1}], [{"x": 1}]),
        ({**BASE, "unevaluatedProperties": True}, [{"a": 1, "x": 1}], []),
        # Combined schemas.
        ({"allOf": [BASE, named(b=STRING)]}, [{}, {"a": 1}, {"a": 1, "b": "x"}], [{"c": 1}, {"a": 1, "c": 1}]),
        ({"allOf": [BASE], **named(b=STRING)}, [{"a": 1, "b": "x"}], [{"c": 1}]),
        ({"allOf": [BASE, {"required": ["a"]}]}, [{"a": 1}], [{}, {"a": 1, "b": 1}]),
        ({"allOf": [BASE, {"additionalProperties": NUMBER}]}, [{"a": 1}], [{"x": "1"}]),
        ({"allOf": [named(a=named(b=NUMBER)), named(c=NUMBER)]}, [{"a": {"b": 1}, "c": 1}], [{"a": {"c": 1}}]),
        (
            {"$ref": "#/$defs/base", "properties": {"b": STRING}, "$defs": {"base": BASE}},
            [{"a": 1}, {"a": 1, "b": "x"}],
            [{"c": 1}],
        ),
        (
            {"allOf": [{"$ref": "#/$defs/base"}, named(b={"$ref": "#/$defs/base"})], "$defs": {"base": BASE}},
            [{"a": 1, "b": {"a": 2}}],
            [{"c": 1}, {"b": {"c": 1}}],
        ),
        ({"allOf": [{"$ref": "#/$defs/base"}], "title": "old", "$defs": {"base": BASE}}, [{"a": 1}], [{"b": 1}]),
        # Branches.
        ({"anyOf": [BASE, named(b=STRING)]}, [{"a": 1}, {"b": "x"}], [{"a": 1, "b": "x"}, {"c": 1}]),
        ({"anyOf": [BASE, {"type": "null"}]}, [None, {"a": 1}], [{"b": 1}]),
        ({"oneOf": [PETS["cat"], PETS["dog"]]}, [{"kind": "cat", "lives": 9}], [{"kind": "cat", "tricks": 9}]),
        (
            {"oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}], "$defs": PETS},
            [{"kind": "dog", "tricks": 2}],
            [{"kind": "dog", "lives": 2}, {"kind": "cow"}],
        ),
        (
            {**BASE, "anyOf": [named(b=NUMBER), named(c=NUMBER)]},
            [{"a": 1}, {"a": 1, "b": 1}, {"a": 1, "c": 1}],
            [{"a": 1, "b": 1, "c": 1}, {"d": 1}],
        ),
        (
            {**named(a=NUMBER, b=NUMBER), "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
            [{"a": 1}, {"b": 1}, {"a": 1, "b": 1}],
            [{}, {"a": 1, "c": 1}],
        ),
        (
            {**named(a=NUMBER), "anyOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}], "$defs": PETS},
            [{"a": 1, "kind": "cat", "lives": 9}],
            [{"a": 1, "kind": "cat", "tricks": 9}, {"a": 1, "kind": "cat", "x": 1}, {"a": 1, "kind": "cow"}],
        ),
        (
            {"allOf": [{"anyOf": [BASE, named(b=NUMBER)]}, {"anyOf": [named(c=NUMBER), named(d=NUMBER)]}]},
            [{"a": 1, "c": 1}, {"b": 1, "d": 1}],
            [{"e": 1}, {"a": 1, "e": 1}],
        ),
        # Keys of a map.
        (
            {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": NUMBER},
            [{}, {"x": 1}],
            [{"x": "1"}],
        ),
        (
            {"type": "object", "propertyNames": {"enum": ["x", "y"]}, "additionalProperties": NUMBER},
            [{}, {"x": 1, "y": 2}],
            [{"z": 1}, {"x": "1"}],
        ),
        (
            {"type": "object", "propertyNames": {"pattern": "^x[0-9]$"}, "additionalProperties": NUMBER},
            [{}, {"x1": 1}],
            [{"y1": 1}, {"x1": "1"}],
        ),
    ],
)
def test_objects_are_closed_where_their_schema_leaves_that_open(
    schema: dict[str, Any], good: list[object], bad: list[object]
) -> None:
    before = json.dumps(schema)
    for value in good:
        assert is_written(schema, value), value
    for value in bad:
        assert not is_written(schema, value), value
    assert json.dumps(schema) == before


def needs(**properties: Any) -> dict[str, Any]:
    """Return an alternative that requires each of its properties."""
    return {"properties": properties, "required": list(properties)}


A_OR_B = [needs(a=NUMBER), needs(b=NUMBER)]
ONLY_NAMED, ONLY_ITS_OWN = {"unevaluatedProperties": False}, {"additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (
            {**named(kind=STRING), "anyOf": A_OR_B, **ONLY_NAMED},
            [{"kind": "x", "a": 1}, {"kind": "x", "b": 1}],
            [{"kind": "x", "a": "x", "b": 1}, {"a": 1, "c": 1}],
        ),
        (
            {**named(kind=STRING), "anyOf": [{**needs(a=NUMBER), **ONLY_ITS_OWN}, needs(b=NUMBER)]},
            [{"a": 1}, {"kind": "x", "b": 1}],
            [{"kind": "x", "a": 1}, {"b": 1, "c": 1}, {"kind": "x", "a": "x", "b": 1}],
        ),
        (
            {**named(kind=STRING), "anyOf": [{**needs(a=NUMBER), "additionalProperties": True}, needs(b=NUMBER)]},
            [{"kind": "x", "a": 1}, {"a": 1, "c": 1}, {"kind": "x", "b": 1}],
            [{"b": 1, "c": 1}],
        ),
        (
            {**named(kind=STRING), "allOf": [{"anyOf": A_OR_B}, {"anyOf": [needs(c=NUMBER), {}]}], **ONLY_NAMED},
            [{"a": 1}, {"kind": "x", "b": 1}, {"a": 1, "c": 1}],
            [{"kind": "x", "a": "x", "b": 1}, {"a": 1, "c": "x"}],
        ),
        (
            {**named(kind=STRING), "anyOf": [{**needs(c=NUMBER), "anyOf": A_OR_B}, True], **ONLY_NAMED},
            [{"kind": "x"}, {"kind": "x", "c": 1, "a": 1}],
            [{"c": 1}, {"a": 1}, {"c": 1, "a": "x", "b": 1}],
        ),
        (
            {**named(kind=STRING), "$ref": "#/$defs/two", "$defs": {"two": {"anyOf": [needs(a=NUMBER), BASE]}}},
            [{"kind": "x", "a": 1}],
            [{"a": 1, "c": 1}],
        ),
        (
            {"$ref": "#/$defs/one", "properties": {}, "$defs": {"one": {"anyOf": [{**BASE, **ONLY_ITS_OWN}]}}},
            [{"a": 1}],
            [{"c": 1}],
        ),
    ],
)
def test_alternatives_are_closed_each_by_itself(
    schema: dict[str, Any], good: list[dict[str, Any]], bad: list[dict[str, Any]]
) -> None:
    assert all(is_written(schema, value) for value in good)
    assert not any(is_written(schema, value) for value in bad)
    for values in itertools.product((None, "x"), *[(None, 1, "x")] * 3):
        value = {key: each for key, each in zip(("kind", "a", "b", "c"), values, strict=True) if each is not None}
        is_written(schema, value)  # asserts that an allowed value is valid


TREE: dict[str, Any] = {**named(value=NUMBER, left={"$ref": "#"}), "required": ["value"]}
CHAIN = {
    "$defs": {"node": named(value=NUMBER, next={"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]})},
    "allOf": [{"$ref": "#/$defs/node"}, named(name=STRING)],
}


def test_schemas_that_refer_to_themselves() -> None:
    assert is_written(TREE, {"value": 1, "left": {"value": 2}})
    assert not is_written(TREE, {"value": 1, "left": {"value": 2, "right": 3}})
    assert is_written(CHAIN, {"value": 1, "next": {"value": 2, "next": None}, "name": "x"})
    assert not is_written(CHAIN, {"value": 1, "next": {"value": 2, "name": "x"}})
    old = {"$ref": "#/$defs/node", "$defs": {"node": named(next={"allOf": [{"$ref": "#/$defs/node"}], "title": "n"})}}
    assert is_written(old, {"next": {"next": {}}})
    assert not is_written(old, {"next": {"last": {}}})


def test_the_order_of_properties_is_the_schemas() -> None:
    schema = {"allOf": [named(z=NUMBER), {"$ref": "#/$defs/base"}], **named(b=NUMBER), "$defs": {"base": BASE}}
    assert is_written(schema, {"z": 1, "a": 1, "b": 1})
    assert not is_written(schema, {"a": 1, "b": 1, "z": 1})


def test_a_property_may_be_called_like_a_keyword() -> None:
    schema = named(properties=NUMBER, required=NUMBER, default=named(allOf=NUMBER), items=NUMBER, enum=NUMBER)
    assert is_written(schema, {"properties": 1, "required": 1, "default": {"allOf": 1}, "items": 1, "enum": 1})
    assert not is_written(schema, {"default": {"a": 1}})


def test_values_that_only_look_like_schemas_stay_what_they_are() -> None:
    schema = named(a={"const": {"properties": {"x": 1}}})
    assert is_written(schema, {"a": {"properties": {"x": 1}}})


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": 1},
        {"allOf": [1, None, {}]},
        {"anyOf": [True, {"properties": 3}], "properties": {"a": True}},
        {"properties": [], "required": {"a": 1}},
        {"type": 5, "properties": {"a": {}}},
        {"type": [5, None], "properties": {"a": {}}},
        {"$ref": "#/a/0/~1", "properties": {"a": {}}, "a": [{}]},
        {"$ref": "#anchor", "properties": {"a": {}}},
        {"$ref": "#/$defs/a", "properties": {"a": {}}, "$defs": {"a": {"$ref": "#/$defs/a", "properties": {}}}},
        {"$ref": "#", "allOf": [{"$ref": "#"}], "properties": {"a": {}}},
        {"$ref": 5, "required": ["a"]},
        {"$ref": ["#/$defs/a"], "properties": {"a": {}}},
        {"allOf": [{"$ref": {}}], "properties": {"a": {}}},
        {"$ref": f"#/allOf/{'9' * 5000}", "allOf": [{}], "properties": {"a": {}}},
        # References that lead back to themselves through alternatives.
        {"$ref": "#/$defs/a", "properties": {}, "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, BASE]}}},
        {
            "allOf": [{"$ref": "#/$defs/a"}],
            "properties": {},
            "$defs": {"a": {"oneOf": [{"$ref": "#/$defs/b"}]}, "b": {"anyOf": [{"$ref": "#/$defs/a"}]}},
        },
    ],
)
def test_malformed_schemas_are_left_to_the_compiler(schema: dict[str, Any]) -> None:
    close_objects(schema)
    try:
        constraint(JsonSchemaFormat(json.dumps(schema)))
    except InvalidRequest as error:
        assert error.param == "text.format"


def test_choices_whose_schemas_exclude_one_another_can_be_followed() -> None:
    one_of = {"oneOf": [{"$ref": "#/$defs/cat"}, {"type": "null"}, {"type": ["integer", "string"]}], "$defs": PETS}
    for value in ({"kind": "cat"}, None, 5, "x"):
        assert is_written(one_of, value)
    for overlapping in ([NUMBER, {"type": "number"}], [{"$ref": "#/$defs/cat"}, {}], [{"$ref": "#/$defs/x"}, NUMBER]):
        with pytest.raises(InvalidRequest):
            constraint(JsonSchemaFormat(json.dumps({"oneOf": overlapping, "$defs": PETS})))


def chain(length: int) -> dict[str, Any]:
    """Return a schema whose object is described by this many definitions, each of which refers to the next."""
    links = {f"d{index}": {"allOf": [{"$ref": f"#/$defs/d{index + 1}"}, BASE]} for index in range(length)}
    return {"allOf": [{"$ref": "#/$defs/d0"}, named(b=NUMBER)], "$defs": {**links, f"d{length}": named(c=NUMBER)}}


def test_references_that_lead_on_and_on_are_followed_or_refused() -> None:
    assert is_written(chain(30), {"c": 1, "a": 1, "b": 1})
    assert not is_written(chain(30), {"d": 1})
    twice = {f"d{index}": {"allOf": [{"$ref": f"#/$defs/d{index + 1}"}] * 2} for index in range(30)}
    assert not is_written({"allOf": [{"$ref": "#/$defs/d0"}, BASE], "$defs": {**twice, "d30": BASE}}, {"b": 1})
    with pytest.raises(InvalidRequest, match="too many layers"):
        constraint(JsonSchemaFormat(json.dumps(chain(400))))


def joined(num_objects: int) -> dict[str, Any]:
    """Return a schema of this many objects, each of which a definition with 500 keys describes too."""
    big: dict[str, Any] = {"properties": {f"p{index}": {} for index in range(500)}}
    objects = {f"x{index}": {"$ref": "#/$defs/big", "required": ["p0"]} for index in range(num_objects)}
    return {"type": "object", "properties": objects, "$defs": {"big": big}}


def choices(number: int) -> dict[str, Any]:
    """Return a schema with this many choices for one object, each with its own key."""
    return {"allOf": [{"anyOf": [{"properties": {f"p{index}": {}}}]} for index in range(number)], "properties": {}}


def test_the_work_for_joined_schemas_is_bounded_for_a_request() -> None:
    close_objects(choices(200))
    with pytest.raises(SchemaError, match="join more than"):
        close_objects(choices(1200))
    limit = WorkLimit()
    close_objects(joined(150), limit)
    with pytest.raises(SchemaError, match="join more than"):
        close_objects(joined(150), limit)
    with pytest.raises(InvalidRequest, match="join more than"):
        constraint(JsonSchemaFormat(json.dumps(joined(700))))
    tools = [Tool(f"t{index}", "", json.dumps(joined(150)), strict=True) for index in range(2)]
    with pytest.raises(InvalidToolSchema, match="join more than"):
        constraint(tools=tuple(tools))


def test_references_through_many_layers_are_refused_not_run_into() -> None:
    def layers(index: int) -> dict[str, Any]:
        schema: dict[str, Any] = {"$ref": f"#/$defs/e{index + 1}"}
        for _ in range(13):
            schema = {"anyOf": [schema], "properties": {"x": {}}}
        return schema

    definitions = {f"e{index}": layers(index) for index in range(30)} | {"e30": BASE}
    schema = {"$ref": "#/$defs/e0", "properties": {}, "$defs": definitions}
    with contextlib.suppress(SchemaError):
        followable(parse_schema(json.dumps(schema)), lenient=False)


def walk(sent: Sent, seed: int, num_tokens: int) -> tuple[str, bool]:
    """Return a random answer that the grammar allows, preferring to close it soon, and whether it reached its end."""
    state = constraint(JsonSchemaFormat(json.dumps(sent.schema), strict=sent.strict))
    draw = random.Random(f"{sent.id} {seed}")
    tokens: list[int] = []
    for _ in range(num_tokens):
        mask = state.mask()
        assert mask is not None
        allowed = mask.nonzero()[0].tolist()
        closing = [token for token in allowed if MARKED.is_end(token) or MARKED.text([token])[:1] in '"]},']
        token = draw.choice(closing if closing and draw.random() < 0.5 else allowed)
        if MARKED.is_end(token):
            return MARKED.text(tokens), True
        state.accept(token)
        tokens.append(token)
    return MARKED.text(tokens), False


@pytest.mark.parametrize("sent", all_sent(), ids=lambda sent: sent.id)
def test_whatever_a_client_s_schema_lets_through_is_valid(sent: Sent) -> None:
    num_whole = 0
    for seed in range(4):
        text, is_whole = walk(sent, seed, 600)
        num_whole += is_whole
        if is_whole:
            jsonschema_rs.validate(sent.schema, json.loads(text))
    assert num_whole > 0
