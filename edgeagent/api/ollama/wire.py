"""What all routes of the Ollama API share: how a line of a stream, a time and a model's name look.

This module does not depend on what is generated, nor on which routes there are.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import suppress
from datetime import UTC, datetime

from pydantic_core import to_json

from edgeagent.api.wire.errors import ollama_refusal, told
from edgeagent.api.wire.sse import Stream
from edgeagent.errors import EdgeAgentError
from edgeagent.service.service import Service
from edgeagent.store.names.parsing import without_latest

LATEST = ":latest"


def line(document: object) -> bytes:
    """Return a line of a stream. JSON text holds no raw line break; a blank line would break ollama's own client."""
    return to_json(document) + b"\n"


class LineStream(Stream):
    """Sends whole lines of JSON, each a document."""

    media_type = "application/x-ndjson"


async def guarded(lines: AsyncGenerator[bytes, None], name: str) -> AsyncGenerator[bytes, None]:
    """Yield the lines. If they fail, the last line is the error."""
    try:
        async for each in lines:
            yield each
    except Exception as error:
        yield line(ollama_refusal(told(name, error)))
    finally:
        await lines.aclose()


def rfc3339(at: datetime | None = None) -> str:
    """Return a UTC time as RFC 3339 text; by default the present."""
    return (at or datetime.now(UTC)).isoformat().replace("+00:00", "Z")


def tagged(name: str) -> str:
    """Return a model's name as Ollama lists it: always with a tag."""
    return name if ":" in name.rpartition("/")[2] else name + LATEST


def known_name(service: Service, name: str) -> str:
    """Return the service's name of a model that a client calls by Ollama's rules: no tag means the same as :latest.

    A name that the service does not know is returned without `:latest`. It may be the name of a model on disk; if not,
    the request for it fails later.
    """
    for each in (name, without_latest(name)):
        with suppress(EdgeAgentError):
            return service.find_model(each)
    return without_latest(name)
