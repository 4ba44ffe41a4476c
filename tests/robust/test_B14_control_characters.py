"""B14: a client's path, header, name or id can neither forge a log line nor move a terminal's cursor."""

from __future__ import annotations

import io
import json
import logging
import unicodedata
from collections.abc import Iterator

import pytest
from websockets.asyncio.client import connect

from edgeagent.daemon.logs import ConsoleLines, JsonLines
from edgeagent.errors import WorkerCrashed
from tests.backends.fake import FakeBackend, failing
from tests.daemon.running import running
from tests.robust.asgi import calling
from tests.robust.raw import get

HOSTILE = [
    "a\r\nSet-Cookie: x",
    "a\nERROR forged",
    "\x1b[2J\x1b[31mred",
    "\x07bell",
    "\x9b31m",
    "\x85next",
    "\u2028line\u2029paragraph",
    "\u202egnp.exe",
    "\u2066isolate\u2069",
    "\u200fmark",
    "\x7f",
]


@pytest.fixture
def lines() -> Iterator[list[io.StringIO]]:
    """Capture both kinds of log lines, at the lowest level."""
    streams: list[io.StringIO] = []
    root = logging.getLogger()
    level, handlers = root.level, []
    for formatter in (ConsoleLines(), JsonLines()):
        streams.append(io.StringIO())
        handlers.append(logging.StreamHandler(streams[-1]))
        handlers[-1].setFormatter(formatter)
        root.addHandler(handlers[-1])
    root.setLevel(logging.DEBUG)
    yield streams
    root.setLevel(level)
    for handler in handlers:
        root.removeHandler(handler)


def assert_harmless(text: str) -> None:
    """Fail if a character could move a cursor, break a line or reverse its direction."""
    bad = [character for character in text if unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp")]
    assert not bad, ascii(text)


def assert_harmless_lines(streams: list[io.StringIO]) -> None:
    for stream in streams:
        for line in stream.getvalue().split("\n"):
            assert_harmless(line)
            assert not line.startswith(("ERROR forged", "Set-Cookie"))


@pytest.mark.parametrize("hostile", HOSTILE, ids=ascii)
def test_paths_names_and_ids(lines: list[io.StringIO], hostile: str) -> None:
    backend = FakeBackend(failing(WorkerCrashed("signal 11")))
    with calling(backend) as caller:
        answers = [
            caller.get(f"/{hostile}"),
            caller.get(f"/v1/models/{hostile}"),
            caller.get(f"/v1/responses/{hostile}"),
            caller.post(f"/v1/chat/{hostile}", {}),
            caller.post("/v1/chat/completions", {"model": hostile, "messages": [{"role": "user", "content": "hi"}]}),
            caller.post("/v1/chat/completions", {"messages": [{"role": hostile, "content": "hi"}]}),
            caller.post(
                "/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "tool_choice": hostile}
            ),
            caller.post("/v1/responses", {"input": "hi", "previous_response_id": hostile}),
            caller.post("/v1/responses", {"input": "hi", "tools": [{"type": "function", "name": hostile}]}),
            caller.post("/v1/responses", {"input": "hi", "text": {"format": {"type": hostile}}}),
            caller.post("/api/show", {"model": hostile}),
            caller.post("/api/chat", {"model": hostile, "messages": [{"role": "user", "content": "hi"}]}),
            caller.post("/api/chat", json.dumps({"model": "fake", hostile: 1, "options": {"top_k": hostile}})),
        ]
        # An item of an unknown type becomes a text for the model, which fails here.
        reached = caller.post("/v1/responses", {"input": [{"type": hostile}]})
    assert reached.status == 503
    for answer in (*answers, reached):
        assert answer is reached or 400 <= answer.status < 500
        assert_harmless(answer.error()["message"])
        assert_harmless(answer.error()["param"] or "")
        for name, value in answer.headers.items():
            assert_harmless(name + value)
    assert_harmless_lines(lines)


async def test_headers_and_frames(lines: list[io.StringIO]) -> None:
    async with running(FakeBackend(failing(WorkerCrashed("signal 11")))) as daemon:
        host = "Host: 127.0.0.1:{port}"
        for hostile in HOSTILE:
            plain = hostile.replace("\r", "").replace("\n", "").encode().decode("latin-1")
            for name in ("Origin", "Referer", "User-Agent", "X-Request-Id", "Authorization"):
                reply = await get(daemon, host, f"{name}: {plain}")
                assert reply.status in (200, 400, 403)
                if reply.status != 200:
                    assert_harmless(str(reply.error()["message"]))
            assert (await get(daemon, f"Host: {plain}")).status in (400, 403)
        async with connect(f"ws://127.0.0.1:{daemon.port}/v1/responses") as socket:
            for hostile in HOSTILE:
                for fields in (
                    {"type": hostile},
                    {"type": "response.create", "stream_id": hostile, "input": "x"},
                    {"type": "response.create", "model": hostile, "input": "x"},
                    {"type": "response.create", "previous_response_id": hostile, "input": "x"},
                ):
                    await socket.send(json.dumps(fields))
                    event = json.loads(await socket.recv())
                    assert event["type"] == "error", event
                    assert_harmless(event["error"]["message"])
    assert_harmless_lines(lines)
