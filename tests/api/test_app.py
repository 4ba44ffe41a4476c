"""The application around its routes: error shapes everywhere, request ids, and bodies that exceed the limits."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from edgeagent.api.gate import body_limit
from edgeagent.daemon import transport
from tests.backends.fake import FakeBackend
from tests.daemon.running import Reply, Running, exchange, limited, read_reply, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

MAX_BODY = 4096
PROMPT = "what the client said"
CHAT = "POST /v1/chat/completions"
HI = '{"messages":[{"role":"user","content":"hi"}]}'


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def daemon() -> AsyncIterator[Running]:
    async with running(FakeBackend(), limited(max_body_bytes=MAX_BODY, max_connections=20)) as daemon:
        yield daemon


def request(daemon: Running, line: str, *headers: str, body: bytes | str = b"") -> bytes:
    """Return a request's bytes with a good Host and a JSON content type."""
    lines = [f"{line} HTTP/1.1", f"Host: 127.0.0.1:{daemon.port}", "Content-Type: application/json", *headers, "", ""]
    return "\r\n".join(lines).encode() + (body.encode() if isinstance(body, str) else body)


def sized(body: str) -> str:
    return f"Content-Length: {len(body)}"


async def still_serves(daemon: Running) -> None:
    """Fail unless an ordinary request succeeds."""
    reply = await exchange(daemon.port, request(daemon, CHAT, sized(HI), body=HI))
    assert reply.status == 200


async def ask(daemon: Running, line: str, *headers: str, body: bytes | str = b"") -> Reply:
    """Return the answer to a request, after checking that the daemon still serves other requests."""
    reply = await exchange(daemon.port, request(daemon, line, *headers, body=body))
    await still_serves(daemon)
    return reply


@pytest.mark.parametrize(
    ("line", "status", "code"),
    [
        ("GET /v1/nothing", 404, "not_found"),
        ("GET /v1/models/", 404, "model_not_found"),
        ("GET /v1/models/org/repo", 404, "model_not_found"),
        ("GET /docs", 404, "not_found"),
        ("GET /openapi.json", 404, "not_found"),
        ("GET /v1/chat/completions/", 404, "not_found"),
        ("GET /v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE /v1/models", 405, "method_not_allowed"),
        ("BREW /v1/models", 400, "bad_request"),
        ("GET /%00%0d%0aX-Evil:%201", 404, "not_found"),
    ],
)
async def test_errors_have_one_shape(daemon: Running, line: str, status: int, code: str) -> None:
    reply = await ask(daemon, line)
    assert (reply.status, reply.error()["code"]) == (status, code)
    assert reply.headers["content-type"] == "application/json"
    assert "x-evil" not in reply.headers


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("POST /v1/v1/messages", "the base URL ends in /v1 already, and the client adds it too"),
        ("POST /chat/completion", "there is no /chat/completion; did you mean /v1/chat/completions?"),
        ("GET /v1/nothing", "see /v1/models, /v1/responses, /v1/chat/completions, /v1/messages"),
        ("GET /v1/chat/completions", "GET is not possible on /v1/chat/completions; use POST"),
    ],
)
async def test_a_wrong_path_or_method_names_the_right_one(daemon: Running, line: str, message: str) -> None:
    assert message in str((await ask(daemon, line)).error()["message"])


async def test_every_answer_has_its_own_id(daemon: Running) -> None:
    replies = [
        await ask(daemon, line, "X-Request-Id: mine") for line in ("GET /v1/models", "GET /nothing", "GET /health")
    ]
    ids = {reply.headers["x-request-id"] for reply in replies}
    assert len(ids) == 3
    assert all(len(name) == 28 and name.startswith("req_") for name in ids)


async def test_no_server_banner(daemon: Running) -> None:
    assert "server" not in (await ask(daemon, "GET /health")).headers


