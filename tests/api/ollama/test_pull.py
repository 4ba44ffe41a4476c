"""Models pulled through Ollama's API from a hub."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from edgeagent.config import Config, StoreConfig
from edgeagent.store.hub import pull
from edgeagent.store.hub.pull import Puller
from edgeagent.types import ModelStatus, WorkerState
from tests.api.ollama.requests import body_of, error_of, lines_of, post
from tests.backends.fake import FakeBackend
from tests.daemon.running import Running, running
from tests.hub_server import HubServer, hub_server, sha256
from tests.store.gguf_bytes import small_model

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    from huggingface_hub import close_session

    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    close_session()
    with hub_server() as server:
        monkeypatch.setattr(pull, "Puller", partial(Puller, endpoint=server.url))
        yield server
        close_session()


class TestPull:
    MODEL = small_model(1, 200_000)
    NAME = "org/model-GGUF"

    @pytest_asyncio.fixture(loop_scope="module")
    async def puller(self, tmp_path: Path) -> AsyncIterator[Running]:
        store = StoreConfig(models_dir=tmp_path / "models", min_free_bytes=0)
        async with running(FakeBackend(), Config(model="fake", state_dir=tmp_path, store=store)) as daemon:
            yield daemon

    async def test_progress_as_lines(self, hub: HubServer, puller: Running) -> None:
        hub.add(self.NAME, {"model-Q4_K_M.gguf": self.MODEL})
        first, *others, last = await lines_of(puller, "pull", model=f"{self.NAME}:latest")
        assert (first, last) == ({"status": "pulling manifest"}, {"status": "success"})
        digest = sha256(self.MODEL)
        downloads = [each for each in others if "digest" in each]
        assert {each["digest"] for each in downloads} <= {f"sha256:{digest}"}
        assert {each["total"] for each in downloads} <= {len(self.MODEL)}
        models = (await puller.http.get(f"{puller.url}/api/tags")).json()["models"]
        [pulled] = [model for model in models if model["name"] == f"{self.NAME}:Q4_K_M"]
        assert (pulled["digest"], pulled["size"]) == (digest, len(self.MODEL))

    async def test_one_body(self, hub: HubServer, puller: Running) -> None:
        hub.add(self.NAME, {"model-Q4_K_M.gguf": self.MODEL})
        assert await body_of(puller, "pull", model=None, name=self.NAME) == {"status": "success"}

    async def test_what_is_served_needs_no_hub(self, daemon: Running) -> None:
        lines = await lines_of(daemon, "pull", model="fake:latest")
        assert lines == [{"status": "pulling manifest"}, {"status": "success"}]

    async def test_a_model_of_a_remote_is_pulled(self, hub: HubServer, tmp_path: Path) -> None:
        hub.add(self.NAME, {"model-Q4_K_M.gguf": self.MODEL})
        backend = FakeBackend(models=(self.NAME,))
        there = ModelStatus(self.NAME, WorkerState.READY, is_remote=True)
        backend.statuses = lambda: [there]  # type: ignore[method-assign]
        store = StoreConfig(models_dir=tmp_path / "models", min_free_bytes=0)
        async with running(backend, Config(model="fake", state_dir=tmp_path, store=store)) as daemon:
            assert (await lines_of(daemon, "pull", model=self.NAME))[-1] == {"status": "success"}
        [file] = (tmp_path / "models").rglob("*.gguf")
        assert file.read_bytes() == self.MODEL

    async def test_failures(self, hub: HubServer, puller: Running) -> None:
        _, last = await lines_of(puller, "pull", model="org/nothing")
        assert set(last) == {"error"} and "org/nothing" in last["error"]
        assert "org/nothing" in await error_of(puller, "pull", 404, model="org/nothing", stream=False)
        assert "path" in await error_of(puller, "pull", 400, model="/etc/passwd", stream=False)

    async def test_one_at_a_time_until_its_client_leaves(self, hub: HubServer, puller: Running) -> None:
        hub.add(self.NAME, {"model-Q4_K_M.gguf": self.MODEL})
        hub.faults.hold_after = 100_000
        async with puller.http.stream("POST", f"{puller.url}/api/pull", json={"model": self.NAME}) as reply:
            lines = reply.aiter_lines()
            while "completed" not in (line := json.loads(await anext(lines))):
                pass
            assert 0 <= line["completed"] < line["total"]
            assert "another model" in await error_of(puller, "pull", 503, model="org/other", stream=False)
        hub.faults.hold_after = None
        hub.release.set()
        # The next progress line ends the first pull. Then another may start, and it continues where the first one
        # stopped.
        while (await post(puller, "pull", model=self.NAME, stream=False)).status_code == 503:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        models = (await puller.http.get(f"{puller.url}/api/tags")).json()["models"]
        assert sha256(self.MODEL) in [model["digest"] for model in models]
