"""L9: nothing large is done on the event loop: no callback of it works for long, whatever clients send."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from edgeagent.backends.fake import FakeBackend
from edgeagent.config import Config, ServerConfig, StoreConfig
from edgeagent.store.resolve import Library
from tests.daemon.running import Running, running

# Of this thread's own work. The list of attacks says 0.25 on a quiet machine; this is four times as much.
MAX_CALLBACK_S = 1.0
MIB = 1 << 20


@pytest.fixture
def works(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Provide how long each callback of the event loop worked."""
    durations: list[float] = []
    run = asyncio.Handle._run

    def timed(self: asyncio.Handle) -> None:
        started_s = time.thread_time()
        run(self)
        durations.append(time.thread_time() - started_s)

    monkeypatch.setattr(asyncio.Handle, "_run", timed)
    yield durations


def assert_short(durations: list[float]) -> None:
    """Fail where a callback held the others up."""
    assert max(durations) <= MAX_CALLBACK_S, sorted(durations)[-5:]


async def post(daemon: Running, path: str, body: object) -> int:
    """Send a body; return the status."""
    content = await asyncio.to_thread(lambda: body if isinstance(body, bytes) else json.dumps(body).encode())
    headers = {"content-type": "application/json"}
    return (await daemon.http.post(f"{daemon.url}{path}", content=content, headers=headers, timeout=60)).status_code


def largest_tools() -> list[dict[str, Any]]:
    """Return as many tools as large as are taken."""
    schema = {"type": "object", "properties": {f"field{number}": {"type": "string"} for number in range(1500)}}
    return [{"type": "function", "function": {"name": f"f{number}", "parameters": schema}} for number in range(128)]


BODIES: dict[str, Any] = {
    "a long text": {"messages": [{"role": "user", "content": "word " * (7 * MIB // 5)}]},
    "many messages": {"messages": [{"role": "user", "content": "x" * 1800}] * 4096},
    "large tools": {"messages": [{"role": "user", "content": "x"}], "tools": largest_tools()},
    "many values": b"[" + b"0," * 249_000 + b"0]",
    "too many values": b"[" + b"0," * (4 * MIB - 8) + b"0]",
    "too deep": b"[" * (8 * MIB - 1),
    "escapes": b'{"messages": "' + b"\\u00e9" * MIB + b'"}',
    "keys": json.dumps({f"key{number}": number for number in range(240_000)}).encode(),
}


@pytest.mark.parametrize("name", BODIES)
async def test_bodies(works: list[float], name: str) -> None:
    async with running(FakeBackend(lambda _: ())) as daemon:
        assert await post(daemon, "/v1/chat/completions", BODIES[name]) in (200, 400, 413, 500)
    assert_short(works)


async def test_frames(works: list[float]) -> None:
    config = Config(server=ServerConfig(max_frame_bytes=16 * MIB))
    text = json.dumps({"type": "response.create", "input": "word " * (3 * MIB)})
    async with running(FakeBackend(), config) as daemon, connect(f"ws://127.0.0.1:{daemon.port}/v1") as socket:
        await socket.send(text)
        assert json.loads(await socket.recv())["type"] in ("response.created", "error")
    assert_short(works)


async def test_looking_at_models_and_checking_them(works: list[float], tmp_path: Path) -> None:
    """A large file is hashed, and the folder of models read, in threads."""
    content = b"GGUF" + bytes(100 * MIB)
    digest = await asyncio.to_thread(lambda: hashlib.sha256(content).hexdigest())
    repo = tmp_path / "models" / "models--org--repo"
    snapshot = repo / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (repo / "blobs").mkdir()
    (repo / "blobs" / digest).write_bytes(content)
    (snapshot / "model-Q4_0.gguf").symlink_to(repo / "blobs" / digest)
    store = StoreConfig(models_dir=tmp_path / "models")
    async with running(FakeBackend(), Config(store=store, state_dir=tmp_path / "state")) as daemon:
        checking = asyncio.create_task(asyncio.to_thread(Library(store, tmp_path / "state").resolve, "org/repo:Q4_0"))
        while not checking.done():
            assert (await daemon.http.get(f"{daemon.url}/api/tags")).status_code == 200
        assert (await checking).name == "org/repo:Q4_0"
    assert_short(works)
