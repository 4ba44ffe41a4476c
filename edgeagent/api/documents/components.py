"""The JSON schemas of Python types, as components of an OpenAPI or AsyncAPI document."""

from __future__ import annotations

import functools
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel, TypeAdapter

from edgeagent.api.wire.shape import Json


class Components:
    """The schemas that a document refers to, by name. Each schema is stored once."""

    def __init__(self) -> None:
        self.schemas: dict[str, Json] = {}

    def ref(self, kind: Any) -> Json:
        """Add the schema of a type, and the schemas of the types inside it. Return a reference to the type's schema.

        If the type is not a class, or not an object in JSON (for example a list), return the schema itself.
        """
        schema, inner_schemas = _schemas_of(kind)
        for name, inner in inner_schemas.items():
            self._add(name, inner)
        if not isinstance(kind, type) or schema["type"] != "object":
            return schema
        self._add(kind.__name__, _without_titles(schema))
        return {"$ref": f"#/components/schemas/{kind.__name__}"}

    def fields(self, kind: type[BaseModel]) -> dict[str, Json]:
        """Return the schemas of a type's fields, by name."""
        schema, _ = _schemas_of(kind)
        fields: dict[str, Json] = _without_titles(schema).get("properties", {})
        return fields

    def _add(self, name: str, schema: Json) -> None:
        known = self.schemas.setdefault(name, schema)
        assert known == schema, f"two schemas are named {name}"


@functools.cache
def _schemas_of(kind: Any) -> tuple[Json, dict[str, Json]]:
    """Return the schema of a type, and the schemas of the types inside it by name.

    The result is cached, because it takes milliseconds to build.
    """
    schema = TypeAdapter(kind).json_schema(ref_template="#/components/schemas/{model}")
    inner_schemas = schema.pop("$defs", {})
    return schema, {name: _without_titles(inner) for name, inner in inner_schemas.items()}


def _without_titles(schema: Any) -> Any:
    """Return a schema without its titles. pydantic derives them from the field names, so they add nothing."""
    match schema:
        case dict():
            kept = schema.items()
            return {
                key: {name: _without_titles(inner) for name, inner in value.items()}
                if key == "properties"
                else _without_titles(value)
                for key, value in kept
                if key != "title"
            }
        case list():
            return [_without_titles(value) for value in schema]
    return schema


def kind_of(message: type) -> str:
    """Return the value that the field `type` of a kind of message always has, such as "response.create"."""
    (kind,) = get_args(get_type_hints(message)["type"])
    return str(kind)
