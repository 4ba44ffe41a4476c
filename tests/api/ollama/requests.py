"""Requests to the Ollama API as bytes, with the framing of each answer checked."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx

from tests.backends.fake import Act
from tests.daemon.running import Running

HI = [{"role": "user", "content": "hello big world"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")
RFC3339 = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


async def post(daemon: Running, path: str, **fields: Any) -> httpx.Response:
    return await daemon.http.post(f"{daemon.url}/api/{path}", json=fields)


async def body_of(daemon: Running, path: str, **fields: Any) -> dict[str, Any]:
    """Return the document of an answer that is one body."""
    reply = await post(daemon, path, **({"model": "fake", "stream": False} | fields))
    assert (reply.status_code, reply.headers["content-type"]) == (200, "application/json"), reply.text
    body: dict[str, Any] = reply.json()
    return body


async def lines_of(daemon: Running, path: str, **fields: Any) -> list[dict[str, Any]]:
    """Return a stream's documents after checking their framing."""
    reply = await post(daemon, path, **({"model": "fake"} | fields))
    assert (reply.status_code, reply.headers["content-type"]) == (200, "application/x-ndjson"), reply.text
    *lines, rest = reply.text.split("\n")
    assert rest == "" and all(lines)
    return [json.loads(line) for line in lines]


async def error_of(daemon: Running, path: str, status: int, **fields: Any) -> str:
    """Return the error text of a refusal."""
    reply = await post(daemon, path, **({"model": "fake"} | fields))
    assert reply.status_code == status, reply.text
    body = reply.json()
    assert set(body) == {"error"} and isinstance(body["error"], str)
    error: str = body["error"]
    return error


def playing(*acts: Act) -> Any:
    return lambda _request: acts


def check_end(document: dict[str, Any], reason: str = "stop") -> None:
    assert (document["done"], document["done_reason"]) == (True, reason)
    assert all(type(document[name]) is int and document[name] >= 0 for name in DURATIONS)
    assert RFC3339.fullmatch(document["created_at"])
