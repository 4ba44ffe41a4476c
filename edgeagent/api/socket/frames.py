"""A text frame as JSON. Pure: the pump reads a large frame in a thread."""

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