async def test_a_client_that_leaves_in_its_body_is_no_bug(daemon: Running, caplog: pytest.LogCaptureFixture) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
    writer.write(request(daemon, CHAT, "Content-Length: 100", body="{"))
    await writer.drain()
    await still_serves(daemon)
    writer.close()
    assert await reader.read() == b""
    await still_serves(daemon)
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_bug_is_logged_without_its_text(daemon: Running, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(FakeBackend):
        def default(self) -> str:
            raise ValueError(PROMPT)

    async with running(Broken()) as broken:
        reply = await exchange(broken.port, request(broken, "GET /health"))
    assert (reply.status, reply.error()["code"]) == (500, "internal_error")
    assert "x-request-id" in reply.headers
    [record] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert reply.headers["x-request-id"] in record.getMessage()
    assert "ValueError" in record.getMessage()
    assert "in default" in vars(record)["places"]
    assert PROMPT not in caplog.text


async def test_the_largest_body(daemon: Running) -> None:
    body = HI + " " * (MAX_BODY - len(HI))
    assert (await ask(daemon, CHAT, sized(body), body=body)).status == 200


@pytest.mark.parametrize("announced", [MAX_BODY + 1, 10**12, 2**63 - 1])
async def test_an_announced_body_is_refused_unread(daemon: Running, announced: int) -> None:
    reply = await ask(daemon, CHAT, f"Content-Length: {announced}")
    assert (reply.status, reply.error()["code"]) == (413, "payload_too_large")
    assert reply.headers["connection"] == "close"


async def test_a_body_that_was_not_read_ends_the_connection(daemon: Running) -> None:
    """The unread bytes must not be parsed as another request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
    smuggled = request(daemon, "GET /health").decode()
    writer.write(request(daemon, "POST /nothing", f"Content-Length: {MAX_BODY + len(smuggled)}", body=smuggled))
    assert (await read_reply(reader)).status == 404
    assert await reader.read() == b""
    writer.close()


async def test_endless_chunks(daemon: Running) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
    writer.write(request(daemon, CHAT, "Transfer-Encoding: chunked"))
    chunk = b"400\r\n" + b" " * 1024 + b"\r\n"
    for _ in range(6):
        writer.write(chunk)
    reply = await read_reply(reader)
    assert (reply.status, reply.error()["code"]) == (413, "payload_too_large")
    assert reply.headers["connection"] == "close"
    assert await reader.read() == b""
    writer.close()
    await still_serves(daemon)


async def test_chunks_within_the_bounds(daemon: Running) -> None:
    body = "".join(f"1\r\n{character}\r\n" for character in HI) + "0\r\n\r\n"
    assert (await ask(daemon, CHAT, "Transfer-Encoding: chunked", body=body)).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        ["Content-Length: 2", "Content-Length: 3"],
        ["Content-Length: 2, 3"],
        ["Content-Length: -1"],
        ["Content-Length: +2"],
        ["Content-Length: 0x2"],
        ["Content-Length: two"],
        ["Content-Length: 99999999999999999999999"],
        ["Content-Length: 2", "Transfer-Encoding: chunked"],
        ["Transfer-Encoding: chunked", "Content-Length: 2"],
        ["Transfer-Encoding: chunked, gzip"],
        ["Bad Header: x"],
        ["X: a\x00b"],
        ["X: a\rb"],
        [": empty"],
    ],
)
async def test_headers_that_servers_disagree_about(daemon: Running, headers: list[str]) -> None:
    reply = await ask(daemon, CHAT, *headers, body="{}")
    assert reply.status == 400
    assert reply.error()["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "chunks", ["x\r\n{}\r\n0\r\n\r\n", "2\r\n{}x\r\n0\r\n\r\n", "-2\r\n{}\r\n0\r\n\r\n", "ffffffffffffffff1\r\n"]
)
async def test_bad_chunks(daemon: Running, chunks: str) -> None:
    assert (await ask(daemon, CHAT, "Transfer-Encoding: chunked", body=chunks)).status == 400


async def test_garbage(daemon: Running) -> None:
    for garbage in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ):
        assert (await exchange(daemon.port, garbage)).status == 400
    await still_serves(daemon)


async def test_header_bounds(daemon: Running) -> None:
    assert (await ask(daemon, "GET /health", "X: " + "x" * 15_000)).status == 200
    assert (await ask(daemon, "GET /health", "X: " + "x" * 17_000)).status == 431
    assert (await ask(daemon, "GET /health", *(f"X-{index}: y" for index in range(90)))).status == 200
    assert (await ask(daemon, "GET /health", *(f"X-{index}: y" for index in range(110)))).status == 431
    assert (await ask(daemon, "GET /health", "X" * 17_000 + ": y")).status == 431
    reply = await ask(daemon, f"GET /{'x' * 9000}")
    assert (reply.status, reply.error()["code"]) == (414, "uri_too_long")


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\nX: ", b"GET / HTTP/1.1\r\n", b"GET /"])
async def test_a_head_without_end_is_cut(daemon: Running, start: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
    writer.write(start)
    for _ in range(16):
        writer.write(b"x" * 65_536)
    try:
        reply = await read_reply(reader)
    except (asyncio.IncompleteReadError, ConnectionError):
        pass  # the reset arrived before the answer
    else:
        assert reply.status in (400, 414, 431)
    writer.close()
    await still_serves(daemon)


async def test_a_slow_head(daemon: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "HEAD_TIMEOUT_S", 0.05)
    for start in (b"", b"\r\n", b"GET / HT", b"GET /health HTTP/1.1\r\nHost: x\r\n"):
        assert (await exchange(daemon.port, start)).status == 408


async def test_a_slow_head_after_an_answer(daemon: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
    writer.write(request(daemon, "GET /health"))
    assert (await read_reply(reader)).status == 200
    monkeypatch.setattr(transport, "HEAD_TIMEOUT_S", 0.05)
    writer.write(b"\r\nGET /hea")
    assert (await read_reply(reader)).status == 408
    assert await reader.read() == b""
    writer.close()


async def test_a_slow_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_limit.BodyLimit.__init__, "__defaults__", (0.05,))
    async with running(FakeBackend()) as daemon:
        reply = await exchange(daemon.port, request(daemon, CHAT, sized(HI), body=HI[:-1]))
        assert (reply.status, reply.headers["connection"]) == (400, "close")
        assert "too slowly" in str(reply.error()["message"])
        # Once the body has arrived, no time limit applies to a long answer.
        await still_serves(daemon)


async def test_pipelined_requests_are_answered_in_order(daemon: Running) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
    writer.write(
        request(daemon, CHAT, sized(HI), body=HI) + request(daemon, "GET /health") + request(daemon, "GET /nothing")
    )
    assert [(await read_reply(reader)).status for _ in range(3)] == [200, 200, 404]
    writer.close()


async def test_an_expectation_is_met(daemon: Running) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
    writer.write(request(daemon, CHAT, sized(HI), "Expect: 100-continue"))
    assert (await read_reply(reader)).status == 100
    writer.write(HI.encode())
    assert (await read_reply(reader)).status == 200
    writer.close()


async def test_too_many_connections() -> None:
    async with running(FakeBackend(), limited(max_connections=3)) as daemon:
        streams = [await asyncio.open_connection("127.0.0.1", daemon.port) for _ in range(3)]
        for reader, writer in streams:
            writer.write(request(daemon, "GET /v1/models"))  # /health does not tell that it is the owner who asks
            assert (await read_reply(reader)).status == 200
        refused = await exchange(daemon.port, request(daemon, "GET /health"))
        assert (refused.status, refused.error()["code"]) == (503, "service_unavailable")
        assert refused.headers["retry-after"] == "1"
        upgrade = (
            "Upgrade: websocket",
            "Connection: Upgrade",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: eHh4eHh4eHh4eHh4eHh4eA==",
        )
        assert (await exchange(daemon.port, request(daemon, "GET /v1/responses", *upgrade))).status == 503
        for reader, writer in streams:
            writer.write(request(daemon, "GET /health"))
            assert (await read_reply(reader)).status == 200
        streams.pop()[1].transport.abort()
        while len(daemon.server.server_state.connections) > 2:  # noqa: ASYNC110 the abort takes a turn of the loop
            await asyncio.sleep(0)
        assert (await exchange(daemon.port, request(daemon, "GET /health"))).status == 200
        for _, writer in streams:
            writer.close()


async def test_a_client_that_never_reads_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "STALL_TIMEOUT_S", 0.05)
    from edgeagent.types import TextDelta

    backend = FakeBackend(lambda _: (TextDelta("Yes. " + "x" * 65_536) for _ in range(10**9)))
    async with running(backend) as daemon:
        body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "stream": True})
        _, writer = await asyncio.open_connection("127.0.0.1", daemon.port, limit=1024)
        writer.write(request(daemon, CHAT, sized(body), body=body))
        await backend.until(lambda backend: backend.num_live == 1)
        await backend.until(lambda backend: backend.num_live == 0)
        assert len(backend.closed) == 1
        writer.transport.abort()
