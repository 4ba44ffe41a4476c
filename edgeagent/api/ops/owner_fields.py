"""Reads the fields of the owner's routes from the query, a JSON body, or both. Unknown fields are refused.

If unknown fields were ignored, a mistyped `model` or `client` would select the default model, or all clients.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, TypeVar

from fastapi import Request
from pydantic import ConfigDict, Field

from edgeagent.api.wire.fields import MAX_NAME_CHARS, Body, M, validate
from edgeagent.api.wire.json_body import read_body
from edgeagent.api.wire.shape import Json
from edgeagent.errors import InvalidRequest

T = TypeVar("T")


class OwnerBody(Body):
    """The base class for the fields of an owner's route. Every field that the class does not have is refused."""

    model_config = ConfigDict(extra="forbid")


class ModelChoice(OwnerBody):
    """`model`: a name of the model; without it, the default model."""

    model: Annotated[str, Field(max_length=MAX_NAME_CHARS)] | None = None


async def read_fields(request: Request, model: type[M]) -> M:
    """Return the fields in a request's query and body, checked by the pydantic class `model`; raise InvalidRequest."""
    return await read_merged(request, partial(validate, model))


async def read_merged(request: Request, read: Callable[[Json], T]) -> T:
    """Call `read` with the fields of a request's query and body together, and return its result.

    The body may be empty. The values in the query are strings. Raise the errors of `read`, or InvalidRequest if the
    body is not a JSON object, or if a field has two different values.
    """
    query: Json = {}
    for name, value in request.query_params.multi_items():
        _add(query, name, value)
    if not await request.body():
        return read(query)
    return await read_body(request, lambda body: read(_merged(body, query)))


def _merged(body: Json, query: Json) -> Json:
    fields = dict(body)
    for name, value in query.items():
        _add(fields, name, value)
    return fields


def _add(fields: Json, name: str, value: str) -> None:
    if fields.setdefault(name, value) != value:
        raise InvalidRequest(f"{name[:64]} has two values; give it once, in the query or in the body", param=name)
