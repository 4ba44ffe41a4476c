"""What the wire looks like, as documents: OpenAPI for HTTP, AsyncAPI for the WebSocket, and a page that shows them.

`python -m edgeagent.api.documents docs` writes both from the code. Nothing of this is imported to serve a request.
"""

from __future__ import annotations

from edgeagent.api.documents.asyncapi import asyncapi_document
from edgeagent.api.documents.openapi import openapi_document

__all__ = ["asyncapi_document", "openapi_document"]
