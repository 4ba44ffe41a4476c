"""The routes of Ollama's API that serve no model, and the media types that all its routes take."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from edgeagent import __version__
from edgeagent.api.ollama.body import read_chat
from edgeagent.config import Config, ServerConfig
from edgeagent.types import ChatPrompt
from tests.api.ollama.requests import HI
from tests.backends.fake import FakeBackend
from tests.daemon.running import TOKEN, Running, exchange, running

pytestmark = pytest.mark.asyncio(loop_scope="module")


class TestRest:
    @pytest.mark.parametrize("path", ["/", "/api/version", "/api/tags", "/api/ps"])
    async def test_get(self, daemon: Running, path: str) -> None:
        assert (await daemon.http.get(daemon.url + path)).status_code == 200

    async def test_who_is_there(self, daemon: Running) -> None:
        assert (await daemon.http.get(daemon.url)).text == "Ollama is running"
        for path in ("/", "/api/version", "/api/tags"):
            reply = await daemon.http.head(daemon.url + path)
            assert (reply.status_code, reply.content) == (200, b"")
        version = (await daemon.http.get(f"{daemon.url}/api/version")).json()
        assert re.fullmatch(r"\d+\.\d+\.\d+", version["version"]) and version["edgeagent"] == __version__

    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("POST", "create"),
            ("POST", "push"),
            ("POST", "blobs/sha256:0"),
        ],
    )
    async def test_what_is_not_to_be_had(self, daemon: Running, method: str, path: str) -> None:
        reply = await daemon.http.request(method, f"{daemon.url}/api/{path}", json={"model": "fake", "input": "a"})
        assert reply.status_code == 501
        assert set(reply.json()) == {"error"} and isinstance(reply.json()["error"], str)

    @pytest.mark.parametrize(("method", "path", "status"), [("GET", "/api/nothing", 404), ("GET", "/api/chat", 405)])
    async def test_a_wrong_path_is_a_text_here(self, daemon: Running, method: str, path: str, status: int) -> None:
        reply = await daemon.http.request(method, daemon.url + path)
        assert reply.status_code == status
        assert path in reply.json()["error"] and "/v1/" not in reply.json()["error"]

    @pytest.mark.parametrize("body", ["", "[]", "{", '{"model": "fake", "model": "fake"}', '{"model": NaN}'])
    @pytest.mark.parametrize("path", ["chat", "generate", "show", "pull"])
    async def test_a_body_that_is_no_object(self, daemon: Running, path: str, body: str) -> None:
        reply = await daemon.http.post(
            f"{daemon.url}/api/{path}", content=body, headers={"content-type": "application/json"}
        )
        assert reply.status_code == 400
        assert isinstance(reply.json()["error"], str)


def posting(daemon: Running, path: str, *lines: str) -> bytes:
    content = json.dumps({"model": "fake", "messages": HI, "stream": False})
    head = [f"POST {path} HTTP/1.1", f"Host: 127.0.0.1:{daemon.port}", f"Content-Length: {len(content)}", *lines]
    return "\r\n".join([*head, "", content]).encode()


FORM = "Content-Type: application/x-www-form-urlencoded"


class TestMediaType:
    @pytest.mark.parametrize("lines", [[], [FORM], ["Content-Type: text/plain"], [FORM, "User-Agent: curl/8.5.0"]])
    async def test_any_will_do_from_a_program(self, daemon: Running, lines: list[str]) -> None:
        reply = await exchange(daemon.port, posting(daemon, "/api/chat", *lines))
        assert (reply.status, json.loads(reply.body)["done"]) == (200, True)
        is_refused = lines == ["Content-Type: text/plain"]
        reply = await exchange(daemon.port, posting(daemon, "/v1/chat/completions", *lines))
        assert reply.status == (415 if is_refused else 200)

    @pytest.mark.parametrize(
        "line",
        [
            "User-Agent: Mozilla/5.0 (X11; Linux x86_64; rv:60.0) Gecko/20100101 Firefox/60.0",
            "Cookie: a=b",
            "Sec-Fetch-Site: none",
            "Content-Encoding: gzip",
        ],
    )
    async def test_a_browser_has_to_send_json(self, daemon: Running, line: str) -> None:
        """A page may post a form to any address, and can tell an old browser not to send the page's origin."""
        reply = await exchange(daemon.port, posting(daemon, "/api/chat", FORM, line))
        assert reply.status == 415
        assert isinstance(json.loads(reply.body)["error"], str)

    @pytest.mark.parametrize("line", ["Origin: http://evil.example", "Origin: null", "Referer: http://evil.example/"])
    async def test_a_page_is_refused_whatever_it_sends(self, daemon: Running, line: str) -> None:
        for media_type in (FORM, "Content-Type: application/json"):
            assert (await exchange(daemon.port, posting(daemon, "/api/chat", media_type, line))).status == 403

    async def test_a_page_that_is_allowed_has_to_send_json_too(self, tmp_path: Path) -> None:
        page = "http://localhost:3000"
        config = Config(state_dir=tmp_path, server=ServerConfig(allowed_origins=(page,)))
        async with running(FakeBackend(), config) as daemon:
            for media_type, status in ((FORM, 415), ("Content-Type: application/json", 200)):
                sent = posting(daemon, "/api/chat", media_type, f"Origin: {page}")
                assert (await exchange(daemon.port, sent)).status == status

    async def test_the_token_is_asked_for_where_it_is_required(self, tmp_path: Path) -> None:
        config = Config(state_dir=tmp_path, server=ServerConfig(token_required=True))
        async with running(FakeBackend(), config) as daemon:
            reply = await exchange(daemon.port, posting(daemon, "/api/chat", FORM))
            assert (reply.status, isinstance(json.loads(reply.body)["error"], str)) == (401, True)
            sent = posting(daemon, "/api/chat", FORM, f"Authorization: Bearer {TOKEN}")
            assert (await exchange(daemon.port, sent)).status == 200


