"""The router of Ollama's API, which is on the same port as OpenAI's. Clients of Ollama only need this address.

It includes the routers of this package's other modules. The remaining routes are here: the greeting, the version, and
routes that are refused.
"""

from __future__ import annotations

from http import HTTPStatus

from fastapi import APIRouter
from fastapi.responses import JSONResponse, PlainTextResponse

from edgeagent import __version__
from edgeagent.api.ollama import chat as ollama_chat
from edgeagent.api.ollama import embed as ollama_embed
from edgeagent.api.ollama import models as ollama_models
from edgeagent.api.ollama import pull as ollama_pull
from edgeagent.api.wire.errors import OllamaRefusal
from edgeagent.api.wire.shape import Shape

# Clients read from Ollama's version what a server supports. All routes of this version are served: 0.13.3 brought
# /v1/responses. The next minor version brought /v1/messages, which is not served.
API_VERSION = "0.13.4"

router = APIRouter()
for module in (ollama_chat, ollama_embed, ollama_models, ollama_pull):
    router.include_router(module.router)


class OllamaVersion(Shape):
    """The version of Ollama whose API is served, and edgeagent's own version."""

    version: str
    edgeagent: str


@router.api_route("/", methods=["GET", "HEAD"])
async def greet() -> PlainTextResponse:
    """Return Ollama's greeting. Its clients request it first, to find out whether a server runs."""
    return PlainTextResponse("Ollama is running")


@router.api_route("/api/version", methods=["GET", "HEAD"])
async def version() -> JSONResponse:
    """Return the version of Ollama whose API is served, and edgeagent's own version."""
    return JSONResponse(OllamaVersion(version=API_VERSION, edgeagent=__version__))


@router.post("/api/create")
@router.post("/api/push")
@router.api_route("/api/blobs/{digest}", methods=["HEAD", "POST"])
async def change() -> JSONResponse:
    """Refuse: this daemon does not create or push models."""
    text = "edgeagent does not make or push models; see /api/pull, and `edgeagent import` for a file of your own"
    return JSONResponse(OllamaRefusal(error=text), status_code=HTTPStatus.NOT_IMPLEMENTED)
