"""What the outermost middleware does for every route: other names, HEAD, and the end of a refused body."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from edgeagent.api.gate.envelope import ALIASES
from tests.api.serving import serve
from tests.backends.fake import FakeBackend


@pytest.fixture
async def address() -> AsyncIterator[str]:
    async with serve(FakeBackend()) as address:
        yield address


@pytest.mark.parametrize(
    "path", ["/", "/v1/models", "/models", "/version", "/health", "/v1/health", "/api/tags", "/api/ps", "/api/version"]
)
async def test_head_is_answered_like_get_without_a_body(address: str, path: str) -> None:
    async with httpx.AsyncClient(base_url=f"http://{address}") as http:
        head, got = await http.head(path), await http.get(path)
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-type"] == got.headers["content-type"]


async def test_head_of_a_route_that_only_takes_a_body_is_refused(address: str) -> None:
    async with httpx.AsyncClient(base_url=f"http://{address}") as http:
        assert (await http.head("/v1/chat/completions")).status_code == 405


async def test_llama_servers_other_names(address: str) -> None:
    body = {"messages": [{"role": "user", "content": "one two"}]}
    async with httpx.AsyncClient(base_url=f"http://{address}") as http:
        for alias, path in ALIASES.items():
            mine, same = [await http.request("OPTIONS", each) for each in (alias, path)]
            assert (mine.status_code, mine.headers.get("allow")) == (same.status_code, same.headers.get("allow"))
        reply = await http.post("/chat/completions", json=body)
    assert reply.json()["choices"][0]["message"]["content"] == "one two"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/nowhere"])
async def test_a_client_that_sends_everything_first_reads_the_refusal(address: str, path: str) -> None:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    num_bytes = 12 << 20
    head = f"POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: text/csv\r\nContent-Length: {num_bytes}\r\n\r\n"
    writer.write(head.encode())
    for _ in range(num_bytes >> 16):
        writer.write(b"x" * (1 << 16))
        await writer.drain()
    assert (await reader.readline()).split()[1] in (b"415", b"404")
    writer.close()


async def test_a_client_that_waits_for_a_go_ahead_gets_only_the_refusal(address: str) -> None:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {address}\r\nContent-Type: text/csv\r\nContent-Length: 9\r\n"
    writer.write(f"{head}Expect: 100-continue\r\n\r\n".encode())
    answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 415") and b"100 Continue" not in answer
    writer.close()
