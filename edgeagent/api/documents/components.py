"""JSON schemas of models as components of a document."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from edgeagent.api.wire.shape import Json


class Components:
    """The schemas a document refers to, each once and by name."""

    def __init__(self) -> None:
        self.schemas: dict[str, Json] = {}

    def ref(self, model: type[BaseModel], mode: Literal["validation", "serialization"] = "validation") -> Json:
        """Add a model, and those inside it; return the reference to it."""
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}", mode=mode)
        for name, inner in schema.pop("$defs", {}).items():
            self._add(name, inner)
        self._add(model.__name__, schema)
        return {"$ref": f"#/components/schemas/{model.__name__}"}

    def _add(self, name: str, schema: Json) -> None:
        known = self.schemas.setdefault(name, _without_titles(schema))
        assert known == _without_titles(schema), f"two schemas are named {name}"


def _without_titles(schema: Any) -> Any:
    """Leave out the titles that pydantic derives from field names: they add nothing."""
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
