"""B4: invalid or hostile JSON gives 400 on every route with a body and on the WebSocket, at little cost."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import connect

from edgeagent.api.gate.security import MAX_PUBLIC_BODY_BYTES
from edgeagent.api.routes import NEEDS
from edgeagent.api.routes import ROUTES as OPERATIONS
from tests.backends.fake import FakeBackend
from tests.daemon.running import running
from tests.examples import examples
from tests.robust.asgi import Caller, calling
from tests.test_strict_json import BAD

ROUTES = sorted(name.removeprefix("POST ") for name, operation in OPERATIONS.items() if operation.body is not None)
# In seconds of this thread's CPU time. The list of attacks says 0.1; the rest is for slow machines.
MAX_CPU_S = 1.0
GOOD: dict[str, Any] = {
    "model": "fake",
    "messages": [{"role": "user", "content": "hi", "n": [1, 2.5e3, None, True]}],
    "input": "hi \u00e9\U0001f600",
    "prompt": "hi",
    "stop": ["\\", '"'],
}


@pytest.fixture(scope="module")
def caller() -> Iterator[Caller]:
    with calling() as caller:
        yield caller


def test_every_route_with_a_body_is_tried() -> None:
    assert {"/v1/chat/completions", "/v1/responses", "/api/chat"} <= set(ROUTES)


@pytest.mark.parametrize("route", ROUTES)
def test_hostile_bodies_everywhere(caller: Caller, route: str, caplog: pytest.LogCaptureFixture) -> None:
    for name, body in BAD.items():
        if len(body) > 1 << 20:
            continue
        answer = caller.post(route, body)
        # A path that needs no token takes few bytes.
        is_long = NEEDS[route.rpartition(" ")[2]] is None and len(body) > MAX_PUBLIC_BODY_BYTES
        assert answer.status == (413 if is_long else 400), (name, answer.body[:200])
        assert answer.error()["message"]
    assert "RecursionError" not in caplog.text
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert caller.backend.requests == []


@pytest.mark.parametrize("name", [name for name, body in BAD.items() if len(body) <= 8 << 20])
def test_the_largest_cost_little(caller: Caller, name: str) -> None:
    body = BAD[name]
    started_s = time.thread_time()
    assert caller.post("/v1/responses", body).status == 400
    assert time.thread_time() - started_s < MAX_CPU_S


@st.composite
def broken(draw: st.DrawFn) -> bytes:
    """Draw a valid body with some bytes replaced, removed or inserted."""
    body = bytearray(json.dumps(GOOD, ensure_ascii=draw(st.booleans())).encode())
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(body)))
        piece = draw(
            st.binary(max_size=4)
            | st.sampled_from(
                [b"\0", b"\\u0000", b"\\ud800", b"\xef\xbb\xbf", b"NaN", b"1e999", b"[" * 70, b'"', b"{}"]
            )
        )
        body[at : at + draw(st.integers(0, 4))] = piece
    return bytes(body)


@settings(max_examples=examples(500))
@given(body=broken(), route=st.sampled_from(["/v1/chat/completions", "/v1/responses", "/api/generate"]))
def test_broken_bodies(caller: Caller, body: bytes, route: str) -> None:
    answer = caller.post(route, body)
    assert answer.status in (200, 400, 404), answer.body
    if answer.status != 200:
        assert answer.error()["message"].isprintable()


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/realtime"])
async def test_on_a_socket(path: str) -> None:
    async with running(FakeBackend()) as daemon, connect(f"ws://127.0.0.1:{daemon.port}{path}") as socket:
        if path == "/v1/realtime":
            assert json.loads(await socket.recv())["type"] == "session.created"
        for name, body in BAD.items():
            try:
                text = body.decode()
            except UnicodeDecodeError:
                continue  # the protocol refuses invalid UTF-8: see test_rfc6455
            await socket.send(text)
            event = json.loads(await socket.recv())
            assert (event["type"], event["status"]) == ("error", 400), name
        # The same socket still serves requests.
        asked = {"instructions": "hi"} if path == "/v1/realtime" else None
        await socket.send(json.dumps({"type": "response.create", "model": "fake", "input": "hi", "response": asked}))
        assert json.loads(await socket.recv())["type"] == "response.created"
