"""The files of the page, and the greeting of Ollama at the same path for its clients.

The files are public: they have nothing but the program of the page. What the page asks the daemon needs a token.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files

from fastapi import Request
from fastapi.responses import PlainTextResponse
from starlette.responses import Response

from edgeagent.api.wire.route import TEXT, Routes
from edgeagent.errors import NotFound

routes = Routes()

_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# No script, style, image or connection of another origin; no script in the HTML; no HTML made from text (Trusted
# Types); no frame around the page.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@routes.add("GET|HEAD /", None, "page", text=("text/html", TEXT))
async def get_page(request: Request) -> Response:
    """Return the page to browsers (`Accept: text/html`), and Ollama's greeting to other clients."""
    # Ollama's clients request the greeting first, to find out whether a server runs.
    is_browser = "text/html" in request.headers.get("accept", "")
    answer = _file(request, "index.html") if is_browser else PlainTextResponse("Ollama is running", media_type=TEXT)
    answer.headers["vary"] = "Accept"
    return answer


@routes.add("GET|HEAD /kiosk", None, "page", text=("text/html",))
async def get_kiosk(request: Request) -> Response:
    """Return the page of a kiosk. `edgeagent kiosk` opens it with a token that allows nothing else."""
    return _file(request, "kiosk.html")


@routes.add("GET|HEAD /page/{name}", None, "page", text=("text/javascript", "text/css", "image/svg+xml"))
async def get_file(request: Request) -> Response:
    """Return a file of the page: a script, its style or its icon."""
    name = request.path_params["name"]
    return _file(request, name)


def _file(request: Request, name: str) -> Response:
    found = _files().get(name)
    if found is None:
        raise NotFound(f"the page has no file {name[:64]!r}")
    content, tag = found
    headers = {**_HEADERS, "etag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=_TYPES[name.rpartition(".")[2]])


@cache
def _files() -> dict[str, tuple[bytes, str]]:
    """Return the content and the ETag of each file, by name. They are read at the first request of a page.

    Both pages begin with the same head.
    """
    contents = {
        file.name: file.read_bytes()
        for file in files("edgeagent.api.page").joinpath("static").iterdir()
        if file.name.rpartition(".")[2] in _TYPES
    }
    head = contents.pop("head.html")
    contents = {name: head + content if name.endswith(".html") else content for name, content in contents.items()}
    return {name: (content, f'"{hashlib.sha256(content).hexdigest()[:16]}"') for name, content in contents.items()}
