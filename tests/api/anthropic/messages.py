"""What the tests of Anthropic's API send, and how they read streams."""

from __future__ import annotations

import json
from typing import Any

import httpx

from tests.daemon.running import Running

HI: list[Any] = [{"role": "user", "content": "hello big world"}]
WEATHER: Any = {
    "name": "weather",
    "description": "now",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


async def post(daemon: Running, path: str = "", **fields: Any) -> httpx.Response:
    """Send a message; with `path`, a request to a route below."""
    least = {"model": "fake", "messages": HI} | ({} if path else {"max_tokens": 64})
    return await daemon.http.post(f"{daemon.url}/v1/messages{path}?beta=true", json=least | fields)


async def body_of(daemon: Running, **fields: Any) -> dict[str, Any]:
    """Return a whole message."""
    reply = await post(daemon, **fields)
    assert (reply.status_code, reply.headers["content-type"]) == (200, "application/json"), reply.text
    body: dict[str, Any] = reply.json()
    return body


async def events_of(daemon: Running, **fields: Any) -> list[dict[str, Any]]:
    """Return a stream's events after checking its framing."""
    reply = await post(daemon, stream=True, **fields)
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    return read_events(reply.text)


def read_events(text: str) -> list[dict[str, Any]]:
    """Return the events of a stream's text; the name of each is its type."""
    *frames, rest = text.split("\n\n")
    assert rest == ""
    events = []
    for frame in frames:
        name, data = frame.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


async def error_of(daemon: Running, status: int, path: str = "", **fields: Any) -> dict[str, Any]:
    """Return the error of a refusal after checking its form."""
    reply = await post(daemon, path, **fields)
    assert reply.status_code == status, reply.text
    return read_error(reply)


def read_error(reply: httpx.Response) -> dict[str, Any]:
    """Return the error in an answer after checking its form."""
    refusal = reply.json()
    assert (set(refusal), refusal["type"]) == ({"type", "error", "request_id"}, "error")
    assert refusal["request_id"] == reply.headers["request-id"] == reply.headers["x-request-id"]
    error: dict[str, Any] = refusal["error"]
    assert set(error) == {"type", "message", "details"}
    return error
