"""Serves the documents over HTTP if `server.docs` is true: two JSON files, and a page without scripts for both."""

from __future__ import annotations

import html
import json

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, JSONResponse

from edgeagent.api.documents.asyncapi import asyncapi_document
from edgeagent.api.documents.openapi import openapi_document
from edgeagent.api.wire.shape import Json

router = APIRouter()

# The page loads nothing, and this policy forbids loading.
_POLICY = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"}
_STYLE = "body{font:15px/1.5 system-ui;max-width:60rem;margin:2rem auto;padding:0 1rem}pre{overflow:auto}"


@router.get("/openapi.json")
async def openapi() -> JSONResponse:
    """Return the OpenAPI document."""
    return JSONResponse(openapi_document())


@router.get("/asyncapi.json")
async def asyncapi() -> JSONResponse:
    """Return the AsyncAPI document."""
    return JSONResponse(asyncapi_document())


@router.get("/docs")
async def docs() -> HTMLResponse:
    """Return both documents as a page to read."""
    return HTMLResponse(_page(openapi_document(), asyncapi_document()), headers=_POLICY)


def _page(http: Json, socket: Json) -> str:
    title = "edgeagent"
    parts = [f"<h1>{title} {html.escape(http['info']['version'])}</h1>", _paragraphs(http["info"]["description"])]
    parts += ["<p><a href='/openapi.json'>openapi.json</a> <a href='/asyncapi.json'>asyncapi.json</a></p><h2>HTTP</h2>"]
    for path, methods in http["paths"].items():
        for method, operation in methods.items():
            parts.append(_entry(f"{method.upper()} {path}", operation["summary"], operation))
    parts += ["<h2>WebSocket</h2>", _paragraphs(socket["info"]["description"])]
    for name, message in socket["components"]["messages"].items():
        parts.append(_entry(name, message["summary"], message))
    parts.append("<h2>Schemas</h2>")
    for name, schema in sorted({**http["components"]["schemas"], **socket["components"]["schemas"]}.items()):
        parts.append(_entry(name, schema.get("description", ""), schema))
    head = f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{title}</title><style>{_STYLE}</style>"
    return head + "".join(parts) + "</html>"


def _entry(name: str, summary: str, details: Json) -> str:
    shown = html.escape(json.dumps(details, indent=1, ensure_ascii=False))
    head = f"<b>{html.escape(name)}</b> {html.escape(summary)}"
    return f"<details><summary>{head}</summary><pre>{shown}</pre></details>"


def _paragraphs(text: str) -> str:
    return "".join(f"<p style='white-space:pre-wrap'>{html.escape(part)}</p>" for part in text.split("\n\n"))
