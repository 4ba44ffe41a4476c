"""Every wire tells a client that its request waits, and for how long; a request that is refused learns it too."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from edgeagent.errors import ContextLengthExceeded, DeadlineUnreachable
from edgeagent.router.router import Router
from edgeagent.types import AnswerSoFar, GenerateRequest, Permit, Queued, Sink, Started, Step, TextDelta
from tests.api.serving import validate_event
from tests.api.wire.test_placement import WIRES
from tests.backends.fake import FakeBackend, finished
from tests.daemon.running import running

EXPECTED = "x-edgeagent-expected-ms"


def script(_: GenerateRequest) -> tuple[Any, ...]:
    return Queued(2, 1.5), Started(7, 0), TextDelta("one"), finished()


@pytest.mark.parametrize("path", WIRES)
async def test_a_stream_says_so_first(path: str) -> None:
    async with running(Router([FakeBackend(script)])) as daemon:
        reply = await daemon.http.post(f"{daemon.url}{path}", json=WIRES[path] | {"stream": True})
        whole = await daemon.http.post(f"{daemon.url}{path}", json=WIRES[path] | {"stream": False})
    assert reply.headers[EXPECTED] == "1500"
    assert (whole.status_code, "one" in whole.text, "place" in whole.text) == (200, True, False)
    if path == "/v1/responses":
        events = [json.loads(line.removeprefix("data: ")) for line in reply.text.splitlines() if "data: {" in line]
        for event in events:
            validate_event(event)
        kinds = [event["type"].removeprefix("response.") for event in events]
        assert kinds[:3] == ["created", "queued", "in_progress"]
        assert events[1]["edgeagent"] == {"place": 2, "expected_ms": 1500.0}
        assert [event["response"]["status"] for event in events[:3]] == ["queued", "queued", "in_progress"]
        assert "edgeagent" not in events[2]["response"]
    elif path.startswith("/api/"):
        assert "place" not in reply.text, "lines have no comments"
    else:
        assert reply.text.startswith(": queued place=2 expected_ms=1500.0\n\n")


@pytest.mark.parametrize("path", WIRES)
async def test_what_is_refused_while_it_waits_keeps_its_status(path: str) -> None:
    class Busy(FakeBackend):
        async def generate(
            self,
            request: GenerateRequest,
            sink: Sink,
            permit: Permit | None = None,
            so_far: AnswerSoFar | None = None,
        ) -> None:
            sink.put(Step((Queued(2, 1.5),)))
            await asyncio.sleep(0.01)
            raise ContextLengthExceeded("too long", param="input")

    async with running(Router([Busy()])) as daemon:
        reply = await daemon.http.post(f"{daemon.url}{path}", json=WIRES[path] | {"stream": True})
    assert (reply.status_code, "too long" in reply.text) == (400, True)


@pytest.mark.parametrize("path", WIRES)
async def test_a_refusal_says_when(path: str) -> None:
    def refuse(_: GenerateRequest) -> tuple[Any, ...]:
        return (DeadlineUnreachable.predicted(4.2, 2.0),)

    async with running(Router([FakeBackend(refuse)])) as daemon:
        reply = await daemon.http.post(f"{daemon.url}{path}", json=WIRES[path])
    assert (reply.headers["retry-after"], reply.headers[EXPECTED]) == ("3", "4200")
    if path.startswith("/api/"):
        assert reply.status_code == 503
        return
    assert (reply.status_code, reply.json()["error"]["code"]) == (429, "deadline_unreachable")
    assert "expected in 4200 ms and must come within 2000 ms" in reply.json()["error"]["message"]
