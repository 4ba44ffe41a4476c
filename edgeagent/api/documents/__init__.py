"""What the wire looks like, as documents: OpenAPI for HTTP, AsyncAPI for the WebSocket, and a page that shows them.

`python -m edgeagent.api.documents docs` writes both from the code. Serving a request imports none of these modules.
"""

from __future__ import annotations

from edgeagent.api.documents.asyncapi import asyncapi_document
from edgeagent.api.documents.openapi import openapi_document

__all__ = ["asyncapi_document", "openapi_document"]