# The routes that Ollama has since the version that /api/version reports, and the first that came after it.
ROUTES_OF_0_14_0 = (
    *("/api/generate", "/api/chat", "/api/embed", "/api/embeddings", "/api/create", "/api/push", "/api/pull"),
    *("/api/copy", "/api/show", "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"),
    "/v1/messages",
)
LATER_ROUTE = "/v1/images/generations"


async def test_the_version_is_the_one_whose_routes_are_served(daemon: Running) -> None:
    reported = (await daemon.http.get(f"{daemon.url}/api/version")).json()["version"]
    assert reported == "0.14.0"
    missing = [
        path for path in ROUTES_OF_0_14_0 if (await daemon.http.post(f"{daemon.url}{path}", json={})).status_code == 404
    ]
    assert missing == []
    assert (await daemon.http.post(f"{daemon.url}{LATER_ROUTE}", json={})).status_code == 404, "report a later version"


@pytest.mark.parametrize(
    ("fields", "is_shortened"), [({}, True), ({"truncate": True}, True), ({"truncate": False}, False)]
)
async def test_a_long_conversation_is_shortened_unless_the_client_forbids_it(
    fields: dict[str, bool], is_shortened: bool
) -> None:
    asked = read_chat({"model": "fake", "messages": HI, **fields}, request_id="r", served=str).request
    assert asked is not None and isinstance(asked.prompt, ChatPrompt)
    assert asked.prompt.truncate is is_shortened


async def test_an_ignored_context_length_is_named(daemon: Running) -> None:
    body = {"model": "fake", "messages": HI, "options": {"num_ctx": 512}, "stream": False}
    warning = (await daemon.http.post(f"{daemon.url}/api/chat", json=body)).headers["x-edgeagent-warning"]
    assert warning == "options.num_ctx is ignored: the daemon chooses the length of the context"
