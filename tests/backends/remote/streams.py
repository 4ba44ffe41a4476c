"""Byte streams as real engines send them, and the result of reading one, however it is cut."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from edgeagent.backends.remote.answer import ChatReader
from edgeagent.backends.remote.failures import Failure
from edgeagent.service.client_sink import merge_steps
from edgeagent.types import Delta, Step

DONE = b"data: [DONE]\n\n"


def event(body: dict[str, Any], name: str = "") -> bytes:
    """Return one event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(body, ensure_ascii=False)}\n\n".encode()


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> bytes:
    """Return a chat completion chunk as vLLM sends it."""
    choice = {"index": 0, "delta": delta or {}, "logprobs": None, "finish_reason": finish}
    body = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "tiny", "choices": [choice]}
    return event(body | more)


def usage(prompt: int = 7, output: int = 3, cached: int = 0) -> bytes:
    """Return the chunk that carries usage and no choice."""
    counts = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    return event(
        {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "model": "tiny",
            "choices": [],
            "usage": counts | {"prompt_tokens_details": {"cached_tokens": cached}},
        }
    )


ROLE = chunk({"role": "assistant", "content": ""})


def answer(*texts: str, finish: str = "stop") -> bytes:
    """Return a whole chat stream of these texts."""
    return b"".join(
        [ROLE, *(chunk({"content": text}) for text in texts), chunk(finish=finish), usage(output=len(texts)), DONE]
    )


# Observed with vLLM 0.32 over its limit: HTTP 200 and these bytes.
OVERLOADED = (
    b'data: {"error":{"message":"The server is overloaded: too many queued requests","type":"Service Unavailable",'
    b'"param":null,"code":503}}\n\ndata: [DONE]\n\n'
)


def cut(stream: bytes, places: Iterable[int]) -> list[bytes]:
    """Return the stream in pieces."""
    bounds = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    return [stream[start:end] for start, end in pairwise(bounds)]


def read(reader: ChatReader, pieces: Iterable[bytes]) -> tuple[tuple[Delta, ...], Failure | None]:
    """Return all deltas that a reader produces from a stream, joined, and the failure if there is one."""
    deltas: list[Delta] = []
    try:
        for piece in pieces:
            deltas += reader.feed(piece)
            if reader.fault is not None:
                break
        deltas += reader.end()
    except Failure as failure:
        return _joined(deltas), failure
    return _joined(deltas), None


def _joined(deltas: list[Delta]) -> tuple[Delta, ...]:
    return merge_steps([Step(tuple(deltas))]).deltas if deltas else ()
