"""The types of JSON that the daemon sends: an object of any form, of known fields, or with the fields of a struct."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from msgspec import Struct
from pydantic import ConfigDict, GetCoreSchemaHandler
from pydantic_core import CoreSchema

# pydantic makes no schema of typing's TypedDict before Python 3.12.
from typing_extensions import TypedDict

from edgeagent.types import DeviceInfo, ModelInfo, WorkerStatus

S = TypeVar("S")

Json = dict[str, Any]
"""A JSON object of any form."""


class Shape(TypedDict):
    """A JSON object that the daemon sends. It is a plain dict, so it costs no more than a dict.

    The OpenAPI and AsyncAPI documents are generated from these classes. Every field is always there, except the
    NotRequired ones. Clients must expect that fields are added later.
    """


Shape.__pydantic_config__ = ConfigDict(extra="allow", use_attribute_docstrings=True)  # type: ignore[attr-defined]


def shaped(shape: type[S], source: object, **given: object) -> S:
    """Return an object of type `shape`. A field that is not `given` gets the attribute of `source` with its name."""
    names: list[str] = [name for name in shape.__annotations__ if name not in given]
    return cast("S", {name: getattr(source, name) for name in names} | given)


# What the owner has no use for: hardware ids, points in time of a process, and what is long and in /props.
_UNSHOWN: dict[type[Struct], frozenset[str]] = {
    DeviceInfo: frozenset({"id", "backend", "is_integrated"}),
    ModelInfo: frozenset({"name", "chat_template", "sampling"}),
    WorkerStatus: frozenset({"step_started_at_s", "step_expected_s", "preparing_since_s", "preparing_id"}),
}


def shown_names(struct: type[Struct]) -> list[str]:
    return [name for name in struct.__struct_fields__ if name not in _UNSHOWN.get(struct, ())]


def report(value: Any, name: str = "") -> Any:
    """Return a struct, or the value of its field `name`, as JSON.

    Money has nine decimals, times in milliseconds have one, other numbers four.
    """
    match value:
        case Struct():
            return {name: report(getattr(value, name), name) for name in shown_names(type(value))}
        case tuple():
            return [report(each) for each in value]
        case dict():
            return {key: report(each, key) for key, each in value.items()}
        case float():
            return round(value, 9 if name.endswith("money") else 1 if name.endswith("_ms") else 4)
    return value


@cache
def _shape_of(struct: type[Struct]) -> Any:
    hints = get_type_hints(struct)
    make: Any = TypedDict  # mypy wants the fields to stand here
    shape = make(struct.__name__, {name: _as_shape(hints[name]) for name in shown_names(struct)})
    shape.__doc__ = struct.__doc__
    shape.__pydantic_config__ = ConfigDict(extra="allow")
    return shape


def _as_shape(hint: Any) -> Any:
    if isinstance(hint, type) and issubclass(hint, Struct):
        return _shape_of(hint)
    parts = tuple(part if part is ... else _as_shape(part) for part in get_args(hint))
    if get_origin(hint) is UnionType:
        return Union[parts]  # noqa: UP007 the parts are known at run time only
    return hint if not parts or get_origin(hint) is Literal else get_origin(hint)[parts]


@dataclass(frozen=True, slots=True)
class Reported:
    """In the API's documents, an object with this annotation is what `report` returns for the struct."""

    struct: type[Struct]

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler.generate_schema(_shape_of(self.struct))
