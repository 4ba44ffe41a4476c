"""The files of the page, and the greeting of Ollama at the same path for its clients.

The files are public: they have nothing but the program of the page. What the page asks the daemon needs a token.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from fastapi import Request
from fastapi.responses import PlainTextResponse
from starlette.responses import Response

from edgeagent.api.wire.route import TEXT, Routes
from edgeagent.errors import NotFound

routes = Routes()

_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# No script, image or connection of another origin; no script in the HTML; no style but those that the daemon has put
# into the HTML, by their hashes; no HTML made from text (Trusted Types); no frame around the page. The images that a
# user attaches are data URLs.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src {styles}; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_STYLESHEET = re.compile(rb'<link rel="stylesheet" href="([\w.]+)">')
_HEADERS = {
    "cache-control": "no-cache",
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


@routes.add("GET|HEAD /page/{name}", None, "page", text=("text/javascript", "image/svg+xml"))
async def get_file(request: Request) -> Response:
    """Return a file of the page: a script or its icon."""
    name = request.path_params["name"]
    return _file(request, name)


@dataclass(frozen=True, slots=True)
class _File:
    """A file as it is sent."""

    content: bytes
    headers: dict[str, str]

    @classmethod
    def of(cls, content: bytes, styles: Sequence[bytes] = ()) -> _File:
        """Return the file with its headers. `styles`: the style sheets in its content."""
        hashes = [f"'sha256-{b64encode(hashlib.sha256(style).digest()).decode()}'" for style in styles]
        policy = _POLICY.format(styles=" ".join(hashes) or "'none'")
        tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        return cls(content, {**_HEADERS, "content-security-policy": policy, "etag": tag})


def _file(request: Request, name: str) -> Response:
    found = _files().get(name)
    if found is None:
        raise NotFound(f"the page has no file {name[:64]!r}")
    if request.headers.get("if-none-match") == found.headers["etag"]:
        return Response(status_code=304, headers=found.headers)
    return Response(found.content, headers=found.headers, media_type=_TYPES[name.rpartition(".")[2]])


@cache
def _files() -> dict[str, _File]:
    """Return each file by its name. They are read at the first request of a page."""
    contents = {file.name: file.read_bytes() for file in files("edgeagent.api.page").joinpath("static").iterdir()}
    head = contents.pop("head.html")  # of both pages
    found = {}
    for name, content in contents.items():
        kind = name.rpartition(".")[2]
        if kind == "html":
            found[name] = _page(head + content, contents)
        elif kind in _TYPES:
            found[name] = _File.of(content)
    return found


def _page(html: bytes, contents: Mapping[str, bytes]) -> _File:
    """Return a page with its style sheets in it. A browser shows nothing before it has these."""
    styles = [contents[name.decode()] for name in _STYLESHEET.findall(html)]
    whole = _STYLESHEET.sub(lambda link: b"<style>%b</style>" % contents[link[1].decode()], html)
    return _File.of(whole, styles)
