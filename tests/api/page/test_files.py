"""The page's files: what browsers get at the root, the policy that they get with it, and their size."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import pytest
import pytest_asyncio

from edgeagent.api import page
from edgeagent.config import Config, ServerConfig
from tests.backends.fake import FakeBackend
from tests.daemon.running import Running, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

SOURCES = {file.name: file.read_bytes() for file in (Path(page.__file__).parent / "static").iterdir()}
STYLES = {name: SOURCES.pop(name) for name in ("page.css", "kiosk.css")}
HEAD = SOURCES.pop("head.html")
PAGES = ("index.html", "kiosk.html")
SOURCES |= {name: HEAD + SOURCES[name] for name in PAGES}


def with_styles(html: bytes) -> bytes:
    for name, style in STYLES.items():
        html = html.replace(b'<link rel="stylesheet" href="%b">' % name.encode(), b"<style>%b</style>" % style)
    return html


FILES = SOURCES | {name: with_styles(SOURCES[name]) for name in PAGES}
"""What is sent, by its name."""
MAX_BYTES = 120_000
BROWSER = {
    "accept": "text/html,application/xhtml+xml,*/*;q=0.8",
    "sec-fetch-site": "none",
    "sec-fetch-mode": "navigate",
}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def daemon() -> AsyncIterator[Running]:
    """A daemon on which every other path needs a token."""
    async with running(FakeBackend(), Config(server=ServerConfig(token_required=True))) as daemon:
        yield daemon


async def test_browsers_get_the_page_and_other_clients_the_greeting(daemon: Running) -> None:
    shown = await daemon.http.get(daemon.url, headers=BROWSER)
    assert shown.headers["content-type"] == "text/html; charset=utf-8"
    assert shown.text.startswith("<!doctype html>")
    for accept in ("*/*", "", "text/plain", "application/json"):
        greeting = await daemon.http.get(daemon.url, headers={"accept": accept})
        assert (greeting.text, greeting.headers["vary"]) == ("Ollama is running", "Accept")


async def test_the_policy_forbids_what_the_page_does_not_need(daemon: Running) -> None:
    headers = (await daemon.http.get(daemon.url, headers=BROWSER)).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["connect-src"] == "'self'"
    assert policy["img-src"] == "'self' data:", "a user's own images are shown, and nothing is loaded for one"
    assert policy["require-trusted-types-for"] == "'script'"
    assert (headers["referrer-policy"], headers["x-content-type-options"]) == ("no-referrer", "nosniff")


@pytest.mark.parametrize(("path", "names"), [("/", ["page.css"]), ("/kiosk", ["page.css", "kiosk.css"])])
async def test_a_page_has_its_styles_in_it_and_the_policy_allows_no_other(
    daemon: Running, path: str, names: list[str]
) -> None:
    shown = await daemon.http.get(daemon.url + path, headers=BROWSER)
    assert [style.encode() for style in re.findall("<style>(.*?)</style>", shown.text, re.S)] == [
        STYLES[name] for name in names
    ]
    assert "stylesheet" not in shown.text
    hashes = [f"'sha256-{b64encode(sha256(STYLES[name]).digest()).decode()}'" for name in names]
    assert f"style-src {' '.join(hashes)};" in shown.headers["content-security-policy"]
    script = await daemon.http.get(f"{daemon.url}/page/main.js")
    assert "style-src 'none';" in script.headers["content-security-policy"]


@pytest.mark.parametrize("name", sorted(FILES))
async def test_a_file_is_sent_once_and_then_confirmed(daemon: Running, name: str) -> None:
    first = await daemon.http.get(f"{daemon.url}/page/{name}")
    assert (first.status_code, first.content) == (200, FILES[name])
    again = await daemon.http.get(f"{daemon.url}/page/{name}", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    changed = await daemon.http.get(f"{daemon.url}/page/{name}", headers={"if-none-match": '"other"'})
    assert changed.status_code == 200


@pytest.mark.parametrize("name", ["nothing.js", "page.css", "__init__.py", "..%2ffiles.py", "%2e%2e", "static", ""])
async def test_nothing_else_is_sent(daemon: Running, name: str) -> None:
    assert (await daemon.http.get(f"{daemon.url}/page/{name}")).status_code in (401, 404)


async def test_the_page_is_small() -> None:
    assert sum(map(len, FILES.values())) <= MAX_BYTES


def imported_by(name: str) -> set[str]:
    """Return the scripts that a script imports, and theirs."""
    found = set(re.findall(r'from "\./([\w.]+)"', SOURCES[name].decode()))
    return found.union(*map(imported_by, found))


@pytest.mark.parametrize(("name", "script"), [("index.html", "main.js"), ("kiosk.html", "kiosk.js")])
async def test_a_page_names_all_its_scripts_so_that_they_come_together(name: str, script: str) -> None:
    html = SOURCES[name].decode()
    assert set(re.findall('modulepreload" fetchpriority="low" href="/page/([^"]+)', html)) == imported_by(script)
    assert re.findall('src="/page/([^"]+)', html) == [script]


async def test_the_page_needs_nothing_from_elsewhere_and_makes_no_html() -> None:
    texts = {name: content.decode() for name, content in SOURCES.items()}
    for name, text in (texts | {name: style.decode() for name, style in STYLES.items()}).items():
        # The namespace of SVG is a name, not an address.
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text), name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text), (
            name
        )
    html = texts["index.html"] + texts["kiosk.html"]
    assert not re.search(r"\son\w+=|\sstyle=|<style|<script(?! type=\"module\" src=)", html)
    imported = {name for text in texts.values() for name in re.findall(r'from "\./([\w.]+)"', text)}
    assert imported | set(re.findall(r'"/page/([\w.]+)"', html)) == texts.keys() - set(PAGES)
