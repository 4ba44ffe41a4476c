"""Reads a text frame as JSON. It has no side effects, so a large frame can be read in a thread."""

from __future__ import annotations

from edgeagent.api.wire.shape import Json
from edgeagent.errors import InvalidRequest
from edgeagent.strict_json import parse_json


def read_object(text: str) -> Json:
    """Return the JSON object in a frame; raise InvalidRequest if it holds something else."""
    fields = parse_json(text)
    if not isinstance(fields, dict):
        raise InvalidRequest("a frame must be a JSON object with a type")
    return fields
