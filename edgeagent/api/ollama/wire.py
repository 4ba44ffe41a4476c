"""What all routes of the Ollama API share: the format of lines, of times, and of models' names.

This module does not depend on what is generated, nor on which routes there are.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime

from pydantic_core import to_json

from edgeagent.errors import EdgeAgentError
from edgeagent.service.service import Service
from edgeagent.store.names.parsing import without_latest

LATEST = ":latest"


def line(document: object) -> bytes:
    """Return a document as one line of JSON, with its line break. Ollama's own client fails at blank lines."""
    return to_json(document) + b"\n"


def rfc3339(at: datetime | None = None) -> str:
    """Return a UTC time as RFC 3339 text; the present time if `at` is None."""
    return (at or datetime.now(UTC)).isoformat().replace("+00:00", "Z")


def tagged(name: str) -> str:
    """Return a model's name as Ollama lists it: with `:latest` if it has no tag."""
    return name if ":" in name.rpartition("/")[2] else name + LATEST


def known_name(service: Service, name: str) -> str:
    """Return the service's name for a client's name of a model. In Ollama's API, no tag means `:latest`.

    If the service does not know the name, return it without `:latest`. It may still be the name of a model on disk. If
    not, the request fails later.
    """
    for each in (name, without_latest(name)):
        with suppress(EdgeAgentError):
            return service.models.find(each)
    return without_latest(name)
