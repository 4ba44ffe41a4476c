"""POST /v1/models/pull, with the real huggingface_hub client and a local hub."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from edgeagent.config import Config, StoreConfig
from edgeagent.store.hub import pull
from edgeagent.store.hub.pull import Puller
from tests.backends.fake import FakeBackend
from tests.daemon.running import Running, running
from tests.hub_server import HubServer, hub_server, sha256
from tests.store.gguf_bytes import small_model

MODEL = small_model(1, 200_000)
NAME = "org/model-GGUF"
TARGET, DRAFT = "Qwen/Qwen3-1.7B-GGUF", "Qwen/Qwen3-0.6B-GGUF"

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    from huggingface_hub import close_session

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    close_session()
    with hub_server() as server:
        server.add(NAME, {"model-Q4_K_M.gguf": MODEL})
        monkeypatch.setattr(pull, "Puller", partial(Puller, endpoint=server.url))
        yield server
        close_session()


@pytest_asyncio.fixture(loop_scope="module")
async def daemon(tmp_path: Path) -> AsyncIterator[Running]:
    store = StoreConfig(models_dir=tmp_path / "models", min_free_bytes=0)
    async with running(FakeBackend(), Config(model="fake", state_dir=tmp_path, store=store)) as daemon:
        yield daemon


async def events(daemon: Running, **body: Any) -> list[dict[str, Any]]:
    """Return a stream's events after checking its end."""
    reply = await daemon.http.post(f"{daemon.url}/v1/models/pull", json=body)
    assert (reply.status_code, reply.headers["content-type"]) == (200, "text/event-stream; charset=utf-8"), reply.text
    *parts, last = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]
    assert last == "[DONE]"
    return [json.loads(part) for part in parts]


async def test_progress_as_events(hub: HubServer, daemon: Running) -> None:
    *steps, last = await events(daemon, model=NAME)
    assert last == {
        "object": "model.pull",
        "id": f"{NAME}:Q4_K_M",
        "size_bytes": len(MODEL),
        "downloaded_bytes": len(MODEL),
        "is_current": True,
        "draft": None,
    }
    assert steps and {step["object"] for step in steps} == {"model.pull.progress"}
    assert {(step["sha256"], step["total_bytes"]) for step in steps} == {(sha256(MODEL), len(MODEL))}
    assert {"stage", "file", "done_bytes", "resumed_bytes"} <= set(steps[0])


async def test_one_answer(hub: HubServer, daemon: Running) -> None:
    for downloaded in (len(MODEL), 0):
        reply = await daemon.http.post(f"{daemon.url}/v1/models/pull", json={"model": NAME, "stream": False})
        assert (reply.status_code, reply.json()["downloaded_bytes"]) == (200, downloaded)


async def test_a_target_comes_with_its_draft(hub: HubServer, daemon: Running) -> None:
    hub.add(TARGET, {"Qwen3-1.7B-Q8_0.gguf": MODEL})
    # The draft cannot be downloaded, and the target is still pulled.
    assert (await events(daemon, model="qwen3:1.7b"))[-1]["draft"] is None
    hub.add(DRAFT, {"Qwen3-0.6B-Q8_0.gguf": small_model(2)})
    assert (await events(daemon, model="qwen3:1.7b", draft=False))[-1]["draft"] is None
    last = (await events(daemon, model="qwen3:1.7b"))[-1]
    assert (last["id"], last["draft"]["id"]) == ("qwen3-1.7b", "qwen3-0.6b")


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"model": "org/nothing"}, 404, "has no repository org/nothing"),
        ({"model": "/etc/passwd"}, 400, "is a path"),
        ({}, 400, "model"),
        ({"model": NAME, "stream": "maybe"}, 400, "stream"),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_refusals_have_a_status(
    hub: HubServer, daemon: Running, body: dict[str, Any], status: int, text: str, stream: bool
) -> None:
    reply = await daemon.http.post(f"{daemon.url}/v1/models/pull", json={"stream": stream} | body)
    assert reply.status_code == status and text in reply.json()["error"]["message"]
