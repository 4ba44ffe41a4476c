"""I6: no log line, metric, stack trace or error body holds the texts of clients or models, at any log level.

Every field that a client can fill holds a canary, valid or not, over both transports; backends answer with a canary,
fail with one, and print one as they die.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from edgeagent.types import GenerateRequest, ReasoningDelta, Started, TextDelta, ToolCallDelta, ToolCallStarted
from tests.backends.fake import Act, FakeBackend, finished
from tests.daemon.logged import logged
from tests.daemon.running import Running, running
from tests.patience import patient
from tests.stub_worker import SECRET
from tests.worker.support import Record, make_supervisor, request

CANARY = "c4n4ry"
SCHEMA = {"type": "object", "title": CANARY, "properties": {CANARY: {"enum": [CANARY]}}}
FUNCTION = {"name": f"tool_{CANARY}", "description": CANARY, "parameters": SCHEMA}
CALL = {"id": f"call_{CANARY}", "type": "function", "function": {"name": FUNCTION["name"], "arguments": f'"{CANARY}"'}}
CHAT: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": CANARY, "name": CANARY},
        {"role": "user", "content": [{"type": "text", "text": CANARY}]},
        {"role": "assistant", "content": CANARY, "reasoning_content": CANARY, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": CALL["id"], "content": CANARY},
    ],
    "tools": [{"type": "function", "function": FUNCTION}],
    "response_format": {"type": "json_schema", "json_schema": {"name": CANARY, "schema": SCHEMA}},
    "stop": [CANARY],
    "user": CANARY,
    "metadata": {CANARY: CANARY},
    "prompt_cache_key": CANARY,
}
CREATE: dict[str, Any] = {
    "input": [
        {"role": "user", "content": CANARY},
        {"type": "function_call", "call_id": CALL["id"], "name": FUNCTION["name"], "arguments": f'"{CANARY}"'},
        {"type": "function_call_output", "call_id": CALL["id"], "output": CANARY},
    ],
    "instructions": CANARY,
    "tools": [{"type": "function", **FUNCTION}],
    "text": {"format": {"type": "json_schema", "name": CANARY, "schema": SCHEMA}},
    "metadata": {CANARY: CANARY},
    "user": CANARY,
    "prompt_cache_key": CANARY,
    "safety_identifier": CANARY,
}
BODIES = [("/v1/chat/completions", CHAT), ("/v1/responses", CREATE)]


def answering(_request: GenerateRequest) -> Iterator[Act]:
    yield Started(3, 0)
    yield ReasoningDelta(CANARY)
    yield TextDelta(CANARY)
    yield ToolCallStarted(0, "call_1", f"tool_{CANARY}")
    yield ToolCallDelta(0, CANARY)
    yield finished()


def broken(_request: GenerateRequest) -> Iterator[Act]:
    yield Started(3, 0)
    yield TextDelta(CANARY)
    yield ValueError(CANARY)


def spoilt(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the body with one field at a time of a wrong type, and with an unknown field."""
    for name in body:
        yield {**body, name: {CANARY: [CANARY]}}
    yield {**body, CANARY: CANARY}


async def say_everything(server: Running) -> None:
    """Send every body, valid and invalid, over HTTP and the WebSocket."""
    headers = {"x-canary": CANARY, "user-agent": CANARY, "authorization": f"Bearer {CANARY}"}
    for path, body in BODIES:
        for each in (body, {**body, "stream": True}, *spoilt(body)):
            await server.http.post(f"{server.url}{path}", json=each, headers=headers)
        await server.http.post(
            f"{server.url}{path}", content=f'{{"{CANARY}', headers={"content-type": "application/json"}
        )
    await server.http.get(f"{server.url}/v1/models/{CANARY}?{CANARY}={CANARY}")
    async with connect(f"{server.url.replace('http', 'ws')}/v1/responses", additional_headers=headers) as socket:
        frames = [json.dumps({"type": "response.create", **each}) for each in (CREATE, *spoilt(CREATE))]
        for frame in (*frames, CANARY, f'{{"type": "{CANARY}"}}'):
            await socket.send(frame)
            ends = ("response.completed", "response.failed", "response.incomplete", "error")
            while json.loads(await asyncio.wait_for(socket.recv(), patient(60)))["type"] not in ends:
                pass
    async with connect(f"{server.url.replace('http', 'ws')}/v1/realtime", additional_headers=headers) as socket:
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": CANARY}], "id": CANARY}
        events: list[dict[str, Any]] = [
            {"type": "session.update", "session": {"instructions": CANARY, CANARY: CANARY}},
            *({"type": "conversation.item.create", "item": each} for each in (item, *spoilt(item))),
            *({"type": "conversation.item.delete", "item_id": each} for each in (f"{CANARY}2", CANARY)),
            {
                "type": "response.create",
                "response": {"input": [item], "metadata": {CANARY: CANARY}},
                "event_id": CANARY,
            },
        ]
        for event in events:
            await socket.send(json.dumps(event))
        while json.loads(await asyncio.wait_for(socket.recv(), patient(60)))["type"] != "response.done":
            pass


@pytest.mark.parametrize("form", ["console", "json"])
@pytest.mark.parametrize("script", [answering, broken])
async def test_neither_logs_nor_metrics_quote_anyone(script: Any, form: Any) -> None:
    with logged("debug", form) as log:
        async with running(FakeBackend(script)) as server:
            await say_everything(server)
            metrics = (await server.http.get(f"{server.url}/metrics")).text
    assert log.getvalue().count("generation ended") >= 6
    assert CANARY not in log.getvalue()
    assert CANARY not in metrics


async def test_errors_of_ours_quote_no_answer_and_bugs_say_nothing() -> None:
    async with running(FakeBackend(broken)) as server:
        for path, body in BODIES:
            response = await server.http.post(f"{server.url}{path}", json=body)
            assert response.status_code == 500
            assert CANARY not in response.text.replace(json.dumps(body), "")


@pytest.mark.parametrize("command", ["raise", "terminate", "assert", "garbage"])
async def test_a_worker_s_last_words_are_not_passed_on(command: str, tmp_path: Path) -> None:
    with logged("debug") as log:
        supervisor = make_supervisor(tmp_path / "lives")
        record = Record()
        supervisor.submit(request(f"{command} | answer 1"), record)
        await record.end()
        status = supervisor.status()
        await supervisor.stop()
    assert "died" in log.getvalue()
    assert SECRET not in log.getvalue()
    assert SECRET not in str(status)
