"""The types of JSON on the wire: an object of any form, and the base of objects whose fields are known."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from pydantic import ConfigDict

# pydantic makes no schema of typing's TypedDict before Python 3.12.
from typing_extensions import TypedDict

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
