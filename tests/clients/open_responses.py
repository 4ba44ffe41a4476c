"""The cases of Open Responses' compliance suite, by its ids, over HTTP and the WebSocket.

The suite itself runs under bun from its repository, and no package registry has it. These cases are the same, written
from the requests and checks that it is known to make. Where the suite checks a schema, these check the required fields.
"""

from __future__ import annotations

import json
from typing import Any

import httpx
from cases import ASK_TIMER, BASE_URL, KEY, MODEL, TIMER, URL, case, main
from websockets.asyncio.client import connect

HEADERS = {"authorization": f"Bearer {KEY}"}
WS_URL = f"{URL.replace('http', 'ws', 1)}/v1/responses"
TERMINAL = ("response.completed", "response.failed", "response.incomplete")
TOOL = {"type": "function", "name": "set_timer", "description": "Set a timer.", "parameters": TIMER, "strict": True}
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5Erk"
    "Jggg=="
)
# fmt: off
REQUIRED = {
    "id", "object", "created_at", "completed_at", "status", "incomplete_details",
    "model", "previous_response_id", "instructions", "output", "error", "tools",
    "tool_choice", "truncation", "parallel_tool_calls", "text", "top_p", "presence_penalty",
    "frequency_penalty", "top_logprobs", "temperature", "reasoning", "usage", "max_output_tokens",
    "max_tool_calls", "store", "background", "service_tier", "metadata", "safety_identifier",
    "prompt_cache_key",
}
# fmt: on
ITEM_FIELDS = {
    "message": {"id", "type", "status", "role", "content"},
    "function_call": {"id", "type", "call_id", "name", "arguments", "status"},
}


def check_response(response: dict[str, Any], status: str = "completed") -> dict[str, Any]:
    """Assert that a response has every required field with the right type; return it."""
    missing = REQUIRED - response.keys()
    assert not missing, missing
    assert (response["object"], response["status"]) == ("response", status), response["status"]
    assert isinstance(response["created_at"], int) and isinstance(response["metadata"], dict)
    for name in ("top_p", "temperature", "presence_penalty", "frequency_penalty"):
        assert isinstance(response[name], int | float), name
    assert response["truncation"] in ("auto", "disabled") and isinstance(response["service_tier"], str)
    for item in response["output"]:
        lacking = ITEM_FIELDS.get(item["type"], set()) - item.keys()
        assert not lacking, lacking
        for part in item.get("content", []):
            assert {"type", "text", "annotations", "logprobs"} <= part.keys(), part
    if status == "completed":
        usage = response["usage"]
        assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
        assert {"cached_tokens"} <= usage["input_tokens_details"].keys()
        assert {"reasoning_tokens"} <= usage["output_tokens_details"].keys()
    return response


def check_events(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Assert that a stream's events are in order; return its last response."""
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"], kinds
    assert kinds[-1] in TERMINAL and sum(kind in TERMINAL for kind in kinds) == 1, kinds
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    text: dict[str, str] = {}
    for event in events:
        if event["type"] == "response.output_text.delta":
            text[event["item_id"]] = text.get(event["item_id"], "") + event["delta"]
    final: dict[str, Any] = events[-1]["response"]
    said = {item["id"]: "".join(p["text"] for p in item["content"]) for item in final["output"] if "content" in item}
    assert text == {name: words for name, words in said.items() if words}
    return final


async def post(path: str = "/responses", **fields: Any) -> httpx.Response:
    """Send a body to a route below /v1."""
    async with httpx.AsyncClient(base_url=BASE_URL, headers=HEADERS, timeout=60) as client:
        return await client.post(path, json=fields)


async def create(**fields: Any) -> dict[str, Any]:
    """Return a completed response."""
    answer = await post(model=MODEL, **fields)
    assert answer.status_code == 200, answer.text
    return check_response(answer.json())


async def stream(**fields: Any) -> list[dict[str, Any]]:
    """Return the events of a stream over HTTP."""
    events: list[dict[str, Any]] = []
    body = {"model": MODEL, "stream": True, **fields}
    async with (
        httpx.AsyncClient(base_url=BASE_URL, headers=HEADERS, timeout=60) as client,
        client.stream("POST", "/responses", json=body) as answer,
    ):
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
        lines = [line async for line in answer.aiter_lines() if line and not line.startswith(":")]
    assert lines.pop() == "data: [DONE]"
    for name, data in zip(lines[::2], lines[1::2], strict=True):
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


async def turn(socket: Any, **fields: Any) -> list[dict[str, Any]]:
    """Return the events of one turn on a WebSocket."""
    await socket.send(json.dumps({"type": "response.create", "model": MODEL, **fields}))
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] not in (*TERMINAL, "error"):
        events.append(json.loads(await socket.recv()))
    return events


async def said(socket: Any, **fields: Any) -> dict[str, Any]:
    """Return the completed response of one turn on a WebSocket."""
    return check_response(check_events(await turn(socket, **fields)))


async def refused(socket: Any, code: str, **fields: Any) -> None:
    """Assert that a turn is refused with a code, in the envelope that clients parse."""
    (event,) = await turn(socket, **fields)
    assert event["type"] == "error" and isinstance(event["status"], int) and event["error"]["code"] == code, event


def words(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] for part in item.get("content", []))


@case("basic-response")
async def _() -> None:
    assert words(await create(input="Hello!"))


