"""The same answers on each wire without golden files of its own: a file has all that one wire sends, by scenario.

`make golden` writes the files again; review the changes afterwards.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from tests.api.anthropic.test_messages import SCENARIOS, playing
from tests.api.serving import compare_golden
from tests.api.wyoming.test_server import ask, read, served
from tests.backends.fake import FakeBackend
from tests.daemon.running import Running

pytestmark = pytest.mark.asyncio(loop_scope="module")

GOLDEN = Path(__file__).parent / "golden"
RAW_TEXT = [name for name in SCENARIOS if name != "reasoning_text_calls"]  # it has no calls
SAID: Any = {"messages": [{"role": "user", "content": "hi"}]}
STREAM: Any = {"stream": True, "stream_options": {"include_usage": True}}
HTTP: dict[str, Any] = {
    "v1/chat/completions": (SCENARIOS, SAID | STREAM),
    "v1/completions": (RAW_TEXT, {"prompt": "hi"} | STREAM),
    "api/chat": (SCENARIOS, SAID),
    "api/generate": (RAW_TEXT, {"prompt": "hi"}),
    "completion": (RAW_TEXT, {"prompt": "hi"} | STREAM),
}


def parsed(frame: str) -> Any:
    """Return an event, or a frame that is none. A slow machine may miss its target, so the verdict is left out."""
    if not frame.startswith("{"):
        return frame
    return json.loads(frame, object_hook=lambda found: {name: found[name] for name in found if name != "slo"})


def compare(wire: str, answers: dict[str, list[Any]]) -> None:
    """Compare what a wire sent for each scenario with its golden file."""
    compare_golden(GOLDEN / f"{wire.replace('/', '_')}.json", [{name: events} for name, events in answers.items()])


@pytest.mark.parametrize("path", HTTP)
async def test_over_http(daemon: Running, backend: FakeBackend, path: str) -> None:
    scenarios, fields = HTTP[path]
    answers: dict[str, list[Any]] = {}
    for name in scenarios:
        backend.script = playing(*SCENARIOS[name])
        reply = await daemon.http.post(f"{daemon.url}/{path}", json={"model": "fake"} | fields)
        answers[name] = [parsed(line.removeprefix("data: ")) for line in reply.text.splitlines() if line]
    compare(path, answers)


async def test_realtime(daemon: Running, backend: FakeBackend) -> None:
    answers: dict[str, list[Any]] = {}
    for name, acts in SCENARIOS.items():
        backend.script = playing(*acts)
        async with connect(f"ws://127.0.0.1:{daemon.port}/v1/realtime") as socket:
            await socket.send(json.dumps({"type": "response.create", "response": {"instructions": "Greet."}}))
            events = answers[name] = [parsed(str(await socket.recv()))]
            while events[-1]["type"] != "response.done":
                events.append(parsed(str(await socket.recv())))
    compare("v1/realtime", answers)


async def test_wyoming() -> None:
    answers: dict[str, list[Any]] = {}
    for name, acts in SCENARIOS.items():
        async with served(FakeBackend(playing(*acts))) as daemon, daemon.client() as client:
            events = await ask(client, "hi", "c1")
            while events[0].type == "handled-start" and events[-1].type != "handled-stop":
                events.append(await read(client))
        answers[name] = [{"type": event.type, "data": event.data} for event in events]
    compare("wyoming", answers)
