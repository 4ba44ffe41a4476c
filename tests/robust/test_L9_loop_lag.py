"""L9: nothing large runs on the event loop: whatever clients send, the loop is never late for long."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from edgeagent.config import Config, StoreConfig
from edgeagent.store.library import Library
from edgeagent.types import Started, TextDelta
from tests.backends.fake import FakeBackend, finished
from tests.daemon.running import limited, running
from tests.robust.frames import FIN, TEXT, open_websocket
from tests.robust.lag import assert_in_time, assert_never_late, post

MIB = 1 << 20


def brief() -> FakeBackend:
    """Return a backend with short answers, since the requests are long enough."""
    return FakeBackend(lambda _: (Started(1, 0), TextDelta("one"), finished()))


def largest_tools(*, is_flat: bool = False) -> list[dict[str, Any]]:
    """Return the most and largest tools that are accepted: in a chat completion's form, or flat, as in a create."""
    # 32,768 objects may be in a body, and a schema may have 64 KiB.
    field = {"type": "string", "description": "d" * 200}
    schema = {"type": "object", "properties": {f"field{number}": field for number in range(250)}}
    tools = [{"name": f"f{number}", "parameters": schema} for number in range(128)]
    return [{"type": "function", **(tool if is_flat else {"function": tool})} for tool in tools]


def body(**fields: object) -> bytes:
    """Return a chat completion's body."""
    return json.dumps({"messages": [{"role": "user", "content": "x"}], **fields}).encode()


BODIES: dict[str, Callable[[], bytes]] = {
    "a long text": lambda: body(messages=[{"role": "user", "content": "word " * (7 * MIB // 5)}]),
    "many messages": lambda: body(messages=[{"role": "user", "content": "x" * 1800}] * 4096),
    "large tools": lambda: body(tools=largest_tools()),
    "too many objects": lambda: body(messages=[{"role": "user", "content": [{"type": "text", "text": "x"}] * 80_000}]),
    "many values": lambda: b"[" + b"0," * 249_000 + b"0]",
    "too many values": lambda: b"[" + b"0," * (4 * MIB - 8) + b"0]",
    "too deep": lambda: b"[" * (8 * MIB - 1),
    "escapes": lambda: b'{"messages": "' + b"\\u00e9" * MIB + b'"}',
    "keys": lambda: json.dumps({f"key{number}": number for number in range(240_000)}).encode(),
}
FRAMES: dict[str, Callable[[], dict[str, object]]] = {
    "a long text": lambda: {"input": "word " * (3 * MIB)},
    "large tools": lambda: {"input": "x", "tools": largest_tools(is_flat=True)},
    "many items": lambda: {"input": [{"role": "user", "content": "x" * 3000}] * 4096},
}


@pytest.mark.alone
@pytest.mark.parametrize("name", BODIES)
async def test_bodies(name: str) -> None:
    sent = BODIES[name]()
    async with running(brief()) as daemon:

        async def act() -> None:
            status = await asyncio.to_thread(post, daemon.port, "/v1/chat/completions", sent)
            assert status in (200, 400, 413)

        await assert_never_late(act)


@pytest.mark.alone
@pytest.mark.parametrize("name", FRAMES)
async def test_frames(name: str) -> None:
    payload = json.dumps({"type": "response.create", "store": False, **FRAMES[name]()}).encode()
    # A mask of zeros saves the client the masking.
    sent = bytes([FIN | TEXT, 0xFF]) + struct.pack("!Q", len(payload)) + bytes(4) + payload
    config = limited(max_frame_bytes=16 * MIB)
    async with running(brief(), config) as daemon:

        async def act() -> None:
            peer = await open_websocket(daemon)
            peer.send(sent)
            while json.loads((await peer.receive())[1])["type"] not in ("response.completed", "error"):
                pass
            peer.writer.transport.abort()

        await assert_never_late(act)


@pytest.mark.alone
async def test_looking_at_models_and_checking_them(tmp_path: Path) -> None:
    """Threads hash a large file and read the folder of models."""
    content = b"GGUF" + bytes(100 * MIB)
    digest = await asyncio.to_thread(lambda: hashlib.sha256(content).hexdigest())
    repo = tmp_path / "models" / "models--org--repo"
    snapshot = repo / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (repo / "blobs").mkdir()
    (repo / "blobs" / digest).write_bytes(content)
    (snapshot / "model-Q4_0.gguf").symlink_to(repo / "blobs" / digest)
    store, numbers = StoreConfig(models_dir=tmp_path / "models"), itertools.count()
    async with running(brief(), Config(store=store, state_dir=tmp_path / "state")) as daemon:

        async def act() -> None:
            # A verified hash is remembered in the state folder, so each check has its own.
            checking = asyncio.to_thread(Library(store, tmp_path / f"state{next(numbers)}").resolve, "org/repo:Q4_0")
            asking = asyncio.to_thread(partial(post, daemon.port, "/api/show", b'{"model": "org/repo:Q4_0"}'))
            found, _ = await asyncio.gather(checking, asking)
            assert found.name == "org/repo:Q4_0"

        await assert_in_time(act)