@case("assistant-phase")
async def _() -> None:
    history = [
        {"type": "message", "role": "user", "content": "Hello!"},
        {"type": "message", "role": "assistant", "phase": "commentary", "content": "Let me see."},
        {"type": "message", "role": "assistant", "phase": "final_answer", "content": "Hello! What can I do?"},
        {"type": "message", "role": "user", "content": "What can you do?"},
    ]
    assert words(await create(input=history))


@case("response-output-phase-schema")
async def _() -> None:
    (message,) = (await create(input="Hello!"))["output"]
    assert message.get("phase") in (None, "commentary", "final_answer")


@case("streaming-response")
async def _() -> None:
    assert words(check_response(check_events(await stream(input="Hello!"))))


@case("system-prompt")
async def _() -> None:
    history = [{"role": "system", "content": "You are a kiosk."}, {"role": "user", "content": "Hello!"}]
    assert words(await create(input=history))


@case("tool-calling")
async def _() -> None:
    (call,) = (await create(input=ASK_TIMER, tools=[TOOL], tool_choice="required"))["output"]
    assert call["type"] == "function_call" and isinstance(json.loads(call["arguments"])["minutes"], int)


@case("tool-calling-streaming")
async def _() -> None:
    events = await stream(input=ASK_TIMER, tools=[TOOL], tool_choice="required")
    (call,) = check_response(check_events(events))["output"]
    deltas = [e["delta"] for e in events if e["type"] == "response.function_call_arguments.delta"]
    assert "".join(deltas) == call["arguments"]


@case("image-input (refused by name)")
async def _() -> None:
    part = {"type": "input_image", "image_url": PIXEL, "detail": "auto"}
    content = [{"type": "input_text", "text": "What is this?"}, part]
    answer = await post(model=MODEL, input=[{"role": "user", "content": content}])
    assert answer.status_code == 400 and "image" in answer.json()["error"]["message"], answer.text


@case("file-input (refused by name)")
async def _() -> None:
    content = [{"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,aGVsbG8="}]
    answer = await post(model=MODEL, input=[{"role": "user", "content": content}])
    assert answer.status_code == 400 and "file" in answer.json()["error"]["message"], answer.text


@case("multi-turn")
async def _() -> None:
    history = [
        {"role": "user", "content": "My name is Robin."},
        {"role": "assistant", "content": "Hello, Robin!"},
        {"role": "user", "content": "What is my name?"},
    ]
    assert words(await create(input=history))


@case("compact-response")
async def _() -> None:
    history = [{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "Hello! What can I do?"}]
    answer = await post("/responses/compact", model=MODEL, input=history)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["object"] == "response.compaction" and "usage" in body
    (item,) = [item for item in body["output"] if item["type"] == "compaction"]
    assert item["id"] and item["encrypted_content"]
    assert words(await create(input=[*body["output"], {"role": "user", "content": "What can you do?"}]))


@case("compact-missing-model")
async def _() -> None:
    answer = await post("/responses/compact", input="Hello!")
    assert answer.status_code in (400, 422) and answer.json()["error"]["message"], answer.text


@case("websocket-response")
async def _() -> None:
    async with connect(WS_URL, additional_headers=HEADERS) as socket:
        assert words(await said(socket, input="Hello!"))


@case("websocket-sequential-responses")
async def _() -> None:
    async with connect(WS_URL, additional_headers=HEADERS) as socket:
        first, second = await said(socket, input="Hello!"), await said(socket, input="Thanks!")
    assert first["id"] != second["id"] and words(first) and words(second)


@case("websocket-continuation")
async def _() -> None:
    async with connect(WS_URL, additional_headers=HEADERS) as socket:
        first = await said(socket, input="Hello!", store=False)
        second = await said(socket, input="What can you do?", store=False, previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]


@case("websocket-reconnect-store-false-recovery")
async def _() -> None:
    async with connect(WS_URL, additional_headers=HEADERS) as socket:
        first = await said(socket, input="Hello!", store=False)
    async with connect(WS_URL, additional_headers=HEADERS) as socket:
        await refused(socket, "previous_response_not_found", input="Thanks!", previous_response_id=first["id"])
        assert words(await said(socket, input="Hello!", store=False))


@case("websocket-previous-response-not-found")
async def _() -> None:
    async with connect(WS_URL, additional_headers=HEADERS) as socket:
        await refused(socket, "previous_response_not_found", input="Hello!", previous_response_id="resp_none")


@case("websocket-failed-continuation-evicts-cache")
async def _() -> None:
    async with connect(WS_URL, additional_headers=HEADERS) as socket:
        first = await said(socket, input="Hello!", store=False)
        orphan = [{"type": "function_call_output", "call_id": "call_none", "output": "done"}]
        (event,) = await turn(socket, input=orphan, store=False, previous_response_id=first["id"])
        assert event["type"] == "error" and 400 <= event["status"] < 500, event
        await refused(
            socket, "previous_response_not_found", input="Thanks!", store=False, previous_response_id=first["id"]
        )


@case("websocket-compact-new-chain")
async def _() -> None:
    history = [{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "Hello! What can I do?"}]
    compacted = (await post("/responses/compact", model=MODEL, input=history)).json()["output"]
    async with connect(WS_URL, additional_headers=HEADERS) as socket:
        first = await said(socket, input=[*compacted, {"role": "user", "content": "What can you do?"}], store=False)
        assert words(await said(socket, input="Thanks!", store=False, previous_response_id=first["id"]))


main()
